//! Reads the objects of a JSON array one by one, even if the array has no end.

use std::io::{self, BufRead};

/// Longest object that is kept; longer ones are skipped.
const LONGEST: usize = 1 << 20;

/// What comes next in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An object, now in the buffer.
    Object,
    /// An object that is too long.
    TooLong,
    /// The end of the file.
    End,
    /// The file ends inside an object.
    Torn,
}

/// Reads objects one after the other.
pub(super) struct Objects<R> {
    source: R,
}

impl<R: BufRead> Objects<R> {
    pub fn new(source: R) -> Self {
        Self { source }
    }

    /// Enters the array; false if there is none.
    pub fn enter(&mut self) -> io::Result<bool> {
        while let Some(byte) = self.byte()? {
            match byte {
                b'[' => return Ok(true),
                byte if byte.is_ascii_whitespace() => {}
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Finds the next object, skipping commas and damaged text in between.
    pub fn next(&mut self, object: &mut Vec<u8>) -> io::Result<Found> {
        object.clear();
        loop {
            match self.byte()? {
                Some(b'{') => break,
                Some(_) => {}
                None => return Ok(Found::End),
            }
        }
        object.push(b'{');
        let (mut depth, mut in_text, mut escaped, mut length) = (1_u64, false, false, 1_usize);
        while depth > 0 {
            let Some(byte) = self.byte()? else { return Ok(Found::Torn) };
            length += 1;
            if length <= LONGEST {
                object.push(byte);
            }
            match byte {
                // Strings in a timeline never span lines: one that does has lost its end.
                b'\n' if in_text => return Ok(Found::Object),
                _ if escaped => escaped = false,
                b'\\' if in_text => escaped = true,
                b'"' => in_text = !in_text,
                b'{' if !in_text => depth += 1,
                b'}' if !in_text => depth -= 1,
                _ => {}
            }
        }
        Ok(if length > LONGEST { Found::TooLong } else { Found::Object })
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        loop {
            match self.source.fill_buf() {
                Ok(bytes) => {
                    let byte = bytes.first().copied();
                    self.source.consume(usize::from(byte.is_some()));
                    return Ok(byte);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<(Found, String)> {
        let mut objects = Objects::new(text);
        let mut all = Vec::new();
        if !objects.enter().expect("memory can be read") {
            return all;
        }
        loop {
            let mut object = Vec::new();
            let found = objects.next(&mut object).expect("memory can be read");
            all.push((found, String::from_utf8_lossy(&object).into()));
            if matches!(found, Found::End | Found::Torn) {
                return all;
            }
        }
    }

    #[test]
    fn objects_are_found_with_or_without_an_end_of_the_array() {
        for text in [r#"[{"a": {"b": "}\"{"}}, {"c": 1}]"#, r#" [{"a": {"b": "}\"{"}},{"c": 1},"#] {
            let found = all(text.as_bytes());
            assert_eq!(found[0], (Found::Object, r#"{"a": {"b": "}\"{"}}"#.into()));
            assert_eq!(found[1].1, r#"{"c": 1}"#);
            assert_eq!((found.len(), found[2].0), (3, Found::End));
        }
        assert_eq!(all(br#"[{"a": 1}, {"b": "#)[1].0, Found::Torn);
        assert_eq!(all(b"{}"), []);
        assert_eq!(all(b""), []);
    }

    #[test]
    fn damage_costs_a_line_and_not_the_rest() {
        let found = all(b"[{\"a\": \"no end},\n{\"b\": 1}]");
        assert_eq!(found[1], (Found::Object, "{\"b\": 1}".into()));
    }

    #[test]
    fn an_endless_object_takes_bounded_memory() {
        let mut text = b"[{\"a\": \"".to_vec();
        text.resize(3 * LONGEST, b'x');
        text.extend(b"\"}, {\"b\": 1}]");
        let mut objects = Objects::new(&text[..]);
        let mut object = Vec::new();
        assert!(objects.enter().expect("memory can be read"));
        assert_eq!(objects.next(&mut object).expect("memory can be read"), Found::TooLong);
        assert!(object.capacity() <= 2 * LONGEST);
        assert_eq!(objects.next(&mut object).expect("memory can be read"), Found::Object);
        assert_eq!(object, b"{\"b\": 1}");
    }
}
