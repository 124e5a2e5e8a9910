//! The same bits, whatever surrounds a row: threads, the cuts of a prompt, the rows beside it in a decode step, snapshots
//! and restores, and everything that ran before.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::sync::Arc;

use lily_cpu::{CpuDevice, Isa, Precision};
use lily_kernels::random::Random;
use lily_model::device::StatePart;
use lily_model::testing::{Spec, model_in_memory, random_spec, random_tokens};
use lily_model::{Forward, LayerKind, LogitRows, Model, Runner, SequenceId, SnapshotId};
use proptest::prelude::*;
use support::{all_logits, random_model, runner_with};

const THREADS: [usize; 4] = [1, 2, 3, 5];

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A seed of a model and of everything else; nothing to shrink to.
fn seeds() -> impl Strategy<Value = u64> {
    (0..u64::from(u32::MAX)).no_shrink()
}

/// How a device computes: its instruction set and rounding.
type Way = (Option<Isa>, Precision);

fn any_way(random: &mut Random) -> Way {
    let isas = Isa::available();
    (Some(isas[random.below(isas.len())]), [Precision::Exact, Precision::Fast][random.below(2)])
}

fn runner(model: &Arc<Model>, threads: usize, (isa, precision): Way) -> Runner<CpuDevice> {
    runner_with(model, threads, isa, precision)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// All recurrent states of a sequence.
fn states(runner: &Runner<CpuDevice>, model: &Model, sequence: SequenceId) -> Vec<Vec<u32>> {
    let kinds = model.geometry.layers.iter().enumerate();
    let delta = kinds.filter(|(_, kind)| **kind == LayerKind::Delta).map(|(layer, _)| layer);
    let parts = delta.flat_map(|layer| [StatePart::Delta { layer }, StatePart::Conv { layer }]);
    parts.map(|part| bits(&runner.state(sequence, part).unwrap())).collect()
}

/// What a prompt makes when it runs alone, token by token, on one thread: logits of every position, and states.
struct Alone {
    logits: Vec<Vec<u32>>,
    states: Vec<Vec<u32>>,
}

fn alone(model: &Arc<Model>, tokens: &[u32], way: Way) -> Alone {
    let mut runner = runner(model, 1, way);
    let sequence = runner.open().unwrap();
    let logits = all_logits(&mut runner, sequence, tokens, 1, 0);
    Alone { logits: logits.iter().map(|l| bits(l)).collect(), states: states(&runner, model, sequence) }
}

proptest! {
    #![proptest_config(cases(7))]

    /// Chunks of any sizes, with logits for all, the last or none of their rows, and single steps between them.
    #[test]
    fn cuts_and_threads_change_no_bit(seed in seeds()) {
        let random = &mut Random::new(seed);
        let model = random_model(seed);
        let way = any_way(random);
        let len = 2 + random.below(140);
        let tokens = random_tokens(random, &model, len);
        let want = alone(&model, &tokens, way);
        for threads in THREADS {
            let mut runner = runner(&model, threads, way);
            let sequence = runner.open().unwrap();
            let mut at = 0;
            while at < len {
                let most = [1, 8, 70, len][random.below(4)];
                let chunk = &tokens[at..at + 1 + random.below(most.min(len - at))];
                let end = at + chunk.len();
                let rows = [LogitRows::All, LogitRows::Last, LogitRows::None][random.below(3)];
                if chunk.len() == 1 && random.below(2) == 0 {
                    runner.decode(&[(sequence, chunk[0])]).unwrap();
                    prop_assert!(bits(runner.logits(0)) == want.logits[at], "seed {seed}, position {at}");
                } else {
                    runner.prefill(sequence, chunk, rows).unwrap();
                    let made = match rows {
                        LogitRows::All => at..end,
                        LogitRows::Last => end - 1..end,
                        LogitRows::None => end..end,
                    };
                    for (row, position) in made.enumerate() {
                        let same = bits(runner.logits(row)) == want.logits[position];
                        prop_assert!(same, "seed {seed}, {threads} threads, {at}..{end}, position {position}");
                    }
                }
                at = end;
            }
            prop_assert!(states(&runner, &model, sequence) == want.states, "seed {seed}, {threads} threads");
        }
    }

    /// A row of a decode step, alone and beside three others of other lengths, in any order.
    #[test]
    fn neighbours_in_a_step_change_no_bit(seed in seeds()) {
        let random = &mut Random::new(seed);
        let model = random_model(seed);
        let way = any_way(random);
        let prompts: Vec<Vec<u32>> = [1, 1 + random.below(20), 60 + random.below(8), 1 + random.below(150)]
            .into_iter()
            .map(|len| random_tokens(random, &model, len + 4))
            .collect();
        let want: Vec<Alone> = prompts.iter().map(|tokens| alone(&model, tokens, way)).collect();
        for threads in [THREADS[random.below(4)], THREADS[random.below(4)]] {
            let mut runner = runner(&model, threads, way);
            let open = |tokens: &Vec<u32>| {
                let sequence = runner.open().unwrap();
                runner.prefill(sequence, &tokens[..tokens.len() - 4], LogitRows::None).unwrap();
                sequence
            };
            let sequences: Vec<SequenceId> = prompts.iter().map(open).collect();
            let mut left = [4usize; 4];
            while left != [0; 4] {
                // some of those with tokens left, in any order
                let mut chosen: Vec<usize> = (0..4).filter(|i| left[*i] > 0).collect();
                let count = 1 + random.below(chosen.len());
                let chosen: Vec<usize> =
                    (0..count).map(|_| chosen.swap_remove(random.below(chosen.len()))).collect();
                let at = |i: usize, left: &[usize; 4]| prompts[i].len() - left[i];
                let rows: Vec<_> = chosen.iter().map(|i| (sequences[*i], prompts[*i][at(*i, &left)])).collect();
                runner.decode(&rows).unwrap();
                for (row, i) in chosen.iter().enumerate() {
                    let same = bits(runner.logits(row)) == want[*i].logits[at(*i, &left)];
                    prop_assert!(same, "seed {seed}, {threads} threads, rows {chosen:?}, sequence {i}");
                    left[*i] -= 1;
                }
            }
            for (sequence, want) in sequences.iter().zip(&want) {
                prop_assert!(states(&runner, &model, *sequence) == want.states, "seed {seed}");
            }
        }
    }

    /// Any order of opening, extending, freezing, going on from what was frozen and closing, on one device: every
    /// sequence goes on as if it were alone.
    #[test]
    fn what_ran_before_changes_no_bit(seed in seeds()) {
        let random = &mut Random::new(seed);
        let model = random_model(seed);
        let (way, threads) = (any_way(random), THREADS[random.below(4)]);
        // Two texts that part somewhere, most often within a page: what goes on from a snapshot may take either way.
        let parting = random.below(150);
        let mut texts = [random_tokens(random, &model, 200), random_tokens(random, &model, 200)];
        texts[1] = [&texts[0][..parting], &texts[1][parting..]].concat();
        let want = texts.each_ref().map(|tokens| alone(&model, tokens, way));
        let mut runner = runner(&model, threads, way);
        let mut live: Vec<(SequenceId, usize)> = Vec::new();
        let mut frozen: Vec<(SnapshotId, usize, usize)> = Vec::new();
        for step in 0..50 {
            let place = (!live.is_empty()).then(|| random.below(live.len().max(1)));
            match (random.below(8), place) {
                (0, _) | (_, None) => live.push((runner.open().unwrap(), random.below(2))),
                (1, Some(i)) => {
                    let (sequence, text) = live[i];
                    frozen.push((runner.snapshot(sequence).unwrap(), text, runner.length(sequence)));
                }
                (2, _) if !frozen.is_empty() => {
                    let (snapshot, text, length) = frozen[random.below(frozen.len())];
                    let sequence = runner.restore(snapshot).unwrap();
                    prop_assert_eq!(runner.length(sequence), length);
                    live.push((sequence, if length <= parting { random.below(2) } else { text }));
                }
                (3, Some(i)) if step % 2 == 0 => runner.close(live.swap_remove(i).0),
                (3, _) if !frozen.is_empty() => {
                    runner.discard(frozen.swap_remove(random.below(frozen.len())).0);
                }
                (4, _) => {
                    // one step of up to four sequences
                    let unfinished = live.iter().filter(|(sequence, _)| runner.length(*sequence) < 200);
                    let chosen: Vec<_> = unfinished.copied().take(4).collect();
                    let at = |(sequence, text): (SequenceId, usize)| (text, runner.length(sequence));
                    let places: Vec<_> = chosen.iter().map(|sequence| at(*sequence)).collect();
                    let rows = chosen.iter().zip(&places).map(|((sequence, _), (text, at))| {
                        (*sequence, texts[*text][*at])
                    });
                    let rows: Vec<_> = rows.collect();
                    if rows.is_empty() {
                        continue;
                    }
                    runner.decode(&rows).unwrap();
                    for (row, (text, at)) in places.iter().enumerate() {
                        let same = bits(runner.logits(row)) == want[*text].logits[*at];
                        prop_assert!(same, "seed {seed}, step {step}: row {row}, {at} of text {text}");
                    }
                }
                (_, Some(i)) => {
                    let (sequence, text) = live[i];
                    let at = runner.length(sequence);
                    let most = [1, 5, 70][random.below(3)].min(texts[text].len() - at);
                    if most == 0 {
                        continue;
                    }
                    let end = at + 1 + random.below(most);
                    runner.prefill(sequence, &texts[text][at..end], LogitRows::Last).unwrap();
                    let same = bits(runner.logits(0)) == want[text].logits[end - 1];
                    prop_assert!(same, "seed {seed}, step {step}: {at}..{end} of text {text}");
                    if end == texts[text].len() {
                        prop_assert!(states(&runner, &model, sequence) == want[text].states, "seed {seed}");
                    }
                }
            }
        }
        live.iter().for_each(|(sequence, _)| runner.close(*sequence));
        frozen.iter().for_each(|(snapshot, ..)| runner.discard(*snapshot));
        prop_assert_eq!(runner.state_bytes(), 0);
    }
}

/// The same weights in another file: aligned or at odd bytes, in one file or several, under other names.
#[test]
fn how_a_checkpoint_is_stored_changes_no_bit() {
    for seed in 100..104 {
        let spec = random_spec(seed);
        let stored =
            |shards, padded, prefixed| Spec { shards, padded, prefixed, wrapped: padded, ..spec.clone() };
        let mut all = [stored(1, true, false), stored(1, false, true), stored(3, false, false)]
            .map(|spec| Arc::new(model_in_memory(&spec)))
            .map(|model| {
                let tokens = random_tokens(&mut Random::new(seed), &model, 30);
                let mut runner =
                    runner(&model, 2, (None, [Precision::Exact, Precision::Fast][seed as usize % 2]));
                let sequence = runner.open().unwrap();
                all_logits(&mut runner, sequence, &tokens, 30, usize::MAX).concat()
            })
            .map(|logits| bits(&logits))
            .into_iter();
        let first = all.next();
        assert!(all.all(|other| Some(other) == first), "seed {seed}");
    }
}
