//! Messages that wait to be sent to a peer, and the chunk that a stream is sending.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::slice;

use crate::wire::Tag;
use crate::wire::chunk::{HEAD, Head};

/// The messages for one peer.
pub struct Queue {
    messages: VecDeque<Message>,
    /// The number of the first: all before it are sent.
    first: u64,
    /// The number of the first that has chunks which no stream has taken.
    next: u64,
}

struct Message {
    tag: Tag,
    from: *const u8,
    len: usize,
    chunk: usize,
    /// Bytes that streams have taken.
    taken: usize,
    /// Chunks that are not sent.
    left: usize,
}

// SAFETY: the pointer is only read through, and whoever queued it keeps the bytes unchanged.
unsafe impl Send for Message {}

impl Queue {
    pub fn new() -> Self {
        Self { messages: VecDeque::new(), first: 0, next: 0 }
    }

    /// Adds a message.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, which nobody changes, until a [`Writer`] has returned its tag or the queue
    /// and all its writers are dropped.
    pub unsafe fn push(&mut self, tag: Tag, from: *const u8, len: usize, chunk: usize) {
        // An empty message is one empty chunk.
        let left = len.div_ceil(chunk).max(1);
        self.messages.push_back(Message { tag, from, len, chunk, taken: 0, left });
    }

    /// Whether there is a chunk that no stream has taken.
    pub fn has_chunk(&self) -> bool {
        self.next < self.first + self.messages.len() as u64
    }
}

/// What one stream is sending.
pub struct Writer {
    head: [u8; HEAD],
    payload: *const u8,
    len: usize,
    /// The message's number.
    number: u64,
    /// Bytes of head and payload that are sent.
    at: usize,
    is_busy: bool,
}

// SAFETY: as for `Message`.
unsafe impl Send for Writer {}

impl Writer {
    pub fn new() -> Self {
        Self { head: [0; HEAD], payload: std::ptr::null(), len: 0, number: 0, at: 0, is_busy: false }
    }

    /// Whether a chunk is under way.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Takes the next chunk, and adds its sum where that is asked for; whether there was one.
    pub fn begin(&mut self, queue: &mut Queue, is_summed: bool) -> bool {
        let Some(message) = queue.messages.get_mut((queue.next - queue.first) as usize) else { return false };
        let offset = message.taken;
        self.len = message.chunk.min(message.len - offset);
        self.payload = message.from.wrapping_add(offset);
        self.number = queue.next;
        self.at = 0;
        self.is_busy = true;
        message.taken += self.len;
        if message.taken == message.len {
            queue.next += 1;
        }
        self.head = Head {
            tag: message.tag,
            total: message.len as u64,
            offset: offset as u64,
            len: self.len as u32,
            sum: is_summed.then(|| crc_fast::crc32_iscsi(self.payload())),
        }
        .to_bytes();
        true
    }

    fn payload(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: these are bytes of a message that is not sent yet, which whoever queued it keeps.
        unsafe { slice::from_raw_parts(self.payload, self.len) }
    }

    /// What is left of the chunk.
    pub fn parts(&self) -> [IoSlice<'_>; 2] {
        let payload = &self.payload()[self.at.saturating_sub(HEAD)..];
        [IoSlice::new(&self.head[self.at.min(HEAD)..]), IoSlice::new(payload)]
    }

    /// So many bytes of it are sent; the tag of the message if that was the last of it.
    pub fn advance(&mut self, count: usize, queue: &mut Queue) -> Option<Tag> {
        self.at += count;
        if self.at < HEAD + self.len {
            return None;
        }
        self.is_busy = false;
        let message = &mut queue.messages[(self.number - queue.first) as usize];
        message.left -= 1;
        let sent = (message.left == 0).then_some(message.tag);
        while queue.messages.pop_front_if(|message| message.left == 0).is_some() {
            queue.first += 1;
        }
        sent
    }
}
