//! Every kernel of the contract, over its list of cases, on every instruction set of this processor and with several
//! partitions into tasks, against its definition in f64.

mod attention;
mod compare;
mod delta;
mod experts;
mod norms;
mod operands;
mod quant;
mod routing;

use std::sync::LazyLock;

use lily_kernels::attention::{Attend, AttentionPrep};
use lily_kernels::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan};
use lily_kernels::moe::{Combine, ExpertDown, ExpertSwiglu, Group, Route};
use lily_kernels::norm::{GatedNorm, RmsNorm};
use lily_kernels::quant::{Embed, Matmul, Swiglu};
use lily_kernels::{Kernel, PlainType, random::Random};

use crate::Isa;
use compare::{Worst, wide};

static ISAS: LazyLock<Vec<Isa>> = LazyLock::new(Isa::available);

macro_rules! kernel_tests {
    ($($test:ident: $kernel:ident, $check:path;)*) => {
        $(
            #[test]
            fn $test() {
                let mut worst = Worst::default();
                for (seed, case) in $kernel::cases().iter().enumerate() {
                    $check(case, &mut Random::new(seed as u64), &mut worst);
                }
                worst.report(stringify!($kernel));
            }
        )*

        /// False for a kernel that is missing in the list below.
        fn has_a_test(kernel: &Kernel) -> bool {
            match kernel {
                $(Kernel::$kernel(_) => true,)*
                _ => false,
            }
        }
    };
}

kernel_tests! {
    embed: Embed, quant::embed;
    matmul: Matmul, quant::matmul;
    swiglu: Swiglu, quant::swiglu;
    rms_norm: RmsNorm, norms::rms_norm;
    gated_norm: GatedNorm, norms::gated_norm;
    conv_silu: ConvSilu, delta::conv_silu;
    conv_state: ConvState, delta::conv_state;
    delta_prep: DeltaPrep, delta::prep;
    delta_scan: DeltaScan, delta::scan;
    attention_prep: AttentionPrep, attention::prep;
    attend: Attend, attention::attend;
    route: Route, routing::route;
    group: Group, routing::group;
    expert_swiglu: ExpertSwiglu, experts::swiglu;
    expert_down: ExpertDown, experts::down;
    combine: Combine, experts::combine;
}

#[test]
fn every_kernel_has_cases() {
    let mut cases = Kernel::cases();
    cases.retain(crate::kernels::offers);
    assert!(cases.iter().all(has_a_test));
    let mut names: Vec<&str> = cases.iter().map(Kernel::name).collect();
    names.dedup();
    assert_eq!(names.len(), 16, "{names:?}");
}

/// A random vector as a tensor's bytes, and what they mean.
fn plain(random: &mut Random, kind: PlainType, len: usize, mean: f32, spread: f32) -> (Vec<u8>, Vec<f64>) {
    let values: Vec<f32> = (0..len).map(|_| mean + spread * random.unit()).collect();
    let bytes = kind.encode(&values);
    let read: Vec<f32> = (0..len).map(|i| kind.get(&bytes, i)).collect();
    (bytes, wide(&read))
}
