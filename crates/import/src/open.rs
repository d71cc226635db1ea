//! Foreign files as byte streams; gzip is unpacked on the fly, whatever the file's name.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use paceline_record::Bytes;

use super::ImportError;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Opens a file for reading once from begin to end. A truncated gzip file fails at its end, with
/// [`io::ErrorKind::UnexpectedEof`]. The reader that comes back is unbounded: a small file can unpack to a thousand
/// times its size, so whoever keeps what it reads takes [`open_at_most`].
pub fn open(path: &Path) -> Result<Box<dyn Read>, ImportError> {
    let fail = |source| ImportError::Io { path: path.into(), source };
    let file = File::open(path).map_err(fail)?;
    if file.metadata().map_err(fail)?.is_dir() {
        return Err(fail(io::ErrorKind::IsADirectory.into()));
    }
    let mut file = file;
    let mut magic = Vec::with_capacity(GZIP.len());
    (&mut file).take(GZIP.len() as u64).read_to_end(&mut magic).map_err(fail)?;
    let packed = magic == GZIP;
    let whole = io::Cursor::new(magic).chain(file);
    Ok(if packed {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 16, whole)))
    } else {
        Box::new(whole)
    })
}

/// Opens a file with a limit on its unpacked size: reading beyond it fails with [`io::ErrorKind::FileTooLarge`].
pub fn open_at_most(path: &Path, most: Bytes) -> Result<Box<dyn Read>, ImportError> {
    Ok(Box::new(Bounded { source: open(path)?, left: most.0 }))
}

/// The first bytes of a file, unpacked; fewer if it is short or truncated.
pub fn head(path: &Path, most: usize) -> Result<Vec<u8>, ImportError> {
    let mut source = open(path)?;
    let mut head = vec![0; most];
    let mut filled = 0;
    while filled < most {
        match source.read(&mut head[filled..]) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_damage(&error) => break,
            Err(source) => return Err(ImportError::Io { path: path.into(), source }),
        }
    }
    head.truncate(filled);
    Ok(head)
}

/// Unpacks the first bytes of a file if they are packed, up to a limit.
pub fn unpack_head(head: &[u8], most: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    if head.starts_with(&GZIP) {
        // The head of a file is always truncated, so use what was unpacked.
        let _ = MultiGzDecoder::new(head).take(most as u64).read_to_end(&mut plain);
    } else {
        plain.extend(&head[..head.len().min(most)]);
    }
    plain
}

/// Whether a read error means that the file is truncated or damaged, rather than a system error.
pub fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | InvalidData | InvalidInput)
}

struct Bounded {
    source: Box<dyn Read>,
    left: u64,
}

impl Read for Bounded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.source.read(into)?;
        match self.left.checked_sub(got as u64) {
            Some(left) => self.left = left,
            None => return Err(io::ErrorKind::FileTooLarge.into()),
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn pack(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn write(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        open(write(bytes).path()).unwrap().read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn plain_and_packed_files_read_the_same_whatever_their_name() {
        assert_eq!(read(b"hello").unwrap(), b"hello");
        assert_eq!(read(&pack(b"hello")).unwrap(), b"hello");
        let mut two = pack(b"hel");
        two.extend(pack(b"lo"));
        assert_eq!(read(&two).unwrap(), b"hello");
        assert_eq!(read(b"").unwrap(), b"");
        assert_eq!(read(b"x").unwrap(), b"x");
    }

    #[test]
    fn a_torn_file_and_a_wrong_checksum_are_damage() {
        let whole = pack(&b"0123456789".repeat(1000));
        assert!(is_damage(&read(&whole[..whole.len() - 9]).unwrap_err()));
        assert!(is_damage(&read(&whole[..2]).unwrap_err()));
        let mut wrong = whole;
        let at = wrong.len() - 8;
        wrong[at] ^= 1;
        assert!(is_damage(&read(&wrong).unwrap_err()));
    }

    #[test]
    fn a_bomb_goes_off_at_its_limit_and_a_head_stops_before() {
        let bomb = write(&pack(&vec![0; 1 << 20]));
        let mut plain = Vec::new();
        let error = open_at_most(bomb.path(), Bytes(1 << 16)).unwrap().read_to_end(&mut plain).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(plain.len() <= 1 << 16);
        assert!(open_at_most(bomb.path(), Bytes(1 << 20)).unwrap().read_to_end(&mut plain).is_ok());
        assert_eq!(head(bomb.path(), 100).unwrap(), [0; 100]);
    }

    #[test]
    fn a_head_is_what_is_there() {
        let packed = pack(b"hello");
        assert_eq!(head(write(&packed).path(), 100).unwrap(), b"hello");
        assert_eq!(head(write(&packed[..packed.len() - 4]).path(), 100).unwrap(), b"hello");
        assert_eq!(unpack_head(&packed, 3), b"hel");
        assert_eq!(unpack_head(b"hello", 3), b"hel");
        assert_eq!(unpack_head(&packed[..packed.len() - 4], 9), b"hello");
    }

    #[test]
    fn a_missing_file_and_a_folder_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("none")] {
            let Err(error) = open(&path) else { panic!("{} opens", path.display()) };
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
    }
}
