//! Changes to files.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use paceline_lab::stats::random::SplitMix;
use paceline_lab::tfrecord;
use rusqlite::Connection;

/// What a file is beneath its bytes: changes to those alone seldom get past a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text.
    Text,
    /// Packed with gzip.
    Packed,
    /// Records with checksums.
    Records,
    /// A database.
    Sqlite,
    /// Messages in messages, each with its length.
    Messages,
}

/// Pieces that have meant trouble to somebody.
const PIECES: [&[u8]; 40] = [
    b"[[",
    b"{",
    b"}",
    b"]",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b",",
    b":",
    b"\n",
    b"\r\n",
    b"\t",
    b"|",
    b"-",
    b"--",
    b"0",
    b"1",
    b"-1",
    b"1e999",
    b"-1e308",
    b"1e-320",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"18446744073709551615",
    b"-9223372036854775808",
    b"9223372036854775807",
    b"4294967296",
    b"0x10",
    b"1,000",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\0\0\0\0\0\0\0\0",
    b"\xef\xbb\xbf",
    b"\xc3\x28",
    b"%",
    b"x",
    b"ProfilerStep#99999999999999999999",
];

/// Values for cells of a database.
const VALUES: [&str; 14] = [
    "NULL",
    "0",
    "-1",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "1e308",
    "'text'",
    "x'00ff'",
    "zeroblob(70000)",
    "''",
    "start",
    "random()",
    "4294967296",
];

/// A file from one of some others, or from two, changed in a few places.
pub fn change(pool: &[Vec<u8>], form: Form, draw: &mut SplitMix) -> Vec<u8> {
    let pick = |draw: &mut SplitMix| pool[draw.below(pool.len())].clone();
    let file = pick(draw);
    match form {
        Form::Text => damage(file, &pick(draw), draw),
        // The content, or the packing.
        Form::Packed if draw.below(2) == 0 => damage(file, &pick(draw), draw),
        Form::Packed => {
            let unpack = |bytes: &[u8]| {
                let mut plain = Vec::new();
                // What can be unpacked of it.
                let _ = GzDecoder::new(bytes).take(1 << 20).read_to_end(&mut plain);
                plain
            };
            pack(&damage(unpack(&file), &unpack(&pick(draw)), draw))
        }
        Form::Records if draw.below(4) == 0 => damage(file, &pick(draw), draw),
        Form::Records => change_records(&file, draw),
        Form::Sqlite if draw.below(2) == 0 => damage(file, &pick(draw), draw),
        Form::Sqlite => change_cells(file, draw),
        Form::Messages if draw.below(4) == 0 => damage(file, &pick(draw), draw),
        Form::Messages => (0..1 + draw.below(6)).fold(file, |file, _| change_message(&file, draw)),
    }
}

/// Some damage to a file; `other` lends pieces.
fn damage(mut file: Vec<u8>, other: &[u8], draw: &mut SplitMix) -> Vec<u8> {
    for _ in 0..1 + draw.below(8) {
        let length = file.len();
        let at = draw.below(length + 1);
        let most = if draw.below(4) == 0 { 400 } else { 12 };
        let until = (at + 1 + draw.below(most)).min(length);
        match draw.below(9) {
            0 if length > 0 => file[at.min(length - 1)] ^= 1 << draw.below(8),
            1 if length > 0 => file[at.min(length - 1)] = draw.bits() as u8,
            2 => drop(file.splice(at..at, PIECES[draw.below(PIECES.len())].iter().copied())),
            3 if at < until => drop(file.splice(at..until, PIECES[draw.below(PIECES.len())].iter().copied())),
            4 if at < until => drop(file.drain(at..until)),
            5 if at < until => {
                let part = file[at..until].to_vec();
                let most = if draw.below(16) == 0 { 200 } else { 3 };
                drop(file.splice(at..at, part.repeat(1 + draw.below(most))));
            }
            6 if !other.is_empty() => {
                let from = draw.below(other.len());
                let part = &other[from..(from + 1 + draw.below(200)).min(other.len())];
                drop(file.splice(at..at, part.iter().copied()));
            }
            7 => change_number(&mut file, at, draw),
            8 if draw.below(3) == 0 => file.truncate(at),
            _ => {}
        }
    }
    file
}

/// Another number in place of the next one.
fn change_number(file: &mut Vec<u8>, at: usize, draw: &mut SplitMix) {
    let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let Some(begin) = file[at..].iter().position(is_part).map(|found| at + found) else { return };
    let length = file[begin..].iter().take_while(|byte| is_part(byte)).count();
    let number = match draw.below(4) {
        0 => (draw.bits() >> draw.below(64)).to_string(),
        1 => format!("-{}", draw.bits() >> draw.below(64)),
        2 => format!("{}e{}", draw.below(100), draw.below(400)),
        _ => String::from_utf8_lossy(PIECES[16 + draw.below(16)]).into_owned(),
    };
    file.splice(begin..begin + length, number.into_bytes());
}

