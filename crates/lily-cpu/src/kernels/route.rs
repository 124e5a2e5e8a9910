//! The choice of experts, and the grouping of rows by expert.

use lily_kernels::moe::{Group, Route};

use super::Task;

/// One row: the `top_k` largest logits in falling order, the lower id first on equal values.
pub(crate) fn route(k: &Route, t: Task<'_>) {
    let logits = &t.args.f32(0)[t.index * k.experts..][..k.experts];
    // SAFETY: task i writes row i only.
    let (ids, weights) = unsafe {
        (t.args.u32_mut(1, t.index * k.top_k, k.top_k), t.args.f32_mut(2, t.index * k.top_k, k.top_k))
    };
    let mut found = 0;
    for (e, logit) in logits.iter().enumerate() {
        if found == k.top_k && *logit <= weights[found - 1] {
            continue;
        }
        let mut at = found.min(k.top_k - 1);
        while at > 0 && weights[at - 1] < *logit {
            (weights[at], ids[at]) = (weights[at - 1], ids[at - 1]);
            at -= 1;
        }
        (weights[at], ids[at]) = (*logit, e as u32);
        found = (found + 1).min(k.top_k);
    }
    // p / sum(p) over the chosen: the softmax's own denominator cancels
    let top = weights[0];
    let mut sum = 0.0;
    for w in weights.iter_mut() {
        *w = (*w - top).exp();
        sum += *w;
    }
    weights.iter_mut().for_each(|w| *w /= sum);
}

/// A counting sort; one task, because it is a few thousand steps at most.
pub(crate) fn group(k: &Group, t: Task<'_>) {
    let ids = t.args.u32(0);
    // SAFETY: the launch has one task.
    let (offsets, order, active) = unsafe {
        (
            t.args.u32_mut(1, 0, k.experts + 1),
            t.args.u32_mut(2, 0, k.rows * k.top_k),
            t.args.u32_mut(3, 0, 1 + k.max_active()),
        )
    };
    offsets.fill(0);
    ids.iter().for_each(|e| offsets[*e as usize + 1] += 1);
    let mut found = 0;
    for e in 0..k.experts {
        if offsets[e + 1] > 0 {
            found += 1;
            active[found] = e as u32;
        }
        offsets[e + 1] += offsets[e];
    }
    active[0] = found as u32;
    // Places fill from each expert's start; afterwards offsets[e] is where e ended, which is where e + 1 starts.
    for (pair, e) in ids.iter().enumerate() {
        let place = &mut offsets[*e as usize];
        order[*place as usize] = pair as u32;
        *place += 1;
    }
    offsets.copy_within(0..k.experts, 1);
    offsets[0] = 0;
}
