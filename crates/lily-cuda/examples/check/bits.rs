//! The same bits, whatever surrounds a row: cuts of the prompt, neighbours in a step, snapshots, graphs, steps that ran too far. And
//! refusals that change nothing.

use std::sync::Arc;

use lily_cuda::CudaDevice;
use lily_kernels::random::Random;
use lily_kernels::select::{NONE_LEFT, Request};
use lily_model::device::{Batch, Choices, Device, Room};
use lily_model::plan::{Activation, DecodeShape, Plan, Profile, Switch, Tail, Target, decode, prefill};
use lily_model::testing::oracle::{bits, states, top};
use lily_model::testing::random_tokens;
use lily_model::{DeviceError, Forward, LogitRows, Model, Runner, SequenceId};

use crate::set::{Set, short_blocks, tiny};
use crate::{Check, check};

type Bits = Vec<Vec<u32>>;

const CONTEXT: usize = 256;

pub(crate) fn all() -> Vec<Check> {
    let mut checks = Vec::new();
    for activation in Activation::ALL {
        let name = |what: &str| format!("{what}, {}", activation.name());
        checks.push(check(name("cuts change no bit"), move |set| cuts(set, activation)));
        checks.push(check(name("graphs change no bit"), move |set| graphs(set, activation)));
        checks.push(check(name("neighbours change no bit"), move |set| neighbours(set, activation)));
        checks.push(check(name("snapshots go on"), move |set| snapshots(set, activation)));
        checks.push(check(name("tokens are handed over"), move |set| hand_over(set, activation)));
    }
    checks.push(check("a refusal changes nothing", refusal));
    checks
}

fn logits(runner: &Runner<CudaDevice>, rows: usize) -> Bits {
    (0..rows).map(|row| bits(runner.logits(row))).collect()
}

