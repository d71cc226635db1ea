//! How fast a PyTorch trace is read, and in how much memory.
//!
//! ```text
//! cargo run --release -p paceline-import --example kineto_speed                         a made-up trace of 1 GB
//! cargo run --release -p paceline-import --example kineto_speed -- --mb 300 --rounds 5
//! cargo run --release -p paceline-import --example kineto_speed -- --like trace.json.gz   its events over and over
//! cargo run --release -p paceline-import --example kineto_speed -- --file trace.json.gz   that file itself
//! ```
//!
//! Pin it to a core (`taskset -c 0`) for figures of one core. Peak memory is the process's, from /proc.

use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, error, fs, process};

use paceline_import::{kineto, open};

type Outcome<T> = Result<T, Box<dyn error::Error>>;

struct Options {
    megabytes: u64,
    rounds: u32,
    like: Option<PathBuf>,
    file: Option<PathBuf>,
}

fn main() -> Outcome<()> {
    let options = read_options()?;
    let made = env::temp_dir().join(format!("kineto_speed_{}.json", process::id()));
    let path = match &options.file {
        Some(file) => file.clone(),
        None => {
            make(&made, &options)?;
            made.clone()
        }
    };
    let outcome = measure(&path, options.rounds);
    if options.file.is_none() {
        fs::remove_file(&made)?;
    }
    outcome
}

fn read_options() -> Outcome<Options> {
    let mut options = Options { megabytes: 1000, rounds: 3, like: None, file: None };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--mb" => options.megabytes = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            "--like" => options.like = Some(value.into()),
            "--file" => options.file = Some(value.into()),
            _ => return Err(format!("{word}: not an option").into()),
        }
    }
    Ok(options)
}

fn measure(path: &Path, rounds: u32) -> Outcome<()> {
    let mut plain = 0;
    let mut piece = vec![0; 1 << 20];
    let mut source = open::open(path)?;
    loop {
        match source.read(&mut piece)? {
            0 => break,
            got => plain += got as u64,
        }
    }
    for round in 1..=rounds {
        let begin = Instant::now();
        let trace = kineto::read(path)?;
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "round {round}: {:.0} MB/s, {:.2} s for {:.0} MB, {} slices, peak memory {}",
            plain as f64 / 1e6 / seconds,
            seconds,
            plain as f64 / 1e6,
            trace.slices.len(),
            peak_memory(),
        );
        trace.warnings.iter().for_each(|warning| println!("  {warning}"));
    }
    Ok(())
}

fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".into(), |line| line.trim().to_owned())
}

/// Writes a trace of so many megabytes: the events of another file or made-up ones, each time a little later.
fn make(path: &Path, options: &Options) -> Outcome<()> {
    let events = match &options.like {
        Some(like) => sample_events(like)?,
        None => made_events(),
    };
    let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
    write!(
        out,
        "{{\"schemaVersion\": 1, \"distributedInfo\": {{\"rank\": 0, \"world_size\": 2}}, \"traceEvents\": ["
    )?;
    let mut written: u64 = 0;
    let mut text = String::new();
    for (number, event) in events.iter().cycle().enumerate() {
        if written >= options.megabytes * 1_000_000 {
            break;
        }
        text.clear();
        text.push_str(if number == 0 { "\n  " } else { ",\n  " });
        let (before, moment, after) = event;
        let round = (number / events.len()) as f64;
        text.push_str(before);
        if let Some(moment) = moment {
            text.push_str(&format!("{:.3}", moment + round * 1e5));
        }
        text.push_str(after);
        out.write_all(text.as_bytes())?;
        written += text.len() as u64;
    }
    write!(out, "\n]}}")?;
    out.flush()?;
    Ok(())
}

/// An event's text up to its moment, the moment, and the text behind it.
type Parted = (String, Option<f64>, String);

fn part(event: &str) -> Parted {
    let Some((before, rest)) = event.split_once("\"ts\":") else {
        return (event.to_owned(), None, String::new());
    };
    let rest = rest.trim_start();
    let length = rest.find([',', '}', ' ']).unwrap_or(rest.len());
    (format!("{before}\"ts\": "), rest[..length].parse().ok(), rest[length..].to_owned())
}

fn sample_events(path: &Path) -> Outcome<Vec<Parted>> {
    let mut text = String::new();
    open::open(path)?.read_to_string(&mut text)?;
    let file: serde_json::Value = serde_json::from_str(&text)?;
    let events = file["traceEvents"].as_array().ok_or("no traceEvents")?;
    Ok(events.iter().map(|event| part(&event.to_string())).collect())
}

/// A training step: operators, their calls, kernels with all that the profiler says of them, and flows between them.
fn made_events() -> Vec<Parted> {
    let kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, \
                  std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)";
    let mut events = Vec::new();
    for number in 0..2000 {
        let moment = f64::from(number) * 40.5;
        let texts = [
            format!(
                r#"{{"ph": "X", "cat": "cpu_op", "name": "aten::operator_{}", "pid": 4037, "tid": 4037, "ts": {moment}, "dur": 38.125, "args": {{"External id": {number}, "Record function id": 0, "Ev Idx": {number}}}}}"#,
                number % 211
            ),
            format!(
                r#"{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4037, "tid": 4037, "ts": {}, "dur": 7.5, "args": {{"External id": {number}, "cbid": 211, "correlation": {number}}}}}"#,
                moment + 9.25
            ),
            format!(
                r#"{{"ph": "s", "id": {number}, "pid": 4037, "tid": 4037, "ts": {}, "cat": "ac2g", "name": "ac2g"}}"#,
                moment + 9.25
            ),
            format!(
                r#"{{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, "ts": {}, "dur": 21.343, "args": {{"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {number}, "registers per thread": 40, "shared memory": 400, "blocks per SM": 4.740741, "warps per SM": 75.851852, "grid": [512, 1, 1], "block": [512, 1, 1], "est. achieved occupancy %": 75}}}}"#,
                moment + 15.5
            ),
            format!(
                r#"{{"ph": "f", "id": {number}, "pid": 0, "tid": 7, "ts": {}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}"#,
                moment + 15.5
            ),
        ];
        events.extend(texts.iter().map(|text| part(text)));
    }
    events
}
