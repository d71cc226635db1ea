//! What connects hosts, and what starts them: MPI libraries, etcd, `mpirun` and `srun`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::mpi::{Abi, Library};

use super::facts::{Clusters, Etcd, MpiLibrary, Program};
use crate::hosts::EtcdPlace;

/// How long a program may take to tell its version, and how often it is looked whether it has.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(5);

/// As much as is read of what it says.
const MOST: usize = 4096;

/// The environment variable by which etcd's own client finds it.
pub const ENDPOINTS: &str = "ETCDCTL_ENDPOINTS";

/// The names of the binary interfaces.
pub const INTERFACES: [&str; 3] = ["Open MPI's", "MPICH's", "the standard's"];

/// Looks for all of it. Libraries are loaded and asked for their version; MPI is not begun.
pub fn find(search_path: Option<&OsStr>) -> Clusters {
    let etcd = std::env::var(ENDPOINTS).ok().filter(|named| !named.is_empty());
    let etcd = Some(etcd.map_or(Etcd::Unnamed, |named| ask_etcd(&named).unwrap_or_else(Etcd::Refused)));
    let mut clusters = Clusters { mpi: Some(Vec::new()), refused: Vec::new(), etcd, programs: None };
    for library in Library::all() {
        match library {
            Ok(library) => {
                let (version, path) = (library.version.clone(), library.path.clone());
                let library = MpiLibrary { interface: name(library.abi()), version, path };
                clusters.mpi.get_or_insert_default().push(library);
            }
            Err(why) => clusters.refused.push(why.to_string()),
        }
    }
    clusters.programs = search_path.map(|folders| {
        let find = |name: &'static str| {
            let path =
                std::env::split_paths(folders).map(|folder| folder.join(name)).find(|path| runs(path))?;
            let version = ask(&path).as_deref().and_then(shorten);
            Some(Program { name, path, version })
        };
        ["mpirun", "srun"].into_iter().filter_map(find).collect()
    });
    clusters
}

/// Asks the etcds of a list, as etcd's own client takes it, for their version, until one answers.
fn ask_etcd(named: &str) -> Result<Etcd, String> {
    let bare = |at: &str| {
        at.trim()
            .trim_start_matches("http://")
            .trim_start_matches("https://")
            .trim_end_matches('/')
            .to_owned()
    };
    let place = EtcdPlace {
        at: named.split(',').map(bare).collect(),
        prefix: String::new(),
        secure: named.trim().starts_with("https://"),
    };
    let access = place.access().map_err(|error| error.to_string())?;
    let (version, place) = paceline_comm::etcd::version(access).map_err(|error| error.to_string())?;
    Ok(Etcd::There { version, place })
}

fn name(abi: Abi) -> &'static str {
    INTERFACES[match abi {
        Abi::OpenMpi => 0,
        Abi::Mpich => 1,
        Abi::Standard => 2,
    }]
}

fn runs(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// What a program says of its version, if it does so in time.
fn ask(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + PATIENCE;
    let mut ended = None;
    while ended.is_none() && Instant::now() < until {
        thread::sleep(TICK);
        ended = child.try_wait().ok()?;
    }
    if ended.is_none() {
        // It fails only if it has ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    // What it has started may hold the other end: nothing is waited for.
    let mut said = vec![0; MOST];
    let read = child.stdout.take()?.read(&mut said).ok()?;
    said.truncate(read);
    Some(String::from_utf8_lossy(&said).into_owned())
}

/// The name and the version out of what it says, which may be pages.
fn shorten(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    if line.starts_with("HYDRA") {
        let version = text.lines().find_map(|line| line.trim().strip_prefix("Version:"))?;
        return Some(format!("Hydra {}", version.trim()));
    }
    let line = line.split(" Build ").next().unwrap_or(line).replace(" for Linux* OS, Version", "");
    Some(match line.split_once(" (") {
        // `mpirun (Open MPI) 5.0.11`, and OpenRTE before.
        Some((_, rest)) if line.starts_with("mpirun") => {
            rest.replace("OpenRTE", "Open MPI").replacen(')', "", 1)
        }
        _ => line,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn versions_are_told_in_a_few_words() {
        for (told, expected) in [
            ("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to ...\n", "Open MPI 4.1.4"),
            ("mpirun (Open MPI) 5.0.11\n", "Open MPI 5.0.11"),
            ("HYDRA build details:\n    Version:                                 4.0.2\n", "Hydra 4.0.2"),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n",
                "Intel(R) MPI Library 2021.18.1",
            ),
            ("slurm-wlm 22.05.8\n", "slurm-wlm 22.05.8"),
        ] {
            assert_eq!(shorten(told).as_deref(), Some(expected));
        }
        assert_eq!(shorten("\n"), None);
    }

    fn write_program(folder: &Path, name: &str, script: &str) {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    }

    #[test]
    fn programs_are_found_in_the_search_path_and_asked_once() {
        let (empty, folder) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        // It is no program.
        fs::write(empty.path().join("mpirun"), "").expect("a file");
        write_program(folder.path(), "mpirun", "echo 'mpirun (Open MPI) 9.9.9'");
        write_program(folder.path(), "srun", "exit 1");
        let paths = std::env::join_paths([empty.path(), folder.path()]).expect("a list");
        let found = find(Some(paths.as_os_str())).programs.expect("a list");
        let (mpirun, srun) = (folder.path().join("mpirun"), folder.path().join("srun"));
        assert_eq!(
            found,
            [
                Program { name: "mpirun", path: mpirun, version: Some("Open MPI 9.9.9".into()) },
                Program { name: "srun", path: srun, version: None },
            ]
        );
        assert_eq!(find(None).programs, None);
    }

    #[test]
    fn a_program_that_never_answers_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        write_program(folder.path(), "mpirun", "exec sleep 600");
        assert_eq!(ask(&folder.path().join("mpirun")), None);
    }
}
