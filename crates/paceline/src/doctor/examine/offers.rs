//! What a machine offers.

use paceline_engine::cuda::Library;
use paceline_record::Bytes;
use paceline_system::tree::write_list;

use super::super::facts::{Cache, Facts, Limit};
use super::{Check, Finding, Section, gigabytes, judge, plural};

/// Below this fraction of available memory, the system is about to reclaim or swap.
const LITTLE_MEMORY: f64 = 0.1;

/// Logs and reports of a large study fit in this.
const DISK: Bytes = Bytes(1_000_000_000);

pub fn processor(facts: &Facts) -> Vec<Check> {
    let it = &facts.processor;
    let check = |what, fact, rule: fn(String) -> Finding| judge(Section::Processor, what, fact, rule);
    let caches = it.caches.as_ref().map(|caches| {
        let write = |cache: &Cache| match cache.shared_by {
            Some(several) if several > 1 => {
                format!("{} {} for {several} threads", cache.name, kibibytes(cache.size))
            }
            _ => format!("{} {}", cache.name, kibibytes(cache.size)),
        };
        caches.iter().map(write).collect::<Vec<_>>().join(", ")
    });
    vec![
        check("name", it.name.clone(), Finding::ok),
        judge(Section::Processor, "cores for this process", it.usable(), |usable| {
            usable_cores(facts, usable)
        }),
        judge(Section::Processor, "hardware", it.siblings.as_ref(), |cores| hardware(facts, cores)),
        check("NUMA nodes", it.nodes.map(|nodes| nodes.to_string()), Finding::ok),
        check("instructions", it.instructions.clone(), Finding::ok),
        check("caches", caches, Finding::ok),
    ]
}

fn usable_cores(facts: &Facts, usable: usize) -> Finding {
    let it = &facts.processor;
    match &it.online {
        Some(online) if usable < online.len() => {
            let allowed = it.allowed.as_ref().map_or(usable, Vec::len);
            let reason = if usable < allowed {
                "the control group's quota grants no more: raise it (docker run --cpus, the CPU limit of a pod)"
            } else {
                "its affinity allows no more: see taskset, or the cpuset of the container"
            };
            let value = format!("{usable} of {} hardware threads", online.len());
            Finding::note(value, format!("Fewer than the machine has; {reason}."))
        }
        _ => Finding::ok(plural(usable, "hardware thread")),
    }
}

fn hardware(facts: &Facts, cores: &[Vec<usize>]) -> Finding {
    let threads = cores.iter().map(Vec::len).sum();
    let value = format!("{}, {}", plural(cores.len(), "core"), plural(threads, "hardware thread"));
    let allowed = facts.processor.allowed.as_deref().unwrap_or_default();
    match facts.processor.one_each() {
        Some(firsts) if firsts.len() < allowed.len() => Finding::note(
            value,
            format!(
                "Two threads share a core, so speed-ups flatten where workers begin to share. For one thread a core: \
                 taskset -c {} paceline bench",
                write_list(&firsts)
            ),
        ),
        _ => Finding::ok(value),
    }
}

/// Caches come in powers of two.
fn kibibytes(bytes: Bytes) -> String {
    match bytes.0 >> 10 {
        large if large >= 1024 && large.is_multiple_of(1024) => format!("{} MiB", large >> 10),
        small => format!("{small} KiB"),
    }
}

