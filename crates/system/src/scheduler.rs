//! What the scheduler, the pager and the hypervisor did to a thread, as counters to take the difference of.
//!
//! A reading takes 1.3 us (median) on a Xeon core: files stay open, and counters that cost more are read less often
//! (`cargo run --release -p paceline-system --example counters`).

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

use paceline_record::{Faults, Nanos, Scheduling, Switches};

use crate::cores::{Ticks, allowed};
use crate::tree::Tree;
use crate::{cgroup, clock};

/// Time between two looks at how much the hypervisor stole: the kernel counts the whole machine up for each of them, 10 us
/// or more, and counts in units of 10 ms.
const STEAL_EVERY: Nanos = Nanos(100_000_000);

/// Counters of one thread since it began, of its process, and of the groups and cores that it runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    cpu: Option<Nanos>,
    process_cpu: Option<Nanos>,
    queued: Option<Nanos>,
    switches: Option<Switches>,
    faults: Option<Faults>,
    throttled: Option<Nanos>,
    /// Where it was time to look.
    steal: Option<Nanos>,
    mhz: Option<u32>,
}

/// Watches the thread that made it; to be read on that thread.
pub struct Scheduler {
    /// `/proc/thread-self/schedstat`.
    schedstat: Option<File>,
    /// `cpu.stat` of the control groups that have a quota.
    throttling: Vec<File>,
    /// `/proc/stat`, and which cores of it are this thread's.
    stat: Option<(File, Vec<usize>)>,
    /// The frequency of the first of these cores.
    frequency: Option<File>,
    /// When the hypervisor's part and the frequency were last read.
    looked: Nanos,
    last: Counters,
    buffer: Vec<u8>,
}

impl Scheduler {
    /// Begins to watch the calling thread: the first [`step`](Self::step) tells what happened since.
    ///
    /// The cores that it may run on are those of this moment, so pin first.
    pub fn watch() -> Self {
        Self::watch_in(&Tree::new("/"))
    }

