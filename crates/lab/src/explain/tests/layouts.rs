//! Correct tables in the layouts that people publish, with noise and rounding: nothing may be called a contradiction. And the same
//! with one slip: it must be found, and no other cell be accused.

use super::*;
use crate::words::workers;

/// Tables of each kind.
const TABLES: u64 = 10_000;

/// A small generator of random numbers (SplitMix64), so that a failure can be repeated by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }

    fn between(&mut self, lo: f64, hi: f64) -> f64 {
        lo + (hi - lo) * self.unit()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A job on several numbers of workers, as it was printed.
struct Runs {
    counts: Vec<u64>,
    rate: Vec<f64>,
    time: Vec<f64>,
    digits: usize,
}

impl Runs {
    fn new(random: &mut Random, counts: &[u64]) -> Self {
        let one = 10f64.powf(random.between(1.0, 4.0));
        let loss = random.between(0.0, 0.08);
        let (work, fixed) = (one * random.between(100.0, 3000.0), random.between(0.0, 10.0));
        let digits = random.pick(&[1, 2]);
        let noise: Vec<f64> = counts.iter().map(|_| random.between(0.98, 1.0)).collect();
        let rate = |(n, noise): (&u64, &f64)| noise * one * *n as f64 / (1.0 + loss * (*n as f64 - 1.0));
        let rate: Vec<f64> = counts.iter().zip(&noise).map(rate).collect();
        let time = rate.iter().map(|rate| fixed + work / rate).collect();
        let mut runs = Self { counts: counts.to_vec(), rate, time, digits };
        // Half of the authors compute from what they print.
        if random.below(2) == 0 {
            let scale = 10f64.powi(runs.digits as i32);
            runs.rate
                .iter_mut()
                .chain(&mut runs.time)
                .for_each(|number| *number = (*number * scale).round() / scale);
        }
        runs
    }

    fn rate(&self, at: usize) -> String {
        format!("{:.*}", self.digits, self.rate[at])
    }

    fn time(&self, at: usize) -> String {
        format!("{:.*}", self.digits, self.time[at])
    }

    fn more(&self, at: usize) -> f64 {
        self.counts[at] as f64 / self.counts[0] as f64
    }

    fn speedup(&self, at: usize) -> f64 {
        self.rate[at] / self.rate[0]
    }

    fn clock_speedup(&self, at: usize) -> f64 {
        self.time[0] / self.time[at]
    }
}

/// A table before it is written down.
#[derive(Default)]
struct Sheet {
    rows: Vec<Vec<String>>,
    /// Cells that follow from others: row, column, and the name by which they would be accused.
    follow: Vec<(usize, usize, String)>,
}

impl Sheet {
    fn header(names: &[&str]) -> Self {
        Self { rows: vec![names.iter().map(|name| (*name).to_owned()).collect()], follow: Vec::new() }
    }

    /// Adds a row; columns that are marked follow from others.
    fn row(&mut self, count: u64, cells: Vec<String>, marked: &[usize]) {
        for column in marked {
            let name = format!("{}, {}", self.rows[0][*column], workers(count));
            self.follow.push((self.rows.len(), *column, name));
        }
        self.rows.push(cells);
    }

    /// Swaps rows and columns.
    fn turned(self) -> Self {
        let columns = self.rows[0].len();
        let rows = (0..columns).map(|at| self.rows.iter().map(|row| row[at].clone()).collect()).collect();
        Self {
            rows,
            follow: self.follow.into_iter().map(|(row, column, name)| (column, row, name)).collect(),
        }
    }

    fn write(&self, form: usize) -> String {
        let line = |cells: &Vec<String>| format!("| {} |\n", cells.join(" | "));
        let html = |tag: &str, cells: &Vec<String>| -> String {
            let cells: String = cells.iter().map(|cell| format!("<{tag}>{cell}</{tag}>")).collect();
            format!("<tr>{cells}</tr>\n")
        };
        match form {
            0 => format!(
                "{}|{}\n{}",
                line(&self.rows[0]),
                "---|".repeat(self.rows[0].len()),
                self.rows[1..].iter().map(line).collect::<String>()
            ),
            1 => self.rows.iter().map(|row| row.join(",") + "\n").collect(),
            2 => self.rows.iter().map(|row| row.join("\t") + "\n").collect(),
            _ => format!(
                "<table>\n{}{}</table>\n",
                html("th", &self.rows[0]),
                self.rows[1..].iter().map(|row| html("td", row)).collect::<String>()
            ),
        }
    }
}

const COUNTS: [&[u64]; 5] =
    [&[1, 2, 4, 8], &[1, 2, 4, 8, 16], &[1, 2, 3, 4, 6], &[1, 4, 8, 16, 32], &[1, 2, 4, 8, 16, 32, 64]];

/// Number of layouts.
const LAYOUTS: usize = 22;

/// A table in one of the layouts, and the form to write it in.
fn sheet(layout: usize, random: &mut Random) -> (Sheet, usize) {
    let counts = random.pick(&COUNTS);
    let form = random.below(4);
    let text = |words: &str| words.to_owned();
    let ratio = |value: f64| format!("{value:.2}");
    let percent = |value: f64| format!("{:.1}%", 100.0 * value);
    let runs = Runs::new(random, counts);
    let last = 0..counts.len();
    match layout {
        // Rates, speed-up and efficiency.
        0 => {
            let mut sheet = Sheet::header(&["GPUs", "images/s", "Speedup", "Efficiency"]);
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    runs.rate(at),
                    ratio(runs.speedup(at)),
                    percent(runs.speedup(at) / runs.more(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[2, 3] } else { &[] });
            }
            (sheet, form)
        }
        // Times.
        1 => {
            let mut sheet = Sheet::header(&["threads", "time (s)", "speedup", "efficiency"]);
            for at in last {
                let speedup = runs.clock_speedup(at);
                let cells = vec![
                    counts[at].to_string(),
                    runs.time(at),
                    ratio(speedup),
                    format!("{:.3}", speedup / runs.more(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[2, 3] } else { &[] });
            }
            (sheet, form)
        }
        // Two precisions side by side, with the ratio between them.
        2 => {
            let fast = Runs::new(random, counts);
            let mut sheet = Sheet::header(&[
                "**GPUs**",
                "Throughput - TF32",
                "Throughput - mixed precision",
                "Throughput speedup (TF32 to mixed precision)",
                "TF32 Strong Scaling",
                "Mixed Precision Strong Scaling",
            ]);
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    format!("{} img/s", runs.rate(at)),
                    format!("{} img/s", fast.rate(at)),
                    format!("{:.2}x", fast.rate[at] / runs.rate[at]),
                    format!("{:.2}x", runs.speedup(at)),
                    format!("{:.2}x", fast.speedup(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[4, 5] } else { &[] });
            }
            (sheet, 0)
        }
        // Nodes and all GPUs.
        3 => {
            let mut sheet = Sheet::header(&["node_num", "gpu_num", "samples/s", "speedup"]);
            for at in last {
                let nodes = counts[at].div_ceil(8);
                let cells =
                    vec![nodes.to_string(), counts[at].to_string(), runs.rate(at), ratio(runs.speedup(at))];
                sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
            }
            (sheet, form)
        }
        // Nodes and the GPUs of each, said or not.
        4 => {
            let each = random.pick(&["GPUs per node", "GPUs"]);
            let nodes = &[1u64, 2, 4, 8, 16];
            let counts: Vec<u64> = nodes.iter().map(|nodes| 8 * nodes).collect();
            let runs = Runs::new(random, &counts);
            let mut sheet = Sheet::header(&["Nodes", each, "samples/s", "speedup"]);
            for at in 0..counts.len() {
                let cells = vec![nodes[at].to_string(), text("8"), runs.rate(at), ratio(runs.speedup(at))];
                sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
            }
            (sheet, form)
        }
        // Wide: workers in the header, measures in the rows.
        5 => {
            let mut sheet = Sheet::header(&["Metric", "images/sec", "speedup", "efficiency"]);
            for at in last {
                let cells = vec![
                    format!("{} GPU{}", counts[at], if counts[at] > 1 { "s" } else { "" }),
                    runs.rate(at),
                    ratio(runs.speedup(at)),
                    percent(runs.speedup(at) / runs.more(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[2, 3] } else { &[] });
            }
            (sheet.turned(), random.pick(&[0, 3]))
        }
        // Wide, two models.
        6 => {
            let other = Runs::new(random, counts);
            let mut sheet = Sheet::header(&[
                "Model",
                "ResNet-50 images/s",
                "ResNet-50 speedup",
                "VGG-16 images/s",
                "VGG-16 speedup",
            ]);
            for at in last {
                let cells = vec![
                    format!("{} GPUs", counts[at]),
                    runs.rate(at),
                    ratio(runs.speedup(at)),
                    other.rate(at),
                    ratio(other.speedup(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[2, 4] } else { &[] });
            }
            (sheet.turned(), 0)
        }
        // Wide, plain numbers under a corner that names them.
        7 => {
            let mut sheet = Sheet::header(&["GPUs", "Training time (s)", "Speedup"]);
            for at in last {
                let cells = vec![counts[at].to_string(), runs.time(at), ratio(runs.clock_speedup(at))];
                sheet.row(counts[at], cells, if at > 0 { &[2] } else { &[] });
            }
            (sheet.turned(), 0)
        }
        // A header of two layers, in Markdown with gaps.
        8 => {
            let other = Runs::new(random, counts);
            let mut sheet = Sheet::header(&["GPUs", "FP32", "", "AMP", ""]);
            sheet.rows.push(["", "images/s", "speedup", "images/s", "speedup"].map(text).to_vec());
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    runs.rate(at),
                    ratio(runs.speedup(at)),
                    other.rate(at),
                    ratio(other.speedup(at)),
                ];
                if at > 0 {
                    sheet.follow.push((
                        sheet.rows.len(),
                        2,
                        format!("FP32 speedup, {}", workers(counts[at])),
                    ));
                    sheet.follow.push((sheet.rows.len(), 4, format!("AMP speedup, {}", workers(counts[at]))));
                }
                sheet.rows.push(cells);
            }
            (sheet, 0)
        }
        // A ratio after each of several measures.
        9 => {
            let other = Runs::new(random, counts);
            let mut sheet =
                Sheet::header(&["GPUs", "PyTorch time (s)", "Speedup", "TensorFlow time (s)", "Speedup"]);
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    runs.time(at),
                    ratio(runs.clock_speedup(at)),
                    other.time(at),
                    ratio(other.clock_speedup(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[2, 4] } else { &[] });
            }
            (sheet, form)
        }
        // Runs that were repeated, with the rate of each worker and of all.
        10 => {
            let mut sheet = Sheet::header(&["run", "GPUs", "images/s per GPU", "total images/s"]);
            for run in 1..=3 {
                let runs = Runs::new(random, counts);
                for at in last.clone() {
                    let each = format!("{:.3}", runs.rate[at] / counts[at] as f64);
                    let all: f64 = each.parse::<f64>().unwrap_or(0.0) * counts[at] as f64;
                    let cells = vec![run.to_string(), counts[at].to_string(), each, format!("{all:.1}")];
                    sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
                }
            }
            (sheet, form)
        }
        // Rows of several frameworks, named in each row or only in the first.
        11 | 12 => {
            let mut sheet = Sheet::header(&["Framework", "GPUs", "samples/sec", "Speedup"]);
            for framework in ["PyTorch", "TensorFlow", "MXNet"] {
                let runs = Runs::new(random, counts);
                for at in last.clone() {
                    let name = if layout == 12 && at > 0 { "" } else { framework };
                    let cells =
                        vec![text(name), counts[at].to_string(), runs.rate(at), ratio(runs.speedup(at))];
                    sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
                }
            }
            (sheet, random.pick(&[0, 3]))
        }
        // Batches within numbers of workers, or numbers of workers within batches.
        13 => {
            let batches = [32u64, 64, 128];
            let all: Vec<Runs> = batches.iter().map(|_| Runs::new(random, counts)).collect();
            let mut sheet = Sheet::header(&["batch size", "GPUs", "images/s", "speedup"]);
            let inside = random.below(2) == 0;
            let pairs: Vec<(usize, usize)> = match inside {
                true => (0..counts.len()).flat_map(|at| (0..3).map(move |batch| (batch, at))).collect(),
                false => (0..3).flat_map(|batch| (0..counts.len()).map(move |at| (batch, at))).collect(),
            };
            for (batch, at) in pairs {
                let runs = &all[batch];
                let cells = vec![
                    batches[batch].to_string(),
                    counts[at].to_string(),
                    runs.rate(at),
                    ratio(runs.speedup(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
            }
            (sheet, form)
        }
        // A batch that grows with the workers.
        14 => {
            let each = random.pick(&[16u64, 32, 256]);
            let mut sheet = Sheet::header(&["GPUs", "global batch size", "images/s", "Scaling"]);
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    (each * counts[at]).to_string(),
                    runs.rate(at),
                    format!("{:.2}x", runs.speedup(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
            }
            (sheet, form)
        }
        // Efficiency alone.
        15 => {
            let mut sheet = Sheet::header(&["num_gpus", "images_per_sec", "scaling_efficiency"]);
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    runs.rate(at),
                    format!("{:.4}", runs.speedup(at) / runs.more(at)),
                ];
                sheet.row(counts[at], cells, if at > 0 { &[2] } else { &[] });
            }
            (sheet, 1)
        }
        // Start-up, training and their sum.
        16 => {
            let mut sheet = Sheet::header(&["Workers", "Init time (s)", "Train time (s)", "Total time (s)"]);
            for at in last {
                let init = (10.0 * random.between(20.0, 90.0)).round() / 10.0;
                let train = (10.0 * runs.time[at]).round() / 10.0;
                let cells = vec![
                    counts[at].to_string(),
                    format!("{init:.1}"),
                    format!("{train:.1}"),
                    format!("{:.1}", init + train),
                ];
                sheet.row(counts[at], cells, &[3]);
            }
            (sheet, form)
        }
        // The time of all epochs and of one.
        17 => {
            let epochs = random.pick(&[3u64, 10, 90]);
            let mut sheet = Sheet::header(&["GPUs", "epochs", "train time (s)", "time per epoch (s)"]);
            for at in last {
                let cells = vec![
                    counts[at].to_string(),
                    epochs.to_string(),
                    runs.time(at),
                    format!("{:.2}", runs.time[at] / epochs as f64),
                ];
                sheet.row(counts[at], cells, &[3]);
            }
            (sheet, form)
        }
        // Ratios in percent.
        18 => {
            let mut sheet = Sheet::header(&["GPUs", "Throughput - FP32", "Weak scaling - FP32"]);
            for at in last {
                let cells =
                    vec![counts[at].to_string(), runs.rate(at), format!("{:.0}%", 100.0 * runs.speedup(at))];
                sheet.row(counts[at], cells, if at > 0 { &[2] } else { &[] });
            }
            (sheet, 0)
        }
        // Relative to the fewest, which are not one.
        19 => {
            let counts: Vec<u64> = counts.iter().map(|count| 8 * count).collect();
            let runs = Runs::new(random, &counts);
            let mut sheet = Sheet::header(&["GPUs", "tokens/s", "speedup", "efficiency"]);
            for (at, &count) in counts.iter().enumerate() {
                let cells = vec![
                    count.to_string(),
                    runs.rate(at),
                    ratio(runs.speedup(at)),
                    percent(runs.speedup(at) / runs.more(at)),
                ];
                sheet.row(count, cells, if at > 0 { &[2, 3] } else { &[] });
            }
            (sheet, form)
        }
        // Cells that say what they count, and another model in the same table.
        20 => {
            let mut sheet = Sheet::header(&["Hardware", "Model", "images/s", "Speedup"]);
            for model in ["resnet50", "bert"] {
                let runs = Runs::new(random, counts);
                for at in last.clone() {
                    let cells = vec![
                        format!("{}x V100", counts[at]),
                        text(model),
                        runs.rate(at),
                        ratio(runs.speedup(at)),
                    ];
                    sheet.row(counts[at], cells, if at > 0 { &[3] } else { &[] });
                }
            }
            (sheet, form)
        }
        // A rate that the clock gave.
        _ => {
            let images = random.pick(&[50_000.0, 1_281_167.0]);
            let mut sheet =
                Sheet::header(&["GPUs", "epoch time (s)", "images/s", "Test accuracy", "Memory (MB)"]);
            for at in last {
                let time: f64 = runs.time(at).parse().unwrap_or(1.0);
                let cells = vec![
                    counts[at].to_string(),
                    runs.time(at),
                    format!("{:.1}", images / time),
                    format!("{:.3}", random.between(0.70, 0.72)),
                    random.below(9000).to_string(),
                ];
                sheet.row(counts[at], cells, &[2]);
            }
            (sheet, form)
        }
    }
}

fn accused(text: &str) -> Vec<String> {
    let found = explain_text(text, &Options::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let slips = found.series.iter().flat_map(|series| &series.audit.slips);
    slips.filter(|slip| slip.weight == Weight::Contradiction).map(|slip| slip.place.clone()).collect()
}

/// A number with a mistake that people make, if it is then clearly another one.
fn mistaken(cell: &str, random: &mut Random) -> Option<String> {
    let value = |text: &str| match crate::explain::figure::read(text) {
        crate::explain::figure::Cell::Number(figure, _) => Some(figure.value),
        _ => None,
    };
    let mut letters: Vec<char> = cell.chars().collect();
    let digits: Vec<usize> = (0..letters.len()).filter(|at| letters[*at].is_ascii_digit()).collect();
    match random.below(3) {
        0 => {
            let at = random.below(digits.len().checked_sub(1)?.max(1));
            letters.swap(digits[at], *digits.get(at + 1)?);
        }
        1 => {
            let at = random.pick(&digits);
            letters[at] = char::from(b'0' + random.below(10) as u8);
        }
        _ => {
            let at = letters.iter().position(|letter| *letter == '.')?;
            letters.swap(at, at + 1);
        }
    }
    let wrong: String = letters.into_iter().collect();
    let (was, is) = (value(cell)?, value(&wrong)?);
    ((is / was - 1.0).abs() > 0.02 && is > 0.0).then_some(wrong)
}

#[test]
fn no_correct_table_is_called_wrong() {
    for seed in 0..TABLES {
        let mut random = Random(seed);
        let (sheet, form) = sheet(seed as usize % LAYOUTS, &mut random);
        let text = sheet.write(form);
        assert_eq!(accused(&text), Vec::<String>::new(), "seed {seed}\n{text}");
    }
}

#[test]
fn one_slip_is_found_and_its_cell_alone_is_accused() {
    let (mut planted, mut found, mut others) = ([0; LAYOUTS], [0; LAYOUTS], Vec::new());
    for seed in 0..TABLES {
        let mut random = Random(seed);
        let layout = seed as usize % LAYOUTS;
        let (mut sheet, form) = sheet(layout, &mut random);
        let (row, column, name) = sheet.follow[random.below(sheet.follow.len())].clone();
        let Some(wrong) = mistaken(&sheet.rows[row][column], &mut random) else { continue };
        sheet.rows[row][column] = wrong;
        let text = sheet.write(form);
        planted[layout] += 1;
        match &accused(&text)[..] {
            [place] if *place == name => found[layout] += 1,
            [] => {}
            wrong => others.push(format!("seed {seed}, {name}: {wrong:?}\n{text}")),
        }
    }
    let shares: Vec<String> =
        planted.iter().zip(&found).map(|(planted, found)| format!("{found}/{planted}")).collect();
    let (all, right) = (planted.iter().sum::<usize>(), found.iter().sum::<usize>());
    println!(
        "{right} of {all} slips found, {} times another cell accused; by layout {shares:?}",
        others.len()
    );
    assert!(
        20 * right >= 19 * all,
        "{right} of {all}; by layout {shares:?}; {}",
        others.first().map_or("", String::as_str)
    );
    assert!(100 * others.len() <= all, "{} of {all} accuse another cell: {}", others.len(), others[0]);
}
