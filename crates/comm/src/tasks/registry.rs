//! What is written down of a run's hosts in a place that all of them can read, and who may change it.
//!
//! A roster is written down before it is called, by compare-and-swap of the one before. So of two that would be first, one alone gets its
//! roster through, and whoever is first later knows which numbers have been used.

use serde::{Deserialize, Serialize};

use paceline_record::Host;

use super::authority::Roster;

/// What is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What tells the run from others.
    pub run: u64,
    /// The newest roster.
    pub roster: Roster,
    /// The number of the next host that comes.
    pub next: u32,
    /// Who wrote it: a number drawn by each launcher.
    pub by: u64,
}

impl Record {
    /// Whether both are one proposal of one host, which may have been asked for twice.
    fn is_same(&self, other: &Self) -> bool {
        let tell = |record: &Self| (record.run, record.by, record.roster.generation);
        tell(self) == tell(other)
    }

    /// Whether others have gone on without a host that knows of rosters up to this one: it may not take the first host's place.
    pub fn excludes(&self, host: Host, known: u64) -> bool {
        self.roster.generation > known && self.roster.place_of(host).is_none()
    }
}

/// A record, and the number of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// It rises with every change.
    pub revision: u64,
    /// What is there.
    pub record: Record,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is written down.
    Granted(u64),
    /// Somebody else has written down another one.
    Refused(Entry),
    /// What was there is gone, and not all hosts are there who could have written something else.
    Waits,
    /// It is to be asked again.
    Again,
}

/// The first host's way to get its rosters written down.
#[derive(Clone, Debug)]
pub struct Petition {
    run: u64,
    by: u64,
    /// The change that it knows of; 0 where nothing was there.
    known: u64,
    pending: Option<Record>,
}

impl Petition {
    /// Of a first host that has found this, or nothing.
    pub fn new(run: u64, by: u64, found: Option<&Entry>) -> Self {
        Self { run, by, known: found.map_or(0, |entry| entry.revision), pending: None }
    }

    /// The change that it knows of.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Proposes a roster. The one before must have been granted.
    pub fn propose(&mut self, roster: Roster, next: u32) {
        self.pending = Some(Record { run: self.run, roster, next, by: self.by });
    }

    /// What was written down is gone while all hosts of the roster are there: it is written down again.
    pub fn restore(&mut self, roster: Roster, next: u32) {
        self.known = 0;
        self.propose(roster, next);
    }

    /// Whether what was found there since the last grant is another one's: a host that leads another run, or that took this one for lost.
    pub fn is_replaced(&self, found: &Entry, in_effect: u64) -> bool {
        self.pending.is_none()
            && found.revision != self.known
            && (found.record.run, found.record.by) != (self.run, self.by)
            && !is_older(&found.record, self.run, in_effect)
    }

    /// What is to be written down in the place of which change; 0 for nothing that is there.
    pub fn ask(&self) -> Option<(u64, &Record)> {
        self.pending.as_ref().map(|record| (self.known, record))
    }

    /// It was written down with this number, or something else was found there. `in_effect` is the generation that work goes on by, and
    /// `is_complete` says whether all its hosts are there.
    pub fn hear(&mut self, answer: Result<u64, Option<Entry>>, in_effect: u64, is_complete: bool) -> Verdict {
        let Some(pending) = &self.pending else { return Verdict::Again };
        let generation = pending.roster.generation;
        let found = match answer {
            Ok(revision) => return self.grant(revision, generation),
            Err(found) => found,
        };
        match found {
            // It was written down, and the answer was lost.
            Some(entry) if entry.record.is_same(pending) => self.grant(entry.revision, generation),
            // Nobody has written since it did so itself.
            Some(entry) if (entry.record.run, entry.record.by) == (self.run, self.by) => {
                self.retry(entry.revision)
            }
            // Nobody else can have gone on where all hosts of the roster are here.
            Some(entry) if is_older(&entry.record, self.run, in_effect) && is_complete => {
                self.retry(entry.revision)
            }
            None if is_complete => self.retry(0),
            Some(entry) if !is_older(&entry.record, self.run, in_effect) => Verdict::Refused(entry),
            Some(_) | None => Verdict::Waits,
        }
    }

    fn grant(&mut self, revision: u64, generation: u64) -> Verdict {
        (self.known, self.pending) = (revision, None);
        Verdict::Granted(generation)
    }

    fn retry(&mut self, revision: u64) -> Verdict {
        self.known = revision;
        Verdict::Again
    }
}

