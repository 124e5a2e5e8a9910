//! The mechanisms of a plan, each of which can be turned off alone.

/// One mechanism. Turned off, a plan falls back to what the mechanism replaces, and stays right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Switch {
    /// Weights are dequantized inside the grouped product.
    Q4GroupedGemm,
    /// Rows are grouped by expert on the device.
    DeviceRouting,
    /// Tiles of the grouped product are as high as their expert has rows, 32 and more.
    Tile32x4,
    /// The DeltaNet state stays in registers while a prompt is scanned.
    GdnRegscan,
    /// The chunk-parallel form of DeltaNet, where the profile asks for it.
    GdnChunked,
    /// A prompt is run in chunks.
    ChunkedPrefill,
    /// Products of few rows read each weight once.
    RowGemv,
    /// The next token goes from step to step on the device.
    TokenHandoff,
    /// Launches run side by side unless one needs another's result.
    ConcurrentPass,
    /// The norm before a projection is computed by the projection.
    FuseNorm,
    /// Gate, up and SwiGLU in one.
    FuseGateUp,
    /// Down, the weighted sum and the shared expert in one.
    FuseDownCombine,
    /// Norms of q and k, RoPE and the cache write in one, in decode with the attention itself.
    FuseQkPrep,
    /// Convolution, normalization, gates and recurrence in one.
    FuseGdnConv,
    /// The gated norm with the recurrence, or with the projection behind it.
    FuseGdnNorm,
    /// Neighbouring lanes read neighbouring elements of the cache.
    CoalescedKv,
    /// Query heads of a KV head share each row of the cache that is read.
    GqaPack,
    /// Long contexts are split into fixed blocks.
    BlockAttention,
}

/// A phase in which a mechanism has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// In prefill.
    Prefill,
    /// In decode.
    Decode,
    /// In both.
    Both,
}

impl Switch {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Switch; 18] = [
        Switch::Q4GroupedGemm,
        Switch::DeviceRouting,
        Switch::Tile32x4,
        Switch::GdnRegscan,
        Switch::GdnChunked,
        Switch::ChunkedPrefill,
        Switch::RowGemv,
        Switch::TokenHandoff,
        Switch::ConcurrentPass,
        Switch::FuseNorm,
        Switch::FuseGateUp,
        Switch::FuseDownCombine,
        Switch::FuseQkPrep,
        Switch::FuseGdnConv,
        Switch::FuseGdnNorm,
        Switch::CoalescedKv,
        Switch::GqaPack,
        Switch::BlockAttention,
    ];

    /// As it is typed: `q4-grouped-gemm`.
    pub fn name(self) -> &'static str {
        match self {
            Switch::Q4GroupedGemm => "q4-grouped-gemm",
            Switch::DeviceRouting => "device-routing",
            Switch::Tile32x4 => "tile32x4",
            Switch::GdnRegscan => "gdn-regscan",
            Switch::GdnChunked => "gdn-chunked",
            Switch::ChunkedPrefill => "chunked-prefill",
            Switch::RowGemv => "row-gemv",
            Switch::TokenHandoff => "token-handoff",
            Switch::ConcurrentPass => "concurrent-pass",
            Switch::FuseNorm => "fuse-norm",
            Switch::FuseGateUp => "fuse-gate-up",
            Switch::FuseDownCombine => "fuse-down-combine",
            Switch::FuseQkPrep => "fuse-qk-prep",
            Switch::FuseGdnConv => "fuse-gdn-conv",
            Switch::FuseGdnNorm => "fuse-gdn-norm",
            Switch::CoalescedKv => "coalesced-kv",
            Switch::GqaPack => "gqa-pack",
            Switch::BlockAttention => "block-attention",
        }
    }

    /// What a plan does without it.
    pub fn fallback(self) -> &'static str {
        match self {
            Switch::Q4GroupedGemm => "experts are dequantized into memory, then multiplied",
            Switch::DeviceRouting => {
                "the host reads the choice of experts and groups the rows: a wait a layer"
            }
            Switch::Tile32x4 => "tiles of 16 rows in the grouped products",
            Switch::GdnRegscan => "the DeltaNet state goes through memory at each token",
            Switch::GdnChunked => "the scan token by token",
            Switch::ChunkedPrefill => "one chunk for the whole prompt",
            Switch::RowGemv => "the general product by tiles for one row",
            Switch::TokenHandoff => "the host chooses each token before it submits the next step",
            Switch::ConcurrentPass => "a barrier after each launch",
            Switch::FuseNorm => "RMSNorm apart from the projection",
            Switch::FuseGateUp => "gate, up and SwiGLU apart",
            Switch::FuseDownCombine => "down, weighted sum and shared expert apart",
            Switch::FuseQkPrep => "split, norms of q and k, RoPE and cache write apart",
            Switch::FuseGdnConv => "convolution, its state, normalization with gates, and scan apart",
            Switch::FuseGdnNorm => "recurrent update and gated norm apart",
            Switch::CoalescedKv => "each lane walks a row of the cache of its own",
            Switch::GqaPack => "one query head for each group of threads",
            Switch::BlockAttention => "the way for short contexts at any length",
        }
    }

    /// Where turning it off changes a plan.
    pub fn effect(self) -> Effect {
        match self {
            Switch::Q4GroupedGemm
            | Switch::DeviceRouting
            | Switch::Tile32x4
            | Switch::GdnRegscan
            | Switch::GdnChunked
            | Switch::ChunkedPrefill => Effect::Prefill,
            // The last row of a prompt alone meets lm_head.
            Switch::RowGemv
            | Switch::FuseNorm
            | Switch::FuseGdnConv
            | Switch::ConcurrentPass
            | Switch::FuseGateUp
            | Switch::FuseDownCombine
            | Switch::FuseQkPrep => Effect::Both,
            _ => Effect::Decode,
        }
    }

    /// The mechanism of a name.
    pub fn named(name: &str) -> Option<Switch> {
        Switch::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// Which mechanisms are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Switches(u32);

impl Switches {
    /// Every mechanism on.
    pub const ALL: Switches = Switches((1 << Switch::ALL.len()) - 1);
    /// Every mechanism off.
    pub const NONE: Switches = Switches(0);

    /// Whether a mechanism is on.
    pub fn has(self, switch: Switch) -> bool {
        self.0 & (1 << switch as u8) != 0
    }

    /// The same with one mechanism off.
    #[must_use]
    pub fn without(self, switch: Switch) -> Switches {
        Switches(self.0 & !(1 << switch as u8))
    }

    /// The same with one mechanism on.
    #[must_use]
    pub fn with(self, switch: Switch) -> Switches {
        Switches(self.0 | 1 << switch as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_switches() {
        for switch in Switch::ALL {
            assert_eq!(Switch::named(switch.name()), Some(switch));
            assert!(Switches::ALL.has(switch) && !Switches::NONE.has(switch));
            let others = Switches::ALL.without(switch);
            assert!(!others.has(switch) && others.with(switch) == Switches::ALL);
            assert!(Switch::ALL.into_iter().all(|s| s == switch || others.has(s)));
        }
        assert_eq!(Switch::named("no-such-switch"), None);
    }
}
