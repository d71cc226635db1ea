//! Follows the log of a member while it is being written, for the progress bar.

use std::path::{Path, PathBuf};

use paceline_record::log::MemberReader;
use paceline_record::{LogError, Member, RankEvent};

/// Reads the log of the first member of the roster, whoever that is.
pub(crate) struct Follower {
    folder: PathBuf,
    reader: Option<(Member, MemberReader)>,
    events: Vec<RankEvent>,
}

impl Follower {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.into(), reader: None, events: Vec::new() }
    }

    /// Adds something that the launcher itself knows.
    pub fn add(&mut self, event: RankEvent) {
        self.events.push(event);
    }

    /// What was logged since the last call, steps as wholes. It only feeds the progress bar, so a log that cannot be read yet is
    /// not an error.
    pub fn look(&mut self, first: Option<Member>) -> Vec<RankEvent> {
        let _ = self.catch_up(first);
        for event in &mut self.events {
            if let RankEvent::Step(record) = event
                && let Some(whole) = record.whole
            {
                (record.examples, record.loss, record.correct) = (whole.examples, whole.loss, whole.correct);
            }
        }
        std::mem::take(&mut self.events)
    }

    fn catch_up(&mut self, first: Option<Member>) -> Result<(), LogError> {
        let Some(member) = first.or(self.reader.as_ref().map(|(member, _)| *member)) else { return Ok(()) };
        if self.reader.as_ref().is_none_or(|(known, _)| *known != member) {
            self.reader = Some((member, MemberReader::open(&self.folder, member)?));
        }
        let (_, reader) = self.reader.as_mut().expect("invariant: it was just opened");
        while let Some(event) = reader.next_event()? {
            self.events.push(event);
        }
        Ok(())
    }
}
