//! Records one after the other in a file, each with its length and checksums: the form of TensorFlow's files.
//!
//! ```text
//! length of the record, 8 bytes | masked CRC-32C of those | the record | masked CRC-32C of it
//! ```
//!
//! Numbers are little-endian. A checksum is masked because a record may hold checksums itself.

/// Appends a record.
pub fn append(record: &[u8], file: &mut Vec<u8>) {
    let length = (record.len() as u64).to_le_bytes();
    for part in [&length, record] {
        file.extend_from_slice(part);
        file.extend_from_slice(&masked_crc(part).to_le_bytes());
    }
}

/// The checksum that follows some bytes.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The records of a file; panics on what is not as it should be.
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
