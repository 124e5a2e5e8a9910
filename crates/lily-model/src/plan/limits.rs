//! The largest sizes that the kernels of GPUs are written for. Checked before anything is planned or loaded for one, so that a
//! model beyond them is refused by the name of its field, and never by a kernel in the middle of a request.

use lily_kernels::attention::MOST_HEAD_DIM;
use lily_kernels::delta::{MOST_KEY_DIM, MOST_TAPS, MOST_VALUE_DIM};
use lily_kernels::moe::MOST_CHOSEN;
use lily_kernels::select::MOST_VOCAB;

use super::{PlanError, Profile};
use crate::Geometry;

/// Whether the kernels of a profile's device take a model of these sizes; the CPU's take every one.
///
/// # Errors
/// [`PlanError::Size`] names the first field of config.json that is too large.
pub fn check_limits(geometry: &Geometry, profile: &Profile) -> Result<(), PlanError> {
    if !profile.is_gpu() {
        return Ok(());
    }
    let (attention, delta, moe) = (&geometry.attention, &geometry.delta, &geometry.moe);
    let limits = [
        ("head_dim", attention.head_dim, MOST_HEAD_DIM),
        ("linear_conv_kernel_dim", delta.conv_taps, MOST_TAPS),
        ("linear_key_head_dim", delta.key_dim, MOST_KEY_DIM),
        ("linear_value_head_dim", delta.value_dim, MOST_VALUE_DIM),
        ("num_experts_per_tok", moe.top_k, MOST_CHOSEN),
        ("vocab_size", geometry.vocab, MOST_VOCAB),
    ];
    match limits.into_iter().find(|(_, found, most)| found > most) {
        Some((field, found, most)) => Err(PlanError::Size { field, found, most, device: profile.name }),
        None => Ok(()),
    }
}