/// Whether something that was written down is past: the place has lost what came later.
fn is_older(record: &Record, run: u64, in_effect: u64) -> bool {
    record.run == run && record.roster.generation < in_effect
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(generation: u64) -> Roster {
        Roster { generation, places: Vec::new(), is_loss: false }
    }

    fn entry(revision: u64, run: u64, by: u64, generation: u64) -> Entry {
        Entry { revision, record: Record { run, roster: roster(generation), next: 3, by } }
    }

    /// A first host of run 7 that has proposed generation 5, after revision 40.
    fn petition() -> Petition {
        let mut petition = Petition::new(7, 1, Some(&entry(40, 7, 9, 4)));
        petition.propose(roster(5), 3);
        petition
    }

    #[test]
    fn a_roster_that_replaces_what_is_known_is_granted() {
        let mut petition = petition();
        assert_eq!(petition.ask().map(|(known, record)| (known, record.roster.generation)), Some((40, 5)));
        assert_eq!(petition.hear(Ok(41), 4, true), Verdict::Granted(5));
        assert_eq!(petition.ask(), None);
        petition.propose(roster(6), 3);
        assert_eq!(petition.ask().map(|(known, _)| known), Some(41));
    }

    #[test]
    fn a_roster_that_was_lost_is_written_down_again() {
        let mut petition = Petition::new(7, 1, Some(&entry(40, 7, 9, 4)));
        petition.restore(roster(4), 3);
        assert_eq!(petition.ask().map(|(known, record)| (known, record.roster.generation)), Some((0, 4)));
        // It was not lost after all: what is there is its own.
        let own = Entry { revision: 41, record: Record { by: 1, ..entry(41, 7, 1, 4).record } };
        assert_eq!(petition.clone().hear(Err(Some(own)), 4, true), Verdict::Granted(4));
        assert_eq!(petition.hear(Ok(2), 4, true), Verdict::Granted(4));
        petition.propose(roster(5), 3);
        assert_eq!(petition.ask().map(|(known, _)| known), Some(2));
    }

    #[test]
    fn a_first_host_sees_that_it_was_replaced_without_asking_for_anything() {
        let mut petition = petition();
        assert!(!petition.is_replaced(&entry(41, 8, 2, 1), 4), "the answer to its proposal will tell");
        petition.hear(Ok(41), 4, true);
        // Another run, on an etcd that has lost its data or has not; and another host of this one.
        for other in [entry(2, 8, 2, 1), entry(42, 8, 2, 1), entry(42, 7, 2, 6)] {
            assert!(petition.is_replaced(&other, 5), "{other:?}");
        }
        // What it wrote itself, what it knows, and what etcd came back with that had lost the rest.
        for own in [entry(41, 7, 1, 5), entry(40, 7, 1, 4), entry(40, 7, 9, 4)] {
            assert!(!petition.is_replaced(&own, 5), "{own:?}");
        }
        // Of another host's roster that this one took over from there is nothing to fear.
        let led = Petition::new(7, 1, Some(&entry(40, 7, 9, 4)));
        assert!(!led.is_replaced(&entry(40, 7, 9, 4), 4));
    }

    #[test]
    fn what_it_has_written_itself_is_no_rival() {
        let mut petition = petition();
        assert_eq!(petition.hear(Err(Some(entry(41, 7, 1, 4))), 4, false), Verdict::Again);
        assert_eq!(petition.ask().map(|(known, record)| (known, record.roster.generation)), Some((41, 5)));
    }

    #[test]
    fn a_lost_answer_changes_nothing() {
        let own = entry(41, 7, 1, 5);
        assert_eq!(petition().hear(Err(Some(own)), 4, false), Verdict::Granted(5));
    }

    #[test]
    fn whoever_was_faster_is_not_overruled() {
        for other in [entry(41, 7, 2, 5), entry(41, 7, 2, 4), entry(41, 8, 2, 1), entry(41, 7, 2, 9)] {
            assert_eq!(petition().hear(Err(Some(other.clone())), 4, true), Verdict::Refused(other));
        }
    }

    #[test]
    fn what_was_lost_is_written_again_only_where_all_hosts_are_there() {
        for (found, revision) in [(None, 0), (Some(entry(3, 7, 9, 2)), 3)] {
            let mut petition = petition();
            assert_eq!(petition.hear(Err(found.clone()), 4, false), Verdict::Waits);
            assert_eq!(petition.hear(Err(found), 4, true), Verdict::Again);
            assert_eq!(petition.ask().map(|(known, _)| known), Some(revision));
            assert_eq!(petition.hear(Ok(7), 4, true), Verdict::Granted(5));
        }
    }
}
