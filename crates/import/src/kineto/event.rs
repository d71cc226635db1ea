//! One event of a trace, as slices of its text.

use super::scan::{Cursor, Stop, Value};

/// The useful parts of an event; missing ones are empty.
#[derive(Default)]
pub struct Event<'a> {
    /// Kind of event: `X` has a duration, `M` names something.
    pub phase: Option<u8>,
    /// Its category.
    pub category: &'a [u8],
    /// Its name.
    pub name: Value<'a>,
    /// The process, or the device.
    pub process: &'a [u8],
    /// The thread, or the stream.
    pub thread: &'a [u8],
    /// Begin.
    pub begin: &'a [u8],
    /// Duration.
    pub duration: &'a [u8],
    /// Its arguments.
    pub args: Args<'a>,
}

/// The arguments that are of use.
#[derive(Default)]
pub struct Args<'a> {
    /// Connects a launch with its work.
    pub correlation: &'a [u8],
    /// Bytes of a copy.
    pub bytes: &'a [u8],
    /// Number of the device.
    pub device: &'a [u8],
    /// What an `M` event calls the thread.
    pub name: Value<'a>,
    /// The operation of a collective.
    pub collective: Value<'a>,
    /// Numbers that go into a collective.
    pub elements: &'a [u8],
    /// Their type.
    pub element: &'a [u8],
    /// The group of ranks, by its name, or else its number.
    pub group: Value<'a>,
    /// The number of a collective in its group.
    pub sequence: &'a [u8],
    /// Shapes of an operator's inputs.
    pub shapes: &'a [u8],
    /// Types of an operator's inputs.
    pub types: &'a [u8],
}

impl<'a> Event<'a> {
    /// Reads an event. A value that is not an object gives an empty event.
    pub fn read(cursor: &mut Cursor<'a>) -> Result<Self, Stop> {
        let mut event = Self::default();
        if cursor.peek()? != b'{' {
            cursor.value()?;
            return Ok(event);
        }
        cursor.expect(b'{')?;
        while let Some(key) = cursor.member()? {
            if key.raw == b"args" && cursor.peek()? == b'{' {
                event.args = Args::read(cursor)?;
                continue;
            }
            let value = cursor.value()?;
            match key.raw {
                b"ph" => event.phase = value.raw.first().copied(),
                b"cat" => event.category = value.raw,
                b"name" => event.name = value,
                b"pid" => event.process = value.raw,
                b"tid" => event.thread = value.raw,
                b"ts" => event.begin = value.raw,
                b"dur" => event.duration = value.raw,
                _ => {}
            }
        }
        Ok(event)
    }
}

impl<'a> Args<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Stop> {
        let mut args = Self::default();
        cursor.expect(b'{')?;
        while let Some(key) = cursor.member()? {
            let value = cursor.value()?;
            match key.raw {
                b"correlation" => args.correlation = value.raw,
                b"bytes" | b"Bytes" => args.bytes = value.raw,
                b"device" => args.device = value.raw,
                b"name" => args.name = value,
                b"Collective name" => args.collective = value,
                b"In msg nelems" => args.elements = value.raw,
                b"dtype" => args.element = value.raw,
                b"Process Group Name" => args.group = value,
                b"Process Group ID" => args.group = args.group.told().unwrap_or(value),
                b"Seq" => args.sequence = value.raw,
                b"Input Dims" | b"Input dims" => args.shapes = value.raw,
                b"Input type" => args.types = value.raw,
                _ => {}
            }
        }
        Ok(args)
    }
}
