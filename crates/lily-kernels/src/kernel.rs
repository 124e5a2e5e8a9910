//! The list of kernels that a device must offer, and the operands of each.

use crate::attention::{Attend, AttentionPrep};
use crate::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan};
use crate::moe::{Combine, ExpertDown, ExpertSwiglu, Group, Route};
use crate::norm::{GatedNorm, RmsNorm};
use crate::quant::{Embed, Matmul, Swiglu};

/// What a launch does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes all of it, reads none of it.
    Write,
    /// Reads and writes it.
    ReadWrite,
}

impl Access {
    /// True unless it only reads.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// One operand of a kernel. A per-slot operand is bound once for each sequence of the launch, after all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// As in the kernel's documentation.
    pub name: &'static str,
    /// What the kernel does with it.
    pub access: Access,
    /// Bound once a sequence.
    pub per_slot: bool,
}

impl Operand {
    /// An operand that is only read.
    pub const fn read(name: &'static str) -> Self {
        Operand { name, access: Access::Read, per_slot: false }
    }

    /// An operand that is written whole.
    pub const fn write(name: &'static str) -> Self {
        Operand { name, access: Access::Write, per_slot: false }
    }

    /// An operand that is read and written.
    pub const fn update(name: &'static str) -> Self {
        Operand { name, access: Access::ReadWrite, per_slot: false }
    }

    /// The same, bound once for each sequence.
    pub const fn per_slot(self) -> Self {
        Operand { per_slot: true, ..self }
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

            /// Sequences of the launch: how often per-slot operands are bound.
            pub fn slots(&self) -> usize {
                match self {
                    Kernel::ConvSilu(k) => k.slots,
                    Kernel::ConvState(k) => k.slots,
                    Kernel::DeltaScan(k) => k.slots,
                    Kernel::AttentionPrep(k) => k.shape.slots,
                    Kernel::Attend(k) => k.shape.slots,
                    _ => 0,
                }
            }
        }
    };
}

kernels!(
    Embed,
    Matmul,
    Swiglu,
    RmsNorm,
    GatedNorm,
    ConvSilu,
    ConvState,
    DeltaPrep,
    DeltaScan,
    AttentionPrep,
    Attend,
    Route,
    Group,
    ExpertSwiglu,
    ExpertDown,
    Combine,
);

impl Kernel {
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