    fn watch_in(tree: &Tree) -> Self {
        let open = |path: &str| File::open(tree.at(path)).ok();
        let throttling = cgroup::throttling_files(tree);
        let stat = open("/proc/stat").zip(allowed());
        let core = stat.as_ref().and_then(|(_, cores)| cores.first());
        let frequency = core
            .and_then(|core| open(&format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")));
        let mut scheduler = Self {
            schedstat: open("/proc/thread-self/schedstat"),
            throttling: throttling.iter().filter_map(|path| File::open(tree.at(path)).ok()).collect(),
            stat,
            frequency,
            looked: Nanos(0),
            last: Counters::default(),
            buffer: vec![0; 4096],
        };
        scheduler.last = scheduler.read();
        scheduler
    }

    /// What happened to the thread since the call before, or since [`watch`](Self::watch).
    pub fn step(&mut self) -> Scheduling {
        let now = self.read();
        let told = now.since(&self.last);
        // A counter that was not looked at keeps its place.
        self.last = Counters { steal: now.steal.or(self.last.steal), ..now };
        told
    }

    fn read(&mut self) -> Counters {
        let usage = thread_usage();
        let now = clock::now();
        let look = self.looked == Nanos(0) || now.since(self.looked) >= STEAL_EVERY;
        if look {
            self.looked = now;
        }
        Counters {
            cpu: Some(clock::thread_cpu()),
            process_cpu: Some(clock::process_cpu()),
            queued: self.queued(),
            switches: usage.map(|(switches, _)| switches),
            faults: usage.map(|(_, faults)| faults),
            throttled: self.throttled(),
            steal: if look { self.steal() } else { None },
            mhz: if look { self.mhz() } else { None },
        }
    }

    fn mhz(&mut self) -> Option<u32> {
        let khz: u32 = text(self.frequency.as_ref()?, &mut self.buffer)?.trim().parse().ok()?;
        Some(khz / 1000)
    }

    fn queued(&mut self) -> Option<Nanos> {
        parse_queued(text(self.schedstat.as_ref()?, &mut self.buffer)?)
    }

    /// `None` where there is no quota, or one of them does not tell.
    fn throttled(&mut self) -> Option<Nanos> {
        let mut sum = None;
        for file in &self.throttling {
            let one = cgroup::parse_throttled(text(file, &mut self.buffer)?)?;
            sum = Some(Nanos(sum.map_or(0, |sum: Nanos| sum.0).saturating_add(one.0)));
        }
        sum
    }

    fn steal(&mut self) -> Option<Nanos> {
        let (file, allowed) = self.stat.as_ref()?;
        let ticks = Ticks::parse(text(file, &mut self.buffer)?, allowed)?;
        // SAFETY: it reads a constant of the system.
        let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
        let stolen = ticks.stolen.checked_mul(1_000_000_000u64.checked_div(per_second)?)?;
        // A thread is on one of its cores at a time.
        stolen.checked_div(ticks.cores as u64).map(Nanos)
    }
}

impl Counters {
    fn since(&self, earlier: &Self) -> Scheduling {
        let time = |now: Option<Nanos>, then: Option<Nanos>| Some(now?.since(then?));
        let pair = |now: u64, then: u64| now.saturating_sub(then);
        Scheduling {
            cpu: time(self.cpu, earlier.cpu),
            process_cpu: time(self.process_cpu, earlier.process_cpu),
            queued: time(self.queued, earlier.queued),
            switches: self.switches.zip(earlier.switches).map(|(now, then)| Switches {
                voluntary: pair(now.voluntary, then.voluntary),
                involuntary: pair(now.involuntary, then.involuntary),
            }),
            faults: self.faults.zip(earlier.faults).map(|(now, then)| Faults {
                minor: pair(now.minor, then.minor),
                major: pair(now.major, then.major),
            }),
            throttled: time(self.throttled, earlier.throttled),
            steal: time(self.steal, earlier.steal),
            mhz: self.mhz,
            off_core: None,
        }
    }
}

/// How long one thread waited for a core.
pub struct Queue {
    schedstat: File,
    last: Nanos,
    buffer: Vec<u8>,
}

impl Queue {
    /// Of the calling thread; any thread may read it. `None` where the system does not tell.
    pub fn of_this_thread() -> Option<Self> {
        let schedstat = File::open("/proc/thread-self/schedstat").ok()?;
        let mut queue = Self { schedstat, last: Nanos(0), buffer: vec![0; 128] };
        queue.last = queue.read()?;
        Some(queue)
    }

    /// Time that the thread waited since the call before.
    pub fn lap(&mut self) -> Nanos {
        let Some(now) = self.read() else { return Nanos(0) };
        now.since(std::mem::replace(&mut self.last, now))
    }

    fn read(&mut self) -> Option<Nanos> {
        parse_queued(text(&self.schedstat, &mut self.buffer)?)
    }
}

/// A stretch of work in which a thread does not go to sleep: what its processor clock lacks of it, it was not on a core.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    begun: Nanos,
    cpu: Nanos,
}

/// What a stretch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretched {
    /// Its time.
    pub wall: Nanos,
    /// The part of it in which the thread was not on a core.
    pub off_core: Nanos,
}

impl Stretch {
    /// Begins now.
    pub fn begin() -> Self {
        // In this order, here and at the end, so that the clock of the thread never lacks what the readings take.
        Self { cpu: clock::thread_cpu(), begun: clock::now() }
    }

    /// What it took until now, on the thread that began it.
    pub fn end(self) -> Stretched {
        let wall = clock::now().since(self.begun);
        Stretched { wall, off_core: wall.since(clock::thread_cpu().since(self.cpu)) }
    }
}

/// Context switches and page faults of the calling thread so far.
fn thread_usage() -> Option<(Switches, Faults)> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills in what it is given a place for, unless it says that it failed.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    let count = |count: libc::c_long| u64::try_from(count).ok();
    let switches = Switches { voluntary: count(usage.ru_nvcsw)?, involuntary: count(usage.ru_nivcsw)? };
    Some((switches, Faults { minor: count(usage.ru_minflt)?, major: count(usage.ru_majflt)? }))
}

/// The second of the three numbers in `schedstat`: time computed, time waited for a core, both in nanoseconds, turns.
fn parse_queued(text: &str) -> Option<Nanos> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let (_, queued, _) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(Nanos(queued))
}

