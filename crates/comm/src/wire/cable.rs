//! A host's cable, which can be unplugged for a while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What all connections of a host go through. While it is cut nothing is read from them or written to them, nobody is let in and
/// nobody is reached, and no connection is closed: others hear nothing, as if the host were unplugged.
#[derive(Clone, Debug, Default)]
pub struct Cable {
    /// Until when it is cut, if it ever was.
    until: Arc<Mutex<Option<Instant>>>,
}

impl Cable {
    /// Cuts it for so long from now on.
    pub fn cut(&self, time: Duration) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    /// How long it is still cut; `None` if it is whole.
    pub fn is_cut_for(&self) -> Option<Duration> {
        let until = (*self.until.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
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
