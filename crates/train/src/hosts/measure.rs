//! All-reduces between hosts, size by size.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::measure::{AllReduceRow, Exchange, Trial};
use paceline_comm::mpi::Quay;
use paceline_comm::tasks::Bell;
use paceline_comm::wire::Wire;
use paceline_record::{Bytes, Host};

use super::entrance::Entrance;
use super::letter::{Cue, Letter};
use super::link::{Carrying, Link, Lobby, Unlinked};
use super::meet::Way;
use super::table::{Heard, Table};
use super::{Meeting, Role};
use crate::TrainError;

/// How often it is looked whether memory is there.
const TICK: Duration = Duration::from_millis(5);

/// What the threads of a size tell.
enum Said {
    /// All rounds are done.
    Row(AllReduceRow),
    /// A host cannot be reached, or no longer.
    Misses(Host, String),
    /// This host cannot go on.
    Failed(TrainError),
}

/// One size: this host's time, the wrong values of all, and what the MPI library takes for it itself.
#[derive(Clone, Copy, Debug)]
pub struct HostRow {
    /// By tasks and porters, as in a training.
    pub reduced: AllReduceRow,
    /// By `MPI_Allreduce`, where hosts are ranks.
    pub library: Option<AllReduceRow>,
}

/// Measures all sizes of the first host between so many hosts. On the first: its times, and the wrong values of all.
pub(crate) fn all_reduce(
    meeting: &Meeting,
    hosts: u32,
    sizes: &[Bytes],
) -> Result<Option<Vec<HostRow>>, TrainError> {
    let mut table = match &meeting.role {
        Role::First { doors, .. } => Table::gather(Entrance::Doors(doors.clone()), meeting, hosts, sizes)?,
        Role::Other(call) => Table::join(&Way::Call(call), meeting, hosts)?,
        Role::Rank(mpi) if mpi.rank() == 0 => {
            let entrance = Entrance::Ranks(mpi.clone(), meeting.terms.cable.clone());
            Table::gather(entrance, meeting, hosts, sizes)?
        }
        Role::Rank(mpi) => Table::join(&Way::Rank(mpi), meeting, hosts)?,
    };
    let sizes = table.sizes.clone();
    let measure = |(number, size)| {
        let reduced = table.measure(meeting, number, size)?;
        let library = meeting.mpi().map(|mpi| mpi.all_reduce(size, Trial::default())).transpose()?;
        // Nothing was heard while the library waited for the others.
        table.listen_again();
        Ok(HostRow { reduced, library })
    };
    let rows = (1..).zip(sizes).map(measure).collect::<Result<Vec<_>, TrainError>>()?;
    table.flush();
    meeting.mpi().into_iter().for_each(|mpi| mpi.set_over());
    Ok(table.is_first().then_some(rows))
}

impl Table {
    /// One size. Its number tells its connections from those of others.
    fn measure(&mut self, meeting: &Meeting, number: u64, size: Bytes) -> Result<AllReduceRow, TrainError> {
        let link = Link {
            run: self.run,
            generation: number,
            own: self.own,
            others: self.others(),
            terms: meeting.terms.clone(),
        };
        let (bell, stop) = (Bell::create()?, Arc::new(AtomicBool::new(false)));
        let (tell, said) = mpsc::channel();
        let own = Bell::attach(bell.descriptor())?;
        let rounds = Rounds { link, lobby: self.lobby.clone(), size, stop: stop.clone() };
        let work = move |quay: Option<&mut Quay<'_>>| {
            let said = |said| {
                // Nobody listens where it is over.
                let _ = tell.send(said);
                own.ring();
            };
            rounds.run(quay, &said).unwrap_or_else(|error| said(Said::Failed(error)));
        };
        let carrying = Carrying::start(meeting.mpi(), work)?;
        let result = self.watch(&said, &bell, size);
        // Before connections break: others are to know why.
        if let Err(error) = &result {
            self.fail(error);
        }
        stop.store(true, Ordering::Relaxed);
        carrying.join();
        result
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
            let mut all = self.hear().into_iter();
            while let Some((place, heard)) = all.next() {
                let letter = match heard {
                    Heard::Letter(letter) => letter,
                    Heard::Lost(why) => return ended(self.lost(place, &why)),
                };
                match (letter, self.is_first(), row) {
                    (Letter::Cue(Cue::Done { wrong: more }), true, _) => {
                        (done, wrong) = (done + 1, wrong + more);
                    }
                    (Letter::Cue(Cue::Next), false, Some(row)) => {
                        self.unheard = all.collect();
                        return Ok(row);
                    }
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
struct Rounds {
    link: Link,
    lobby: Arc<Lobby>,
    size: Bytes,
    stop: Arc<AtomicBool>,
}

impl Rounds {
    fn run(&self, quay: Option<&mut Quay<'_>>, tell: &(impl Fn(Said) + Sync)) -> Result<(), TrainError> {
        let Self { link, lobby, stop, .. } = self;
        if let Some(quay) = quay {
            let mut wire = quay.wire(link.roster(), link.terms.cable.clone());
            let exchange = self.prepare_beside(&mut wire)?;
            return self.exchange(&exchange, wire, tell);
        }
        // Before memory is taken, for which others might not wait.
        match link.build(lobby, stop) {
            Ok(wire) => self.exchange(&self.prepare()?, wire, tell),
            Err(Unlinked::Stopped) => Ok(()),
            Err(Unlinked::Missing(host, why)) => {
                tell(Said::Misses(host, why));
                Ok(())
            }
        }
    }

    fn prepare(&self) -> Result<Exchange, TrainError> {
        let hosts = self.link.others.len() as u32 + 1;
        Ok(Exchange::new(self.size, self.link.own, hosts, Trial::default())?)
    }

    /// The same where letters go the wire's way, too: others are to hear meanwhile that this host lives.
    fn prepare_beside(&self, wire: &mut impl Wire) -> Result<Exchange, TrainError> {
        let bell = Bell::create()?;
        thread::scope(|scope| {
            let prepare = || {
                let prepared = self.prepare();
                bell.ring();
                prepared
            };
            let preparing = thread::Builder::new().name("memory".into()).spawn_scoped(scope, prepare);
            let preparing = preparing.map_err(TrainError::system("start a thread"))?;
            while !preparing.is_finished() {
                wire.idle(bell.as_fd(), TICK)?;
            }
            preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn exchange(
        &self,
        exchange: &Exchange,
        mut wire: impl Wire,
        tell: &(impl Fn(Said) + Sync),
    ) -> Result<(), TrainError> {
        let stop = &self.stop;
        let (rounds, carrier) = exchange.start();
        thread::scope(|scope| {
            let reduce = move || match rounds.reduce(stop) {
                Ok(row) => row.into_iter().for_each(|row| tell(Said::Row(row))),
                Err(error) => tell(Said::Failed(error.into())),
            };
            let worker = thread::Builder::new().name("rounds".into()).spawn_scoped(scope, reduce);
            worker.map_err(TrainError::system("start a thread"))?;
            if let Some((host, why)) = carrier.carry(&mut wire, stop)? {
                tell(Said::Misses(host, why));
            }
            Ok(())
        })
    }
}
