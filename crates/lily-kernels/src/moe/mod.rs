//! Mixture of experts: routing, grouping of rows by expert, the experts, and the weighted sum.
//!
//! A (row, slot) pair is numbered `row * top_k + slot`; slots are by falling probability.

mod combine;
mod down_combine;
mod expert;
mod group;
mod grouped_dense;
mod grouped_matmul;
mod grouped_swiglu;
mod route;
mod routed_matmul;
mod routed_swiglu;
#[cfg(feature = "testing")]
mod testing;
mod tiles;

/// The most experts a row that kernels of GPUs choose themselves.
pub const MOST_CHOSEN: usize = 32;

pub use combine::Combine;
pub use down_combine::DownCombine;
pub use expert::{ExpertDown, ExpertSwiglu};
pub use group::{Group, Grouping};
pub use grouped_dense::GroupedDense;
pub use grouped_matmul::{GroupedMatmul, Scatter};
pub use grouped_swiglu::GroupedSwiglu;
pub use route::Route;
pub use routed_matmul::RoutedMatmul;
pub use routed_swiglu::RoutedSwiglu;
pub use tiles::{GroupTiles, TileHeights};
