//! Attention over the paged cache.

use std::ops::Range;

use lily_kernels::attention::{Attend, AttentionPrep, AttentionShape};

use super::{TASKS_PER_THREAD, Task};
use crate::loops::attend::{Block, Heads, QUERIES};
use crate::pool::sized;
use crate::state::PAGE_TOKENS;

/// One row: norm and RoPE of q and k, and the cache write.
pub(crate) fn prep(k: &AttentionPrep, t: Task<'_>) {
    let (s, r) = (&k.shape, t.index);
    let (d, slot) = (s.head_dim, r / s.rows);
    let position = t.args.u32(5)[r];
    let plain = sized(&mut t.scratch.plain, 2 * d);
    let (q_norm, k_norm) = plain.split_at_mut(d);
    t.args.plain(3, k.q_norm, q_norm);
    t.args.plain(4, k.k_norm, k_norm);
    let turns = turns(k, position);
    for head in 0..s.query_heads {
        let x = &t.args.f32(0)[(r * s.query_heads + head) * 2 * d..][..d];
        // SAFETY: task i writes row i only; the loops belong to this processor.
        unsafe {
            let out = t.args.f32_mut(6, (r * s.query_heads + head) * d, d);
            (t.loops.rms_norm)(x, q_norm, k.eps, out);
            turn(out, &turns);
        }
    }
    let (keys, values) = (t.args.pages(7 + slot), t.args.pages(7 + s.slots + slot));
    for head in 0..s.kv_heads {
        let start = (r * s.kv_heads + head) * d;
        // SAFETY: rows of a launch have positions of their own, in pages of their own sequence (`State::reserve`); the
        // loops belong to this processor.
        unsafe {
            let key = keys.token(position as usize, head);
            (t.loops.rms_norm)(&t.args.f32(1)[start..][..d], k_norm, k.eps, key);
            turn(key, &turns);
            values.token(position as usize, head).copy_from_slice(&t.args.f32(2)[start..][..d]);
        }
    }
}

/// (cos, sin) of each pair. The angle is rounded to f32 as the oracle rounds it; its sine and cosine are then exact to
/// f32, however large it is.
fn turns(k: &AttentionPrep, position: u32) -> Vec<(f32, f32)> {
    let angle = |j| f64::from(position as f32 * k.frequency(j));
    (0..k.rotary_dim / 2).map(|j| (angle(j).cos() as f32, angle(j).sin() as f32)).collect()
}

fn turn(x: &mut [f32], turns: &[(f32, f32)]) {
    let half = turns.len();
    for (j, (cos, sin)) in turns.iter().enumerate() {
        let (a, b) = (x[j], x[j + half]);
        x[j] = a * cos - b * sin;
        x[j + half] = b * cos + a * sin;
    }
}

/// What a task pays for reading a KV head's keys and values, in query heads. An estimate, by bytes and instructions: keys and
/// values of 256 f32 come from memory (2 KiB at 25 GB/s) in about the time in which four heads meet them.
const READING: usize = 4;

/// Query heads of a task, all of one KV head: as many as make the busiest thread finish first. Each task reads the keys and
/// values again, so that fewer heads a task are worth it only for threads that would have nothing to do. Bits do not depend on
/// it: a head's sums are its own.
fn heads_per_task(s: &AttentionShape, threads: usize) -> usize {
    let group = s.query_heads / s.kv_heads;
    let time = |heads: usize| {
        let tasks = s.slots * s.rows * s.query_heads / heads;
        tasks.div_ceil(threads) * (heads + READING)
    };
    let divisors = (1..=group).rev().filter(|heads| group.is_multiple_of(*heads));
    divisors.min_by_key(|heads| time(*heads)).unwrap_or(1)
}

/// Rows of a task. Where there are rows enough for all threads, rows that follow each other meet a page of keys together: as
/// many as the loops take queries at once.
fn rows_per_task(s: &AttentionShape, threads: usize) -> usize {
    let group = s.query_heads / s.kv_heads;
    let rows = (QUERIES / group).max(1);
    let tasks = s.slots * s.rows.div_ceil(rows) * s.kv_heads;
    if heads_per_task(s, threads) == group && tasks >= threads * TASKS_PER_THREAD { rows } else { 1 }
}

