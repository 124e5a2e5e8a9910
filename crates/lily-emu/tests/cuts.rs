//! Where a prompt is cut. The engine cuts by the token ids alone, so what it relies on is the first test: the same pieces give the
//! same bits, whatever runs between and beside them. The others hold how much further the texts go.
//!
//! A row of prefill is summed in an order that depends on sizes alone: not on the rows of its tile, nor on the keys that its
//! tile masks. So a cut changes no bit, with two exceptions:
//!
//! - **A piece of one token** takes the products of few rows, as a decode step does, which sum in another order than tiles. Without
//!   `row-gemv` it takes tiles too, and then any cut is as good as none.
//! - **The chunk-parallel form of DeltaNet** takes sixteen tokens from the start of a call on together, so its cuts must be at
//!   multiples of sixteen.
//!
//! Logits of a single row are a product of few rows as well: they are compared with those of single rows.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::sync::Arc;

use lily_emu::EmuDevice;
use lily_kernels::Activation;
use lily_kernels::random::Random;
use lily_model::plan::{Effect, Profile, Switch};
use lily_model::testing::{Spec, model_in_memory, random_spec, random_tokens};
use lily_model::{Forward, LogitRows, Model, Runner, RunnerOptions, SequenceId};
use support::*;

/// Tokens of a chunk of the chunk-parallel form.
const CHUNK: usize = 16;

/// Key heads of 32, which the chunk-parallel form takes.
fn tiny() -> Arc<Model> {
    let mut spec = Spec::tiny();
    spec.geometry.delta.key_dim = 32;
    Arc::new(model_in_memory(&spec))
}

/// Decode steps split contexts of more than 64 tokens.
fn profile(activation: Activation) -> Profile {
    let profile = Profile::emulator().with_activation(activation);
    Profile { block_attention_above: 64, attention_block: 64, ..profile }
}

fn with(profile: &Profile, switch: Switch) -> Profile {
    profile.clone().with_switches(profile.switches.with(switch))
}

/// Lengths of pieces: none below `least`, all but the last multiples of `unit`.
fn pieces(random: &mut Random, len: usize, least: usize, unit: usize) -> Vec<usize> {
    let most = [least, 24, 80][random.below(3)];
    let mut left = len;
    let mut pieces = Vec::new();
    while left > 0 {
        let piece = least.max(1 + random.below(most)).next_multiple_of(unit);
        // a rest that is too short for a piece goes with this one
        let piece = if left < piece + least { left } else { piece };
        pieces.push(piece);
        left -= piece;
    }
    pieces
}

type Bits = Vec<Vec<u32>>;

/// The logits that the last run made.
fn logits(runner: &Runner<EmuDevice>, rows: usize) -> Bits {
    (0..rows).map(|row| bits(runner.logits(row))).collect()
}

/// A prompt in pieces, and tokens that come one by one behind it.
struct Text {
    tokens: Vec<u32>,
    pieces: Vec<(usize, LogitRows)>,
    steps: usize,
}

/// What each piece and each step of a text made: logits, and the states behind it.
#[derive(PartialEq)]
struct Made(Vec<(Bits, Bits)>);

impl Text {
    fn new(random: &mut Random, model: &Model, len: usize) -> Text {
        let pieces = pieces(random, len, 1, 1).into_iter();
        let rows = |random: &mut Random| [LogitRows::All, LogitRows::Last, LogitRows::None][random.below(3)];
        let pieces = pieces.map(|piece| (piece, rows(random))).collect();
        Text { tokens: random_tokens(random, model, len + 3), pieces, steps: 3 }
    }

    fn piece(&self, n: usize) -> &[u32] {
        let start: usize = self.pieces[..n].iter().map(|piece| piece.0).sum();
        &self.tokens[start..start + self.pieces[n].0]
    }

    fn token(&self, step: usize) -> u32 {
        self.tokens[self.tokens.len() - self.steps + step]
    }

