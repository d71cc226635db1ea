use paceline_engine::cuda::Library;
use paceline_record::Nanos;

use super::*;
use crate::doctor::facts::{
    Accelerators, Activity, Busy, Cache, Clusters, Count, Etcd, Grant, Limit, Memory, MpiLibrary, Need,
    Probe, Processor, Program, Space, Speed, Spin, System,
};

const GB: u64 = 1_000_000_000;

fn spin(core: usize) -> Spin {
    Spin { core, lost: 0.0001, longest: Nanos(25_000), khz: Some(3_000_000) }
}

const NAMES: [&str; 5] = ["CUDA driver", "NCCL", "cuDNN", "cuBLASLt", "NVRTC"];

fn missing(name: &'static str) -> Library {
    let needed = "9.10".into();
    Library { name, file: "lib.so", path: None, version: None, needed, fits: false, broken: None }
}

/// A machine at rest on which nothing is wrong.
fn quiet() -> Facts {
    let space = Space { size: Bytes(100 * GB), free: Bytes(50 * GB) };
    let nothing = Some(Count { total: 0, now: 0 });
    Facts {
        processor: Processor {
            name: Some("Abacus 9000".into()),
            online: Some(vec![0, 1, 2, 3]),
            allowed: Some(vec![0, 1, 2, 3]),
            siblings: Some(vec![vec![0], vec![1], vec![2], vec![3]]),
            nodes: Some(1),
            quota: Some(Limit::Unlimited),
            instructions: Some("avx2".into()),
            caches: Some(vec![Cache { name: "L3".into(), size: Bytes(32 << 20), shared_by: Some(4) }]),
        },
        memory: Memory {
            total: Some(Bytes(64 * GB)),
            available: Some(Bytes(60 * GB)),
            container: Some(Limit::Unlimited),
            largest_file: Some(Limit::Unlimited),
            shm: Some(space),
            huge_pages: Some("madvise".into()),
            swap_used: Some(Bytes(0)),
            swapped_pages: nothing,
        },
        accelerators: Accelerators {
            gpus: Some(vec![]),
            libraries: Some(NAMES.map(missing).into()),
            engine: Some(Err("the NVIDIA driver was not found".into())),
        },
        clusters: Clusters {
            mpi: Some(vec![]),
            refused: vec![],
            etcd: Some(Etcd::Unnamed),
            programs: Some(vec![]),
        },
        system: System {
            kernel: Some("6.1".into()),
            virtual_machine: Some(false),
            container: Some(false),
            disk: Some(space),
            open_files: Some(Limit::At(1024)),
        },
        speed: Speed {
            governors: Some(vec!["performance".into()]),
            boost: Some(false),
            highest_khz: Some(3_500_000),
            heat: nothing,
            throttled: nothing,
        },
        activity: Activity { load: Some(0.1), busy: Some(0.01), stolen: Some(0.0), busiest: Some(vec![]) },
        probe: Probe {
            clock: Some("tsc".into()),
            reading: Some(Nanos(25)),
            spins: Some((0..4).map(spin).collect()),
        },
        needs: Some(vec![
            Need { model: "mobilenet_v2".into(), worker: Bytes(GB / 5), shared: Some(Bytes(10_000_000)) },
            Need { model: "resnet50".into(), worker: Bytes(GB / 2), shared: Some(Bytes(100_000_000)) },
        ]),
    }
}

/// What is not ok once the quiet machine was changed.
fn spoilt(change: impl FnOnce(&mut Facts)) -> Vec<Check> {
    let mut facts = quiet();
    change(&mut facts);
    examine(&facts).into_iter().filter(|check| check.level != Level::Ok).collect()
}

#[track_caller]
fn assert_spoilt(what: &str, level: Level, change: impl FnOnce(&mut Facts)) -> Check {
    let found = spoilt(change);
    assert_eq!(found.len(), 1, "{what}: {found:#?}");
    assert_eq!((found[0].what, found[0].level), (what, level), "{found:#?}");
    assert!(found[0].advice.is_some(), "{what} says not what to do");
    found.into_iter().next().expect("one")
}

#[track_caller]
fn assert_fine(change: impl FnOnce(&mut Facts)) {
    assert_eq!(spoilt(change), vec![]);
}

#[test]
fn nothing_is_found_on_a_quiet_machine() {
    assert_fine(|_| {});
    assert_eq!(sum_up(&examine(&quiet())), "nothing found that would spoil a measurement");
}

#[test]
fn what_is_unknown_is_called_so_and_warns_of_nothing() {
    let checks = examine(&Facts::default());
    assert_eq!(checks.len(), examine(&quiet()).len());
    for check in checks {
        assert_eq!((check.value.as_str(), check.level), ("unknown", Level::Note), "{}", check.what);
    }
}