/// A prompt in pieces: logits of every position, the states behind it, two steps.
fn pieces(set: &Set, model: &Arc<Model>, profile: &Profile, tokens: &[u32], pieces: &[usize]) -> Bits {
    let mut runner = set.runner(model, profile);
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
fn cuts(set: &Set, activation: Activation) -> String {
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

fn graphs(set: &Set, activation: Activation) -> String {
    let model = tiny();
    let tokens = random_tokens(&mut Random::new(6), &model, 120);
    let profile = short_blocks(set.profile(activation));
    let run = |graphs: bool| {
        let device = set.device_with(&model, &profile, 1 << 28, graphs);
        let mut runner = set.runner_on(&model, device);
        let sequence = runner.open().unwrap();
        runner.prefill(sequence, &tokens[..60], LogitRows::Last).unwrap();
        let mut made = logits(&runner, 1);
        for token in &tokens[60..] {
            runner.decode(&[(sequence, *token)]).unwrap();
            made.extend(logits(&runner, 1));
        }
        made.extend(states(runner.device(), &model, sequence));
        made
    };
    assert!(run(true) == run(false), "a graph makes other bits than its launches");
    "60 steps".to_owned()
}

/// A row of a decode step, alone and beside three others of other lengths.
fn neighbours(set: &Set, activation: Activation) -> String {
    let model = tiny();
    let profile = short_blocks(set.profile(activation));
    let random = &mut Random::new(9);
    let prompts: Vec<Vec<u32>> =
        [1, 17, 64, 130].into_iter().map(|len| random_tokens(random, &model, len + 3)).collect();
    let mut runner = set.runner(&model, &profile);
    let open = |runner: &mut Runner<CudaDevice>, tokens: &[u32]| {
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
fn snapshots(set: &Set, activation: Activation) -> String {
    let model = tiny();
    let tokens = random_tokens(&mut Random::new(3), &model, 150);
    let mut runner = set.runner(&model, &short_blocks(set.profile(activation)));
    for kept in [64, 70] {
        let first = runner.open().unwrap();
        runner.prefill(first, &tokens[..kept], LogitRows::None).unwrap();
        let snapshot = runner.snapshot(first).unwrap();
        let rest = |runner: &mut Runner<CudaDevice>, sequence: SequenceId| {
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

/// A device without a runner, for plans that choose tokens.
struct Bare<'a> {
    model: Arc<Model>,
    profile: Profile,
    device: CudaDevice,
    prompts: &'a [Vec<u32>; 2],
}

impl Bare<'_> {
    fn target<T>(&self, with: impl FnOnce(Target<'_>) -> T) -> T {
        let weights = self.model.weights.packed().0;
        with(Target { geometry: &self.model.geometry, weights: &weights, profile: &self.profile })
    }

    fn plan(&self, slots: usize, tail: Tail) -> Plan {
        let shape = DecodeShape { tail, ..DecodeShape::logits(slots, CONTEXT) };
        self.target(|t| decode(t, shape)).unwrap()
    }

    fn prompt(&mut self, n: usize) -> SequenceId {
        let tokens = &self.prompts[n];
        let sequence = self.device.open().unwrap();
        self.device.reserve(&[Room { sequence, from: 0, to: tokens.len() + 40 }]).unwrap();
        let plan = self.target(|t| prefill(t, tokens.len(), CONTEXT, LogitRows::Last)).unwrap();
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        self.device.run(&plan, &Batch { sequences: &[sequence], tokens, positions: &positions }).unwrap();
        sequence
    }

    fn step(&mut self, sequence: SequenceId, token: u32, position: usize) -> u32 {
        let plan = self.plan(1, Tail::Logits);
        let batch = Batch { sequences: &[sequence], tokens: &[token], positions: &[position as u32] };
        self.device.run(&plan, &batch).unwrap();
        top(self.device.logits(0)) as u32
    }

    fn states(&self, sequence: SequenceId) -> Bits {
        states(&self.device, &self.model, sequence)
    }
}

/// Greedy tokens chosen on the device are those of the logits; a sequence behind its end token, or behind a step that is taken
/// back, is what it was.
fn hand_over(set: &Set, activation: Activation) -> String {
    let model = tiny();
    let profile = short_blocks(set.profile(activation));
    let prompts =
        [random_tokens(&mut Random::new(1), &model, 60), random_tokens(&mut Random::new(2), &model, 5)];
    let device = set.device(&model, &profile);
    let mut s = Bare { model: model.clone(), profile, device, prompts: &prompts };
    let mut want = Vec::new();
    for (n, prompt) in prompts.iter().enumerate() {
        let sequence = s.prompt(n);
        let mut token = top(s.device.logits(0)) as u32;
        let (mut chosen, mut after) = (vec![token], Vec::new());
        for step in 0..8 {
            token = s.step(sequence, token, prompt.len() + step);
            chosen.push(token);
            after.push(s.states(sequence));
        }
        s.device.close(sequence);
        want.push((chosen, after));
    }
    let plan = s.plan(2, Tail::Select { entries: 2 });
    let vocab = model.geometry.vocab;
    for stop in [None, Some(0), Some(3), Some(6)] {
        let end = stop.map(|step: usize| want[0].0[step + 1]);
        let sequences = [0, 1].map(|n| s.prompt(n));
        let request = |n: usize| Request {
            entry: n as u32,
            end_tokens: if n == 0 { end.into_iter().collect() } else { Vec::new() },
            ..Request::greedy(vocab as u32)
        };
        let mut choices = Choices {
            requests: vec![request(0), request(1)],
            counts: vec![0; 2 * vocab],
            bias: vec![0.0; 2 * vocab],
            mask: vec![u32::MAX; 2 * vocab.div_ceil(32)],
        };
        let tokens = [want[0].0[0], want[1].0[0]];
        let positions = [0, 1].map(|n| prompts[n].len() as u32);
        let batch = Batch { sequences: &sequences, tokens: &tokens, positions: &positions };
        let chosen = s.device.hand_over(&plan, &batch, &mut choices, 8).unwrap();
        let first = end.and_then(|end| want[0].0[1..].iter().position(|t| *t == end)).unwrap_or(7);
        for (step, row) in chosen.iter().enumerate() {
            let expected = if step <= first { want[0].0[step + 1] } else { NONE_LEFT };
            assert_eq!(*row, [expected, want[1].0[step + 1]], "stop {stop:?}, step {step}");
        }
        assert!(s.states(sequences[0]) == want[0].1[first], "stop {stop:?}: states");
        assert!(s.states(sequences[1]) == want[1].1[7], "beside stop {stop:?}: states");
        if stop.is_none() {
            s.device.take_back(sequences[0]).unwrap();
            assert!(s.states(sequences[0]) == want[0].1[6], "taken back");
        }
        sequences.into_iter().for_each(|sequence| s.device.close(sequence));
    }
    "8 steps of 2 rows, 4 ways to end".to_owned()
}

/// A budget that holds one sequence and not two.
fn refusal(set: &Set) -> String {
    let model = tiny();
    let profile = set.profile(Activation::Bf16);
    let mut device = set.device_with(&model, &profile, 1 << 28, true);
    let sequence = device.open().unwrap();
    let one = device.state_bytes();
    let room = |sequence, to| [Room { sequence, from: 0, to }];
    device.reserve(&room(sequence, 1)).unwrap();
    let with_a_page = device.state_bytes();
    device.close(sequence);
    let mut device = set.device_with(&model, &profile, with_a_page, true);
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
