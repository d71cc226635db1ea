//! TensorBoard event files, ours and others': series of scalars.
//!
//! The file is a list of [records](paceline_lab::tfrecord), each an `Event` of `tensorflow/core/util/event.proto`. A scalar is a
//! `simple_value`, or since TensorFlow 2 a tensor with one element.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use paceline_lab::tfrecord::{self, Next, Reader};

use super::protobuf::{Fields, Held, Malformed};
use super::series::{self, Point, Series};
use super::{ImportError, Imported, open};

/// Content of the first record of an event file, followed by the version.
const VERSION: &[u8] = b"brain.Event:";

/// Whether a file with this beginning is an event file.
pub fn recognise(head: &[u8]) -> bool {
    let Some((length, crc)) = head.get(..12).and_then(|head| head.split_at_checked(8)) else {
        return false;
    };
    let record = &head[12..];
    crc == tfrecord::masked_crc(length).to_le_bytes()
        && record.windows(VERSION.len()).take(64).any(|part| part == VERSION)
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
        match next {
            Next::Record if records == 0 => check_version(path, &record)?,
            Next::Record => {
                if let Err(Malformed) = read_event(&record, &mut series) {
                    malformed += 1;
                }
            }
            Next::TooLong(length) => {
                series.warnings.push(format!("skipped a record of {length} bytes at byte {begin}"));
            }
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
pub fn import(files: &[PathBuf]) -> Result<Imported, ImportError> {
    let mut run = Imported::default();
    let mut workers = Vec::new();
    for path in files {
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
    let version = Fields::of(record).flatten().find_map(|field| match field {
        (3, Held::Bytes(version)) => version.strip_prefix(VERSION),
        _ => None,
    });
    match version {
        Some(b"1" | b"2") => Ok(()),
        Some(other) => Err(ImportError::bad(
            path,
            format!(
                "event file version {}; only versions 1 and 2 are supported",
                String::from_utf8_lossy(&other[..other.len().min(20)])
            ),
        )),
        None => Err(ImportError::bad(path, "not an event file: its first record has no version")),
    }
}

/// Adds the scalars of an event.
fn read_event(record: &[u8], series: &mut Series) -> Result<(), Malformed> {
    let (mut wall_time, mut step, mut summary) = (0.0, 0_u64, None);
    for field in Fields::of(record) {
        match field? {
            (1, Held::Eight(bits)) => wall_time = f64::from_bits(bits),
            (2, Held::Varint(number)) => step = number,
            (5, Held::Bytes(bytes)) => summary = Some(bytes),
            _ => {}
        }
    }
    if i64::try_from(step).is_err() {
        return Err(Malformed);
    }
    for value in Fields::of(summary.unwrap_or_default()) {
        if let (1, Held::Bytes(value)) = value?
            && let Some((tag, value)) = read_value(value)?
        {
            series.push(tag, Point { step, wall_time, value });
        }
    }
    Ok(())
}

/// Name and number of a summary value; `None` if it is not a scalar.
fn read_value(message: &[u8]) -> Result<Option<(&str, f64)>, Malformed> {
    let (mut tag, mut value) = ("", None);
    for field in Fields::of(message) {
        match field? {
            (1, Held::Bytes(name)) => tag = std::str::from_utf8(name).map_err(|_| Malformed)?,
            (2, Held::Four(bits)) => value = Some(f32::from_bits(bits).into()),
            (8, Held::Bytes(tensor)) => value = read_tensor(tensor)?,
            _ => {}
        }
    }
    Ok(value.map(|value| (tag, value)))
}

/// The number in a one-element tensor; `None` if it has more elements or no numbers.
fn read_tensor(message: &[u8]) -> Result<Option<f64>, Malformed> {
    let (mut kind, mut elements) = (0, 1_u64);
    let mut content: &[u8] = &[];
    let mut values = Vec::new();
    for field in Fields::of(message) {
        match field? {
            (1, Held::Varint(number)) => kind = number,
            (2, Held::Bytes(shape)) => elements = count_elements(shape)?,
            (4, Held::Bytes(bytes)) => content = bytes,
            (5, Held::Four(bits)) => values.push(f32::from_bits(bits).into()),
            (6, Held::Eight(bits)) => values.push(f64::from_bits(bits)),
            (5 | 6, Held::Bytes(packed)) => values.extend(first_of(kind, packed)),
            (7 | 10, Held::Varint(number)) => values.push(number as i64 as f64),
            (7 | 10, Held::Bytes(packed)) => {
                values.extend(first_varint(packed)?.map(|number| number as i64 as f64))
            }
            (13, Held::Varint(bits)) => values.extend(half(kind, bits as u16)),
            (13, Held::Bytes(packed)) => {
                values.extend(first_varint(packed)?.and_then(|bits| half(kind, bits as u16)));
            }
            _ => {}
        }
    }
    let value = values.first().copied().or_else(|| first_of(kind, content));
    Ok(value.filter(|_| elements == 1))
}

fn count_elements(shape: &[u8]) -> Result<u64, Malformed> {
    let mut elements = 1_u64;
    for field in Fields::of(shape) {
        if let (2, Held::Bytes(dimension)) = field? {
            let mut size = 0;
            for field in Fields::of(dimension) {
                if let (1, Held::Varint(number)) = field? {
                    size = number;
                }
            }
            elements = elements.saturating_mul(size);
        }
    }
    Ok(elements)
}

/// The first number of a tensor's bytes, by the number of its type in `tensorflow/core/framework/types.proto`.
fn first_of(kind: u64, bytes: &[u8]) -> Option<f64> {
    Some(match kind {
        1 => f32::from_le_bytes(*bytes.first_chunk()?).into(),
        2 => f64::from_le_bytes(*bytes.first_chunk()?),
        3 => i32::from_le_bytes(*bytes.first_chunk()?).into(),
        9 => i64::from_le_bytes(*bytes.first_chunk()?) as f64,
        14 | 19 => half(kind, u16::from_le_bytes(*bytes.first_chunk()?))?,
        _ => return None,
    })
}

fn first_varint(packed: &[u8]) -> Result<Option<u64>, Malformed> {
    // A bare varint is read by putting a field key in front.
    let end = packed.iter().position(|&byte| byte < 0x80).map_or(packed.len(), |at| at + 1);
    let message: Vec<u8> = [0x08].into_iter().chain(packed[..end.min(10)].iter().copied()).collect();
    match Fields::of(&message).next() {
        Some(Ok((_, Held::Varint(value)))) => Ok(Some(value)),
        _ if packed.is_empty() => Ok(None),
        _ => Err(Malformed),
    }
}

/// A number of 16 bits: type 14 is bfloat16, type 19 is half precision.
fn half(kind: u64, bits: u16) -> Option<f64> {
    match kind {
        14 => Some(f32::from_bits(u32::from(bits) << 16).into()),
        19 => {
            let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
            let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
            Some(
                sign * match exponent {
                    0 => fraction * 2_f64.powi(-24),
                    0x1f if fraction == 0.0 => f64::INFINITY,
                    0x1f => f64::NAN,
                    _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
                },
            )
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
