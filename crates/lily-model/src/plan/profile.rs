//! What a device is like, as data: which mechanisms its plans use and from which size on.
//!
//! Thresholds that nobody has measured yet on the device itself carry the source they were taken from; a measurement replaces
//! them here and nowhere else.

use lily_kernels::Activation;

use super::{Switch, Switches};

/// Where a decode step computes the gated norm of DeltaNet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedNormPlace {
    /// With the recurrence: a threadgroup owns a head.
    Stage,
    /// In the projection behind it: the recurrence splits heads over more threadgroups, and each threadgroup of the
    /// projection computes the norm again.
    Prologue,
}

/// Which kernels a device has for experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertKernels {
    /// Those of the CPU device: an expert at a time over its rows.
    Cpu,
    /// Those of GPUs: tiles of the grouped product, rows of the routed product.
    Gpu,
}

/// How matrix tiles are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixUnit {
    /// Plain loops.
    Loops,
    /// Simdgroup matrices (Apple GPUs).
    Simdgroup,
    /// Tensor operations of Metal 4 (M5).
    MetalTensor,
    /// Tensor cores (NVIDIA).
    TensorCore,
}

/// A device, for the plan builder.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// `metal:m5-max`.
    pub name: &'static str,
    /// GPU cores or multiprocessors; 0 for the CPU and the emulator.
    pub cores: usize,
    /// Nominal memory bandwidth in GB/s; 0 where it says nothing.
    pub bandwidth: f64,
    /// What activations are stored as unless somebody asks for another type.
    pub activation: Activation,
    /// How tiles are multiplied.
    pub matrix_unit: MatrixUnit,
    /// Which kernels there are for experts.
    pub experts: ExpertKernels,
    /// Mechanisms in use.
    pub switches: Switches,
    /// Where the gated norm sits in decode.
    pub gated_norm: GatedNormPlace,
    /// The highest tile of grouped products: 16, 32 or 64 rows.
    pub tile_rows: usize,
    /// Query heads that share each row of the cache; at most as many as share a KV head.
    pub gqa_pack: usize,
    /// Contexts above this many tokens are split into blocks in decode; at most `attention_block`, or a sequence's bits
    /// would depend on how long its neighbours are.
    pub block_attention_above: usize,
    /// Tokens of such a block; a multiple of 64.
    pub attention_block: usize,
    /// Tokens of a prefill chunk.
    pub prefill_chunk: usize,
}

