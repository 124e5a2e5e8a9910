//! The list of kernels that a device must offer, and the operands of each.

use crate::attention::{Attend, AttendBlocks, AttendCombine, AttendStep, AttendStepBlocks, AttentionPrep};
use crate::attention::{CacheWrite, HeadNorm, Rope, SplitQuery};
use crate::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan, DeltaStep, DeltaStream};
use crate::moe::{Combine, ExpertDown, ExpertSwiglu, Group, Route};
use crate::moe::{DownCombine, RoutedMatmul, RoutedSwiglu};
use crate::moe::{GroupTiles, GroupedDense, GroupedMatmul, GroupedSwiglu};
use crate::norm::{GatedNorm, RmsNorm};
use crate::quant::{Dequantize, GatedNormMatmul, NormMatmul, NormSwiglu, SiluMul};
use crate::quant::{Embed, Matmul, Swiglu};
use crate::select::{SelectSlices, SelectToken};
use crate::{Activation, Dispatch, Operand, Traffic};

/// What a plan and a device need to know of a kernel, beside its operands.
pub trait Contract {
    /// Sequences of the launch: how often per-slot operands are bound.
    fn slots(&self) -> usize {
        0
    }

    /// Bytes that a launch moves of each operand, in the order of the operands. Where the data decide (how many experts
    /// have rows, how long the context is), the most that its sizes allow.
    fn traffic(&self, activation: Activation) -> Vec<Traffic>;

    /// Floating-point operations, a multiplication and an addition counting as two.
    fn flops(&self) -> u64;

    /// How a GPU runs it; `None` for kernels of the CPU device alone.
    fn dispatch(&self) -> Option<Dispatch> {
        None
    }
}

macro_rules! kernels {
    ($($name:ident),* $(,)?) => {
        /// A kernel with its shape parameters.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)] // each variant is documented by the type that it wraps
        pub enum Kernel {
            $($name($name)),*
        }

        $(impl From<$name> for Kernel {
            fn from(kernel: $name) -> Self {
                Kernel::$name(kernel)
            }
        })*

        impl Kernel {
            /// The kernel's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Kernel::$name(_) => stringify!($name)),*
                }
            }

            /// Its operands, in the order in which they are bound.
            pub fn operands(&self) -> &'static [Operand] {
                match self {
                    $(Kernel::$name(_) => $name::OPERANDS),*
                }
            }

            /// The cases of every kernel, for tests and benches.
            pub fn cases() -> Vec<Kernel> {
                let mut cases = Vec::new();
                $(cases.extend($name::cases().into_iter().map(Kernel::from));)*
                cases
            }

            fn contract(&self) -> &dyn Contract {
                match self {
                    $(Kernel::$name(kernel) => kernel),*
                }
            }
        }
    };
}

kernels!(
    Embed,
    Matmul,
    Swiglu,
    NormMatmul,
    GatedNormMatmul,
    NormSwiglu,
    SiluMul,
    Dequantize,
    RmsNorm,
    GatedNorm,
    ConvSilu,
    ConvState,
    DeltaPrep,
    DeltaScan,
    DeltaStep,
    DeltaStream,
    AttentionPrep,
    Attend,
    Route,
    Group,
    ExpertSwiglu,
    ExpertDown,
    Combine,
    AttendBlocks,
    AttendCombine,
    AttendStep,
    AttendStepBlocks,
    SplitQuery,
    HeadNorm,
    Rope,
    CacheWrite,
    GroupTiles,
    GroupedSwiglu,
    GroupedMatmul,
    GroupedDense,
    RoutedSwiglu,
    RoutedMatmul,
    DownCombine,
    SelectSlices,
    SelectToken,
);

impl Kernel {
    /// Sequences of the launch: how often per-slot operands are bound.
    pub fn slots(&self) -> usize {
        self.contract().slots()
    }

    /// Bytes that a launch moves of each operand ([`Contract::traffic`]).
    pub fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        self.contract().traffic(activation)
    }

    /// Floating-point operations ([`Contract::flops`]).
    pub fn flops(&self) -> u64 {
        self.contract().flops()
    }

    /// How a GPU runs it ([`Contract::dispatch`]).
    pub fn dispatch(&self) -> Option<Dispatch> {
        self.contract().dispatch()
    }

    /// How many bindings a launch has: every operand once, per-slot operands once for each sequence.
    pub fn binding_count(&self) -> usize {
        self.operands().iter().map(|o| if o.per_slot { self.slots() } else { 1 }).sum()
    }

    /// The operand that binding `index` belongs to. Bindings come in operand order; a per-slot operand takes `slots`
    /// bindings in a row.
    pub fn operand_of(&self, index: usize) -> Operand {
        let mut left = index;
        for operand in self.operands() {
            let count = if operand.per_slot { self.slots() } else { 1 };
            if left < count {
                return *operand;
            }
            left -= count;
        }
        panic!("{} has {} bindings, asked for {index}", self.name(), self.binding_count())
    }
}
