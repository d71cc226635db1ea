//! The number of workers of a run, if only the name of its folder says so.

use super::Imported;

/// Words that a number of workers stands behind.
const PLURALS: &str = "workers gpus ngpus np nproc procs processes ranks devices cards worldsize";

/// Words that it stands before only: `8gpu` counts, `gpu-3` and `rank_3` name one.
const SINGULARS: &str = "worker gpu proc process rank device";

/// Most workers that a name may mean.
const MOST: u32 = 4096;

/// Whose examples per second a log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of the worker that wrote it.
    One,
    /// Those of all.
    All,
}

/// The number of workers in a name: `workers_2`, `gpus-4`, `8gpu`, `world_size_16`.
pub(super) fn workers(name: &str) -> Option<u32> {
    let name = name.to_lowercase().replace("world_size", "worldsize").replace("world-size", "worldsize");
    let letters: Vec<char> = name.chars().collect();
    let kind = |letter: &char| (letter.is_ascii_digit(), letter.is_alphabetic());
    let pieces: Vec<String> =
        letters.chunk_by(|a, b| kind(a) == kind(b)).map(|piece| piece.iter().collect()).collect();
    let piece = |at: usize| pieces.get(at).map(String::as_str);
    // Out of reach at the left: no piece has that number.
    let left = |at: usize, by: usize| piece(at.wrapping_sub(by));
    let among = |words: &str, piece: Option<&str>| {
        piece.is_some_and(|piece| words.split(' ').any(|word| word == piece))
    };
    let is_plural = |piece: Option<&str>| among(PLURALS, piece);
    let is_word = |piece: Option<&str>| is_plural(piece) || among(SINGULARS, piece);
    let is_gap = |piece: Option<&str>| piece.is_none_or(|piece| ["_", "-", "=", " ", "."].contains(&piece));
    let behind = |at: usize| is_plural(left(at, 1)) || is_gap(left(at, 1)) && is_plural(left(at, 2));
    // The 50 of `resnet50_gpu` is not before a word: letters stand right before it.
    let before = |at: usize| {
        is_gap(left(at, 1)) && (is_word(piece(at + 1)) || is_gap(piece(at + 1)) && is_word(piece(at + 2)))
    };
    let count = |at: usize| pieces[at].parse().ok().filter(|count| (1..=MOST).contains(count));
    let told = |place: &dyn Fn(usize) -> bool| (0..pieces.len()).filter(|&at| place(at)).find_map(count);
    told(&behind).or_else(|| told(&before))
}

/// Examples per second of a run by its log, every step weighed alike.
pub(super) fn rate(run: &Imported) -> Option<f64> {
    let progress = run.progress.as_ref().filter(|progress| progress.has_rates())?;
    let time: Option<f64> =
        progress.points.iter().map(|point| Some(point.covers as f64 / point.examples_per_s?)).sum();
    Some(progress.steps() as f64 / time?)
}

/// Turns the log of one worker into that of so many at the same pace.
pub(super) fn spread(run: &mut Imported, workers: u32, whose: Whose) {
    let Some(progress) = &mut run.progress else { return };
    let rate = match whose {
        Whose::One => {
            let rates = progress.points.iter_mut().filter_map(|point| point.examples_per_s.as_mut());
            rates.for_each(|rate| *rate *= f64::from(workers));
            "its rate is read as that of one worker"
        }
        Whose::All => {
            run.case.batch_per_worker = run.case.batch_per_worker.map(|batch| batch / u64::from(workers));
            "its rate grows with them, so it is read as that of all"
        }
    };
    run.case.workers = workers;
    run.warnings.push(format!("only the name says there are {workers} workers, and {rate}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beside_a_word_for_workers_is_theirs() {
        for (name, expected) in [
            ("workers_2", Some(2)),
            ("resnet50_gpus-16", Some(16)),
            ("resnet50-8gpu", Some(8)),
            ("4_workers", Some(4)),
            ("np32", Some(32)),
            ("world_size_64", Some(64)),
            ("world_size=8", Some(8)),
            ("resnet50_gpu", None),
            ("run-3", None),
            ("2018-10-04", None),
            ("gpus_999999999", None),
            ("rank-3", None),
            ("rank5", None),
            ("worker_7", None),
            ("gpu-3", None),
            ("8-gpu", Some(8)),
            ("workers_0", None),
            ("", None),
        ] {
            assert_eq!(workers(name), expected, "{name}");
        }
    }
}
