//! Pins each worker to its own cores, and what hosts of one machine have besides to theirs.

use paceline_record::Rank;
use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::TrainError;

/// The cores of a rank, out of those that this process may use: `threads` neighbours. `None` if there are not enough
/// for all workers; then the system should schedule them freely.
fn choose(allowed: &[usize], rank: Rank, world: u32, threads: usize) -> Option<&[usize]> {
    if world as usize * threads > allowed.len() {
        return None;
    }
    let first = rank.0 as usize * threads;
    Some(&allowed[first..first + threads])
}

/// Pins this thread, and what it starts from now on, to the cores of its rank. Returns whether there were enough.
pub(crate) fn pin(rank: Rank, world: u32, threads: usize) -> Result<bool, TrainError> {
    keep_to(|allowed| choose(allowed, rank, world, threads))
}

/// The cores of a host that shares a machine with others; `None` if there is not one for each.
fn share(allowed: &[usize], place: u32, places: u32) -> Option<&[usize]> {
    let border = |place: u32| allowed.len() * place as usize / places as usize;
    (allowed.len() >= places as usize).then(|| &allowed[border(place)..border(place + 1)])
}

/// Pins this thread, and what it starts from now on, to its host's share of the machine. Returns whether there was one.
pub(crate) fn pin_host(place: u32, places: u32) -> Result<bool, TrainError> {
    keep_to(|allowed| share(allowed, place, places))
}

fn keep_to(choose: impl Fn(&[usize]) -> Option<&[usize]>) -> Result<bool, TrainError> {
    let refused = |error: rustix::io::Errno| TrainError::system("choose cores")(error.into());
    // The first thread's, which are the process': this one may have been pinned before.
    let mask = sched_getaffinity(Some(getpid())).map_err(refused)?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect();
    let Some(cores) = choose(&allowed) else {
        return Ok(false);
    };
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).map_err(refused)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_get_cores_of_their_own_while_there_are_enough() {
        let allowed = [1, 2, 5, 7];
        let cores = |rank, world, threads| choose(&allowed, Rank(rank), world, threads);
        assert_eq!(cores(0, 4, 1), Some(&[1][..]));
        assert_eq!(cores(3, 4, 1), Some(&[7][..]));
        assert_eq!(cores(1, 2, 2), Some(&[5, 7][..]));
        assert_eq!(cores(0, 5, 1), None);
        assert_eq!(cores(0, 2, 3), None);
    }

    #[test]
    fn hosts_of_a_machine_share_its_cores_evenly() {
        let allowed = [1, 2, 5, 7, 8];
        let cores = |place, places| share(&allowed, place, places);
        assert_eq!([cores(0, 2), cores(1, 2)], [Some(&[1, 2][..]), Some(&[5, 7, 8][..])]);
        assert_eq!(cores(0, 1), Some(&allowed[..]));
        assert_eq!(cores(5, 6), None);
    }
}
