//! What connects hosts, and what starts them.

use super::super::clusters::{ENDPOINTS, INTERFACES};
use super::super::facts::{Clusters, Etcd, Facts, MpiLibrary, Program};
use super::{Check, Finding, Section, judge};

/// A check for each binary interface, in their order.
const MPI: [&str; 3] =
    ["MPI, Open MPI's interface", "MPI, MPICH's interface", "MPI, the standard's interface"];

pub fn clusters(facts: &Facts) -> Vec<Check> {
    let it = &facts.clusters;
    let mut checks: Vec<Check> = INTERFACES
        .into_iter()
        .zip(MPI)
        .map(|(interface, what)| {
            judge(Section::Clusters, what, it.mpi.as_ref(), |all| {
                let here = all.iter().filter(|library| library.interface == interface);
                let here: Vec<String> = here.map(write_library).collect();
                Finding::ok(if here.is_empty() { "not found".into() } else { here.join("; ") })
            })
        })
        .collect();
    checks.push(judge(Section::Clusters, "--wire mpi", it.mpi.as_ref(), |all| judge_wire(it, all)));
    checks.extend(["mpirun", "srun"].map(|name| {
        judge(Section::Clusters, name, it.programs.as_ref(), |all| {
            let found = all.iter().find(|program| program.name == name);
            Finding::ok(found.map_or_else(|| "not found".into(), write_program))
        })
    }));
    checks.push(judge(Section::Clusters, "etcd", it.etcd.as_ref(), |etcd| match etcd {
        Etcd::Unnamed => Finding::ok(format!("not looked for: {ENDPOINTS} names none")),
        Etcd::There { version, place } => Finding::ok(format!("{} at {place}", version.escape_debug())),
        Etcd::Refused(why) => Finding::note("cannot be used", format!("{why}.")),
    }));
    checks
}

fn judge_wire(it: &Clusters, usable: &[MpiLibrary]) -> Finding {
    match (it.refused.first(), usable.is_empty()) {
        (Some(why), true) => Finding::note("cannot be used here", format!("{why}.")),
        (Some(why), false) => Finding::note("can be used, with some of what is there", format!("{why}.")),
        (None, true) => Finding::ok("cannot be used here: there is no MPI library"),
        (None, false) => Finding::ok("can be used, by hosts that mpirun or srun starts"),
    }
}

fn write_library(library: &MpiLibrary) -> String {
    match &library.path {
        Some(path) => format!("{} at {}", library.version, path.to_string_lossy().escape_debug()),
        None => library.version.clone(),
    }
}

fn write_program(program: &Program) -> String {
    let version = program.version.as_deref().unwrap_or("of unknown version");
    format!("{} at {}", version.escape_debug(), program.path.to_string_lossy().escape_debug())
}
