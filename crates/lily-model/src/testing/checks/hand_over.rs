//! Steps that choose their tokens on the device, and steps that ran too far.

use std::sync::Arc;

use lily_kernels::random::Random;
use lily_kernels::select::{NONE_LEFT, Request};

use super::{Bits, Subject, short_blocks, tiny};
use crate::device::{Batch, Choices, Device, Room, hand_over as run_steps};
use crate::plan::{Activation, DecodeShape, Plan, Profile, Tail, Target, decode, prefill};
use crate::testing::oracle::{states, top};
use crate::testing::random_tokens;
use crate::{LogitRows, Model, SequenceId};

const CONTEXT: usize = 256;

/// A device without a runner, for plans that choose tokens.
struct Bare<'a, S: Subject> {
    model: Arc<Model>,
    profile: Profile,
    device: S::Device,
    prompts: &'a [Vec<u32>; 2],
}

impl<S: Subject> Bare<'_, S> {
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
pub(super) fn hand_over<S: Subject>(set: &S, activation: Activation) -> String {
    let model = tiny();
    let profile = short_blocks(set.profile(activation));
    let prompts =
        [random_tokens(&mut Random::new(1), &model, 60), random_tokens(&mut Random::new(2), &model, 5)];
    let device = set.device(&model, &profile, 1 << 28);
    let mut s: Bare<'_, S> = Bare { model: model.clone(), profile, device, prompts: &prompts };
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
        let choices = Choices { requests: vec![request(0), request(1)], entries: 2, fresh: Vec::new() };
        let tokens = [want[0].0[0], want[1].0[0]];
        let positions = [0, 1].map(|n| prompts[n].len() as u32);
        let batch = Batch { sequences: &sequences, tokens: &tokens, positions: &positions };
        let chosen = run_steps(&mut s.device, &plan, &batch, &choices, 8).unwrap();
        let first = end.and_then(|end| want[0].0[1..].iter().position(|t| *t == end)).unwrap_or(7);
        for (step, row) in chosen.iter().enumerate() {
            let expected = if step <= first { want[0].0[step + 1] } else { NONE_LEFT };
            assert_eq!(*row, [expected, want[1].0[step + 1]], "stop {stop:?}, step {step}");
        }
        assert!(s.states(sequences[0]) == want[0].1[first], "stop {stop:?}: states");
        assert!(s.states(sequences[1]) == want[1].1[7], "beside stop {stop:?}: states");
        if stop.is_none() {
            S::take_back(&mut s.device, sequences[0]).unwrap();
            assert!(s.states(sequences[0]) == want[0].1[6], "taken back");
        }
        sequences.into_iter().for_each(|sequence| s.device.close(sequence));
    }
    "8 steps of 2 rows, 4 ways to end".to_owned()
}
