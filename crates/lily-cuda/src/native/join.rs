//! Two launches of a stage as one (join.cu). Kernels that use a small part of a GPU cost little more than their launch, so two side by side
//! cost half as much as one after the other.

use lily_kernels::{Activation, Dispatch, Kernel, Text};

use super::{KernelSet, gemv};

/// Constants of a NormMatmul; those of the NormSwiglu stand behind them, and then the first's number of blocks.
const PRODUCT: usize = 6;
const SWIGLU: usize = 6;

static JOIN: Text = Text {
    name: "norm_matmul_and_swiglu_native",
    path: "src/native/join.cu",
    source: concat!(
        "#undef KERNEL\n#undef BLOCK_X\n#undef BLOCKS_X\n",
        "#define KERNEL(...) __device__ __forceinline__ void\n",
        "#define SPLIT_AT FUNCTION_CONSTANT_12\n",
        "#define OUT FUNCTION_CONSTANT_3\n#define NORM 1\n#define ROUTED 0\n",
        "#define BLOCK_X blockIdx.x\n#define BLOCKS_X SPLIT_AT\n",
        "namespace product {\n",
        include_str!("quant.cuh"),
        include_str!("gemv.cuh"),
        include_str!("output.cuh"),
        include_str!("matmul.cu"),
        "}\n",
        "#undef BLOCK_X\n#undef BLOCKS_X\n",
        "#define BLOCK_X (blockIdx.x - SPLIT_AT)\n#define BLOCKS_X (gridDim.x - SPLIT_AT)\n",
        "#undef FUNCTION_CONSTANT_0\n#undef FUNCTION_CONSTANT_1\n#undef FUNCTION_CONSTANT_2\n",
        "#undef FUNCTION_CONSTANT_3\n#undef FUNCTION_CONSTANT_4\n#undef FUNCTION_CONSTANT_5\n",
        "#define FUNCTION_CONSTANT_0 FUNCTION_CONSTANT_6\n#define FUNCTION_CONSTANT_1 FUNCTION_CONSTANT_7\n",
        "#define FUNCTION_CONSTANT_2 FUNCTION_CONSTANT_8\n#define FUNCTION_CONSTANT_3 FUNCTION_CONSTANT_9\n",
        "#define FUNCTION_CONSTANT_4 FUNCTION_CONSTANT_10\n#define FUNCTION_CONSTANT_5 FUNCTION_CONSTANT_11\n",
        "namespace swiglu {\n",
        include_str!("quant.cuh"),
        include_str!("gemv.cuh"),
        include_str!("swiglu.cu"),
        "}\n",
        include_str!("join.cu"),
    ),
    parameters: &[],
    constants: &[],
};

/// A launch of two kernels, if they have one. Its arguments are those of the first's launch alone, then those of the second's.
pub(crate) struct Joined {
    /// How both run.
    pub(crate) launch: Dispatch,
    /// How each would run alone.
    pub(crate) alone: [Dispatch; 2],
}

/// The launch of two kernels that nothing makes wait for each other.
pub(crate) fn joined(
    pair: [&Kernel; 2],
    activation: Activation,
    set: KernelSet,
    cores: usize,
) -> Option<Joined> {
    let [Kernel::NormMatmul(product), Kernel::NormSwiglu(swiglu)] = pair else { return None };
    if activation == Activation::F32 || set == KernelSet::Shared {
        return None;
    }
    let (first, second) = (gemv::norm_matmul(product, cores)?, gemv::norm_swiglu(swiglu)?);
    debug_assert_eq!((first.constants.len(), second.constants.len()), (PRODUCT, SWIGLU));
    if first.threads != second.threads {
        return None;
    }
    let blocks = first.grid[0];
    let constants = [&first.constants[..], &second.constants, &[blocks as u32]].concat();
    let grid = [blocks + second.grid[0], 1, 1];
    let mut launch = Dispatch::new(&JOIN, constants, vec![], grid, first.threads);
    let shared = |dispatch: &Dispatch| dispatch.threadgroup_bytes.iter().sum::<usize>();
    launch.threadgroup_bytes = vec![shared(&first).max(shared(&second))];
    Some(Joined { launch, alone: [first, second] })
}
