//! What started this process as one of several hosts: mpirun or srun, which tell it so in its environment.

use std::fmt;

use paceline_comm::mpi::Family;

/// This process as one of several that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Who started them.
    pub by: Starter,
    /// This one's number, from 0 on.
    pub rank: u32,
    /// How many there are.
    pub world: u32,
    /// Those on this machine: this one's place among them, and how many these are.
    pub here: Option<(u32, u32)>,
    /// Whose library finds the others; `None` where nobody has told how.
    pub speaks: Option<Family>,
}

/// Who starts processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Starter {
    /// Open MPI's mpirun.
    OpenMpi,
    /// The mpirun of MPICH and its relatives, or another one that speaks PMI.
    Hydra,
    /// srun.
    Slurm(Step),
}

/// A step of a Slurm job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The name of the node that the first process is on.
    pub first: String,
    /// How many nodes there are.
    pub nodes: u32,
    /// The number of the job, and that of the step.
    pub job: u64,
    pub step: u64,
}

impl fmt::Display for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi | Self::Hydra => "mpirun",
            Self::Slurm(_) => "srun",
        })
    }
}

impl Starter {
    /// What starts one process on each host and lets it use all cores there.
    pub fn unbound(&self) -> &'static str {
        match self {
            Self::OpenMpi => "`mpirun --map-by node --bind-to none`",
            Self::Hydra => {
                "`mpirun -ppn 1 -bind-to none` (Open MPI's --map-by node --bind-to none), and I_MPI_PIN=off for Intel's"
            }
            Self::Slurm(_) => {
                "`srun --ntasks-per-node=1 --cpus-per-task=N`: since Slurm 22.05, srun does not take --cpus-per-task over from sbatch"
            }
        }
    }
}

impl Launched {
    /// As this process' environment tells it; `None` where it was started alone.
    pub fn here() -> Option<Self> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Whether mpirun or srun has started this process alone, as the one host of a command that is also used for several.
    pub fn is_single() -> bool {
        Self::read_any(|name| std::env::var(name).ok()).is_some_and(|found| found.world == 1)
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        Self::read_any(variable).filter(|found| found.world > 1 && found.rank < found.world)
    }

    fn read_any(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<u32>().ok();
        let pair = |rank: &str, world: &str| number(rank).zip(number(world));
        // Launchers that srun has started come before it: their processes have Slurm's variables, too.
        Some(if let Some((rank, world)) = pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") {
            let here = pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
            Self { by: Starter::OpenMpi, rank, world, here, speaks: Some(Family::OpenMpi) }
        } else if let (Some((rank, world)), Some(here)) =
            (pair("PMI_RANK", "PMI_SIZE"), pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
        {
            Self { by: Starter::Hydra, rank, world, here: Some(here), speaks: Some(Family::Mpich) }
        } else if let Some((rank, world)) = pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") {
            let node = number("SLURM_NODEID").unwrap_or(0);
            let tasks = variable("SLURM_STEP_TASKS_PER_NODE");
            let tasks = tasks.and_then(|text| tasks_of_node(&text, node));
            let speaks = match () {
                () if variable("PMIX_RANK").is_some() => Some(Family::OpenMpi),
                () if variable("PMI_RANK").is_some() => Some(Family::Mpich),
                () => None,
            };
            let step = Step {
                first: first_node(&variable("SLURM_STEP_NODELIST")?)?,
                nodes: number("SLURM_STEP_NUM_NODES").unwrap_or(0),
                job: u64::from(number("SLURM_JOB_ID").unwrap_or(0)),
                step: u64::from(number("SLURM_STEP_ID").unwrap_or(0)),
            };
            Self { by: Starter::Slurm(step), rank, world, here: number("SLURM_LOCALID").zip(tasks), speaks }
        } else {
            let (rank, world) = pair("PMI_RANK", "PMI_SIZE")?;
            Self { by: Starter::Hydra, rank, world, here: None, speaks: Some(Family::Mpich) }
        })
    }
}

/// The first of some nodes, as Slurm writes them: `n[01-03,7]-ib,m1` are n01-ib and others.
fn first_node(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        name += &rest[..end];
        if !rest[end..].starts_with('[') {
            return (!name.is_empty()).then_some(name);
        }
        let (inside, after) = rest[end + 1..].split_once(']')?;
        name += inside.split([',', '-']).next()?;
        rest = after;
    }
}

