//! The figures of a group. A figure is left out if it would show nothing.

mod accuracy;
mod efficiency;
mod members;
mod memory;
mod overlap;
mod phases;
mod speedup;
mod steps;
mod waterfall;

pub use accuracy::accuracy;
pub use efficiency::efficiency;
pub use members::members;
pub use memory::memory;
pub use overlap::overlap;
pub use phases::phases;
pub use speedup::speedup;
pub use steps::steps;
pub use waterfall::waterfall;

use super::figure::{Hue, Sign};
use super::group::Group;
use super::scale::{Axis, Scale, Spread};

/// The measures of a speed-up, and how each is drawn.
const BY_SPEED: (Sign, Hue, &str) = (Sign::Circle, Hue::Blue, "by images/s");
const BY_TIME: (Sign, Hue, &str) = (Sign::Square, Hue::Vermilion, "by training time");
const BY_TOTAL: (Sign, Hue, &str) = (Sign::Triangle, Hue::Green, "by the whole run");

/// The worker axis is logarithmic from this many workers.
const MANY: u32 = 16;

/// The worker axis, with a tick at each case.
fn workers_axis(group: &Group<'_>) -> Axis {
    let most = f64::from(group.most_workers());
    let (spread, low) = if group.most_workers() >= MANY { (Spread::Log, 1.0) } else { (Spread::Linear, 0.0) };
    let scale = Scale::new(spread, low, most);
    let mut ticks: Vec<(f64, String)> = Vec::new();
    for case in group.done.iter().rev() {
        let workers = f64::from(case.case.workers);
        // Skip ticks whose numbers would overlap.
        if ticks.last().is_none_or(|(next, _)| scale.at(*next) - scale.at(workers) > 0.06) {
            ticks.push((workers, workers.to_string()));
        }
    }
    Axis { scale, ticks, label: "workers".into() }
}
