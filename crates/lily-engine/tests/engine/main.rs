//! The engine over a model that is a hash function: what is computed, in which order, with which memory.
// The configured exception for tests covers test functions only, and their helpers are here.
#![allow(clippy::unwrap_used)]

mod ahead;
mod fake;
mod faults;
mod generating;
mod helpers;
mod losing;
mod memory;
mod reuse;
mod schedules;
mod sleep;
mod turns;
