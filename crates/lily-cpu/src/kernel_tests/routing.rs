//! The choice of experts, and the grouping of rows: exact.

use lily_kernels::Kernel;
use lily_kernels::moe::{Group, Route};
use lily_kernels::random::Random;

use super::compare::*;
use super::operands::Operands;

fn check_route(k: &Route, logits: &[f32], worst: &mut Worst) {
    let (ids, weights) = k.reference(&wide(logits));
    let want: Vec<Want> = weights
        .iter()
        .enumerate()
        .map(|(p, weight)| {
            let (row, chosen) = (p / k.top_k, &ids[p / k.top_k * k.top_k..][..k.top_k]);
            let logit = |e: u32| f64::from(logits[row * k.experts + e as usize]);
            let spread = chosen.iter().map(|e| logit(chosen[0]) - logit(*e)).fold(0.0, f64::max);
            // logits less the largest are rounded once, and e^x turns that into a relative error; then a sum, a quotient
            let error = (2.0 * spread + 2.0 * EXP + k.top_k as f64 + 2.0) * U * weight;
            Want { value: *weight, error }
        })
        .collect();
    let operands = Operands::default().f32(logits).out(ids.len()).out(ids.len());
    operands.run_everywhere(&(*k).into(), |after| {
        worst.check_exact(k, after.got_u32(1), &ids);
        worst.check(k, &after.got_f32(2), &want);
    });
}

pub(super) fn route(k: &Route, random: &mut Random, worst: &mut Worst) {
    let len = k.rows * k.experts;
    check_route(k, &random.values(len, 3.0), worst);
    // many equal values, zeros of both signs among them
    let few: Vec<f32> = (0..len).map(|_| [-1.0, -0.0, 0.0, 2.5][random.below(4)]).collect();
    check_route(k, &few, worst);
    check_route(k, &vec![0.25; len], worst);
    // rising and falling, so that every expert and none displaces another; far apart, so that weights are 0
    let rising: Vec<f32> = (0..len).map(|i| (i % k.experts) as f32 * 40.0).collect();
    check_route(k, &rising, worst);
    check_route(k, &rising.iter().map(|x| -x).collect::<Vec<_>>(), worst);
}

/// Not numbers: ids stay different and below `experts`, so that nothing behind reads or writes elsewhere.
#[test]
fn route_of_what_is_not_a_number_stays_in_range() {
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
    let mut random = Random::new(3);
    for k in Route::cases() {
        for round in 0..20 {
            let len = k.rows * k.experts;
            let mut logits = random.values(len, 3.0);
            for _ in 0..[1, len / 3 + 1, 4 * len][round % 3] {
                logits[random.below(len)] = odd[random.below(odd.len())];
            }
            let operands = Operands::default().f32(&logits).out(k.rows * k.top_k).out(k.rows * k.top_k);
            operands.run_everywhere(&Kernel::from(k), |after| {
                for ids in after.got_u32(1).chunks(k.top_k) {
                    let mut ids = ids.to_vec();
                    ids.sort_unstable();
                    ids.dedup();
                    assert_eq!(ids.len(), k.top_k, "{k:?} {logits:?}");
                    assert!(ids.iter().all(|e| (*e as usize) < k.experts), "{k:?} {logits:?}");
                }
            });
        }
    }
}

/// Experts of rows: spread, all rows to the same ones, and all but a few experts without rows. A row's experts differ.
pub(super) fn choices(random: &mut Random, rows: usize, experts: usize, top_k: usize) -> Vec<Vec<u32>> {
    let mut different = |among: usize| {
        let mut left: Vec<u32> = (0..among as u32).collect();
        (0..top_k).map(|_| left.swap_remove(random.below(left.len()))).collect::<Vec<u32>>()
    };
    let spread = (0..rows).flat_map(|_| different(experts)).collect();
    let few = (0..rows).flat_map(|_| different((top_k + 1).min(experts))).collect();
    let last = (0..rows).flat_map(|_| (0..top_k).map(|i| (experts - 1 - i) as u32)).collect();
    vec![spread, few, last]
}

pub(super) fn group(k: &Group, random: &mut Random, worst: &mut Worst) {
    for ids in choices(random, k.rows, k.experts, k.top_k) {
        let want = k.reference(&ids);
        let operands = Operands::default().u32(&ids).out(want.offsets.len()).out(want.order.len());
        operands.out(want.active.len()).run_everywhere(&(*k).into(), |after| {
            worst.check_exact(k, after.got_u32(1), &want.offsets);
            worst.check_exact(k, after.got_u32(2), &want.order);
            let defined = 1 + want.active[0] as usize;
            worst.check_exact(k, &after.got_u32(3)[..defined], &want.active[..defined]);
        });
    }
}
