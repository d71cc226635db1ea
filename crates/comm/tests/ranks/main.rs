//! Whole worlds: ranks as threads and as processes, against a serial program, and when things go wrong.

mod endurance;
mod faults;
mod model;
mod operations;
mod processes;
mod world;