    /// Piece `n`: its logits and the states behind it.
    fn prefill(
        &self,
        runner: &mut Runner<EmuDevice>,
        model: &Model,
        id: SequenceId,
        n: usize,
    ) -> (Bits, Bits) {
        let (len, rows) = self.pieces[n];
        runner.prefill(id, self.piece(n), rows).unwrap();
        let count = match rows {
            LogitRows::All => len,
            LogitRows::Last => 1,
            LogitRows::None => 0,
        };
        (logits(runner, count), states(runner.device(), model, id))
    }

    /// One piece after the other, then one step after the other, with nothing between.
    fn alone(&self, model: &Arc<Model>, profile: &Profile) -> Made {
        let mut runner = runner(model, profile, 0);
        let id = runner.open().unwrap();
        let mut made: Vec<_> =
            (0..self.pieces.len()).map(|n| self.prefill(&mut runner, model, id, n)).collect();
        for step in 0..self.steps {
            runner.decode(&[(id, self.token(step))]).unwrap();
            made.push((logits(&runner, 1), states(runner.device(), model, id)));
        }
        Made(made)
    }
}

/// Two texts on one device by turns, with others between their pieces and beside their steps, other limits of the runner, and each
/// sequence now and then put aside as a snapshot and taken up elsewhere.
fn in_company(model: &Arc<Model>, profile: &Profile, texts: &[Text; 2], seed: u64) -> [Made; 2] {
    let random = &mut Random::new(seed);
    let longest = texts.iter().flat_map(|text| &text.pieces).map(|piece| piece.0).max().unwrap();
    let options = RunnerOptions { context: 190, max_chunk: longest.max(20), max_decode_rows: 4 };
    let device = device(model, profile, seed as u32);
    let mut runner = Runner::new(model.geometry.clone(), model.weights.packed().0, device, options);
    let noise = random_tokens(random, model, 100);
    let other = runner.open().unwrap();
    let mut ids = [0, 1].map(|_| runner.open().unwrap());
    let mut made = [Made(Vec::new()), Made(Vec::new())];
    let done = |made: &Made, text: &Text| made.0.len() == text.pieces.len() + text.steps;
    while (0..2).any(|n| !done(&made[n], &texts[n])) {
        if random.below(3) == 0 && runner.length(other) < 150 {
            let chunk = 1 + random.below(20);
            runner.prefill(other, &noise[..chunk], LogitRows::All).unwrap();
        }
        let turn = random.below(2);
        if random.below(3) == 0 {
            let snapshot = runner.snapshot(ids[turn]).unwrap();
            let again = runner.restore(snapshot).unwrap();
            // what it was goes another way, and half of the snapshots keep their pages to the end
            runner.prefill(ids[turn], &noise[..3], LogitRows::None).unwrap();
            runner.close(ids[turn]);
            if random.below(2) == 0 {
                runner.discard(snapshot);
            }
            ids[turn] = again;
        }
        if let Some(n) = Some(made[turn].0.len()).filter(|n| *n < texts[turn].pieces.len()) {
            let piece = texts[turn].prefill(&mut runner, model, ids[turn], n);
            made[turn].0.push(piece);
            continue;
        }
        // a step of every text that is so far, and of the other sequence
        let mut rows = vec![(other, noise[random.below(100)])];
        let mut stepping = Vec::new();
        for n in [turn, 1 - turn] {
            let step = made[n].0.len().wrapping_sub(texts[n].pieces.len());
            if step < texts[n].steps {
                let place = random.below(rows.len() + 1);
                rows.insert(place, (ids[n], texts[n].token(step)));
                stepping.push(n);
            }
        }
        if stepping.is_empty() || runner.length(other) == 180 {
            continue;
        }
        runner.decode(&rows).unwrap();
        for n in stepping {
            let row = rows.iter().position(|row| row.0 == ids[n]).unwrap();
            let row = vec![bits(runner.logits(row))];
            made[n].0.push((row, states(runner.device(), model, ids[n])));
        }
    }
    made
}

