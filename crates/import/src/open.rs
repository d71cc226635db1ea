//! Foreign files as byte streams; gzip is unpacked and UTF-16 becomes UTF-8 on the fly, whatever the file's name.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::ImportError;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The mark at the beginning of a text in UTF-8.
const UTF_8: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Bytes at the beginning of a text that tell how it is encoded.
const HEAD: usize = 64;

/// Opens a file for reading once from begin to end. A truncated gzip file fails at its end, with
/// [`io::ErrorKind::UnexpectedEof`]. The reader that comes back is unbounded: a small file can unpack to a thousand
/// times its size.
pub fn open(path: &Path) -> Result<Box<dyn Read>, ImportError> {
    let fail = |source| ImportError::Io { path: path.into(), source };
    // To open a pipe waits for its writer, and what it gave once is gone.
    let kind = fs::metadata(path).map_err(fail)?.file_type();
    if kind.is_dir() {
        return Err(fail(io::ErrorKind::IsADirectory.into()));
    }
    if !kind.is_file() {
        let why = "not a regular file but a pipe or a device; save what it gives to a file first";
        return Err(ImportError::bad(path, why));
    }
    File::open(path).map(plain).map_err(fail)
}

/// A stream as its author meant it: unpacked, without the mark that says how its text is encoded, and text in UTF-16 as UTF-8.
pub fn plain(source: impl Read + 'static) -> Box<dyn Read> {
    let (magic, rest) = peek(Box::new(source), GZIP.len());
    let packed = magic == GZIP;
    let whole = io::Cursor::new(magic).chain(rest);
    let (mut head, rest) = match packed {
        true => peek(Box::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 16, whole))), HEAD),
        false => peek(Box::new(whole), HEAD),
    };
    // Without a mark: of the letters of a page in a European language, one byte is zero.
    let zero =
        |at: usize| head.len() >= 8 && head.chunks_exact(2).all(|pair| pair[at] == 0 && pair[1 - at] >= 0x09);
    let (unit, mark): (Option<Unit>, usize) = match head.as_slice() {
        [0xff, 0xfe, ..] => (Some(u16::from_le_bytes), 2),
        [0xfe, 0xff, ..] => (Some(u16::from_be_bytes), 2),
        _ if zero(1) => (Some(u16::from_le_bytes), 0),
        _ if zero(0) => (Some(u16::from_be_bytes), 0),
        _ => (None, if head.starts_with(&UTF_8) { UTF_8.len() } else { 0 }),
    };
    head.drain(..mark);
    let source = io::Cursor::new(head).chain(rest);
    match unit {
        Some(unit) => Box::new(Utf16 { source, unit, ready: io::Cursor::default() }),
        None => Box::new(source),
    }
}

/// The begin of a stream, and the rest. If it fails at its begin, the rest is that failure.
fn peek(mut source: Box<dyn Read>, most: usize) -> (Vec<u8>, Box<dyn Read>) {
    let mut head = Vec::new();
    match (&mut source).take(most as u64).read_to_end(&mut head) {
        Ok(_) => (head, source),
        Err(error) => (head, Box::new(Failed(Some(error)))),
    }
}

/// A stream that fails once.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// Two bytes of UTF-16 as a number.
type Unit = fn([u8; 2]) -> u16;

/// Text in UTF-16, read as UTF-8.
struct Utf16<R> {
    source: R,
    unit: Unit,
    ready: io::Cursor<Vec<u8>>,
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ready.position() == self.ready.get_ref().len() as u64 {
            let mut bytes = Vec::new();
            self.source.by_ref().take(1 << 16).read_to_end(&mut bytes)?;
            let unit = |pair: &[u8]| (self.unit)([pair[0], pair[1]]);
            // The second half of a letter may be still to come.
            if bytes.chunks_exact(2).last().is_some_and(|last| (0xd800..0xdc00).contains(&unit(last))) {
                self.source.by_ref().take(2).read_to_end(&mut bytes)?;
            }
            let units: Vec<u16> = bytes.chunks_exact(2).map(unit).collect();
            self.ready = io::Cursor::new(String::from_utf16_lossy(&units).into_bytes());
        }
        self.ready.read(into)
    }
}

/// The first bytes of a file, unpacked; fewer if it is short or truncated.
pub fn head(path: &Path, most: usize) -> Result<Vec<u8>, ImportError> {
    let mut head = Vec::new();
    match open(path)?.take(most as u64).read_to_end(&mut head) {
        Err(source) if !is_damage(&source) => Err(ImportError::Io { path: path.into(), source }),
        _ => Ok(head),
    }
}

/// The bytes of a file from the first place where it has a word, unpacked; none if its first 256 MiB have none.
pub fn head_from(path: &Path, word: &[u8], most: usize) -> Result<Vec<u8>, ImportError> {
    let mut source = open(path)?.take(1 << 28);
    let mut window = Vec::new();
    loop {
        let ended = match source.by_ref().take(most as u64).read_to_end(&mut window) {
            Err(source) if !is_damage(&source) => return Err(ImportError::Io { path: path.into(), source }),
            read => !matches!(read, Ok(1..)),
        };
        // A word may begin in one piece and end in the next.
        let before = window.len().saturating_sub(word.len() - 1);
        window.drain(..memchr::memmem::find(&window, word).unwrap_or(before));
        let found = window.starts_with(word);
        if ended || found && window.len() >= most {
            window.truncate(if found { most } else { 0 });
            return Ok(window);
        }
    }
}

/// Whether a read error means that the file is truncated or damaged, rather than a system error.
pub fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | InvalidData | InvalidInput)
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
    fn text_in_utf_16_and_marks_of_encodings_are_read_as_plain_text() {
        let text = "workers,rate,efficiency,seconds,name\n1,\u{1d11e}\n".repeat(10_000);
        let units: Vec<u16> = "\u{feff}".encode_utf16().chain(text.encode_utf16()).collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        let marked = [&UTF_8[..], text.as_bytes()].concat();
        let (unmarked, packed) = ([little[2..].to_vec(), big[2..].to_vec()], pack(&little));
        for bytes in [&little, &big, &marked, &packed, &unmarked[0], &unmarked[1]] {
            assert!(read(bytes).unwrap() == text.as_bytes());
        }
        assert_eq!(read(&little[..5]).unwrap(), b"w", "half a letter is none");
        assert_eq!(read(&UTF_8[..2]).unwrap(), UTF_8[..2]);
        let numbers = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0];
        assert_eq!(read(&numbers).unwrap(), numbers, "no letters");
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
    fn a_head_stops_before_a_bomb_goes_off() {
        let bomb = write(&pack(&vec![0; 1 << 20]));
        assert_eq!(head(bomb.path(), 100).unwrap(), [0; 100]);
    }

    #[test]
    fn a_head_is_what_is_there() {
        let packed = pack(b"hello");
        assert_eq!(head(write(&packed).path(), 100).unwrap(), b"hello");
        assert_eq!(head(write(&packed[..packed.len() - 4]).path(), 100).unwrap(), b"hello");
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
