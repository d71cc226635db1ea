//! Lines about bad callers, few whatever their number.

use std::time::{Duration, Instant};

/// Lines that are told of one span of time; what is more is counted.
const MOST_LINES: u32 = 5;

/// A span of time that begins with a line.
const SPAN: Duration = Duration::from_secs(10);

/// Tells the first few complaints of a span, and how many more there were.
pub struct Complaints<T> {
    tell: T,
    span: Option<Span>,
}

struct Span {
    begin: Instant,
    told: u32,
    more: u64,
    /// The last that was not told.
    last: String,
}

impl<T: Fn(String)> Complaints<T> {
    pub fn new(tell: T) -> Self {
        Self { tell, span: None }
    }

    /// Tells or counts a complaint.
    pub fn note(&mut self, now: Instant, complaint: impl FnOnce() -> String) {
        self.look(now);
        let span =
            self.span.get_or_insert_with(|| Span { begin: now, told: 0, more: 0, last: String::new() });
        if span.told < MOST_LINES {
            span.told += 1;
            (self.tell)(complaint());
        } else {
            span.more += 1;
            span.last = complaint();
        }
    }

    /// When there is something to tell again.
    pub fn due(&self) -> Option<Instant> {
        self.span.as_ref().filter(|span| span.more > 0).map(|span| span.begin + SPAN)
    }

    /// Tells how many complaints there were, if their span is over.
    pub fn look(&mut self, now: Instant) {
        if self.span.as_ref().is_some_and(|span| span.begin + SPAN <= now) {
            self.close();
        }
    }

    /// Tells how many there were.
    pub fn close(&mut self) {
        if let Some(span) = self.span.take().filter(|span| span.more > 0) {
            (self.tell)(format!(
                "{} more such lines within {} s, the last: {}",
                span.more,
                SPAN.as_secs(),
                span.last
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn many_complaints_are_few_lines_and_none_is_forgotten() {
        let told = RefCell::new(Vec::new());
        let mut complaints = Complaints::new(|line| told.borrow_mut().push(line));
        let begin = Instant::now();
        for i in 0..10_000 {
            complaints.note(begin, || format!("caller {i}"));
        }
        assert_eq!(told.borrow().len(), MOST_LINES as usize);
        assert_eq!(complaints.due(), Some(begin + SPAN));
        complaints.look(begin + SPAN);
        assert_eq!(
            told.borrow().last().expect("lines"),
            "9995 more such lines within 10 s, the last: caller 9999"
        );
        complaints.look(begin + 9 * SPAN);
        complaints.note(begin + 9 * SPAN, || "caller 10000".into());
        complaints.close();
        assert_eq!(told.borrow().last().expect("lines"), "caller 10000");
        assert_eq!(told.borrow().len(), MOST_LINES as usize + 2);
    }
}
