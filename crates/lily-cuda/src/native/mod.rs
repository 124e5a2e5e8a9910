//! Texts of the CUDA device's own: CUDA C++ for the kernels whose shared text, written for Apple's GPUs, loses on NVIDIA's. Same
//! operands, same bounds, held by the same cases (`examples/check`). A kernel that has none here, or not for these sizes, runs by its
//! shared text.
//!
//! A text's function takes the kernel's operands in their order, with `slots` behind them where the shared text has it, then its
//! parameters by value, then scratch memory where it wants some. It is specialized by `FUNCTION_CONSTANT_n`, as the shared texts are.

/// A native text: its function, its file, what is defined for it, the files that stand before it, its parameters.
macro_rules! text {
    ($static:ident, $name:literal, $file:literal, $head:literal, [$($part:literal),*], [$($parameter:expr),* $(,)?]) => {
        text!($static, $name, $file, $head, [$($part),*], &[$($parameter),*]);
    };
    ($static:ident, $name:literal, $file:literal, $head:literal, [$($part:literal),*], $parameters:expr) => {
        static $static: lily_kernels::Text = lily_kernels::Text {
            name: $name,
            path: concat!("src/native/", $file),
            source: concat!($head, "\n", $(include_str!($part), "\n",)* include_str!($file)),
            parameters: $parameters,
            constants: &[],
        };
    };
}

// The macro is theirs.
mod attention;
mod delta;
mod gemm;
mod gemv;
mod join;

use lily_kernels::quant::{Method, Output};
use lily_kernels::{Activation, Dispatch, Kernel, Text, TextParameter, cuda_symbol};

pub(crate) use join::{Joined, joined};

/// Which texts run the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelSet {
    /// Those that all GPUs share.
    Shared,
    /// The device's own where there are some.
    Native,
}

/// How a launch runs: one after the other.
pub(crate) struct Native {
    pub(crate) launches: Vec<Dispatch>,
    /// What they leave each other.
    pub(crate) scratch_bytes: usize,
}

/// The attribute of the parameter that takes scratch memory.
pub(crate) const SCRATCH: &str = "scratch";

/// The suffix of native files.
const CUDA: &str = ".cu";

/// What every text starts with.
const HEAD: &str = include_str!("head.cuh");

/// Whether a text is one of these.
pub(crate) fn is_native(text: &Text) -> bool {
    text.path.ends_with(CUDA)
}

/// The source of a native text's unit.
pub(crate) fn unit(text: &Text, activation: Activation) -> String {
    debug_assert!(text.source.contains(&cuda_symbol(text)), "{} has another function", text.path);
    let name = activation.name().to_uppercase();
    format!("#define ACT_IS_{name}\n{HEAD}\n#line 1 \"{}\"\n{}", text.path, text.source)
}

/// The native launches of a kernel by a set of texts on a GPU of so many multiprocessors, if there are some for its sizes. All are for
/// activations of 16 bits: with float32 the shared texts set the standard.
pub(crate) fn of(kernel: &Kernel, activation: Activation, set: KernelSet, cores: usize) -> Option<Native> {
    if activation == Activation::F32 || set == KernelSet::Shared {
        return None;
    }
    let launches = match kernel {
        Kernel::Attend(k) => vec![attention::tiles(k, cores)?],
        Kernel::Matmul(k) if k.method == Method::Tiles => vec![gemm::matmul(k, cores)?],
        Kernel::Matmul(k) => vec![gemv::matmul(k, cores)?],
        Kernel::Swiglu(k) => vec![gemm::swiglu(k, cores)?],
        Kernel::GroupedSwiglu(k) => vec![gemm::grouped_swiglu(k)?],
        Kernel::GroupedMatmul(k) => vec![gemm::grouped_matmul(k)?],
        Kernel::NormMatmul(k) => vec![gemv::norm_matmul(k, cores)?],
        Kernel::NormSwiglu(k) => vec![gemv::norm_swiglu(k)?],
        Kernel::RoutedSwiglu(k) => vec![gemv::routed_swiglu(k)?],
        Kernel::DownCombine(k) => vec![gemv::down_combine(k)?],
        Kernel::DeltaStep(k) => vec![delta::step(k)?],
        Kernel::DeltaStream(k) => return delta::stream(k, cores),
        Kernel::AttendStep(k) => vec![attention::step(k)?],
        Kernel::AttendStepBlocks(k) => vec![attention::blocks(k, cores)?],
        Kernel::AttendCombine(k) => vec![attention::combine(k)?],
        _ => return None,
    };
    Some(Native { launches, scratch_bytes: 0 })
}

/// Operands of a native kernel that it reads before it has waited for the launch before: where that one writes them, this one may not start
/// early. What older launches wrote is there, for a launch lets the next one start only after it has waited itself.
pub(crate) fn early(kernel: &Kernel) -> &'static [&'static str] {
    match kernel {
        Kernel::Matmul(k) if k.method == Method::Rows && k.out == Output::Add => &["out"],
        Kernel::NormMatmul(k) if k.out == Output::Add => &["out"],
        Kernel::DownCombine(_) => &["out", "shared_gate"],
        Kernel::AttendCombine(_) => &["qg"],
        _ => &[],
    }
}

/// A buffer of a text.
const fn buffer(name: &'static str, index: usize) -> TextParameter {
    TextParameter { kind: "void*", name, attribute: "buffer", index }
}

/// The parameters by value.
const fn by_value(index: usize) -> TextParameter {
    TextParameter { kind: "Params&", name: "p", attribute: "buffer", index }
}

/// Where scratch memory is.
const SCRATCH_PARAMETER: TextParameter =
    TextParameter { kind: "void*", name: SCRATCH, attribute: SCRATCH, index: 0 };

#[cfg(test)]
mod tests {
    use lily_kernels::testing::gpu_cases;

    use super::*;

    /// Every operand of a kernel has its buffer, and its function is in its text.
    #[test]
    fn texts_take_what_kernels_bind() {
        let mut seen = std::collections::BTreeSet::new();
        for case in gpu_cases() {
            let Some(native) = of(&case.kernel, case.activation, KernelSet::Native, 132) else {
                continue;
            };
            for dispatch in native.launches {
                let text = dispatch.text;
                assert!(unit(text, case.activation).contains(&cuda_symbol(text)));
                for operand in case.kernel.operands() {
                    assert!(text.buffer(operand.name).is_some(), "{}: {}", text.name, operand.name);
                }
                assert!(dispatch.threads.iter().product::<usize>() <= 1024, "{:?}", case.kernel);
                seen.insert(text.name);
            }
        }
        assert!(seen.len() >= 5, "{seen:?}");
    }
}
