//! All-reduces between hosts, size by size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use paceline_comm::measure::{AllReduceRow, Exchange, Trial};
use paceline_comm::tasks::Bell;
use paceline_comm::wire::Terms;
use paceline_record::{Bytes, Host};

use super::letter::{Cue, Letter};
use super::link::{Link, Lobby, Unlinked};
use super::table::{Heard, Table};
use super::{Meeting, Role};
use crate::TrainError;

/// What the threads of a size tell.
enum Said {
    /// All rounds are done.
    Row(AllReduceRow),
    /// A host cannot be reached, or no longer.
    Misses(Host, String),
    /// This host cannot go on.
    Failed(TrainError),
}

/// Measures all sizes of the first host between so many hosts. On the first: its times, and the wrong values of all.
pub(crate) fn all_reduce(
    meeting: &Meeting,
    hosts: u32,
    sizes: &[Bytes],
) -> Result<Option<Vec<AllReduceRow>>, TrainError> {
    let mut table = match &meeting.role {
        Role::First { doors, .. } => Table::gather(doors, meeting, hosts, sizes)?,
        Role::Other(call) => Table::join(call, meeting, hosts)?,
    };
    let sizes = table.sizes.clone();
    let measure = |(number, size)| table.measure(&meeting.terms, number, size);
    let rows = (1..).zip(sizes).map(measure).collect::<Result<Vec<_>, _>>()?;
    table.flush();
    Ok(table.is_first().then_some(rows))
}

impl Table {
    /// One size. Its number tells its connections from those of others.
    fn measure(&mut self, terms: &Terms, number: u64, size: Bytes) -> Result<AllReduceRow, TrainError> {
        let link = Link {
            run: self.run,
            generation: number,
            own: self.own,
            others: self.others(),
            terms: terms.clone(),
        };
        let (bell, stop, lobby) = (Bell::create()?, AtomicBool::new(false), self.lobby.clone());
        let (tell, said) = mpsc::channel();
        thread::scope(|scope| {
            let rounds = Rounds { link, lobby: &lobby, size, bell: &bell, stop: &stop };
            let work = move || {
                let said = |said| {
                    // Nobody listens where it is over.
                    let _ = tell.send(said);
                    rounds.bell.ring();
                };
                rounds.run(&said).unwrap_or_else(|error| said(Said::Failed(error)));
            };
            let result = match thread::Builder::new().name("rounds".into()).spawn_scoped(scope, work) {
                Ok(_) => self.watch(&said, &bell, size),
                Err(error) => Err(TrainError::system("start a thread")(error)),
            };
            // Before connections break: others are to know why.
            if let Err(error) = &result {
                self.fail(error);
            }
            stop.store(true, Ordering::Relaxed);
            result
        })
    }

    /// Waits until all hosts have done all rounds of a size.
    fn watch(
        &mut self,
        said: &Receiver<Said>,
        called: &Bell,
        size: Bytes,
    ) -> Result<AllReduceRow, TrainError> {
        let trial = Trial::default();
        let limit = trial.limit * (trial.warm_up + trial.repeats);
        let begin = Instant::now();
        let ended = |why| Err(TrainError::HostsEnded(why));
        let mut row: Option<AllReduceRow> = None;
        let (mut done, mut wrong) = (1, 0);
        loop {
            self.sleep(Some(called));
            called.silence().map_err(TrainError::system("hear the worker"))?;
            self.take_visitors();
            for (place, heard) in self.hear() {
                let letter = match heard {
                    Heard::Letter(letter) => letter,
                    Heard::Lost(why) => return ended(self.lost(place, &why)),
                };
                match (letter, self.is_first(), row) {
                    (Letter::Cue(Cue::Done { wrong: more }), true, _) => {
                        (done, wrong) = (done + 1, wrong + more);
                    }
                    (Letter::Cue(Cue::Next), false, Some(row)) => return Ok(row),
                    (Letter::Cue(Cue::Misses { host, why }), true, _) => {
                        return ended(self.lost_host(host, &why));
                    }
                    (Letter::Cue(Cue::Failed { why }), true, _) => {
                        return ended(format!("{} cannot go on: {why}", self.who(Host(1 + place as u32))));
                    }
                    (Letter::Cue(Cue::Over { why }), false, _) => return ended(why),
                    (other, ..) => {
                        return ended(
                            self.lost(place, &format!("it says what it should not say: {other:?}")),
                        );
                    }
                }
            }
            for said in said.try_iter() {
                match said {
                    Said::Row(found) => {
                        row = Some(found);
                        if !self.is_first() {
                            self.tell(&Cue::Done { wrong: found.wrong });
                        }
                    }
                    // Whoever has all it needs may have heard before this host that it is over.
                    Said::Misses(..) if row.is_some() => {}
                    Said::Misses(host, why) if self.is_first() => return ended(self.lost_host(host, &why)),
                    // The first host decides, which may know more.
                    Said::Misses(host, why) => self.tell(&Cue::Misses { host, why }),
                    Said::Failed(error) => return Err(error),
                }
            }
            if let Some(row) = row
                && self.is_first()
                && done == self.hosts()
            {
                self.tell(&Cue::Next);
                return Ok(AllReduceRow { wrong: row.wrong + wrong, ..row });
            }
            if self.is_first() && begin.elapsed() > limit {
                let limit = limit.as_secs();
                return ended(format!("all-reduces of {} bytes were not done within {limit} s", size.0));
            }
        }
    }
}

/// The rounds of a size on one host.
struct Rounds<'a> {
    link: Link,
    lobby: &'a Lobby,
    size: Bytes,
    bell: &'a Bell,
    stop: &'a AtomicBool,
}

impl Rounds<'_> {
    fn run(&self, tell: &(impl Fn(Said) + Sync)) -> Result<(), TrainError> {
        let Self { link, lobby, size, stop, .. } = self;
        // Before memory is taken, for which others might not wait.
        let mut wire = match link.build(lobby, stop) {
            Ok(wire) => wire,
            Err(Unlinked::Stopped) => return Ok(()),
            Err(Unlinked::Missing(host, why)) => {
                tell(Said::Misses(host, why));
                return Ok(());
            }
        };
        let hosts = link.others.len() as u32 + 1;
        let exchange = Exchange::new(*size, link.own, hosts, Trial::default())?;
        let (rounds, carrier) = exchange.start();
        thread::scope(|scope| {
            let carry = move || match carrier.carry(&mut wire, stop) {
                Ok(None) => {}
                Ok(Some((host, why))) => tell(Said::Misses(host, why)),
                Err(error) => tell(Said::Failed(error.into())),
            };
            let porter = thread::Builder::new().name("porter".into()).spawn_scoped(scope, carry);
            porter.map_err(TrainError::system("start a thread"))?;
            if let Some(row) = rounds.reduce(stop)? {
                tell(Said::Row(row));
            }
            Ok(())
        })
    }
}
