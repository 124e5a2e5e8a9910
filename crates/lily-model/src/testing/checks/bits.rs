//! The same bits, whatever surrounds a row: cuts of the prompt, neighbours in a step, snapshots. And refusals that change nothing.

use lily_kernels::random::Random;

use super::{Bits, Check, Subject, check, choosing, hand_over, logits, runner, short_blocks, tiny};
use crate::device::{Device, Room};
use crate::plan::{Activation, Profile, Switch};
use crate::testing::oracle::{bits, states};
use crate::testing::random_tokens;
use crate::{DeviceError, Forward, LogitRows, Model, Runner, SequenceId};

pub(super) fn all<S: Subject>() -> Vec<Check<S>> {
    let mut checks = Vec::new();
    for activation in Activation::ALL {
        let name = |what: &str| format!("{what}, {}", activation.name());
        checks.push(check(name("cuts change no bit"), move |set| cuts(set, activation)));
        checks.push(check(name("neighbours change no bit"), move |set| neighbours(set, activation)));
        checks.push(check(name("snapshots go on"), move |set| snapshots(set, activation)));
        checks.push(check(name("tokens are handed over"), move |set| hand_over::hand_over(set, activation)));
        checks.push(check(name("tokens are chosen on the device"), move |set| {
            choosing::choosing(set, activation)
        }));
    }
    checks.push(check("a refusal changes nothing", refusal));
    checks
}

/// A prompt in pieces: logits of every position, the states behind it, two steps.
fn pieces<S: Subject>(set: &S, model: &Model, profile: &Profile, tokens: &[u32], pieces: &[usize]) -> Bits {
    let mut runner = runner(set, model, profile);
    let sequence = runner.open().unwrap();
    let (mut made, mut left) = (Vec::new(), tokens);
    for piece in pieces {
        let (chunk, rest) = left.split_at(*piece);
        runner.prefill(sequence, chunk, LogitRows::All).unwrap();
        made.extend(logits(&runner, *piece));
        left = rest;
    }
    for token in left {
        runner.decode(&[(sequence, *token)]).unwrap();
        made.extend(logits(&runner, 1));
    }
    made.extend(states(runner.device(), model, sequence));
    assert!(made.iter().flatten().all(|v| f32::from_bits(*v).is_finite()), "a value is not finite");
    made
}

/// Chunked and unchunked; with the chunk-parallel form of DeltaNet at multiples of its sixteen tokens.
fn cuts<S: Subject>(set: &S, activation: Activation) -> String {
    let model = tiny();
    let tokens = random_tokens(&mut Random::new(5), &model, 302);
    let profile = short_blocks(set.profile(activation));
    let chunked = profile.clone().with_switches(profile.switches.with(Switch::GdnChunked));
    let mut count = 0;
    for (what, profile, unit) in [("scanned", profile, 1), ("chunked", chunked, 16)] {
        let want = pieces(set, &model, &profile, &tokens, &[300]);
        for cut in [vec![160, 140], vec![64, 64, 64, 64, 44], vec![16, 32, 48, 112, 92]] {
            assert!(pieces(set, &model, &profile, &tokens, &cut) == want, "{what}, pieces {cut:?}");
            count += 1;
        }
        let odd = vec![2, 23, 75, 3, 197];
        if unit == 1 {
            assert!(pieces(set, &model, &profile, &tokens, &odd) == want, "{what}, pieces {odd:?}");
            count += 1;
        }
    }
    format!("{count} ways to cut 300 tokens")
}

/// A row of a decode step, alone and beside three others of other lengths.
fn neighbours<S: Subject>(set: &S, activation: Activation) -> String {
    let model = tiny();
    let profile = short_blocks(set.profile(activation));
    let random = &mut Random::new(9);
    let prompts: Vec<Vec<u32>> =
        [1, 17, 64, 130].into_iter().map(|len| random_tokens(random, &model, len + 3)).collect();
    let mut runner = runner(set, &model, &profile);
    let open = |runner: &mut Runner<S::Device>, tokens: &[u32]| {
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
                assert!(bits(runner.logits(row)) == want[*n].0[step], "prompt {n}, step {step}");
            }
        }
        for (n, sequence) in order.iter().zip(sequences) {
            assert!(states(runner.device(), &model, sequence) == want[*n].1, "states of prompt {n}");
            runner.close(sequence);
        }
    }
    assert_eq!(runner.state_bytes(), 0);
    "4 rows in 2 orders".to_owned()
}

/// A restored state goes on as the sequence itself did, at the end of a page and in the middle of one.
fn snapshots<S: Subject>(set: &S, activation: Activation) -> String {
    let model = tiny();
    let tokens = random_tokens(&mut Random::new(3), &model, 150);
    let mut runner = runner(set, &model, &short_blocks(set.profile(activation)));
    for kept in [64, 70] {
        let first = runner.open().unwrap();
        runner.prefill(first, &tokens[..kept], LogitRows::None).unwrap();
        let snapshot = runner.snapshot(first).unwrap();
        let rest = |runner: &mut Runner<S::Device>, sequence: SequenceId| {
            runner.prefill(sequence, &tokens[kept..140], LogitRows::All).unwrap();
            let mut made = logits(runner, 140 - kept);
            for token in &tokens[140..] {
                runner.decode(&[(sequence, *token)]).unwrap();
                made.extend(logits(runner, 1));
            }
            made.extend(states(runner.device(), &model, sequence));
            made
        };
        let want = rest(&mut runner, first);
        for _ in 0..2 {
            let other = runner.open().unwrap();
            let noise = random_tokens(&mut Random::new(4), &model, 90);
            runner.prefill(other, &noise, LogitRows::None).unwrap();
            let again = runner.restore(snapshot).unwrap();
            assert!(rest(&mut runner, again) == want, "behind {kept} tokens");
            runner.close(again);
            runner.close(other);
        }
        runner.close(first);
        runner.discard(snapshot);
    }
    assert_eq!(runner.state_bytes(), 0);
    "at 64 and at 70 tokens".to_owned()
}

/// A budget that holds one sequence and not two.
fn refusal<S: Subject>(set: &S) -> String {
    let model = tiny();
    let profile = set.profile(Activation::Bf16);
    let mut device = set.device(&model, &profile, 1 << 28);
    let sequence = device.open().unwrap();
    let one = device.state_bytes();
    let room = |sequence, to| [Room { sequence, from: 0, to }];
    device.reserve(&room(sequence, 1)).unwrap();
    let with_a_page = device.state_bytes();
    device.close(sequence);
    let mut device = set.device(&model, &profile, with_a_page);
    let sequence = device.open().unwrap();
    let refused = device.reserve(&room(sequence, 200)).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    assert_eq!(device.state_bytes(), one);
    device.reserve(&room(sequence, 1)).unwrap();
    let refused = device.open().unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    assert_eq!(device.state_bytes(), with_a_page);
    device.close(sequence);
    assert_eq!(device.state_bytes(), 0);
    refused.to_string()
}