/// Processes on one of the nodes, as Slurm writes them: `2(x3),1` are 2, 2, 2 and 1.
fn tasks_of_node(text: &str, node: u32) -> Option<u32> {
    let mut left = node;
    for part in text.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if left < times {
            return tasks.parse().ok();
        }
        left -= times;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Launched> {
        Launched::read(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const SLURM: [(&str, &str); 10] = [
        ("SLURM_PROCID", "2"),
        ("SLURM_STEP_NUM_TASKS", "5"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_STEP_NODELIST", "n[2-4]"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_JOB_ID", "71"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_CPUS_PER_TASK", "4"),
    ];

    #[test]
    fn open_mpi_and_hydra_number_their_processes() {
        let found = read(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_RANK", "1"),
        ]);
        let expected = Launched {
            by: Starter::OpenMpi,
            rank: 1,
            world: 4,
            here: Some((1, 2)),
            speaks: Some(Family::OpenMpi),
        };
        assert_eq!(found, Some(expected));
        let hydra =
            [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
        let found = read(&hydra).expect("it is one of two");
        assert_eq!((found.by, found.here, found.speaks), (Starter::Hydra, Some((0, 1)), Some(Family::Mpich)));
        assert_eq!(read(&hydra[..2]).map(|found| (found.by, found.here)), Some((Starter::Hydra, None)));
    }

    #[test]
    fn slurm_tells_where_the_first_process_is_and_which_pmi_it_speaks() {
        let found = read(&SLURM).expect("it is one of five");
        let Starter::Slurm(step) = &found.by else { panic!("{found:?}") };
        assert_eq!((found.rank, found.world, found.here, found.speaks), (2, 5, Some((0, 2)), None));
        assert_eq!(*step, Step { first: "n2".into(), nodes: 3, job: 71, step: 3 });
        for (variable, speaks) in [("PMIX_RANK", Family::OpenMpi), ("PMI_RANK", Family::Mpich)] {
            let found = read(&[&SLURM[..], &[(variable, "2")]].concat()).expect("it is one of five");
            assert_eq!(found.speaks, Some(speaks));
        }
    }

    #[test]
    fn a_launcher_that_srun_started_comes_before_it() {
        let both = [&SLURM[..], &[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")]].concat();
        assert_eq!(read(&both).map(|found| (found.by, found.rank)), Some((Starter::OpenMpi, 3)));
    }

    #[test]
    fn a_process_that_is_alone_is_none_of_several() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]), None);
        assert_eq!(read(&[("PMI_RANK", "7"), ("PMI_SIZE", "2")]), None);
        // A batch script, which is not a step.
        assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "1")]), None);
    }

    #[test]
    fn each_launcher_has_options_that_leave_a_process_its_cores() {
        let Some(Launched { by, .. }) = read(&SLURM) else { panic!("it is one of five") };
        for (by, expected) in [
            (Starter::OpenMpi, ["--map-by node", "--bind-to none"]),
            (Starter::Hydra, ["-ppn 1 -bind-to none", "I_MPI_PIN=off"]),
            (by, ["--ntasks-per-node=1", "--cpus-per-task=N"]),
        ] {
            assert!(expected.iter().all(|words| by.unbound().contains(words)), "{}", by.unbound());
        }
    }

    #[test]
    fn lists_of_nodes_and_tasks_are_read_as_slurm_writes_them() {
        for (list, first) in [
            ("n1", "n1"),
            ("n[1-3]", "n1"),
            ("n[07,9-11]-ib,m1", "n07-ib"),
            ("a1,b[1-2]", "a1"),
            ("r[3-4]n[5-6]", "r3n5"),
            ("cn-0[1-2]", "cn-01"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_node(""), None);
        assert_eq!(first_node("n[1-"), None);
        assert_eq!(
            [0, 2, 3, 4].map(|node| tasks_of_node("2(x3),1", node)),
            [Some(2), Some(2), Some(1), None]
        );
        assert_eq!(tasks_of_node("x", 0), None);
    }
}
