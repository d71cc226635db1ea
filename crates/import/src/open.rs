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
const HEAD: u64 = 64;

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
    plain(File::open(path).map_err(fail)?).map_err(fail)
}

/// A stream as its author meant it: unpacked, and text in UTF-16 as UTF-8.
pub fn plain(mut source: impl Read + 'static) -> io::Result<Box<dyn Read>> {
    let mut magic = Vec::with_capacity(GZIP.len());
    (&mut source).take(GZIP.len() as u64).read_to_end(&mut magic)?;
    let packed = magic == GZIP;
    let whole = io::Cursor::new(magic).chain(source);
    Ok(match packed {
        true => Box::new(Text::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 16, whole)))),
        false => Box::new(Text::new(whole)),
    })
}

/// A stream without the mark at the beginning that says how its text is encoded, and in UTF-8 if it is in UTF-16.
struct Text<R> {
    source: Peeked<R>,
    form: Option<Form>,
    /// Letters that were decoded, the last one first.
    ready: Vec<u8>,
}

/// A stream whose beginning was looked at. If it fails there, it does so again after what was read.
struct Peeked<R> {
    head: io::Cursor<Vec<u8>>,
    failed: Option<io::Error>,
    source: R,
}

impl<R: Read> Peeked<R> {
    fn peek(&mut self) -> &[u8] {
        let head = self.head.get_mut();
        self.failed = (&mut self.source).take(HEAD).read_to_end(head).err();
        head
    }
}

impl<R: Read> Read for Peeked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match (self.head.read(into)?, self.failed.take()) {
            (0, Some(error)) => Err(error),
            (0, None) => self.source.read(into),
            (count, failed) => {
                self.failed = failed;
                Ok(count)
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Form {
    Bytes,
    Utf16(fn([u8; 2]) -> u16),
}

impl<R: Read> Text<R> {
    fn new(source: R) -> Self {
        let source = Peeked { head: io::Cursor::default(), failed: None, source };
        Self { source, form: None, ready: Vec::new() }
    }

    fn take(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&mut self.source).take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn begin(&mut self) -> Form {
        let head = self.source.peek();
        // Without a mark: of the letters of a page in a European language, one byte is zero.
        let zero = |at: usize| {
            head.len() >= 8 && head.chunks_exact(2).all(|pair| pair[at] == 0 && pair[1 - at] >= 0x09)
        };
        let (form, mark) = match head {
            [0xff, 0xfe, ..] => (Form::Utf16(u16::from_le_bytes), 2),
            [0xfe, 0xff, ..] => (Form::Utf16(u16::from_be_bytes), 2),
            _ if zero(1) => (Form::Utf16(u16::from_le_bytes), 0),
            _ if zero(0) => (Form::Utf16(u16::from_be_bytes), 0),
            _ => (Form::Bytes, if head.starts_with(&UTF_8) { UTF_8.len() } else { 0 }),
        };
        self.source.head.set_position(mark as u64);
        *self.form.insert(form)
    }

    /// Decodes the next letters.
    fn decode(&mut self, unit: fn([u8; 2]) -> u16) -> io::Result<()> {
        let mut bytes = self.take(1 << 16)?;
        let units =
            |bytes: &[u8]| bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect::<Vec<_>>();
        // The second half of a letter may be still to come.
        if units(&bytes).last().is_some_and(|last| (0xd800..0xdc00).contains(last)) {
            bytes.extend(self.take(2)?);
        }
        self.ready = String::from_utf16_lossy(&units(&bytes)).into_bytes();
        self.ready.reverse();
        Ok(())
    }
}

impl<R: Read> Read for Text<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let form = self.form.unwrap_or_else(|| self.begin());
        if self.ready.is_empty() {
            match form {
                Form::Bytes => return self.source.read(into),
                Form::Utf16(unit) => self.decode(unit)?,
            }
        }
        let count = into.len().min(self.ready.len());
        into[..count].iter_mut().for_each(|byte| *byte = self.ready.pop().unwrap_or_default());
        Ok(count)
    }
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

/// The bytes of a file from the first place where it has a word, unpacked; none if its first 256 MiB have none.
pub fn head_from(path: &Path, word: &[u8], most: usize) -> Result<Vec<u8>, ImportError> {
    let mut source = open(path)?.take(1 << 28);
    let mut window = Vec::new();
    loop {
        let read = (&mut source).take(most.max(word.len()) as u64).read_to_end(&mut window);
        match read {
            Err(source) if !is_damage(&source) => return Err(ImportError::Io { path: path.into(), source }),
            read => {
                let place = memchr::memmem::find(&window, word);
                let ended = !matches!(read, Ok(1..));
                // Another round fills up what follows the word.
                if let Some(place) = place.filter(|place| ended || window.len() - place >= most) {
                    window.truncate(place.saturating_add(most).min(window.len()));
                    return Ok(window.split_off(place));
                }
                if ended {
                    return Ok(Vec::new());
                }
                let keep = place.unwrap_or(window.len().saturating_sub(word.len() - 1));
                window.drain(..keep);
            }
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
