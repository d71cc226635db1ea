//! TensorFlow's record files: records one after the other, each with its length and checksums.
//!
//! ```text
//! length of the record, 8 bytes | masked CRC-32C of those | the record | masked CRC-32C of it
//! ```
//!
//! Numbers are little-endian. A checksum is masked because a record may hold checksums itself.

use std::io::{self, Read};

/// A longer record is skipped, so that a length in a file cannot decide how much memory is allocated.
pub const LONGEST: u64 = 64 << 20;

/// What comes next in a file of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A record, now in the buffer.
    Record,
    /// A record of this many bytes, more than [`LONGEST`]: skipped without checking it.
    TooLong(u64),
    /// The file ends between two records.
    End,
    /// The file ends inside a record: its writer was still writing, or stopped there.
    Torn,
    /// Bytes with a wrong checksum; nothing after them can be trusted.
    Damaged,
}

/// Reads records one after the other.
pub struct Reader<R> {
    source: R,
    offset: u64,
}

impl<R: Read> Reader<R> {
    /// A reader from the begin of a file.
    pub fn new(source: R) -> Self {
        Self { source, offset: 0 }
    }

    /// Position of the reader in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next record into a buffer. After anything but a record or one that is too long, there is no next.
    pub fn next(&mut self, record: &mut Vec<u8>) -> io::Result<Next> {
        let Some(length) = self.part(8, record)? else {
            return Ok(if record.is_empty() { Next::End } else { Next::Torn });
        };
        if !length {
            return Ok(Next::Damaged);
        }
        let length = u64::from_le_bytes(record[..8].try_into().expect("invariant: eight bytes were read"));
        if length > LONGEST {
            let whole = length.saturating_add(4);
            let passed = io::copy(&mut self.source.by_ref().take(whole), &mut io::sink())?;
            self.offset += passed;
            return Ok(if passed == whole { Next::TooLong(length) } else { Next::Torn });
        }
        Ok(match self.part(length, record)? {
            Some(true) => Next::Record,
            Some(false) => Next::Damaged,
            None => Next::Torn,
        })
    }

    /// Reads bytes and checks the checksum after them; `None` if the file ends before that.
    fn part(&mut self, length: u64, part: &mut Vec<u8>) -> io::Result<Option<bool>> {
        part.clear();
        let read = self.source.by_ref().take(length + 4).read_to_end(part)? as u64;
        self.offset += read;
        if read < length + 4 {
            return Ok(None);
        }
        let crc = part.split_off(length as usize);
        Ok(Some(crc == masked_crc(part).to_le_bytes()))
    }
}

/// Appends a record.
pub fn append(record: &[u8], file: &mut Vec<u8>) {
    let length = (record.len() as u64).to_le_bytes();
    for part in [&length, record] {
        file.extend_from_slice(part);
        file.extend_from_slice(&masked_crc(part).to_le_bytes());
    }
}

/// The checksum of bytes.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The records of a file; panics on errors.
    pub(crate) fn read(mut file: &[u8]) -> Vec<&[u8]> {
        let mut part = |length: usize| {
            let (part, rest) = file.split_at_checked(length)?;
            let (crc, rest) = rest.split_at_checked(4)?;
            assert_eq!(crc, masked_crc(part).to_le_bytes());
            file = rest;
            Some(part)
        };
        let mut records = Vec::new();
        while let Some(length) = part(8) {
            let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
            records.push(part(length as usize).expect("a whole record"));
        }
        assert!(file.is_empty());
        records
    }

    #[test]
    fn checksums_are_those_of_rfc_3720_masked() {
        let unmasked = |crc: u32| crc.wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(unmasked(masked_crc(&[0; 32])), 0x8a91_36aa);
        assert_eq!(unmasked(masked_crc(&[0xff; 32])), 0x62a8_ab43);
        assert_eq!(unmasked(masked_crc(b"123456789")), 0xe306_9283);
    }

    /// Records until something else comes, and that.
    fn read_all(file: &[u8]) -> (Vec<Vec<u8>>, Next) {
        let (mut reader, mut records, mut record) = (Reader::new(file), Vec::new(), Vec::new());
        loop {
            match reader.next(&mut record).expect("memory can be read") {
                Next::Record => records.push(record.clone()),
                other => return (records, other),
            }
        }
    }

    #[test]
    fn a_reader_tells_an_end_from_a_torn_record_and_from_damage() {
        let mut file = Vec::new();
        append(b"one", &mut file);
        append(b"another", &mut file);
        let both = vec![b"one".to_vec(), b"another".to_vec()];
        assert_eq!(read_all(&file), (both.clone(), Next::End));
        for cut in 20..file.len() {
            assert_eq!(read_all(&file[..cut]), (both[..1].to_vec(), Next::Torn), "cut at {cut}");
        }
        for at in 19..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert_eq!(read_all(&damaged), (both[..1].to_vec(), Next::Damaged), "byte {at}");
        }
    }

    #[test]
    fn a_length_beyond_the_file_takes_no_memory() {
        for length in [u64::MAX, u64::MAX - 3, LONGEST + 1, LONGEST] {
            let mut file = length.to_le_bytes().to_vec();
            file.extend(masked_crc(&file).to_le_bytes());
            file.extend(*b"a few bytes");
            let (mut reader, mut record) = (Reader::new(&file[..]), Vec::new());
            assert_eq!(reader.next(&mut record).expect("memory can be read"), Next::Torn);
            assert!(record.capacity() < 1 << 16, "{}", record.capacity());
        }
    }

    #[test]
    fn a_record_is_framed_as_tensorflow_frames_it() {
        let mut file = Vec::new();
        append(b"", &mut file);
        // What `tf.io.TFRecordWriter` writes for an empty record.
        assert_eq!(file, [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2]);
        append(b"and another", &mut file);
        assert_eq!(read(&file), [&b""[..], b"and another"]);
    }
}
