//! TensorBoard event files, ours and others': series of scalars.
//!
//! The file is a list of [records](paceline_lab::tfrecord), each an `Event` of `tensorflow/core/util/event.proto`. A scalar is a
//! `simple_value`, or since TensorFlow 2 a tensor with one element.

use std::io::BufReader;
use std::path::Path;

use half::{bf16, f16};
use paceline_lab::tfrecord::{self, Next, Reader};
use prost::Message;

use super::series::{self, Point, Series};
use super::source::LogFile;
use super::{ImportError, Imported, open, unknown};

/// Content of the first record of an event file, followed by the version.
const VERSION: &str = "brain.Event:";

/// Longer records hold pictures or graphs, not scalars; decoding takes a multiple of their length.
const LONGEST: usize = 8 << 20;

/// Whether a file with this beginning is an event file.
pub fn recognise(head: &[u8]) -> bool {
    let Some((length, crc)) = head.get(..12).and_then(|head| head.split_at_checked(8)) else {
        return false;
    };
    let record = &head[12..];
    crc == tfrecord::masked_crc(length).to_le_bytes()
        && record.windows(VERSION.len()).take(64).any(|part| part == VERSION.as_bytes())
}

/// The series of an event file. A damaged file gives what comes before the damage, with a warning.
pub fn read(path: &Path) -> Result<Series, ImportError> {
    let mut reader = Reader::new(BufReader::new(open::open(path)?));
    let mut series = Series::default();
    let (mut record, mut records, mut malformed) = (Vec::new(), 0_u64, 0_u64);
    loop {
        let begin = reader.offset();
        let next =
            reader.next(&mut record).map_err(|source| ImportError::Io { path: path.into(), source })?;
        let left_out = |length: u64, series: &mut Series| {
            series.warnings.push(format!("skipped a record of {length} bytes at byte {begin}"));
        };
        match next {
            Next::Record if records == 0 => check_version(path, &record)?,
            Next::Record if record.len() > LONGEST => left_out(record.len() as u64, &mut series),
            Next::Record => {
                let event = Event::decode(record.as_slice()).ok();
                malformed += u64::from(event.and_then(|event| add(event, &mut series)).is_none());
            }
            Next::TooLong(length) => left_out(length, &mut series),
            Next::Torn | Next::Damaged | Next::End if records == 0 => {
                return Err(ImportError::bad(
                    path,
                    "not an event file: it does not start with a complete record",
                ));
            }
            Next::End => break,
            Next::Torn => {
                series.warnings.push(format!("the record at byte {begin} is truncated"));
                break;
            }
            Next::Damaged => {
                series.warnings.push(format!(
                    "wrong checksum at byte {begin}: the {records} records before it were read, the rest was not"
                ));
                break;
            }
        }
        records += 1;
    }
    if malformed > 0 {
        series.warnings.push(format!("skipped {malformed} records that are not events"));
    }
    series.close();
    Ok(series)
}

/// A run from event files, one per worker.
pub fn import(files: &[LogFile<'_>]) -> Result<Imported, ImportError> {
    let mut run = Imported::default();
    let mut workers = Vec::new();
    for (path, _) in files {
        let one = read(path)?.into_run();
        run.warnings.extend(one.warnings.into_iter().map(|warning| match files {
            [_] => warning,
            _ => format!("{}: {warning}", path.display()),
        }));
        run.case.batch_per_worker = match workers.is_empty() {
            true => one.case.batch_per_worker,
            false => run.case.batch_per_worker.filter(|batch| Some(*batch) == one.case.batch_per_worker),
        };
        workers.push(one.progress);
    }
    run.case.workers = files.len() as u32;
    run.progress = workers.into_iter().collect::<Option<Vec<_>>>().and_then(series::together);
    Ok(run)
}

fn check_version(path: &Path, record: &[u8]) -> Result<(), ImportError> {
    let version = Event::decode(record).ok().and_then(|event| event.file_version);
    match version.as_deref().and_then(|version| version.strip_prefix(VERSION)) {
        Some("1" | "2") => Ok(()),
        Some(other) => Err(ImportError::bad(
            path,
            format!("event file version {}; only versions 1 and 2 are supported", unknown::quote(other)),
        )),
        None => Err(ImportError::bad(path, "not an event file: its first record has no version")),
    }
}

/// Adds the scalars of an event.
fn add(event: Event, series: &mut Series) -> Option<()> {
    let (step, wall_time) = (u64::try_from(event.step).ok()?, event.wall_time);
    for value in event.summary.unwrap_or_default().value {
        let tensor = value.tensor.as_ref().and_then(|tensor| tensor.scalar());
        if let Some(number) = value.simple_value.map(f64::from).or(tensor) {
            series.push(&value.tag, Point { step, wall_time, value: number });
        }
    }
    Some(())
}

// The fields of `tensorflow/core/util/event.proto` and of what it includes that hold scalars.

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, boxed, tag = "8")]
    tensor: Option<Box<Tensor>>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", tag = "4")]
    content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    floats: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    doubles: Vec<f64>,
    #[prost(int32, repeated, tag = "7")]
    ints: Vec<i32>,
    #[prost(int64, repeated, tag = "10")]
    longs: Vec<i64>,
    #[prost(int32, repeated, tag = "13")]
    halves: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
}

impl Tensor {
    /// Its number; `None` if it has more elements or no numbers. Types are those of `tensorflow/core/framework/types.proto`.
    fn scalar(&self) -> Option<f64> {
        if self.shape.iter().flat_map(|shape| &shape.dim).any(|dim| dim.size != 1) {
            return None;
        }
        let half = |bits: u16| match self.dtype {
            14 => Some(bf16::from_bits(bits).to_f64()),
            19 => Some(f16::from_bits(bits).to_f64()),
            _ => None,
        };
        let listed = self.floats.first().map(|&number| number.into()).or(self.doubles.first().copied());
        let listed = listed.or(self.ints.first().map(|&number| number.into()));
        let listed = listed.or(self.longs.first().map(|&number| number as f64));
        listed.or_else(|| half(*self.halves.first()? as u16)).or_else(|| match self.dtype {
            1 => Some(f32::from_le_bytes(*self.content.first_chunk()?).into()),
            2 => Some(f64::from_le_bytes(*self.content.first_chunk()?)),
            3 => Some(i32::from_le_bytes(*self.content.first_chunk()?).into()),
            9 => Some(i64::from_le_bytes(*self.content.first_chunk()?) as f64),
            _ => half(u16::from_le_bytes(*self.content.first_chunk()?)),
        })
    }
}

#[cfg(test)]
mod tests;
