//! One event of a trace, as slices of its text.

use super::scan::{Cursor, Stop, Text, Value};

/// The useful parts of an event; missing ones are `None`.
#[derive(Default)]
pub struct Event<'a> {
    /// Kind of event: `X` has a duration, `M` names something.
    pub phase: Option<u8>,
    /// Its category.
    pub category: &'a [u8],
    /// Its name.
    pub name: Text<'a>,
    /// The process, or the device.
    pub process: &'a [u8],
    /// The thread, or the stream.
    pub thread: &'a [u8],
    /// Begin.
    pub begin: Option<&'a [u8]>,
    /// Duration.
    pub duration: Option<&'a [u8]>,
    /// Its arguments.
    pub args: Args<'a>,
}

/// The arguments that are of use.
#[derive(Default)]
pub struct Args<'a> {
    /// Connects a launch with its work.
    pub correlation: Option<&'a [u8]>,
    /// Bytes of a copy.
    pub bytes: Option<&'a [u8]>,
    /// Number of the device.
    pub device: Option<&'a [u8]>,
    /// What an `M` event calls the thread.
    pub name: Option<Text<'a>>,
    /// The operation of a collective.
    pub collective: Option<Text<'a>>,
    /// Numbers that go into a collective.
    pub elements: Option<&'a [u8]>,
    /// Their type.
    pub element: Option<&'a [u8]>,
    /// The group of ranks, by its name, or else its number.
    pub group: Option<Text<'a>>,
    /// The number of a collective in its group.
    pub sequence: Option<&'a [u8]>,
    /// Shapes of an operator's inputs.
    pub shapes: Option<&'a [u8]>,
    /// Types of an operator's inputs.
    pub types: Option<&'a [u8]>,
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
                b"ph" => event.phase = value.token().first().copied(),
                b"cat" => event.category = value.token(),
                b"name" => event.name = value.text(),
                b"pid" => event.process = value.token(),
                b"tid" => event.thread = value.token(),
                b"ts" => event.begin = Some(value.token()),
                b"dur" => event.duration = Some(value.token()),
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
                b"correlation" => args.correlation = Some(value.token()),
                b"bytes" | b"Bytes" => args.bytes = Some(value.token()),
                b"device" => args.device = Some(value.token()),
                b"name" => args.name = Some(value.text()),
                b"Collective name" => args.collective = Some(value.text()),
                b"In msg nelems" => args.elements = Some(value.token()),
                b"dtype" => args.element = Some(value.token()),
                b"Process Group Name" => args.group = Some(value.text()),
                b"Process Group ID" => args.group = args.group.or(Some(value.text())),
                b"Seq" => args.sequence = Some(value.token()),
                b"Input Dims" | b"Input dims" => args.shapes = nested(value),
                b"Input type" => args.types = nested(value),
                _ => {}
            }
        }
        Ok(args)
    }
}

fn nested(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Nested(text) => Some(text),
        _ => None,
    }
}