pub(crate) fn attend_tasks(k: &Attend, threads: usize) -> usize {
    let s = &k.shape;
    let blocks = s.rows.div_ceil(rows_per_task(s, threads));
    s.slots * blocks * s.query_heads / heads_per_task(s, threads)
}

/// Some rows of a sequence, some query heads of one KV head, all keys up to each row's own.
pub(crate) fn attend(k: &Attend, t: Task<'_>) {
    let s = &k.shape;
    let (d, heads, block_rows) = (s.head_dim, heads_per_task(s, t.threads), rows_per_task(s, t.threads));
    let (blocks, per_row) = (s.rows.div_ceil(block_rows), s.query_heads / heads);
    // late rows see the most keys: they go first, so that no thread is left alone with one at the end
    let block = s.slots * blocks - 1 - t.index / per_row;
    let (slot, from) = (block / blocks, block % blocks * block_rows);
    let rows = slot * s.rows + from..slot * s.rows + (from + block_rows).min(s.rows);
    let first = t.index % per_row * heads;
    let kv_head = first / (s.query_heads / s.kv_heads);
    let positions = t.args.u32(2);
    let seen = |row: usize| positions[row] as usize + 1;
    let (keys, values) = (t.args.pages(4 + slot), t.args.pages(4 + s.slots + slot));

    let queries = rows.len() * heads;
    let plain = sized(&mut t.scratch.plain, queries * d);
    for (row, q) in rows.clone().zip(plain.chunks_exact_mut(heads * d)) {
        q.copy_from_slice(&t.args.f32(0)[(row * s.query_heads + first) * d..][..heads * d]);
    }
    let state = sized(&mut t.scratch.out, queries * (d + 2));
    let (max, rest) = state.split_at_mut(queries);
    let (sum, mix) = rest.split_at_mut(queries);
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    mix.fill(0.0);
    let mut running = Heads { q: plain, head_dim: d, max, sum, mix };
    let scale = 1.0 / (d as f32).sqrt();
    let mut meet = |page: usize, tokens: usize, queries: Range<usize>| {
        // SAFETY: the launch writes no keys or values; the loops belong to this processor.
        unsafe {
            let block = Block {
                keys: keys.block(page, kv_head, tokens),
                values: values.block(page, kv_head, tokens),
                scale,
            };
            (t.loops.attend_block)(&block, &mut running.part(queries));
        }
    };
    // pages that all rows see whole, all rows at once; then those that each row sees by itself
    let whole = rows.clone().map(|row| seen(row) / PAGE_TOKENS).min().unwrap_or(0);
    for page in 0..whole {
        for queries in (0..queries).step_by(QUERIES) {
            meet(page, PAGE_TOKENS, queries..(queries + QUERIES).min(rows.len() * heads));
        }
    }
    for (i, row) in rows.clone().enumerate() {
        for page in whole..seen(row).div_ceil(PAGE_TOKENS) {
            let tokens = (seen(row) - page * PAGE_TOKENS).min(PAGE_TOKENS);
            for head in (0..heads).step_by(QUERIES) {
                meet(page, tokens, i * heads + head..i * heads + (head + QUERIES).min(heads));
            }
        }
    }
    for (i, row) in rows.enumerate() {
        let gates: Vec<&[f32]> = (first..first + heads)
            .map(|h| &t.args.f32(1)[((row * s.query_heads + h) * 2 + 1) * d..][..d])
            .collect();
        let out = (row * s.query_heads + first) * d;
        let running = running.part(i * heads..(i + 1) * heads);
        // SAFETY: no two tasks share a row and a head; the loops belong to this processor.
        unsafe { (t.loops.finish_heads)(&running, &gates, t.args.f32_mut(3, out, heads * d)) };
    }
}

#[cfg(test)]
mod tests {
    use lily_kernels::attention::AttentionShape;

    use super::heads_per_task;

    #[test]
    fn tasks_share_keys_unless_threads_would_be_idle() {
        let heads = |rows, threads| {
            let shape =
                AttentionShape { slots: 1, rows, query_heads: 16, kv_heads: 2, head_dim: 256, context: 4096 };
            heads_per_task(&shape, threads)
        };
        assert_eq!([1, 2, 4, 8, 16].map(|threads| heads(1, threads)), [8, 8, 4, 2, 1]);
        assert_eq!([1, 2, 4, 8, 16].map(|threads| heads(256, threads)), [8; 5]);
    }
}
