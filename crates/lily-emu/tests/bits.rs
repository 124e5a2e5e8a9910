//! The same bits, whatever surrounds a row: the order of the launches of a stage and of the threads of a group, host threads, the
//! rows beside it in a decode step, snapshots and restores, and steps that ran too far.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::sync::Arc;

use lily_emu::EmuDevice;
use lily_kernels::Activation;
use lily_kernels::random::Random;
use lily_kernels::select::{NONE_LEFT, Request};
use lily_model::device::{self, Batch, Device};
use lily_model::plan::{Profile, Switch, Tail};
use lily_model::testing::{Spec, model_in_memory, random_tokens};
use lily_model::{Forward, LogitRows, Model, Runner};
use support::*;

fn tiny() -> Arc<Model> {
    Arc::new(model_in_memory(&Spec::tiny()))
}

/// A profile whose decode steps split contexts of more than 64 tokens into blocks of 64.
fn short_blocks(activation: Activation) -> Profile {
    let profile = Profile::emulator().with_activation(activation);
    Profile { block_attention_above: 64, attention_block: 64, ..profile }
}

fn logits(runner: &Runner<EmuDevice>, rows: usize) -> Vec<Vec<u32>> {
    (0..rows).map(|row| bits(runner.logits(row))).collect()
}

/// A chunk, a shorter one, and two steps: what they make, and the states behind them.
fn run(model: &Arc<Model>, profile: &Profile, seed: u32) -> Vec<Vec<u32>> {
    let tokens = random_tokens(&mut Random::new(5), model, 100);
    let mut runner = runner(model, profile, seed);
    let sequence = runner.open().unwrap();
    runner.prefill(sequence, &tokens[..70], LogitRows::All).unwrap();
    let mut made = logits(&runner, 70);
    runner.prefill(sequence, &tokens[70..98], LogitRows::Last).unwrap();
    made.extend(logits(&runner, 1));
    for token in &tokens[98..] {
        runner.decode(&[(sequence, *token)]).unwrap();
        made.extend(logits(&runner, 1));
    }
    made.extend(states(runner.device(), model, sequence));
    assert!(made.iter().flatten().all(|v| f32::from_bits(*v).is_finite()));
    made
}

#[test]
fn orders_change_no_bit() {
    let model = tiny();
    for activation in Activation::ALL {
        let profile = short_blocks(activation);
        let want = run(&model, &profile, 0);
        for seed in 1..4 {
            assert!(run(&model, &profile, seed) == want, "{activation:?}, seed {seed}");
        }
        // and nothing but order: the serial plan of the same launches
        let serial = profile.clone().without(Switch::ConcurrentPass);
        assert!(run(&model, &serial, 4) == want, "{activation:?}, serial");
    }
}

/// A row of a decode step, alone and beside three others of other lengths, in any order.
#[test]
fn neighbours_in_a_step_change_no_bit() {
    let model = tiny();
    for activation in Activation::ALL {
        let profile = short_blocks(activation);
        let random = &mut Random::new(9);
        let prompts: Vec<Vec<u32>> =
            [1, 17, 64, 130].into_iter().map(|len| random_tokens(random, &model, len + 3)).collect();
        let mut runner = runner(&model, &profile, 1);
        let open = |runner: &mut Runner<EmuDevice>, tokens: &[u32]| {
            let sequence = runner.open().unwrap();
            runner.prefill(sequence, &tokens[..tokens.len() - 3], LogitRows::None).unwrap();
            sequence
        };
        let mut want = Vec::new();
        for tokens in &prompts {
            let sequence = open(&mut runner, tokens);
            let mut alone = Vec::new();
            for token in &tokens[tokens.len() - 3..] {
                runner.decode(&[(sequence, *token)]).unwrap();
                alone.extend(logits(&runner, 1));
            }
            want.push((alone, states(runner.device(), &model, sequence)));
            runner.close(sequence);
        }
        for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
            let sequences = order.map(|n| open(&mut runner, &prompts[n]));
            for step in 0..3 {
                let token = |n: usize| prompts[n][prompts[n].len() - 3 + step];
                let rows: Vec<_> = order.iter().zip(sequences).map(|(n, s)| (s, token(*n))).collect();
                runner.decode(&rows).unwrap();
                for (row, n) in order.iter().enumerate() {
                    assert!(
                        bits(runner.logits(row)) == want[*n].0[step],
                        "{activation:?}, prompt {n}, step {step}"
                    );
                }
            }
            for (n, sequence) in order.iter().zip(sequences) {
                assert!(
                    states(runner.device(), &model, sequence) == want[*n].1,
                    "{activation:?}, prompt {n}"
                );
                runner.close(sequence);
            }
        }
    }
}