/// A row of the table of devices: name, cores, GB/s, type of activations, matrix unit.
type Row = (&'static str, usize, f64, Activation, MatrixUnit);

/// Cores and nominal bandwidth as the makers state them for the largest variant of each. M1 and M2 have no bfloat arithmetic
/// (Metal feature set tables), so their tiles are of half.
const GPUS: &[Row] = &[
    // One that is none of those below: newer, so of bfloat.
    ("metal", 0, 0.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m1", 8, 68.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m1-pro", 16, 200.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m1-max", 32, 400.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m1-ultra", 64, 800.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m2", 10, 100.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m2-pro", 19, 200.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m2-max", 38, 400.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m2-ultra", 76, 800.0, Activation::F16, MatrixUnit::Simdgroup),
    ("metal:m3", 10, 100.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m3-pro", 18, 150.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m3-max", 40, 400.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m3-ultra", 80, 819.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m4", 10, 120.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m4-pro", 20, 273.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m4-max", 40, 546.0, Activation::Bf16, MatrixUnit::Simdgroup),
    ("metal:m5", 10, 153.0, Activation::Bf16, MatrixUnit::MetalTensor),
    ("metal:m5-pro", 20, 307.0, Activation::Bf16, MatrixUnit::MetalTensor),
    ("metal:m5-max", 40, 614.0, Activation::Bf16, MatrixUnit::MetalTensor),
    // One that is none of those below; how many cores and what bandwidth it has, its driver says.
    ("cuda", 0, 0.0, Activation::Bf16, MatrixUnit::TensorCore),
    ("cuda:a100", 108, 2039.0, Activation::Bf16, MatrixUnit::TensorCore),
    ("cuda:rtx3090", 82, 936.0, Activation::Bf16, MatrixUnit::TensorCore),
    ("cuda:rtx4090", 128, 1008.0, Activation::Bf16, MatrixUnit::TensorCore),
    ("cuda:rtx5090", 170, 1792.0, Activation::Bf16, MatrixUnit::TensorCore),
    ("cuda:h100", 132, 3350.0, Activation::Bf16, MatrixUnit::TensorCore),
    ("cuda:h200", 132, 4800.0, Activation::Bf16, MatrixUnit::TensorCore),
];

impl Profile {
    /// The CPU device.
    pub fn cpu() -> Profile {
        Profile {
            name: "cpu",
            cores: 0,
            bandwidth: 0.0,
            activation: Activation::F32,
            matrix_unit: MatrixUnit::Loops,
            experts: ExpertKernels::Cpu,
            // The kernels it has: what a row or an expert needs, each by itself.
            switches: Switches::NONE
                .with(Switch::DeviceRouting)
                .with(Switch::Q4GroupedGemm)
                .with(Switch::GdnRegscan)
                .with(Switch::ChunkedPrefill)
                .with(Switch::ConcurrentPass)
                .with(Switch::FuseGateUp)
                .with(Switch::FuseQkPrep),
            gated_norm: GatedNormPlace::Stage,
            tile_rows: 64,
            gqa_pack: 1,
            block_attention_above: usize::MAX,
            attention_block: 64,
            prefill_chunk: 256,
        }
    }

    /// What GPUs have in common; the emulator runs their plans.
    fn gpu(
        name: &'static str,
        cores: usize,
        bandwidth: f64,
        activation: Activation,
        matrix_unit: MatrixUnit,
    ) -> Profile {
        let attention_block = match matrix_unit {
            // Two KV heads in blocks of 512 leave an H200 of 132 multiprocessors idle below 33,000 tokens: a step after 4,096 took 1.79 ms, with
            // blocks of 128 1.69. Its own kernels take larger ones again where there are enough (lily-cuda, `native::attention`).
            MatrixUnit::TensorCore => 128,
            // The smallest whose partial results cost less than 2% of a step's bytes at 128K (3% of the cache).
            _ => 512,
        };
        Profile {
            name,
            cores,
            bandwidth,
            activation,
            matrix_unit,
            experts: ExpertKernels::Gpu,
            // The chunk-parallel form of DeltaNet is there and not in use: it reads what the register scan keeps on the chip, and
            // nobody has measured yet on which GPU it wins.
            switches: Switches::ALL.without(Switch::GdnChunked),
            gated_norm: GatedNormPlace::Stage,
            // The mission's measurement: 32 rows and 4 simdgroups against 16, +13% of prefill at 2K on an M5 Max. An expert
            // with more rows gets tiles of 64, so that its weights are read half as often.
            tile_rows: 64,
            // 4 heads share a row: +24% of decode at 32K on an M5 Max (the mission's measurement).
            gqa_pack: 4,
            // Without blocks a sequence is two KV heads times two packs: four threadgroups, a tenth of an M5 Max. The two
            // numbers are equal, so that a short sequence beside a long one, which is then one block, gets the same bits.
            block_attention_above: attention_block,
            attention_block,
            prefill_chunk: 4096,
        }
    }

    /// The emulator: a GPU's plan with thresholds of `like`, or of no device at all.
    pub fn emulator() -> Profile {
        let emulator = Profile::gpu("emu", 0, 0.0, Activation::Bf16, MatrixUnit::Loops);
        Profile { prefill_chunk: 512, ..emulator }
    }

    /// A device by name: `cpu`, `emu`, `metal:m5-max`, `cuda:h200`.
    pub fn named(name: &str) -> Option<Profile> {
        match name {
            "cpu" => Some(Profile::cpu()),
            "emu" => Some(Profile::emulator()),
            _ => GPUS.iter().find(|row| row.0 == name).map(|(name, cores, bandwidth, activation, unit)| {
                Profile::gpu(name, *cores, *bandwidth, *activation, *unit)
            }),
        }
    }

    /// An NVIDIA GPU by the name that its driver gives it, with what the driver says of it.
    pub fn cuda(marketing_name: &str, cores: usize, bandwidth: f64) -> Profile {
        let words: String = marketing_name.to_lowercase().split_whitespace().collect();
        let known = GPUS.iter().filter_map(|row| Some((row, row.0.strip_prefix("cuda:")?)));
        let name = known.filter(|(_, name)| words.contains(name)).map(|(row, _)| row.0).next_back();
        let profile =
            Profile::gpu(name.unwrap_or("cuda"), cores, bandwidth, Activation::Bf16, MatrixUnit::TensorCore);
        match name.and_then(Profile::named) {
            Some(known) if bandwidth == 0.0 => Profile { bandwidth: known.bandwidth, ..profile },
            _ => profile,
        }
    }

    /// An Apple GPU by the name that Metal gives it: `Apple M3 Max`. Its matrix unit is what a probe finds.
    pub fn metal(name: &str) -> Profile {
        let words = name.to_lowercase().replace(' ', "-");
        let of =
            |row: &&Row| row.0.strip_prefix("metal:").is_some_and(|chip| words == format!("apple-{chip}"));
        let known = GPUS.iter().find(of).map_or("metal", |row| row.0);
        let profile = Profile::named(known).unwrap_or_else(Profile::emulator);
        Profile { matrix_unit: MatrixUnit::Simdgroup, ..profile }
    }

    /// The names that [`Profile::named`] knows.
    pub fn names() -> Vec<&'static str> {
        ["cpu", "emu"].into_iter().chain(GPUS.iter().map(|row| row.0)).collect()
    }

    /// The same with other mechanisms.
    #[must_use]
    pub fn with_switches(self, switches: Switches) -> Profile {
        Profile { switches, ..self }
    }

    /// The same with one mechanism off.
    #[must_use]
    pub fn without(self, switch: Switch) -> Profile {
        let switches = self.switches.without(switch);
        self.with_switches(switches)
    }

    /// The same with activations of another type.
    #[must_use]
    pub fn with_activation(self, activation: Activation) -> Profile {
        Profile { activation, ..self }
    }

    /// Whether its plans are those of GPUs: concatenated projections, tiles, fused stages.
    pub fn is_gpu(&self) -> bool {
        self.experts == ExpertKernels::Gpu
    }

    /// Whether a mechanism is on.
    pub fn has(&self, switch: Switch) -> bool {
        self.switches.has(switch)
    }

    /// Query heads of a KV head that a threadgroup computes together: a divisor of `shared`.
    pub(super) fn pack(&self, shared: usize) -> usize {
        if !self.has(Switch::GqaPack) {
            return 1;
        }
        (1..=self.gqa_pack.min(shared)).rev().find(|n| shared.is_multiple_of(*n)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_profile() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.name, name);
            assert!(profile.attention_block.is_multiple_of(64) && [16, 32, 64].contains(&profile.tile_rows));
        }
        assert_eq!(Profile::named("metal:m0"), None);
    }

    #[test]
    fn gpus_are_known_by_the_names_of_their_driver() {
        let name = |of: &str| Profile::cuda(of, 1, 0.0).name;
        assert_eq!(name("NVIDIA H200"), "cuda:h200");
        assert_eq!(name("NVIDIA GeForce RTX 4090"), "cuda:rtx4090");
        assert_eq!(name("NVIDIA A100-SXM4-80GB"), "cuda:a100");
        assert_eq!(name("NVIDIA L4"), "cuda");
        assert_eq!(Profile::cuda("NVIDIA H200", 132, 0.0).bandwidth, 4800.0);
        assert_eq!(Profile::cuda("NVIDIA H200", 132, 4915.0).bandwidth, 4915.0);
    }

    #[test]
    fn apple_gpus_are_known_by_the_names_that_metal_gives_them() {
        let of = |name: &str| Profile::metal(name);
        assert_eq!(of("Apple M3 Max").name, "metal:m3-max");
        assert_eq!((of("Apple M1").name, of("Apple M1").activation), ("metal:m1", Activation::F16));
        assert_eq!((of("Apple M9 Ultra").name, of("Apple M9 Ultra").activation), ("metal", Activation::Bf16));
        assert_eq!(of("Apple M5 Max").matrix_unit, MatrixUnit::Simdgroup, "a probe has to find the other");
    }

    #[test]
    fn a_pack_divides_the_heads_that_share() {
        let profile = Profile::named("metal:m5-max").unwrap();
        assert_eq!([1, 2, 3, 5, 6, 8].map(|n| profile.pack(n)), [1, 2, 3, 1, 3, 4]);
        assert_eq!(profile.without(Switch::GqaPack).pack(8), 1);
    }
}
