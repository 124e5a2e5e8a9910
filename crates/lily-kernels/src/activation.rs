//! The element type of activations.

/// What activations are stored as. It is a parameter of a whole plan and of each kernel's text; sums, residuals, DeltaNet states
/// and gates, router and softmax are f32 with any of them.
///
/// Texts know two types of it: `ACT`, of attention's queries, keys and values and so of the KV cache, and `FINE` ([`Activation::fine`]),
/// of all that other products read and write. They differ with bfloat16 alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// float32: `--precision exact`, and the CPU device.
    F32,
    /// bfloat16.
    Bf16,
    /// float16, for tiles of GPUs without bfloat16.
    F16,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 3] = [Activation::F32, Activation::Bf16, Activation::F16];

    /// What all but attention's operands are stored as: the type of the same size with the most bits of precision. They need no range
    /// beyond float16's (the residual stream is f32); values that have it all the same end at its largest number.
    ///
    /// With bfloat16 for all of them the router, whose margins are small, takes another expert here and there: mean errors of the
    /// goldens in bf16, in sum, were 0.275 (nano), 0.186 with float16 in tiles alone, and are 0.012 so (transformers: 0.250).
    pub fn fine(self) -> Activation {
        match self {
            Activation::Bf16 => Activation::F16,
            other => other,
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Activation::F32 => 4,
            Activation::Bf16 | Activation::F16 => 2,
        }
    }

    /// `f32`, `bf16` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            Activation::F32 => "f32",
            Activation::Bf16 => "bf16",
            Activation::F16 => "f16",
        }
    }

    /// Its name in Metal Shading Language.
    pub fn metal(self) -> &'static str {
        match self {
            Activation::F32 => "float",
            Activation::Bf16 => "bfloat",
            Activation::F16 => "half",
        }
    }

    /// The largest relative error of one rounding to it.
    pub fn rounding(self) -> f64 {
        match self {
            Activation::F32 => 1.0 / (1u64 << 24) as f64,
            Activation::Bf16 => 1.0 / (1u64 << 8) as f64,
            Activation::F16 => 1.0 / (1u64 << 11) as f64,
        }
    }
}
