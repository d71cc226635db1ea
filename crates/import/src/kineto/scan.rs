//! JSON read in place and leniently: tokens are slices of the text, nothing is built, nesting costs no stack.
//!
//! `NaN`, `Infinity`, trailing commas and missing commas pass; what cannot be JSON at all is [`Stop::Odd`].

use memchr::memchr2;

/// Longer than any number or word for a number.
const MOST_SCALAR: usize = 1 << 10;

/// Why a value was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The text ends before the value does.
    Short,
    /// The text is not JSON here.
    Odd,
}

/// A value in its text: a string without its quotes, a number or a word, or an array or object with its brackets. Some
/// writers quote numbers, so which of them it is does not matter. A missing one is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value<'a> {
    /// The text.
    pub raw: &'a [u8],
    /// Whether it is a string with an escape.
    pub escaped: bool,
}

impl Value<'_> {
    /// The unescaped text; invalid UTF-8 is replaced.
    pub fn plain(&self) -> String {
        if self.escaped {
            let quoted = [b"\"", self.raw, b"\""].concat();
            if let Ok(plain) = serde_json::from_slice(&quoted) {
                return plain;
            }
        }
        String::from_utf8_lossy(self.raw).into_owned()
    }

    /// Itself, unless it is missing.
    pub fn told(self) -> Option<Self> {
        (!self.raw.is_empty()).then_some(self)
    }
}

/// A place in a text.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The begin of a text.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The position.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The text from a place up to here.
    fn since(&self, begin: usize) -> Value<'a> {
        Value { raw: &self.bytes[begin..self.at], escaped: false }
    }

    /// The next byte that is not white space; it is not taken.
    #[inline]
    pub fn peek(&mut self) -> Result<u8, Stop> {
        while let Some(&byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Ok(byte);
            }
            self.at += 1;
        }
        Err(Stop::Short)
    }

    /// Takes a byte that must come next.
    #[inline]
    pub fn expect(&mut self, byte: u8) -> Result<(), Stop> {
        if self.peek()? != byte {
            return Err(Stop::Odd);
        }
        self.at += 1;
        Ok(())
    }

    /// The key of an object's next member, up to and with the colon; `None` takes the object's end.
    #[inline]
    pub fn member(&mut self) -> Result<Option<Value<'a>>, Stop> {
        loop {
            match self.peek()? {
                b'"' => break,
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(None);
                }
                _ => return Err(Stop::Odd),
            }
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// Whether an array has another element; otherwise skips its end.
    #[inline]
    pub fn element(&mut self) -> Result<bool, Stop> {
        loop {
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(false);
                }
                b'}' | b':' => return Err(Stop::Odd),
                _ => return Ok(true),
            }
        }
    }

    /// Takes a value.
    #[inline]
    pub fn value(&mut self) -> Result<Value<'a>, Stop> {
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => {
                let begin = self.at;
                let length = Skip::default().feed(&self.bytes[begin..]).ok_or(Stop::Short)?;
                self.at += length;
                Ok(self.since(begin))
            }
            _ => self.scalar(),
        }
    }

    #[inline]
    fn string(&mut self) -> Result<Value<'a>, Stop> {
        let begin = self.at + 1;
        let mut at = begin;
        let mut escaped = false;
        loop {
            at += memchr2(b'"', b'\\', self.bytes.get(at..).ok_or(Stop::Short)?).ok_or(Stop::Short)?;
            if self.bytes[at] == b'"' {
                self.at = at + 1;
                return Ok(Value { raw: &self.bytes[begin..at], escaped });
            }
            escaped = true;
            at += 2;
        }
    }

    #[inline]
    fn scalar(&mut self) -> Result<Value<'a>, Stop> {
        let begin = self.at;
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        let rest = &self.bytes[begin..];
        let length = rest.iter().take(MOST_SCALAR + 1).take_while(|byte| is_part(byte)).count();
        let ends = match rest.get(length) {
            None => return Err(Stop::Short),
            Some(byte) => matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t'),
        };
        self.at += length;
        if ends && length > 0 { Ok(self.since(begin)) } else { Err(Stop::Odd) }
    }
}

/// Skips an array, an object or a string of any length, which may come in pieces.
#[derive(Default)]
pub struct Skip {
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl Skip {
    /// Takes the next piece; returns where the value ends in it, if it does.
    pub fn feed(&mut self, piece: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(&byte) = piece.get(at) {
            at += 1;
            if self.escaped {
                self.escaped = false;
            } else if self.in_string {
                at += memchr2(b'"', b'\\', &piece[at - 1..])?;
                self.escaped = piece[at - 1] == b'\\';
                self.in_string = self.escaped;
                if !self.in_string && self.depth == 0 {
                    return Some(at);
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(at);
                        }
                    }
                    _ => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Value<'_>, Stop> {
        Cursor::new(text.as_bytes()).value()
    }

    #[test]
    fn values_are_slices_of_their_text() {
        assert_eq!(value(" 12.5,").unwrap().raw, b"12.5");
        assert_eq!(value("-Infinity]").unwrap().raw, b"-Infinity");
        assert_eq!(value(r#""a\"b" "#).unwrap(), Value { raw: br#"a\"b"#, escaped: true });
        assert_eq!(value(r#"[1,{"a":"]"}],"#).unwrap().raw, br#"[1,{"a":"]"}]"#);
    }

    #[test]
    fn what_is_cut_is_short_and_what_is_no_json_is_odd() {
        for short in ["", "  ", "12", "\"abc", "\"abc\\", "\"abc\\\"", "[1,2", "{\"a\":\"}"] {
            assert_eq!(value(short), Err(Stop::Short), "{short}");
        }
        for odd in [",", "12\"", "a:b", "\u{1}", "#1,"] {
            assert_eq!(value(odd), Err(Stop::Odd), "{odd}");
        }
        assert_eq!(value(&"9".repeat(5000)), Err(Stop::Odd));
    }

    #[test]
    fn nesting_of_any_depth_is_skipped_in_pieces() {
        let text = format!("{}\"]\\\"]\"{}rest", "[".repeat(100_000), "]".repeat(100_000));
        let whole = text.len() - 4;
        assert_eq!(Skip::default().feed(text.as_bytes()), Some(whole));
        let mut skip = Skip::default();
        let mut gone = 0;
        for piece in text.as_bytes().chunks(7) {
            if let Some(end) = skip.feed(piece) {
                assert_eq!(gone + end, whole);
                return;
            }
            gone += piece.len();
        }
        panic!("no end was found");
    }

    #[test]
    fn escapes_are_resolved_where_they_make_sense() {
        assert_eq!(Value { raw: br#"a\"\u00e9\n"#, escaped: true }.plain(), "a\"\u{e9}\n");
        assert_eq!(Value { raw: br#"a\ud800"#, escaped: true }.plain(), r"a\ud800");
        assert_eq!(Value { raw: b"a\xff", escaped: false }.plain(), "a\u{fffd}");
    }
}
