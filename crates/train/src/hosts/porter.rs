//! The thread that carries bytes between hosts, for one roster.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use paceline_comm::mpi::{Mpi, Quay};
use paceline_comm::tasks::{Bell, Ground, GroundCargo, Moved, Parts, Porter, Standing};
use paceline_comm::wire::Wire;
use paceline_record::log::PorterWriter;
use paceline_record::{Bytes, Generation, Host, Nanos, PorterEvent, Step, Transfer};

use super::link::{Carrying, Link, Lobby, Unlinked};
use super::silence::{Silence, beat};
use crate::elastic::Layout;
use crate::{TrainError, affinity, clock};

/// How long it sleeps at most.
const NAP: Duration = Duration::from_millis(100);

/// What a porter tells its launcher.
pub(crate) enum Said {
    /// All hosts of the roster are connected.
    Linked,
    /// A host cannot be reached, or no longer.
    Misses(Host, String),
    /// It cannot go on.
    Failed(TrainError),
}

/// How a step is dealt, and how hosts stand.
pub(crate) struct Start {
    pub parts: Parts,
    pub standings: Vec<Standing>,
}

/// What a porter needs of its launcher.
pub(crate) struct Tools {
    pub ground: Arc<Ground>,
    pub layout: Arc<Layout>,
    pub lobby: Arc<Lobby>,
    /// The MPI job that hosts are ranks of: the porter is MPI's thread then.
    pub mpi: Option<Arc<Mpi>>,
    /// The bell by which members call it.
    pub called: Arc<Bell>,
    /// The bell by which it calls its launcher.
    pub launcher: Bell,
    /// How long a host may be silent.
    pub lease: Nanos,
    /// The place of this host on a machine that it shares with others, and how many these are.
    pub share: Option<(u32, u32)>,
    /// Its log, which all porters of a run write one after another.
    pub log: Arc<std::sync::Mutex<PorterWriter>>,
}

/// How often it was asked whether it has sent all that was ready, and how often it had.
#[derive(Default)]
struct Drain {
    asked: AtomicU64,
    answered: AtomicU64,
}

/// A porter at work. It ends with this.
pub(crate) struct Thread {
    drain: Arc<Drain>,
    /// Whether it waits for an answer.
    asks: Cell<bool>,
    stop: Arc<AtomicBool>,
    called: Arc<Bell>,
    start: Option<Sender<Start>>,
    said: Receiver<Said>,
    handle: Option<Carrying>,
}

impl Thread {
    pub fn spawn(link: Link, tools: Tools) -> Result<Self, TrainError> {
        let stop = Arc::new(AtomicBool::new(false));
        let called = tools.called.clone();
        let (start, starts) = mpsc::channel();
        let (tell, said) = mpsc::channel();
        let stopped = stop.clone();
        let drain = Arc::new(Drain::default());
        let asked = drain.clone();
        let mpi = tools.mpi.clone();
        let work = move |quay: Option<&mut Quay<'_>>| {
            let launcher = Bell::attach(tools.launcher.descriptor());
            let mut work = Work { link, tools, stop: stopped, drain: asked, tell };
            if let Err(error) = work.run(&starts, quay) {
                // Nobody listens where the launcher has ended.
                let _ = work.tell.send(Said::Failed(error));
            }
            if let Ok(launcher) = launcher {
                launcher.ring();
            }
        };
        let handle = Some(Carrying::start(mpi.as_ref(), work)?);
        Ok(Self { drain, asks: Cell::new(false), stop, called, start: Some(start), said, handle })
    }

    /// Whether all that was ready to be sent when this was first asked has been sent. It is asked again until it is so.
    pub fn is_drained(&self) -> bool {
        // Before it is started it sends nothing, and when it has ended neither.
        if self.start.is_some() || self.handle.as_ref().is_none_or(Carrying::is_finished) {
            return true;
        }
        let asked = self.drain.asked.load(Ordering::Acquire);
        if self.asks.get() {
            let is_drained = self.drain.answered.load(Ordering::Acquire) == asked;
            self.asks.set(!is_drained);
            return is_drained;
        }
        self.asks.set(true);
        self.drain.asked.store(asked + 1, Ordering::Release);
        self.called.ring();
        false
    }

    pub fn start(&mut self, start: Start) {
        if let Some(sender) = self.start.take() {
            // A porter that has ended has said why.
            let _ = sender.send(start);
            self.called.ring();
        }
    }

    pub fn said(&self) -> Option<Said> {
        self.said.try_recv().ok()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.start.take());
        self.called.ring();
        if let Some(handle) = self.handle.take() {
            handle.join();
        }
    }
}

struct Work {
    link: Link,
    tools: Tools,
    stop: Arc<AtomicBool>,
    drain: Arc<Drain>,
    tell: Sender<Said>,
}

impl Work {
    fn tell(&self, said: Said) {
        // Nobody listens where the launcher has ended.
        let _ = self.tell.send(said);
        self.tools.launcher.ring();
    }

