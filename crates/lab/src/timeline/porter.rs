//! What a porter did, event by event.

use paceline_record::PorterEvent;
use paceline_record::log::PorterReader;

use crate::hosts::Station;
use crate::hosts::clock::Clock;

/// The events of a porter's log on the first host's clock, up to the first that cannot be read.
pub(super) struct Moves<'a> {
    log: PorterReader,
    clock: &'a Clock,
}

impl<'a> Moves<'a> {
    /// `None` where there is no log.
    pub(super) fn open(Station { folder, clock }: &'a Station) -> Option<Self> {
        Some(Self { log: PorterReader::open(folder).ok()??, clock })
    }
}

impl Iterator for Moves<'_> {
    type Item = PorterEvent;

    fn next(&mut self) -> Option<PorterEvent> {
        let mut event = self.log.next_event().ok()??;
        match &mut event {
            PorterEvent::Moved(moved) => {
                (moved.begin, moved.end) = (self.clock.moment(moved.begin)?, self.clock.moment(moved.end)?);
            }
            PorterEvent::Worked { begin, end, .. } => {
                (*begin, *end) = (self.clock.moment(*begin)?, self.clock.moment(*end)?);
            }
            PorterEvent::Connected { at, .. }
            | PorterEvent::Dropped { at, .. }
            | PorterEvent::Lost { at, .. } => *at = self.clock.moment(*at)?,
        }
        Some(event)
    }
}
