//! Mixture of experts: routing, grouping of rows by expert, the experts, and the weighted sum.
//!
//! A (row, slot) pair is numbered `row * top_k + slot`; slots are by falling probability.

mod combine;
mod expert;
mod group;
mod route;

pub use combine::Combine;
pub use expert::{ExpertDown, ExpertSwiglu};
pub use group::{Group, Grouping};
pub use route::Route;