/// A prompt cut at a multiple of a page gives the bits of the same cuts, whoever came before; a restored state goes on as the
/// sequence itself did.
#[test]
fn snapshots_go_on_as_their_sequences() {
    let model = tiny();
    for activation in [Activation::F32, Activation::Bf16] {
        let tokens = random_tokens(&mut Random::new(3), &model, 150);
        let mut runner = runner(&model, &short_blocks(activation), 1);
        let rest = |runner: &mut Runner<EmuDevice>, sequence| {
            runner.prefill(sequence, &tokens[64..140], LogitRows::All).unwrap();
            let mut made = logits(runner, 76);
            for token in &tokens[140..] {
                runner.decode(&[(sequence, *token)]).unwrap();
                made.extend(logits(runner, 1));
            }
            made.extend(states(runner.device(), &model, sequence));
            made
        };
        let first = runner.open().unwrap();
        runner.prefill(first, &tokens[..64], LogitRows::None).unwrap();
        let snapshot = runner.snapshot(first).unwrap();
        let want = rest(&mut runner, first);
        runner.close(first);
        for _ in 0..2 {
            let other = runner.open().unwrap();
            runner.prefill(other, &random_tokens(&mut Random::new(4), &model, 90), LogitRows::None).unwrap();
            let again = runner.restore(snapshot).unwrap();
            assert!(rest(&mut runner, again) == want, "{activation:?}");
            runner.close(again);
        }
        // the middle of a page, where the first write copies
        let odd = runner.restore(snapshot).unwrap();
        runner.prefill(odd, &tokens[64..70], LogitRows::None).unwrap();
        let middle = runner.snapshot(odd).unwrap();
        let mut ends = Vec::new();
        for _ in 0..2 {
            let again = runner.restore(middle).unwrap();
            runner.decode(&[(again, tokens[70])]).unwrap();
            ends.push((logits(&runner, 1), states(runner.device(), &model, again)));
        }
        runner.decode(&[(odd, tokens[70])]).unwrap();
        ends.push((logits(&runner, 1), states(runner.device(), &model, odd)));
        assert!(ends.iter().all(|end| *end == ends[0]), "{activation:?}");
    }
}

/// What a prompt makes step by step, the token of each step given from outside.
struct Alone {
    /// First the token behind the prompt.
    chosen: Vec<u32>,
    /// The states behind each step.
    after: Vec<Vec<Vec<u32>>>,
}

/// Greedy tokens chosen on the device are those of the logits, and what a sequence was behind its end token, or behind a step
/// that is taken back, it still is.
#[test]
fn steps_that_ran_too_far_leave_no_trace() {
    for activation in [Activation::F32, Activation::Bf16] {
        let mut s = Bare::new(tiny(), short_blocks(activation), 1);
        let prompts = [
            random_tokens(&mut Random::new(1), &s.model, 60),
            random_tokens(&mut Random::new(2), &s.model, 5),
        ];
        let vocab = s.model.geometry.vocab as u32;
        // step by step from outside: the tokens, and the states behind each
        let mut want = Vec::new();
        for tokens in &prompts {
            let sequence = s.prompt(tokens);
            let mut token = top(s.device.logits(0)) as u32;
            let (mut chosen, mut after) = (vec![token], Vec::new());
            for n in 0..8 {
                token = s.step(sequence, token, tokens.len() + n);
                chosen.push(token);
                after.push(s.states(sequence));
            }
            s.device.close(sequence);
            want.push(Alone { chosen, after });
        }
        let plan = s.plan(2, Tail::Select { entries: 2 });
        let hand_over = |s: &mut Bare, ends: [Option<u32>; 2], count: usize| {
            let sequences = [0, 1].map(|n| s.prompt(&prompts[n]));
            let tokens = [want[0].chosen[0], want[1].chosen[0]];
            let positions = [prompts[0].len() as u32, prompts[1].len() as u32];
            let request = |n: usize| Request {
                entry: n as u32,
                end_tokens: ends[n].into_iter().collect(),
                ..Request::greedy(vocab)
            };
            let choices = s.choices(vec![request(0), request(1)]);
            let batch = Batch { sequences: &sequences, tokens: &tokens, positions: &positions };
            (sequences, device::hand_over(&mut s.device, &plan, &batch, &choices, count).unwrap())
        };
        // both to the end
        let (sequences, chosen) = hand_over(&mut s, [None, None], 8);
        for (n, sequence) in sequences.into_iter().enumerate() {
            let row: Vec<u32> = chosen.iter().map(|step| step[n]).collect();
            assert_eq!(row, want[n].chosen[1..], "{activation:?}, prompt {n}");
            assert!(s.states(sequence) == want[n].after[7], "{activation:?}, prompt {n}");
            // the last step taken back
            s.device.take_back(sequence).unwrap();
            assert!(s.states(sequence) == want[n].after[6], "{activation:?}, prompt {n}, taken back");
            s.device.close(sequence);
        }
        // one stops at any of its tokens while the other goes on
        for stop in 0..7 {
            let end = want[0].chosen[stop + 1];
            let first = want[0].chosen[1..].iter().position(|t| *t == end).unwrap();
            let (sequences, chosen) = hand_over(&mut s, [Some(end), None], 8);
            for (step, row) in chosen.iter().enumerate() {
                let expected = if step <= first { want[0].chosen[step + 1] } else { NONE_LEFT };
                assert_eq!(
                    *row,
                    [expected, want[1].chosen[step + 1]],
                    "{activation:?}, stop {stop}, step {step}"
                );
            }
            assert!(s.states(sequences[0]) == want[0].after[first], "{activation:?}, stop {stop}");
            assert!(s.states(sequences[1]) == want[1].after[7], "{activation:?}, beside stop {stop}");
            // and the stopped one goes on from there
            let next = s.step(sequences[0], end, prompts[0].len() + first + 1);
            assert_eq!(next, want[0].chosen[first + 2], "{activation:?}, behind stop {stop}");
            sequences.into_iter().for_each(|sequence| s.device.close(sequence));
        }
    }
}
