//! Noise of a real run: how much longer or shorter than usual each rank computed in each step, drawn anew in blocks.
//!
//! A file has a line for each step, and on it a factor for each rank. Blocks of neighbouring steps are drawn, for all ranks the
//! same (Künsch 1989), so that what steps and ranks have in common is kept.

use std::path::Path;

use crate::TrainError;
use crate::data::Draw;

/// Steps of a block.
const BLOCK: usize = 25;

/// Its stream of random numbers.
const NOISE: u64 = 0x401e;

/// Recorded factors, a row for each step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Noise {
    rows: Vec<Vec<f64>>,
    /// The largest of them.
    pub most: f64,
}

impl Noise {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let refuse = |why: String| TrainError::Simulation(format!("noise={}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
        Self::parse(&text).map_err(refuse)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut rows: Vec<Vec<f64>> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let factor = |word: &str| word.parse().ok().filter(|factor| (0.01..100.0).contains(factor));
            let row: Option<Vec<f64>> = line.split_whitespace().map(factor).collect();
            let row = row
                .filter(|row| !row.is_empty() && rows.first().is_none_or(|first| first.len() == row.len()));
            rows.push(row.ok_or(format!(
                "line {number} is not a row of factors between 0.01 and 100, one for each rank"
            ))?);
        }
        if rows.len() < 2 * BLOCK {
            return Err(format!("it has {} rows; write at least {}", rows.len(), 2 * BLOCK));
        }
        let most = rows.iter().flatten().copied().fold(0.0, f64::max);
        Ok(Self { rows, most })
    }

    /// The factor of a rank in a step.
    pub fn factor(&self, seed: u64, rank: u32, step: u64) -> f64 {
        let (block, place) = (step / BLOCK as u64, step as usize % BLOCK);
        let start = Draw::new(&[seed, block, NOISE]).below(self.rows.len() - BLOCK + 1);
        let row = &self.rows[start + place];
        row[rank as usize % row.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_steps_and_ranks_stay_together() {
        let text: String =
            (1..=100).map(|step| format!("{} {}\n", step, step as f64 / 2.0)).collect::<String>();
        let text = text.replace("100 50", "99 49.5");
        let noise = Noise::parse(&text).expect("rows");
        for step in (0..200).filter(|step| step % BLOCK as u64 != BLOCK as u64 - 1) {
            let [now, next] = [step, step + 1].map(|step| noise.factor(7, 0, step));
            assert!(next == now + 1.0 || (next, now) == (99.0, 99.0), "{step}: {now} {next}");
            assert_eq!(noise.factor(7, 1, step), now / 2.0);
        }
        let starts: Vec<f64> = (0..8).map(|block| noise.factor(7, 0, 25 * block)).collect();
        assert!(starts.windows(2).any(|pair| pair[0] != pair[1]), "blocks differ: {starts:?}");
    }

    #[test]
    fn what_is_no_table_of_factors_is_refused_with_its_line() {
        for (text, why) in [
            ("", "it has 0 rows"),
            ("1 1\n1\n", "line 2"),
            ("1 x\n", "line 1"),
            ("1 0\n", "line 1"),
            ("1 nan\n", "line 1"),
        ] {
            let message = Noise::parse(text).expect_err(text);
            assert!(message.contains(why), "{message}");
        }
    }
}