#[test]
fn every_check_has_a_name_of_its_own() {
    let mut names: Vec<&str> = examine(&quiet()).iter().map(|check| check.what).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn warnings_are_counted_in_the_sum() {
    let two = |facts: &mut Facts| {
        facts.activity.load = Some(9.0);
        facts.speed.governors = Some(vec!["powersave".into()]);
    };
    let found = spoilt(two);
    assert!(sum_up(&found).starts_with("2 warnings: "));
    assert!(sum_up(&found[..1]).starts_with("1 warning: "));
}

#[test]
fn cores_whose_speed_changes_are_found() {
    use Level::{Note, Warning};
    let governors = |names: &[&str]| Some(names.iter().map(|&name| name.into()).collect());
    assert_spoilt("governor", Warning, |facts| facts.speed.governors = governors(&["powersave"]));
    assert_spoilt("governor", Warning, |facts| {
        facts.speed.governors = governors(&["performance", "schedutil"])
    });
    assert_spoilt("boost", Note, |facts| facts.speed.boost = Some(true));
    assert_spoilt("frequency", Warning, |facts| facts.speed.highest_khz = Some(5_100_000));
    assert_fine(|facts| facts.speed.highest_khz = Some(4_900_000));
    assert_spoilt("heat", Note, |facts| facts.speed.heat = Some(Count { total: 3, now: 0 }));
    assert_spoilt("heat", Warning, |facts| facts.speed.heat = Some(Count { total: 3, now: 1 }));
}

#[test]
fn a_quota_should_be_whole_and_never_hit() {
    use Level::{Note, Warning};
    assert_fine(|facts| facts.processor.quota = Some(Limit::At(4.0)));
    assert_fine(|facts| {
        facts.processor.quota = Some(Limit::Unlimited);
        facts.speed.throttled = None;
    });
    assert_spoilt("quota", Warning, |facts| facts.processor.quota = Some(Limit::At(4.5)));
    assert_spoilt("cores for this process", Note, |facts| facts.processor.quota = Some(Limit::At(2.0)));
    assert_spoilt("throttling", Note, |facts| facts.speed.throttled = Some(Count { total: 9, now: 0 }));
    assert_spoilt("throttling", Warning, |facts| facts.speed.throttled = Some(Count { total: 9, now: 2 }));
    let names: Vec<_> =
        spoilt(|facts| facts.processor.quota = Some(Limit::At(0.5))).iter().map(|it| it.what).collect();
    assert_eq!(names, ["cores for this process", "quota"]);
}

#[test]
fn others_at_work_are_found_and_named() {
    use Level::{Note, Warning};
    assert_fine(|facts| facts.activity.load = Some(1.19));
    assert_spoilt("load", Warning, |facts| facts.activity.load = Some(1.21));
    assert_spoilt("others", Note, |facts| facts.activity.busy = Some(0.05));
    let check = assert_spoilt("others", Warning, |facts| {
        facts.activity.busy = Some(0.3);
        facts.activity.busiest = Some(vec![Busy { name: "rustc".into(), cores: 1.2 }]);
    });
    assert!(check.advice.is_some_and(|advice| advice.contains("rustc (1.2 cores)")));
    assert_spoilt("stolen time", Note, |facts| facts.activity.stolen = Some(0.01));
    assert_spoilt("stolen time", Warning, |facts| facts.activity.stolen = Some(0.03));
}

#[test]
fn one_core_with_gaps_is_enough() {
    use Level::{Note, Warning};
    let spoil = |lost: f64, longest: u64| {
        move |facts: &mut Facts| {
            let spins = facts.probe.spins.as_mut().expect("spins");
            spins[2] = Spin { lost, longest: Nanos(longest), ..spins[2] };
        }
    };
    assert_fine(spoil(0.001, 100_000));
    assert_spoilt("jitter", Note, spoil(0.005, 100_000));
    let check = assert_spoilt("jitter", Warning, spoil(0.02, 100_000));
    assert_eq!(check.value, "2.00 % lost, longest gap 100 us (core 2 most)");
    assert_spoilt("jitter", Warning, spoil(0.001, 4_000_000));
}

#[test]
fn a_slow_clock_is_worse_than_a_foreign_one() {
    let clock = |source: &str, nanos| {
        let source = source.to_owned();
        move |facts: &mut Facts| {
            facts.probe.clock = Some(source);
            facts.probe.reading = Some(Nanos(nanos));
        }
    };
    assert_fine(clock("arch_sys_counter", 30));
    assert_spoilt("clock", Level::Note, clock("kvm-clock", 30));
    assert_spoilt("clock", Level::Warning, clock("hpet", 900));
    assert_spoilt("clock", Level::Warning, clock("tsc", 900));
}

#[test]
fn memory_that_runs_short_is_found() {
    use Level::{Note, Warning};
    assert_spoilt("memory", Warning, |facts| facts.memory.available = Some(Bytes(6 * GB)));
    let grant = |limit, left| Some(Limit::At(Grant { limit: Bytes(limit), left: Bytes(left) }));
    assert_fine(|facts| facts.memory.container = grant(8 * GB, 6 * GB));
    assert_spoilt("container limit", Warning, |facts| facts.memory.container = grant(40 * GB, 3 * GB));
    assert_spoilt("swap", Note, |facts| facts.memory.swap_used = Some(Bytes(GB)));
    assert_spoilt("swap", Warning, |facts| facts.memory.swapped_pages = Some(Count { total: 9, now: 9 }));
    assert_spoilt("huge pages", Note, |facts| facts.memory.huge_pages = Some("never".into()));
}

#[test]
fn a_study_that_does_not_fit_is_told_what_would() {
    let grant = |left| Some(Limit::At(Grant { limit: Bytes(2 * GB), left: Bytes(left) }));
    let check =
        assert_spoilt("memory for them", Level::Warning, |facts| facts.memory.container = grant(GB + GB / 2));
    assert!(check.advice.is_some_and(|advice| advice.contains("at most 3 workers")));
    let file = |bytes| move |facts: &mut Facts| facts.memory.largest_file = Some(Limit::At(Bytes(bytes)));
    assert_fine(file(400_000_000));
    assert_spoilt("memory for them", Level::Warning, file(399_000_000));
}

#[test]
fn workers_are_counted_by_cores_and_not_by_hardware_threads() {
    let check = assert_spoilt("hardware", Level::Note, |facts| {
        facts.processor.siblings = Some(vec![vec![0, 1], vec![2, 3]]);
    });
    assert_eq!(check.value, "2 cores, 4 hardware threads");
    assert!(check.advice.is_some_and(|advice| advice.contains("taskset -c 0,2 ")));
    let workers = |change: fn(&mut Processor)| {
        let mut facts = quiet();
        change(&mut facts.processor);
        let checks = examine(&facts);
        checks.into_iter().find(|check| check.what == "workers").expect("a check").value
    };
    assert_eq!(workers(|_| {}), "up to 4, a core each: --workers 1,2,4");
    assert_eq!(
        workers(|it| it.siblings = Some(vec![vec![0, 1], vec![2, 3]])),
        "up to 2, a core each: --workers 1,2"
    );
    assert_eq!(workers(|it| it.quota = Some(Limit::At(3.7))), "up to 3, a core each: --workers 1,2,3");
    assert_eq!(workers(|it| it.quota = Some(Limit::At(0.2))), "up to 1, a core each: --workers 1");
    // One thread of each core: nothing is shared.
    assert_spoilt("cores for this process", Level::Note, |facts| {
        facts.processor.siblings = Some(vec![vec![0, 1], vec![2, 3]]);
        facts.processor.allowed = Some(vec![0, 2]);
    });
}

#[test]
fn surroundings_that_cannot_be_seen_through_are_noted() {
    assert_spoilt("surroundings", Level::Note, |facts| facts.system.virtual_machine = Some(true));
    assert_spoilt("surroundings", Level::Note, |facts| facts.system.container = Some(true));
    assert_spoilt("disk here", Level::Warning, |facts| {
        facts.system.disk = Some(Space { size: Bytes(GB), free: Bytes(5) });
    });
    assert_spoilt("open files", Level::Warning, |facts| facts.system.open_files = Some(Limit::At(90)));
}

#[test]
fn libraries_are_missed_only_where_a_gpu_could_use_them() {
    let there = |name| Library {
        path: Some("/lib/it.so".into()),
        version: Some("9.14.0".into()),
        fits: true,
        ..missing(name)
    };
    let gpu = |facts: &mut Facts| {
        facts.accelerators = Accelerators {
            gpus: Some(vec!["NVIDIA H200".into(); 2]),
            libraries: Some(NAMES.map(there).into()),
            engine: Some(Ok("NVIDIA H200 with cuDNN 9.14.0".into())),
        };
    };
    assert_fine(gpu);
    let mut facts = quiet();
    gpu(&mut facts);
    for value in ["2 x NVIDIA H200", "9.14.0 at /lib/it.so", "can run, on NVIDIA H200 with cuDNN 9.14.0"] {
        assert!(examine(&facts).iter().any(|check| check.value == value), "{value}");
    }
    let spoil = |change: fn(&mut Library)| {
        assert_spoilt("NCCL", Level::Note, |facts| {
            gpu(facts);
            change(&mut facts.accelerators.libraries.as_mut().expect("libraries")[1]);
        })
    };
    let advice = |check: Check| check.advice.expect("advice");
    let check = spoil(|nccl| *nccl = missing("NCCL"));
    assert_eq!(check.value, "not found");
    assert!(advice(check).contains("install 9.10 or later"));
    let check = spoil(|nccl| (nccl.version, nccl.fits) = (Some("8.9.7".into()), false));
    assert_eq!(check.value, "8.9.7 at /lib/it.so");
    assert!(advice(check).starts_with("It is too old: install 9.10 or later"));
    let check = spoil(|nccl| (nccl.version, nccl.fits) = (None, false));
    assert_eq!(check.value, "of unknown version at /lib/it.so");
    assert!(advice(check).starts_with("It does not tell its version: install 9.10"));
    let check = spoil(|nccl| {
        let path = Some("/lib/it.so".into());
        *nccl = Library { path, broken: Some("/lib/it.so: file too short".into()), ..missing("NCCL") };
    });
    assert_eq!(check.value, "cannot be loaded (/lib/it.so: file too short)");
    assert!(advice(check).contains("install 9.10 or later"));
    let check = assert_spoilt("CUDA engine", Level::Note, |facts| {
        gpu(facts);
        facts.accelerators.engine = Some(Err("cuDNN 8.9 was found; 9.10 or later is needed".into()));
    });
    assert_eq!(check.value, "cannot run");
    assert!(advice(check).contains("9.10"));
}

#[test]
fn what_connects_hosts_is_named_with_version_and_place() {
    let library = |interface, version: &str, path: &str| MpiLibrary {
        interface,
        version: version.into(),
        path: Some(path.into()),
    };
    let there = |facts: &mut Facts| {
        facts.clusters = Clusters {
            mpi: Some(vec![
                library("Open MPI's", "Open MPI v4.1.4", "/lib/libmpi.so.40"),
                library("MPICH's", "MPICH 4.0.2", "/lib/libmpich.so.12"),
                library("MPICH's", "Intel(R) MPI Library 2021.18.1", "/opt/libmpi.so.12"),
            ]),
            refused: vec![],
            etcd: Some(Etcd::There { version: "3.5.0".into(), place: "etcd:2379".into() }),
            programs: Some(vec![Program {
                name: "mpirun",
                path: "/bin/mpirun".into(),
                version: Some("Open MPI 4.1.4".into()),
            }]),
        };
    };
    assert_fine(there);
    let mut facts = quiet();
    there(&mut facts);
    let value = |facts: &Facts, what: &str| {
        let checks = examine(facts);
        checks.into_iter().find(|check| check.what == what).expect("it is checked").value
    };
    let expected = [
        ("MPI, Open MPI's interface", "Open MPI v4.1.4 at /lib/libmpi.so.40"),
        (
            "MPI, MPICH's interface",
            "MPICH 4.0.2 at /lib/libmpich.so.12; Intel(R) MPI Library 2021.18.1 at /opt/libmpi.so.12",
        ),
        ("MPI, the standard's interface", "not found"),
        ("--wire mpi", "can be used, by hosts that mpirun or srun starts"),
        ("mpirun", "Open MPI 4.1.4 at /bin/mpirun"),
        ("srun", "not found"),
        ("etcd", "3.5.0 at etcd:2379"),
    ];
    for (what, expected) in expected {
        assert_eq!(value(&facts, what), expected);
    }
    assert_eq!(value(&quiet(), "etcd"), "not looked for: ETCDCTL_ENDPOINTS names none");
    let check = assert_spoilt("etcd", Level::Note, |facts| {
        facts.clusters.etcd = Some(Etcd::Refused("etcd at etcd:2379 does not answer: refused".into()));
    });
    assert!(check.advice.expect("advice").contains("does not answer"));
    assert_eq!(value(&quiet(), "--wire mpi"), "cannot be used here: there is no MPI library");
    let check = assert_spoilt("--wire mpi", Level::Note, |facts| {
        facts.clusters.refused = vec!["Open MPI v1.10.7 was found, and Open MPI 4 or later is needed".into()];
    });
    assert_eq!(check.value, "cannot be used here");
    assert!(check.advice.expect("advice").contains("Open MPI 4 or later is needed"));
}

#[test]
fn an_etcd_that_is_too_old_is_named_as_such() {
    let at = |version: &str| Some(Etcd::There { version: version.into(), place: "etcd:2379".into() });
    for (version, lack) in
        [("3.3.27", "It is too old"), ("2.10.8", "It is too old"), ("next", "Its version cannot be read")]
    {
        let check = assert_spoilt("etcd", Level::Note, |facts| facts.clusters.etcd = at(version));
        assert_eq!(check.value, format!("{version} at etcd:2379"));
        let advice = check.advice.expect("advice");
        assert!(advice.contains(lack) && advice.contains("needs etcd 3.4 or later"), "{advice}");
    }
    for version in ["3.4.0", "3.5.0-rc.1", "3.10.1", "4.0.0"] {
        assert_fine(|facts| facts.clusters.etcd = at(version));
    }
}
