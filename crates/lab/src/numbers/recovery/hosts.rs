//! What happened to hosts.

use paceline_record::{Host, HostChange, HostEvent, Nanos, Step};

use super::{Event, View, What};
use crate::Run;
use crate::hosts::Hosts;

/// Hosts that were lost, with the step that was under way: the first that is done by the next roster of hosts.
pub(super) fn losses(run: &Run) -> impl Iterator<Item = (Step, Host)> {
    run.hosts.iter().flat_map(|hosts| {
        let lost = hosts.events.iter().filter(|event| matches!(event.change, HostChange::Lost { .. }));
        lost.filter_map(|event| {
            let next = hosts.rosters.iter().find(|roster| roster.at >= event.at)?;
            Some((next.step, event.host))
        })
    })
}

impl View<'_> {
    /// What happened to hosts between the first step and the last, and that other numbers of workers were asked for on them.
    pub(super) fn host_events(&self) -> Vec<(Nanos, Event)> {
        let (Some(hosts), Some(training)) = (&self.run.hosts, self.run.training()) else { return Vec::new() };
        let about =
            |host: Host, at: Nanos, what: What| Event { host: Some(host), ..self.of_nobody(at, what) };
        let told = |HostEvent { host, at, change }: &HostEvent| {
            let event = match change {
                HostChange::Joined { workers, .. } if *at >= training.begin => {
                    Event { workers: Some(*workers), ..about(*host, *at, What::Joined) }
                }
                HostChange::Lost { why } => {
                    let planted = self.planted_in_host(*host, *at).map(|(_, fault)| fault.to_owned());
                    Event { why: Some(why.clone()), planted, ..about(*host, *at, What::Lost) }
                }
                // What a host was lost by is told with its loss.
                HostChange::Planted { step, fault } if !self.is_lost_by(*host, *at) => Event {
                    step: Some(*step),
                    planted: Some(fault.clone()),
                    ..about(*host, *at, What::Planted)
                },
                HostChange::Left if Hosts::left_early(self.run, *at) => about(*host, *at, What::Left),
                _ => return None,
            };
            Some((*at, event))
        };
        let scaled = hosts.scaled.iter().map(|&(host, at, workers)| {
            (at, Event { workers: Some(workers), ..about(host, at, What::Scaled) })
        });
        hosts.events.iter().filter_map(told).chain(scaled).collect()
    }

    /// The last fault in a host that it may have been lost by at a moment, and when it was planted.
    fn planted_in_host(&self, lost: Host, until: Nanos) -> Option<(Nanos, &str)> {
        let events = self.run.hosts.iter().flat_map(|hosts| &hosts.events);
        let planted = events.filter(|event| event.host == lost && event.at <= until);
        let planted = planted.filter_map(|event| match &event.change {
            HostChange::Planted { fault, .. } if may_end_a_host(fault, until.since(event.at)) => {
                Some((event.at, fault.as_str()))
            }
            _ => None,
        });
        planted.max_by_key(|&(at, _)| at)
    }

    /// Whether a host was lost after a fault that was planted in it at a moment, and before any other was.
    fn is_lost_by(&self, host: Host, at: Nanos) -> bool {
        let mut events = self.run.hosts.iter().flat_map(|hosts| &hosts.events);
        let lost = events.find(|event| event.host == host && matches!(event.change, HostChange::Lost { .. }));
        lost.is_some_and(|lost| self.planted_in_host(host, lost.at).is_some_and(|(last, _)| last == at))
    }
}

/// Whether a host may have been lost by a fault that was planted in it so long before: a cut that has healed loses nobody.
fn may_end_a_host(fault: &str, before: Nanos) -> bool {
    let length = || fault.rsplit_once(':')?.1.strip_suffix('s')?.parse::<f64>().ok();
    match fault.split_once('=') {
        Some(("kill", _)) => true,
        Some(("cut", _)) => length().is_some_and(|cut| before.seconds() <= cut),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_lost_by_a_kill_and_by_a_cut_that_has_not_healed() {
        let second = Nanos(1_000_000_000);
        for (fault, before, expected) in [
            ("kill=h1@30", second, true),
            ("cut=h1@30:5s", second, true),
            ("cut=h1@30:0.5s", second, false),
            ("clock=h1:3s:50ppm", second, false),
        ] {
            assert_eq!(may_end_a_host(fault, before), expected, "{fault}");
        }
    }
}