/// The same records, some changed behind right checksums, some left out, some twice.
fn change_records(file: &[u8], draw: &mut SplitMix) -> Vec<u8> {
    let mut reader = tfrecord::Reader::new(file);
    let (mut record, mut changed) = (Vec::new(), Vec::new());
    while let Ok(tfrecord::Next::Record) = reader.next(&mut record) {
        let first = changed.is_empty();
        match draw.below(8) {
            0 if !first => {}
            1 => (0..2).for_each(|_| tfrecord::append(&record, &mut changed)),
            2..=4 if !first || draw.below(8) == 0 => {
                tfrecord::append(&damage(record.clone(), &record, draw), &mut changed);
            }
            _ => tfrecord::append(&record, &mut changed),
        }
    }
    changed
}

/// The same message with one field changed, left out, repeated or swapped with another, and right lengths around it.
fn change_message(message: &[u8], draw: &mut SplitMix) -> Vec<u8> {
    let mut fields: Vec<(u64, Option<&[u8]>, u64)> = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let Some(key) = take_varint(&mut rest) else { return damage(message.to_vec(), message, draw) };
        let value = take_varint(&mut rest).filter(|_| matches!(key & 7, 0 | 2));
        let bytes = value.filter(|_| key & 7 == 2).map(|length| rest.split_at_checked(length as usize));
        match (value, bytes) {
            (Some(value), None) => fields.push((key, None, value)),
            (Some(_), Some(Some((inner, after)))) => {
                fields.push((key, Some(inner), 0));
                rest = after;
            }
            _ => return damage(message.to_vec(), message, draw),
        }
    }
    let at = draw.below(fields.len().max(1));
    let inner = fields.get(at).and_then(|(_, bytes, _)| *bytes).map(|bytes| change_message(bytes, draw));
    match (fields.get(at).copied(), draw.below(12)) {
        (Some(_), 0) => drop(fields.remove(at)),
        (Some(field), 1) => (0..1 + draw.below(9)).for_each(|_| fields.push(field)),
        (Some(_), 2) => fields.swap(at, 0),
        (Some((_, None, _)), _) => fields[at].2 = draw.bits() >> draw.below(64),
        (Some(_), _) => fields[at].1 = inner.as_deref(),
        (None, _) => {}
    }
    let mut changed = Vec::new();
    for (key, bytes, value) in fields {
        put_varint(key, &mut changed);
        put_varint(bytes.map_or(value, |bytes| bytes.len() as u64), &mut changed);
        changed.extend(bytes.unwrap_or_default());
    }
    changed
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let length = rest.iter().take(10).position(|&byte| byte < 0x80)? + 1;
    let (varint, after) = rest.split_at(length);
    *rest = after;
    Some(varint.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)))
}

fn put_varint(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// The same database with other values in some cells, or without a table or a column.
fn change_cells(file: Vec<u8>, draw: &mut SplitMix) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("database");
    std::fs::write(&path, &file).expect("room for a file");
    // A damaged file may refuse any of this.
    let mut change = || -> rusqlite::Result<()> {
        let database = Connection::open(&path)?;
        database.execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF")?;
        let list = |sql: &str| -> rusqlite::Result<Vec<String>> {
            database.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
        };
        let tables = list("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")?;
        for _ in 0..1 + draw.below(4) {
            if tables.is_empty() {
                break;
            }
            let table = &tables[draw.below(tables.len())];
            let columns = list(&format!("SELECT name FROM pragma_table_info('{table}')"))?;
            if columns.is_empty() {
                continue;
            }
            let column = &columns[draw.below(columns.len())];
            let value = VALUES[draw.below(VALUES.len())];
            let statement = match draw.below(8) {
                0 => format!("DROP TABLE \"{table}\""),
                1 => format!("ALTER TABLE \"{table}\" DROP COLUMN \"{column}\""),
                2 => format!("INSERT INTO \"{table}\" SELECT * FROM \"{table}\" LIMIT 50"),
                3 => format!("DELETE FROM \"{table}\" WHERE rowid % 2 = 0"),
                _ => format!(
                    "UPDATE \"{table}\" SET \"{column}\" = {value} WHERE rowid % {} = 0",
                    1 + draw.below(3)
                ),
            };
            // Keys may forbid it.
            let _ = database.execute_batch(&statement);
        }
        Ok(())
    };
    match change() {
        Ok(()) => std::fs::read(&path).unwrap_or(file),
        Err(_) => file,
    }
}

/// The database that statements make.
pub fn database(statements: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("database");
    let database = Connection::open(&path).expect("a new database");
    let text = std::str::from_utf8(statements).expect("statements are text");
    // Small pages: more of the structure lies where a change may hit it.
    database
        .execute_batch(&format!("PRAGMA synchronous = OFF; PRAGMA page_size = 512; {text}"))
        .expect("statements");
    drop(database);
    std::fs::read(&path).expect("it was made")
}

/// A file packed with gzip.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).expect("memory takes all");
    packed.finish().expect("memory takes all")
}
