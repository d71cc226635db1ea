//! What comes over the streams of a peer. Nothing of it is believed.

use std::slice;

use crc_fast::{CrcAlgorithm, Digest};
use paceline_record::Host;

use crate::wire::chunk::{HEAD, Head};
use crate::wire::{Inbox, Tag};

/// Messages of a peer that may be unfinished at a time.
const MOST_UNFINISHED: usize = 4096;

/// The longest message, in bytes. It bounds the marks that are kept of one.
const LONGEST: u64 = 1 << 40;

/// The messages of one peer that have begun to arrive.
pub struct Unfinished {
    host: Host,
    chunk: usize,
    messages: Vec<Message>,
    /// Marks of finished messages, to be used again.
    spare: Vec<Vec<u64>>,
}

struct Message {
    tag: Tag,
    len: usize,
    into: *mut u8,
    /// A bit for each chunk that has begun to arrive.
    begun: Vec<u64>,
    /// Chunks that have not arrived.
    left: usize,
}

// SAFETY: the inbox that gave the pointer leaves its bytes alone until the message has arrived.
unsafe impl Send for Message {}

impl Unfinished {
    pub fn new(host: Host, chunk: usize) -> Self {
        Self { host, chunk, messages: Vec::new(), spare: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn clear(&mut self) {
        self.messages.clear();
    }

    /// Where a chunk goes.
    fn begin(&mut self, head: &Head, inbox: &mut dyn Inbox) -> Result<*mut u8, String> {
        let place = match self.messages.iter().position(|message| message.tag == head.tag) {
            Some(place) => place,
            None => self.open(head, inbox)?,
        };
        let message = &mut self.messages[place];
        if head.total != message.len as u64 {
            return Err(format!("it sent a message of {} bytes that began with {}", head.total, message.len));
        }
        let offset = usize::try_from(head.offset).unwrap_or(usize::MAX);
        let is_chunk = offset.is_multiple_of(self.chunk)
            && (offset < message.len || (offset == 0 && message.len == 0))
            && head.len as usize == self.chunk.min(message.len - offset);
        if !is_chunk {
            return Err(format!(
                "it sent {} bytes at {} of a message of {}",
                head.len, head.offset, message.len
            ));
        }
        let (word, bit) = (offset / self.chunk / 64, 1 << (offset / self.chunk % 64));
        if message.begun[word] & bit != 0 {
            return Err(format!("it sent bytes {offset} of a message twice"));
        }
        message.begun[word] |= bit;
        Ok(message.into.wrapping_add(offset))
    }

    /// A message whose first chunk comes.
    fn open(&mut self, head: &Head, inbox: &mut dyn Inbox) -> Result<usize, String> {
        if head.total > LONGEST || self.messages.len() >= MOST_UNFINISHED {
            return Err(format!(
                "it sent a message of {} bytes beside {} others",
                head.total,
                self.messages.len()
            ));
        }
        let len = head.total as usize;
        let into = inbox.place(self.host, head.tag, len);
        let into = into.ok_or_else(|| {
            format!("it sent a message that nobody waits for, {:?} of {len} bytes", head.tag)
        })?;
        let left = len.div_ceil(self.chunk).max(1);
        let mut begun = self.spare.pop().unwrap_or_default();
        begun.clear();
        begun.resize(left.div_ceil(64), 0);
        self.messages.push(Message { tag: head.tag, len, into, begun, left });
        Ok(self.messages.len() - 1)
    }

    /// All of a chunk has arrived.
    fn end(&mut self, tag: Tag, inbox: &mut dyn Inbox) {
        let place = self.messages.iter().position(|message| message.tag == tag);
        let place = place.expect("invariant: a message stays until its last chunk has arrived");
        self.messages[place].left -= 1;
        if self.messages[place].left == 0 {
            let message = self.messages.swap_remove(place);
            self.spare.push(message.begun);
            inbox.arrived(self.host, tag, message.len);
        }
    }
}

/// What one stream is reading: the rest of a payload, and then a head.
pub struct Reader {
    head: [u8; HEAD],
    /// Bytes of the head that are there.
    headed: usize,
    payload: Option<Payload>,
}

struct Payload {
    tag: Tag,
    into: *mut u8,
    len: usize,
    /// Bytes that are there.
    at: usize,
    /// What the sum is to be, and what it is so far, if there is one.
    sum: Option<(u32, Digest)>,
}

// SAFETY: as for `Message`.
unsafe impl Send for Payload {}

impl Payload {
    /// Where the bytes go that are to come.
    fn room(&mut self) -> &mut [u8] {
        if self.at == self.len {
            return &mut [];
        }
        // SAFETY: an inbox gave the memory of the whole message and leaves it alone until the message has arrived, which it has
        // not without this payload. The chunks of a message do not overlap, and each is read by one stream only.
        unsafe { slice::from_raw_parts_mut(self.into.add(self.at), self.len - self.at) }
    }

    /// So many of them have come.
    fn fill(&mut self, count: usize) {
        if let Some((sum, mut so_far)) = self.sum.take() {
            so_far.update(&self.room()[..count]);
            self.sum = Some((sum, so_far));
        }
        self.at += count;
    }
}

impl Reader {
    pub fn new() -> Self {
        Self { head: [0; HEAD], headed: 0, payload: None }
    }

    /// Whether nothing is begun.
    pub fn is_between(&self) -> bool {
        self.payload.is_none() && self.headed == 0
    }

    /// Where the next bytes go, in turn.
    pub fn room(&mut self) -> [&mut [u8]; 2] {
        let payload: &mut [u8] = match &mut self.payload {
            Some(payload) => payload.room(),
            None => &mut [],
        };
        [payload, &mut self.head[self.headed..]]
    }

    /// So many bytes of that room are filled.
    pub fn advance(
        &mut self,
        mut count: usize,
        unfinished: &mut Unfinished,
        inbox: &mut dyn Inbox,
    ) -> Result<(), String> {
        if let Some(payload) = &mut self.payload {
            let now = count.min(payload.len - payload.at);
            payload.fill(now);
            count -= now;
            if payload.at < payload.len {
                return Ok(());
            }
            self.finish(unfinished, inbox)?;
        }
        self.headed += count;
        if self.headed == HEAD {
            self.headed = 0;
            let head = Head::from_bytes(&self.head).ok_or("it sent something that is no chunk")?;
            let into = unfinished.begin(&head, inbox)?;
            let len = head.len as usize;
            self.payload = Some(Payload {
                tag: head.tag,
                into,
                len,
                at: 0,
                sum: head.sum.map(|sum| (sum, Digest::new(CrcAlgorithm::Crc32Iscsi))),
            });
            if len == 0 {
                self.finish(unfinished, inbox)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, unfinished: &mut Unfinished, inbox: &mut dyn Inbox) -> Result<(), String> {
        if let Some(payload) = self.payload.take() {
            if payload.sum.is_some_and(|(sum, so_far)| u64::from(sum) != so_far.finalize()) {
                return Err("a chunk was damaged on the way".into());
            }
            unfinished.end(payload.tag, inbox);
        }
        Ok(())
    }
}