    fn run(&mut self, starts: &Receiver<Start>, quay: Option<&mut Quay<'_>>) -> Result<(), TrainError> {
        if let Some((place, places)) = self.tools.share {
            affinity::pin_host(place, places)?;
        }
        if let Some(quay) = quay {
            return self.begin(quay.wire(self.link.roster(), self.link.terms.cable.clone()), starts);
        }
        match self.link.build(&self.tools.lobby, &self.stop) {
            Ok(wire) => self.begin(wire, starts),
            Err(Unlinked::Stopped) => Ok(()),
            Err(Unlinked::Missing(host, why)) => {
                self.tell(Said::Misses(host, why));
                Ok(())
            }
        }
    }

    /// Hosts are connected: waits until all go.
    fn begin(&self, mut wire: impl Wire, starts: &Receiver<Start>) -> Result<(), TrainError> {
        let generation = Generation(self.link.generation);
        for &(peer, _) in &self.link.others {
            self.note(&PorterEvent::Connected { peer, at: clock::now(), generation })?;
        }
        self.tell(Said::Linked);
        loop {
            self.tools.called.silence().map_err(TrainError::system("hear members"))?;
            match starts.try_recv() {
                Ok(start) => return self.carry(wire, start),
                // The roster has been replaced.
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => wire.idle(self.tools.called.as_fd(), NAP)?,
            }
        }
    }

    fn note(&self, event: &PorterEvent) -> Result<(), TrainError> {
        let mut log = self.tools.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(log.append(event)?)
    }

    fn carry(&self, wire: impl Wire, Start { parts, standings }: Start) -> Result<(), TrainError> {
        let ground = &*self.tools.ground;
        let hosts: Vec<Host> = standings.iter().map(|standing| standing.host).collect();
        let cargo = GroundCargo::new(ground, self.tools.layout.slices());
        let mut porter = Porter::new(ground, ground.board(), cargo, parts, standings);
        // It ends before the porter, whose memory it reads.
        let mut wire = wire;
        porter.serve(&mut wire);
        let mut account = Account { begin: clock::now(), cpu: clock::thread_cpu(), waited: Nanos(0) };
        let mut silences: BTreeMap<Host, Silence> = BTreeMap::new();
        let mut looked = Nanos(0);
        while !self.stop.load(Ordering::Relaxed) {
            self.tools.called.silence().map_err(TrainError::system("hear members"))?;
            let asked = self.drain.asked.load(Ordering::Acquire);
            porter.post(&mut wire);
            let (begin, cpu) = (clock::now(), clock::thread_cpu());
            wire.progress(&mut porter, self.tools.called.as_fd(), NAP)?;
            if !porter.is_sending() && self.drain.answered.swap(asked, Ordering::Release) != asked {
                self.tools.launcher.ring();
            }
            account.waited += clock::now().since(begin).since(clock::thread_cpu().since(cpu));
            let now = clock::now();
            if now.since(looked) >= beat(self.tools.lease) {
                looked = now;
                porter.beat(&mut wire);
                for (host, is_heard) in porter.take_heard() {
                    let silent = silences.entry(host).or_default().look(is_heard, now);
                    // The launcher hears first of whoever is gone altogether.
                    if silent > self.tools.lease && !is_heard {
                        silences.insert(host, Silence::default());
                        let why = format!("nothing has come from it for {:.1} s", silent.seconds());
                        self.tell(Said::Misses(host, why));
                    }
                }
            }
            for (step, moved) in porter.take_accounts() {
                self.book(Step(step), &hosts, &moved, &mut account)?;
            }
            for (host, why) in porter.take_lost() {
                self.note(&PorterEvent::Lost { peer: host, at: clock::now() })?;
                self.tell(Said::Misses(host, why));
            }
        }
        Ok(())
    }

    fn book(
        &self,
        step: Step,
        hosts: &[Host],
        moved: &[Moved],
        account: &mut Account,
    ) -> Result<(), TrainError> {
        let generation = Generation(self.link.generation);
        for (&peer, moved) in hosts.iter().zip(moved) {
            let Moved { sent, received, span: Some((begin, end)) } = *moved else { continue };
            let (sent, received) = (Bytes(sent.0), Bytes(received.0));
            let transfer = Transfer { peer, generation, step: Some(step), begin, end, sent, received };
            self.note(&PorterEvent::Moved(transfer))?;
        }
        let (now, cpu) = (clock::now(), clock::thread_cpu());
        let event = PorterEvent::Worked {
            step,
            begin: account.begin,
            end: now,
            cpu: cpu.since(account.cpu),
            waited: account.waited,
        };
        *account = Account { begin: now, cpu, waited: Nanos(0) };
        self.note(&event)
    }
}

/// What the porter took since the end of the step before.
struct Account {
    begin: Nanos,
    cpu: Nanos,
    waited: Nanos,
}