pub fn memory(facts: &Facts) -> Vec<Check> {
    let it = &facts.memory;
    let total = it.total.zip(it.available).map(|(total, available)| {
        let value = format!("{}, {} available", gigabytes(total), gigabytes(available));
        if (available.0 as f64) < LITTLE_MEMORY * total.0 as f64 {
            return Finding::warning(
                value,
                "Little is left: end what holds memory, or the system will reclaim and swap.",
            );
        }
        Finding::ok(value)
    });
    let container = it.container.map(|limit| match limit {
        Limit::Unlimited => Finding::ok("none"),
        Limit::At(grant) => {
            let value = format!("{}, {} left", gigabytes(grant.limit), gigabytes(grant.left));
            if (grant.left.0 as f64) < LITTLE_MEMORY * grant.limit.0 as f64 {
                return Finding::warning(
                    value,
                    "Little is left: beyond the limit workers are killed; raise it.",
                );
            }
            Finding::ok(value)
        }
    });
    let shared = it.left().map(|left| {
        let room = match it.largest_file {
            Some(Limit::At(largest)) if largest < left => format!("{}, by ulimit -f", gigabytes(largest)),
            _ => format!("{}, by memory alone", gigabytes(left)),
        };
        let shm =
            it.shm.map(|shm| format!("; /dev/shm {}, {} free", gigabytes(shm.size), gigabytes(shm.free)));
        Finding::ok(room + &shm.unwrap_or_default())
    });
    let huge = it.huge_pages.as_ref().map(|setting| match setting.as_str() {
        "never" => Finding::note(
            "never",
            "Large buffers then take many small pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        setting => Finding::ok(setting),
    });
    let swap = it.swap_used.map(|used| match it.swapped_pages {
        Some(pages) if pages.now > 0 => Finding::warning(
            format!("{}, {} moved just now", gigabytes(used), plural(pages.now as usize, "page")),
            "The system is swapping: end what holds memory, or use a smaller --batch.",
        ),
        _ if used.0 > 0 => Finding::note(
            format!("{} in use", gigabytes(used)),
            "Memory has run short before. What was swapped out comes back slowly: swapoff -a, swapon -a brings it back.",
        ),
        _ => Finding::ok("none in use"),
    });
    let named = [
        ("memory", total),
        ("container limit", container),
        ("shared memory", shared),
        ("huge pages", huge),
        ("swap", swap),
    ];
    named
        .into_iter()
        .map(|(what, finding)| judge(Section::Memory, what, finding, |finding| finding))
        .collect()
}

pub fn accelerators(facts: &Facts) -> Vec<Check> {
    let it = &facts.accelerators;
    let gpus = it.gpus.as_ref().map(|gpus| {
        let mut groups: Vec<(&str, usize)> = Vec::new();
        for gpu in gpus {
            match groups.iter_mut().find(|(name, _)| name == gpu) {
                Some((_, count)) => *count += 1,
                None => groups.push((gpu, 1)),
            }
        }
        if groups.is_empty() {
            return Finding::ok("none");
        }
        let names = groups.iter().map(|(name, count)| format!("{count} x {name}"));
        Finding::ok(names.collect::<Vec<_>>().join(", "))
    });
    let has_gpu = it.gpus.as_ref().is_some_and(|gpus| !gpus.is_empty());
    let library = |name| {
        let found = it.libraries.as_ref().and_then(|all| all.iter().find(|library| library.name == name));
        judge(Section::Accelerators, name, found, |library| match found_library(library) {
            finding if has_gpu => finding,
            // Nobody misses it.
            finding => Finding::ok(finding.value),
        })
    };
    let mut checks = vec![judge(Section::Accelerators, "NVIDIA GPUs", gpus, |finding| finding)];
    checks.extend(["CUDA driver", "NCCL", "cuDNN", "cuBLASLt", "NVRTC"].map(library));
    checks.push(judge(Section::Accelerators, "CUDA engine", it.engine.as_ref(), |engine| match engine {
        Ok(words) => Finding::ok(format!("can run, on {words}")),
        Err(why) if has_gpu => Finding::note("cannot run", why.clone()),
        Err(_) => Finding::ok("cannot run here"),
    }));
    checks
}

/// A library by its version and place.
fn found_library(library: &Library) -> Finding {
    let path = library.path.as_ref().map(|path| path.to_string_lossy().escape_debug().to_string());
    let (value, lack) = match (&library.version, path) {
        _ if let Some(why) = &library.broken => {
            (format!("cannot be loaded ({})", why.escape_debug()), "It is there, and of no use")
        }
        (Some(version), Some(path)) => (format!("{version} at {path}"), "It is too old"),
        (Some(version), None) => (version.clone(), "It is too old"),
        (None, Some(path)) => (format!("of unknown version at {path}"), "It does not tell its version"),
        (None, None) => ("not found".into(), "There is a GPU for it"),
    };
    if library.fits {
        return Finding::ok(value);
    }
    let needed = &library.needed;
    Finding::note(value, format!("{lack}: install {needed} or later, or name its folder in LD_LIBRARY_PATH."))
}

pub fn system(facts: &Facts) -> Vec<Check> {
    let it = &facts.system;
    let surroundings = it.virtual_machine.or(it.container).map(|_| {
        let is = |fact: Option<bool>| fact == Some(true);
        match (is(it.virtual_machine), is(it.container)) {
            (true, inside) => Finding::note(
                if inside { "a container in a virtual machine" } else { "a virtual machine" },
                "Its cores may be shared with others whom nothing here can see. Repeat measurements, at other times too.",
            ),
            (false, true) => Finding::note("a container", "Others may run beside it on the same cores."),
            (false, false) => Finding::ok("neither container nor virtual machine"),
        }
    });
    let disk = it.disk.map(|disk| {
        let value = format!("{} free of {}", gigabytes(disk.free), gigabytes(disk.size));
        if disk.free < DISK {
            return Finding::warning(value, "Logs may not fit: name another folder with --out.");
        }
        Finding::ok(value)
    });
    let files = it.open_files.map(|limit| match limit {
        Limit::Unlimited => Finding::ok("unlimited"),
        // The launcher holds a few files a worker.
        Limit::At(most) if most < 64 + 8 * facts.processor.usable().unwrap_or(1) as u64 => {
            Finding::warning(most.to_string(), "Too few for a worker on every core: ulimit -n 4096")
        }
        Limit::At(most) => Finding::ok(most.to_string()),
    });
    let kernel = it.kernel.clone().map(Finding::ok);
    let named =
        [("kernel", kernel), ("surroundings", surroundings), ("disk here", disk), ("open files", files)];
    named
        .into_iter()
        .map(|(what, finding)| judge(Section::System, what, finding, |finding| finding))
        .collect()
}