/// What a file of the kernel's holds now. The buffer grows to what it takes.
fn text<'a>(file: &File, buffer: &'a mut Vec<u8>) -> Option<&'a str> {
    let mut len = 0;
    loop {
        match file.read_at(&mut buffer[len..], len as u64).ok()? {
            0 => break,
            more => len += more,
        }
        // A file of one piece that leaves room needs no second look.
        if len < buffer.len() {
            break;
        }
        buffer.resize(2 * buffer.len(), 0);
    }
    std::str::from_utf8(&buffer[..len]).ok()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::tree::tests::Made;

    #[test]
    fn a_thread_that_sleeps_switches_and_computes_little() {
        let mut scheduler = Scheduler::watch();
        (0..5).for_each(|_| thread::sleep(Duration::from_millis(2)));
        let slept = scheduler.step();
        assert!(slept.switches.is_some_and(|switches| switches.voluntary >= 5), "{slept:?}");
        assert!(slept.cpu.is_some_and(|cpu| cpu < Nanos(5_000_000)), "{slept:?}");
        assert!(slept.process_cpu.is_some(), "{slept:?}");
        let nothing = scheduler.step();
        assert!(nothing.switches.is_some_and(|switches| switches.voluntary < 5), "only what came since");
    }

    #[test]
    fn a_thread_that_was_off_its_core_knows_for_how_long() {
        let asleep = Stretch::begin();
        thread::sleep(Duration::from_millis(20));
        let told = asleep.end();
        assert!(told.off_core >= Nanos(15_000_000) && told.off_core <= told.wall, "{told:?}");
        let nothing = Stretch::begin().end();
        assert!(nothing.off_core <= nothing.wall, "{nothing:?}");
    }

    #[test]
    fn a_thread_that_touches_new_memory_has_page_faults() {
        let mut scheduler = Scheduler::watch();
        let memory = vec![1u8; 8 << 20];
        std::hint::black_box(&memory);
        let faults = scheduler.step().faults;
        assert!(faults.is_some_and(|faults| faults.minor > 0), "{faults:?}");
    }

    #[test]
    fn counters_are_those_of_files_and_only_differences_are_told() {
        let made = Made::new(&[
            ("proc/thread-self/schedstat", "500 70 3\n"),
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/cpu.max", "100000 100000\n"),
            ("sys/fs/cgroup/a/cpu.stat", "throttled_usec 5\n"),
        ]);
        let mut scheduler = Scheduler::watch_in(&made.tree);
        made.plant("proc/thread-self/schedstat", "900 120 4\n");
        made.plant("sys/fs/cgroup/a/cpu.stat", "throttled_usec 7\n");
        let told = scheduler.step();
        assert_eq!((told.queued, told.throttled, told.steal), (Some(Nanos(50)), Some(Nanos(2000)), None));
        made.plant("sys/fs/cgroup/a/cpu.stat", "torn");
        let told = scheduler.step();
        assert_eq!((told.queued, told.throttled), (Some(Nanos(0)), None), "unknown is not zero");
    }

    #[test]
    fn what_the_hypervisor_took_is_that_of_one_core_however_many_the_thread_may_use() {
        let cores = allowed().expect("some");
        let stat = |stolen: u32| {
            cores.iter().map(|core| format!("cpu{core} 0 0 0 0 0 0 0 {stolen} 0 0\n")).collect::<String>()
        };
        let made = Made::new(&[("proc/stat", &stat(100))]);
        let mut scheduler = Scheduler::watch_in(&made.tree);
        made.plant("proc/stat", stat(300));
        // It is looked at now and then only.
        thread::sleep(Duration::from_nanos(STEAL_EVERY.0 + 1_000_000));
        let stolen = scheduler.step().steal.expect("it is told").seconds();
        // SAFETY: it reads a constant of the system.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        assert!((stolen - 200.0 / per_second).abs() < 1e-3, "{stolen} s on {} cores", cores.len());
    }

    #[test]
    fn a_system_that_tells_nothing_is_no_reason_to_fail() {
        let made = Made::new(&[]);
        let told = Scheduler::watch_in(&made.tree).step();
        assert_eq!((told.queued, told.throttled, told.steal), (None, None, None));
        assert!(told.cpu.is_some());
    }

    #[test]
    fn numbers_that_make_no_sense_are_unknown() {
        for odd in ["", "1", "1 2", "a b c", "1 -2 3", "1 99999999999999999999 3"] {
            assert_eq!(parse_queued(odd), None, "{odd}");
        }
        assert_eq!(parse_queued("1 2 3\n"), Some(Nanos(2)));
    }

    #[test]
    fn a_long_file_is_read_whole() {
        let made = Made::new(&[("long", &"x".repeat(10_000))]);
        let file = File::open(made.tree.at("/long")).expect("the file");
        assert_eq!(text(&file, &mut vec![0; 16]).map(str::len), Some(10_000));
    }
}
