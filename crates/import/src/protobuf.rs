//! Fields of a message in the encoding of protocol buffers, without a schema.

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Held<'a> {
    Varint(u64),
    Eight(u64),
    Bytes(&'a [u8]),
    Four(u32),
}

/// The message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The fields of a message in order; after a malformed one there is no other.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn field(&mut self) -> Result<(u64, Held<'a>), Malformed> {
        let key = self.varint()?;
        let held = match key & 7 {
            0 => Held::Varint(self.varint()?),
            1 => Held::Eight(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Held::Bytes(self.take(length)?)
            }
            5 => Held::Four(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| Malformed)?)),
            _ => return Err(Malformed),
        };
        Ok((key >> 3, held))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Held<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_field_is_read_and_none_beyond_the_message() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0];
        let fields: Result<Vec<_>, _> = Fields::of(&message).collect();
        let expected =
            [(1, Held::Varint(150)), (2, Held::Bytes(b"hi")), (3, Held::Four(1)), (4, Held::Eight(2))];
        assert_eq!(fields.expect("well formed"), expected);
        for message in [
            &[0x12, 200, 1, 0][..],
            &[0x09, 1],
            &[0x0b],
            &[0xff; 11],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(Fields::of(message).last(), Some(Err(Malformed)), "{message:?}");
        }
    }
}
