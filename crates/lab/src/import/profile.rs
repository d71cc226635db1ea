//! One screen for a profile.
