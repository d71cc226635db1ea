//! Times one reading of the scheduler's counters.

use std::time::Instant;

use paceline_system::scheduler::Scheduler;

fn main() {
    let mut scheduler = Scheduler::watch();
    let mut times: Vec<u128> = (0..20_000)
        .map(|_| {
            let begin = Instant::now();
            std::hint::black_box(scheduler.step());
            begin.elapsed().as_nanos()
        })
        .collect();
    let mean = times.iter().sum::<u128>() / times.len() as u128;
    times.sort_unstable();
    println!(
        "a reading: median {} ns, mean {mean} ns, longest {} ns",
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
