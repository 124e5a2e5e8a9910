//! Each kernel of the contract as tasks: how many there are, and what task i does.
//!
//! Tasks split a kernel's outputs, never the sums behind an output, so their number may depend on the number of threads
//! while results do not.

mod attention;
mod delta;
mod expert;
mod matmul;
mod norm;
mod rounding;
mod route;

use lily_kernels::Kernel;

use crate::memory::Args;
use crate::pool::Scratch;
use crate::simd::Loops;

pub(crate) use rounding::{ROUNDED_OPERAND, round, rounds};

/// Tasks a thread should find in a launch, so that uneven threads even out.
const TASKS_PER_THREAD: usize = 4;

/// What a task works with.
pub(crate) struct Task<'a> {
    pub(crate) args: &'a Args<'a>,
    pub(crate) loops: &'a Loops,
    pub(crate) index: usize,
    pub(crate) threads: usize,
    pub(crate) scratch: &'a mut Scratch,
}

/// Whether the CPU has this kernel: fused ones are for GPUs.
pub(crate) fn offers(kernel: &Kernel) -> bool {
    !matches!(
        kernel,
        Kernel::DeltaStep(_)
            | Kernel::DeltaStream(_)
            | Kernel::NormMatmul(_)
            | Kernel::GatedNormMatmul(_)
            | Kernel::NormSwiglu(_)
            | Kernel::SiluMul(_)
            | Kernel::Dequantize(_)
            | Kernel::AttendBlocks(_)
            | Kernel::AttendCombine(_)
            | Kernel::AttendStep(_)
            | Kernel::AttendStepBlocks(_)
            | Kernel::SplitQuery(_)
            | Kernel::HeadNorm(_)
            | Kernel::Rope(_)
            | Kernel::CacheWrite(_)
            | Kernel::GroupTiles(_)
            | Kernel::GroupedSwiglu(_)
            | Kernel::GroupedMatmul(_)
            | Kernel::GroupedDense(_)
            | Kernel::RoutedSwiglu(_)
            | Kernel::RoutedMatmul(_)
            | Kernel::DownCombine(_)
            | Kernel::SelectSlices(_)
            | Kernel::SelectToken(_)
    )
}

/// Tasks of a launch of a kernel that the CPU [`offers`].
pub(crate) fn tasks(kernel: &Kernel, args: &Args<'_>, threads: usize) -> usize {
    match kernel {
        Kernel::Embed(k) => matmul::embed_tasks(k),
        Kernel::Matmul(k) => matmul::matmul_split(k, args, threads).tasks(),
        Kernel::Swiglu(k) => matmul::swiglu_split(k, args, threads).tasks(),
        Kernel::RmsNorm(k) => k.rows,
        Kernel::GatedNorm(k) => k.rows,
        Kernel::ConvSilu(k) => delta::conv_tasks(k),
        Kernel::ConvState(k) => k.slots,
        Kernel::DeltaPrep(k) => k.rows,
        Kernel::DeltaScan(k) => delta::scan_tasks(k),
        Kernel::AttentionPrep(k) => k.shape.slots * k.shape.rows,
        Kernel::Attend(k) => attention::attend_tasks(k, threads),
        Kernel::Route(k) => k.rows,
        Kernel::Group(_) => 1,
        Kernel::ExpertSwiglu(k) => expert::swiglu_tasks(k, threads),
        Kernel::ExpertDown(k) => expert::down_tasks(k, threads),
        Kernel::Combine(k) => k.rows,
        // Not offered.
        _ => 0,
    }
}

/// Runs one task of a launch.
pub(crate) fn run(
    kernel: &Kernel,
    args: &Args<'_>,
    loops: &Loops,
    index: usize,
    threads: usize,
    scratch: &mut Scratch,
) {
    let task = Task { args, loops, index, threads, scratch };
    match kernel {
        Kernel::Embed(k) => matmul::embed(k, task),
        Kernel::Matmul(k) => matmul::matmul(k, task),
        Kernel::Swiglu(k) => matmul::swiglu(k, task),
        Kernel::RmsNorm(k) => norm::rms_norm(k, task),
        Kernel::GatedNorm(k) => norm::gated_norm(k, task),
        Kernel::ConvSilu(k) => delta::conv_silu(k, task),
        Kernel::ConvState(k) => delta::conv_state(k, task),
        Kernel::DeltaPrep(k) => delta::prep(k, task),
        Kernel::DeltaScan(k) => delta::scan(k, task),
        Kernel::AttentionPrep(k) => attention::prep(k, task),
        Kernel::Attend(k) => attention::attend(k, task),
        Kernel::Route(k) => route::route(k, task),
        Kernel::Group(k) => route::group(k, task),
        Kernel::ExpertSwiglu(k) => expert::swiglu(k, task),
        Kernel::ExpertDown(k) => expert::down(k, task),
        Kernel::Combine(k) => norm::combine(k, task),
        // Not offered: no tasks.
        _ => {}
    }
}
