//! How fast a model could be on this machine.

use lily_cpu::Roof;
use lily_model::LogitRows;
use lily_model::plan::{self, DecodeShape, PlanCost, PlanError, Target};

use super::cases::Case;

/// What a case cannot do without, for each of its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// Bytes read and written.
    pub(super) bytes: f64,
    /// Floating-point operations.
    pub(super) flops: f64,
}

impl Work {
    /// Of prefill as if the whole prompt were one chunk, so that every weight is read once; of decode the mean of the steps,
    /// whose keys and values grow by the same from step to step.
    pub(super) fn of(target: Target<'_>, case: Case) -> Result<Work, PlanError> {
        let decode = |context| {
            let plan = plan::decode(target, DecodeShape::logits(1, context))?;
            let cost = PlanCost::of(target, &plan).total;
            Ok((cost.floor_bytes as f64, cost.flops as f64))
        };
        match case {
            Case::Prefill { tokens } => {
                let plan = plan::prefill(target, tokens, tokens, LogitRows::Last)?;
                let cost = PlanCost::of(target, &plan).total;
                let n = tokens as f64;
                Ok(Work { bytes: cost.floor_bytes as f64 / n, flops: cost.flops as f64 / n })
            }
            Case::Decode { depth, steps } => {
                let (first, last) = (decode(depth + 1)?, decode(depth + steps)?);
                Ok(Work { bytes: (first.0 + last.0) / 2.0, flops: (first.1 + last.1) / 2.0 })
            }
        }
    }
}

/// What limits a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// The bandwidth of memory.
    Bytes,
    /// Arithmetic in float32.
    Flops,
}

/// The speed that nothing can beat, but a model in the caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Floor {
    pub(super) tokens_per_second: f64,
    pub(super) limit: Limit,
}

impl Floor {
    /// Decode is measured against the bandwidth alone: narrow integers can do its arithmetic several times as fast as
    /// float32 can.
    pub(super) fn of(case: Case, work: Work, roof: Roof) -> Floor {
        let by_bytes = roof.bytes_per_second / work.bytes.max(1.0);
        let by_flops = roof.flops_per_second / work.flops.max(1.0);
        match case {
            Case::Prefill { .. } if by_flops < by_bytes => {
                Floor { tokens_per_second: by_flops, limit: Limit::Flops }
            }
            _ => Floor { tokens_per_second: by_bytes, limit: Limit::Bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use lily_model::Preset;
    use lily_model::plan::Profile;

    use super::*;

    #[test]
    fn a_token_of_layer4_reads_189_megabytes() {
        let preset = Preset::named("layer4").unwrap();
        let (weights, profile) = (preset.weights(), Profile::cpu());
        let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
        let work = |case| Work::of(target, case).unwrap();
        let decode = |depth, steps| work(Case::Decode { depth, steps });
        let empty = decode(0, 1).bytes;
        assert!((empty / 1e6 - 189.0).abs() < 1.0, "{empty}");
        // One layer of attention with 2 heads of 256, keys and values in float32.
        let token = (2 * 2 * 256 * 4) as f64;
        assert!((decode(1000, 1).bytes - empty - 1000.0 * token).abs() < 1.0);
        assert!((decode(0, 201).bytes - empty - 100.0 * token).abs() < 1.0);
        // Of a long prompt the weights hardly count; of two tokens they are nearly those of two steps.
        let prompt = |tokens| work(Case::Prefill { tokens });
        assert!(prompt(4096).bytes < empty / 20.0, "{}", prompt(4096).bytes);
        assert!(prompt(4096).flops > 0.9 * prompt(512).flops);
        assert!(prompt(131_072).flops > 2.0 * prompt(4096).flops);
    }

    #[test]
    fn gpu_plans_have_a_floor_at_any_length() {
        let preset = Preset::named("layer4").unwrap();
        let (weights, profile) = (preset.weights().packed().0, Profile::emulator());
        let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
        for tokens in [1, 2, 300, 131_072] {
            let prefill = Work::of(target, Case::Prefill { tokens }).unwrap();
            let decode = Work::of(target, Case::Decode { depth: tokens, steps: 2 }).unwrap();
            // With 16-bit activations, no step reads less than one at an empty context on the CPU.
            assert!(prefill.flops > 1e8 && decode.bytes > 188e6, "{tokens}: {prefill:?}, {decode:?}");
        }
    }

    #[test]
    fn the_slower_of_memory_and_arithmetic_is_the_floor_of_prefill() {
        let roof = Roof { bytes_per_second: 1000.0, flops_per_second: 5000.0 };
        let (prefill, decode) = (Case::Prefill { tokens: 1 }, Case::Decode { depth: 0, steps: 1 });
        let of = |case, bytes, flops| {
            let floor = Floor::of(case, Work { bytes, flops }, roof);
            (floor.tokens_per_second, floor.limit)
        };
        assert_eq!(of(prefill, 10.0, 100.0), (50.0, Limit::Flops));
        assert_eq!(of(prefill, 25.0, 100.0), (40.0, Limit::Bytes));
        assert_eq!(of(decode, 10.0, 100.0), (100.0, Limit::Bytes));
    }
}
