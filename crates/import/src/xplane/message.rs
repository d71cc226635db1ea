//! The messages of a profile. Small ones are decoded whole; planes and lines, which may be large, field by field.

use std::collections::HashMap;

use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The largest event or entry of a table that is decoded: a decoded message is many times larger than its bytes.
const MOST: usize = 1 << 16;
/// Most lines, and entries of tables, of all planes together.
pub const MOST_ENTRIES: usize = 1 << 22;
/// The longest text that is kept whole.
const MOST_TEXT: usize = 1 << 10;

/// What a field of use holds.
pub enum Held<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Other,
}

/// The fields of a message in order; after a malformed one, which is `None`, there is no other.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u32, Held<'a>)> {
        let (field, form) = decode_key(&mut self.0).ok()?;
        let held = match form {
            WireType::Varint => Held::Varint(decode_varint(&mut self.0).ok()?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut self.0).ok()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Held::Bytes(bytes)
            }
            form => {
                skip_field(form, field, &mut self.0, DecodeContext::default()).ok()?;
                Held::Other
            }
        };
        Some((field, held))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u32, Held<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = (!self.0.is_empty()).then(|| self.field())?;
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Something that happened on a line.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// What it is: a key of the plane's events.
    #[prost(int64, tag = "1")]
    pub what: i64,
    /// From the line's time to its begin.
    #[prost(int64, optional, tag = "2")]
    pub offset_ps: Option<i64>,
    #[prost(int64, tag = "3")]
    pub duration_ps: i64,
    #[prost(message, repeated, tag = "4")]
    pub stats: Vec<Stat>,
    /// How many events this is the sum of, if it is one.
    #[prost(int64, optional, tag = "5")]
    pub occurrences: Option<i64>,
}

/// What is known of an event or a plane. Other types of values are of no use here.
#[derive(Clone, PartialEq, Message)]
pub struct Stat {
    /// What it is: a key of the plane's words.
    #[prost(int64, tag = "1")]
    pub what: i64,
    #[prost(uint64, optional, tag = "3")]
    pub unsigned: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub signed: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub text: Option<Vec<u8>>,
    /// A text that is a key of the plane's words.
    #[prost(uint64, optional, tag = "7")]
    pub word: Option<u64>,
}

impl Stat {
    pub fn number(&self) -> Option<u64> {
        self.unsigned.or_else(|| self.signed.and_then(|signed| u64::try_from(signed).ok()))
    }
}

/// An entry of a plane's tables.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Label>,
}

/// What an event or a stat is called.
#[derive(Clone, PartialEq, Message)]
pub struct Label {
    #[prost(bytes = "vec", tag = "2")]
    pub name: Vec<u8>,
    /// A short name of an event, where its name is the text of a whole instruction.
    #[prost(bytes = "vec", tag = "4")]
    pub short: Vec<u8>,
}

/// A device, or the threads of the host.
#[derive(Default)]
pub struct Plane<'a> {
    pub name: String,
    pub lines: Vec<Line<'a>>,
    /// Names and short names of events.
    pub events: HashMap<i64, (String, String)>,
    /// Names of stats, and texts that stats refer to.
    words: HashMap<i64, String>,
    keys: HashMap<String, i64>,
    pub stats: Vec<Stat>,
}

/// A stream of a device, or a thread of the host.
#[derive(Default)]
pub struct Line<'a> {
    pub name: String,
    /// Nanoseconds that its events count from.
    pub begin_ns: i64,
    message: &'a [u8],
}

impl<'a> Plane<'a> {
    /// Reads a plane, and takes what it holds from the room that is left.
    pub fn read(message: &'a [u8], room: &mut usize) -> Option<Self> {
        let mut plane = Self::default();
        for field in Fields(message) {
            *room = room.checked_sub(1)?;
            match field? {
                (2, Held::Bytes(name)) => plane.name = text(name),
                (3, Held::Bytes(line)) => plane.lines.push(Line::read(line)?),
                (4, Held::Bytes(entry)) => {
                    let Entry { key, value } = small(entry)?;
                    let Label { name, short } = value.unwrap_or_default();
                    plane.events.insert(key, (text(&name), text(&short)));
                }
                (5, Held::Bytes(entry)) => {
                    let Entry { key, value } = small(entry)?;
                    plane.words.insert(key, text(&value.unwrap_or_default().name));
                }
                (6, Held::Bytes(stat)) => plane.stats.push(small(stat)?),
                _ => {}
            }
        }
        plane.keys = plane.words.iter().map(|(&key, word)| (word.clone(), key)).collect();
        Some(plane)
    }

    /// The key of the stats with a name.
    pub fn key(&self, name: &str) -> Option<i64> {
        self.keys.get(name).copied()
    }

    /// The plane's own stat with a name.
    pub fn stat(&self, name: &str) -> Option<&Stat> {
        let key = self.key(name)?;
        self.stats.iter().find(|stat| stat.what == key)
    }

    pub fn text(&self, stat: &Stat) -> String {
        let word = || stat.word.and_then(|word| self.words.get(&(word as i64)).cloned());
        stat.text.as_deref().map(text).or_else(word).unwrap_or_default()
    }
}

impl<'a> Line<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let mut line = Self { message, ..Self::default() };
        for field in Fields(message) {
            match field? {
                (2, Held::Bytes(name)) => line.name = text(name),
                (3, Held::Varint(begin)) => line.begin_ns = begin as i64,
                _ => {}
            }
        }
        Some(line)
    }

    /// Its events; one that is malformed is `None`.
    pub fn events(&self) -> impl Iterator<Item = Option<Event>> + use<'a> {
        Fields(self.message).filter_map(|field| match field {
            Some((4, Held::Bytes(event))) => Some(small(event)),
            Some(_) => None,
            None => Some(None),
        })
    }
}

/// The operations of the programs that a plane describes, by the names of their instructions; those that several share
/// with different operations are left out.
pub fn operations(plane: &[u8]) -> HashMap<String, String> {
    // Table of events, entry, stat, bytes; program, module, computation, instruction.
    const INSTRUCTION: [u32; 7] = [4, 2, 5, 6, 1, 3, 2];
    let mut operations: HashMap<String, String> = HashMap::new();
    visit(plane, &INSTRUCTION, &mut |instruction| {
        let (mut name, mut operation) = (String::new(), String::new());
        for (field, held) in Fields(instruction).flatten() {
            match (field, held) {
                (1, Held::Bytes(bytes)) => name = text(bytes),
                (2, Held::Bytes(bytes)) => operation = text(bytes),
                _ => {}
            }
        }
        if operations.len() < MOST_ENTRIES {
            let known = operations.entry(name).or_insert_with(|| operation.clone());
            if *known != operation {
                known.clear();
            }
        }
    });
    operations.retain(|_, operation| !operation.is_empty());
    operations
}

/// Visits all messages at the end of a path of fields.
fn visit<'a>(message: &'a [u8], path: &[u32], see: &mut impl FnMut(&'a [u8])) {
    let Some((&next, rest)) = path.split_first() else { return see(message) };
    for (field, held) in Fields(message).flatten() {
        if let (true, Held::Bytes(inner)) = (field == next, held) {
            visit(inner, rest, see);
        }
    }
}

/// Decodes a message; a large one is empty.
fn small<M: Message + Default>(message: &[u8]) -> Option<M> {
    if message.len() > MOST { Some(M::default()) } else { M::decode(message).ok() }
}

/// A text, cut if it is long.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_TEXT)]).into_owned();
    if bytes.len() > MOST_TEXT {
        text.push('\u{2026}');
    }
    text
}
