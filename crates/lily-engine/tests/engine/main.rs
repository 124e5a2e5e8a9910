//! The engine over a model that is a hash function: what is computed, in which order, with which memory.

mod fake;
mod faults;
mod generating;
mod memory;
mod reuse;
mod schedules;
mod turns;
