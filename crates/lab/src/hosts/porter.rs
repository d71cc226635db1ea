//! What the porter of a host did, summed up.

use std::collections::BTreeSet;

use paceline_record::log::PorterReader;
use paceline_record::{Host, Nanos, PorterEvent, Step};

use super::Station;

/// What a porter moved and took over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Porter {
    /// Bytes to other hosts.
    pub sent: u64,
    /// Bytes from other hosts.
    pub received: u64,
    /// Its processor time.
    pub cpu: Nanos,
    /// Steps that it tells of.
    pub steps: u64,
}

impl Porter {
    /// Sums up a porter's log; `None` where there is none.
    pub(super) fn read(station: &Station, host: Host) -> Result<Option<Self>, String> {
        let words = |error: paceline_record::LogError| error.to_string();
        let Some(mut log) = PorterReader::open(&station.folder).map_err(words)? else { return Ok(None) };
        if log.header().host != host {
            return Err(format!("the log of the porter of host {host} says host {}", log.header().host));
        }
        let mut sums = Self::default();
        let mut steps: BTreeSet<Step> = BTreeSet::new();
        while let Some(event) = log.next_event().map_err(words)? {
            match event {
                PorterEvent::Moved(moved) => {
                    sums.sent = sums.sent.saturating_add(moved.sent.0);
                    sums.received = sums.received.saturating_add(moved.received.0);
                    steps.extend(moved.step);
                }
                PorterEvent::Worked { step, begin, end, cpu, .. } => {
                    let ends = station.clock.moment(begin).zip(station.clock.moment(end));
                    let cpu = ends.map_or(cpu, |ends| station.clock.length(cpu, (begin, end), ends));
                    sums.cpu = Nanos(sums.cpu.0.saturating_add(cpu.0));
                    steps.insert(step);
                }
                PorterEvent::Connected { .. } | PorterEvent::Dropped { .. } | PorterEvent::Lost { .. } => {}
            }
        }
        sums.steps = steps.len() as u64;
        Ok(Some(sums))
    }
}
