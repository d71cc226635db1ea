//! A host's cable, which can be unplugged for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What all connections of a host go through. While it is cut nothing is read from them or written to them, nobody is let in and
/// nobody is reached, and no connection is closed: others hear nothing, as if the host were unplugged.
#[derive(Clone, Debug, Default)]
pub struct Cable(Arc<Plug>);

#[derive(Debug, Default)]
struct Plug {
    /// Whether `until` says anything.
    is_cut: AtomicBool,
    until: Mutex<Option<Instant>>,
}

impl Cable {
    /// Cuts it for so long from now on.
    pub fn cut(&self, time: Duration) {
        *self.0.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
        self.0.is_cut.store(true, Ordering::Release);
    }

    /// How long it is still cut; `None` if it is whole.
    pub fn is_cut_for(&self) -> Option<Duration> {
        if !self.0.is_cut.load(Ordering::Acquire) {
            return None;
        }
        let until = *self.0.until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.0.is_cut.store(false, Ordering::Release);
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_heals_by_itself_and_all_who_share_the_cable_see_it() {
        let (cable, other) = (Cable::default(), Cable::default());
        let shared = cable.clone();
        assert_eq!(cable.is_cut_for(), None);
        cable.cut(Duration::from_secs(1000));
        assert!(shared.is_cut_for().is_some_and(|left| left > Duration::from_secs(900)));
        assert_eq!(other.is_cut_for(), None);
        shared.cut(Duration::ZERO);
        assert_eq!(cable.is_cut_for(), None);
    }
}