#[test]
fn the_same_pieces_give_the_same_bits_in_any_company() {
    let model = tiny();
    for activation in Activation::ALL {
        let plain = profile(activation);
        for (name, profile) in [("scanned", plain.clone()), ("chunked", with(&plain, Switch::GdnChunked))] {
            let random = &mut Random::new(7);
            let texts = [70, 150].map(|len| Text::new(random, &model, len));
            let want = texts.each_ref().map(|text| text.alone(&model, &profile));
            for seed in 1..4 {
                let made = in_company(&model, &profile, &texts, seed);
                for (text, (made, want)) in made.iter().zip(&want).enumerate() {
                    let differs = made.0.iter().zip(&want.0).position(|(made, want)| made != want);
                    assert_eq!(differs, None, "{activation:?}, {name}, seed {seed}, text {text}");
                    assert!(made == want);
                }
            }
        }
    }
}

/// A prompt in pieces: the logits of every position, the states behind it, and two steps that read all it left.
fn run(model: &Arc<Model>, profile: &Profile, tokens: &[u32], pieces: &[usize]) -> [Bits; 3] {
    let mut runner = runner(model, profile, 1);
    let id = runner.open().unwrap();
    let mut made = [Vec::new(), Vec::new(), Vec::new()];
    let mut left = tokens;
    for piece in pieces {
        let (chunk, rest) = left.split_at(*piece);
        runner.prefill(id, chunk, LogitRows::All).unwrap();
        made[0].extend(logits(&runner, *piece));
        left = rest;
    }
    made[1] = states(runner.device(), model, id);
    for token in left {
        runner.decode(&[(id, *token)]).unwrap();
        made[2].extend(logits(&runner, 1));
    }
    assert!(made.iter().flatten().flatten().all(|v| f32::from_bits(*v).is_finite()));
    made
}

/// Holds some ways to cut a prompt against the prompt in one piece.
fn cut(name: &str, model: &Arc<Model>, profile: &Profile, least: usize, unit: usize, cuttings: u64) {
    let (len, activation) = (100, profile.activation.name());
    let tokens = random_tokens(&mut Random::new(5), model, len + 2);
    let want = run(model, profile, &tokens, &[len]);
    for seed in 0..cuttings {
        let pieces = pieces(&mut Random::new(seed), len, least, unit);
        let made = run(model, profile, &tokens, &pieces);
        for (what, (made, want)) in ["logits", "states", "steps"].iter().zip(made.iter().zip(&want)) {
            let differs = made.iter().zip(want).position(|(made, want)| made != want);
            assert_eq!(differs, None, "{name}, {activation}: {what} of pieces {pieces:?}");
            assert_eq!(made.len(), want.len());
        }
    }
}

#[test]
fn pieces_of_two_tokens_and_more_give_the_bits_of_the_whole() {
    let model = tiny();
    for activation in Activation::ALL {
        let all = profile(activation);
        cut("every mechanism", &model, &all, 2, 1, 4);
        cut("without row-gemv", &model, &all.clone().without(Switch::RowGemv), 1, 1, 3);
        cut("with gdn-chunked", &model, &with(&all, Switch::GdnChunked), 2, CHUNK, 4);
    }
}

#[test]
fn no_mechanism_of_prefill_makes_cuts_count() {
    let model = tiny();
    let of_prefill = Switch::ALL.into_iter().filter(|s| s.effect() != Effect::Decode);
    for switch in of_prefill.filter(|s| ![Switch::RowGemv, Switch::GdnChunked].contains(s)) {
        for activation in [Activation::F32, Activation::Bf16] {
            let profile = profile(activation).without(switch);
            cut(&format!("without {}", switch.name()), &model, &profile, 2, 1, 2);
        }
    }
}

#[test]
fn cuts_of_random_models_change_no_bit() {
    for seed in 0..12 {
        let model = Arc::new(model_in_memory(&random_spec(seed)));
        cut(&format!("random model {seed}"), &model, &profile(Activation::F32), 2, 1, 2);
    }
}
