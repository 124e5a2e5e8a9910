//! Devices against the oracle: the goldens of the fixtures, their bounds, and the profiles under which they have to hold. A check that
//! fails panics, as tests do.
#![allow(clippy::unwrap_used)] // a test's own failures

use std::path::{Path, PathBuf};

use crate::device::{Device, StatePart};
use crate::plan::{GatedNormPlace, Profile, Switch, Switches};
use crate::{Forward, LayerKind, LogitRows, Model, Runner, SequenceId};

/// How tokens are fed: chunks of so many, and single steps from a position on.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// The first that comes as a step.
    pub decode_from: usize,
}

impl Feed {
    /// No steps.
    pub const fn chunks(chunk: usize) -> Self {
        Feed { chunk, decode_from: usize::MAX }
    }
}

/// Logits of every position.
pub fn all_logits<D: Device>(
    runner: &mut Runner<D>,
    sequence: SequenceId,
    tokens: &[u32],
    feed: Feed,
) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let (prompt, steps) = tokens.split_at(feed.decode_from.min(tokens.len()));
    for chunk in prompt.chunks(feed.chunk) {
        runner.prefill(sequence, chunk, LogitRows::All).unwrap();
        rows.extend((0..chunk.len()).map(|r| runner.logits(r).to_vec()));
    }
    for token in steps {
        runner.decode(&[(sequence, *token)]).unwrap();
        rows.push(runner.logits(0).to_vec());
    }
    rows
}

/// The most probable token; the first of equal ones.
pub fn top(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

/// What holds equal bits.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference; infinite where a value is none.
pub fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let far = |(got, want): (&f32, &f32)| if got.is_finite() { (got - want).abs() } else { f32::INFINITY };
    got.iter().zip(want).map(far).fold(0.0, f32::max)
}

/// All parts of a recurrent state.
pub fn parts(model: &Model) -> Vec<StatePart> {
    let kinds = model.geometry.layers.iter().enumerate();
    let delta = kinds.filter(|(_, kind)| **kind == LayerKind::Delta).map(|(layer, _)| layer);
    delta.flat_map(|layer| [StatePart::Delta { layer }, StatePart::Conv { layer }]).collect()
}

/// All recurrent states of a sequence.
pub fn states(device: &impl Device, model: &Model, sequence: SequenceId) -> Vec<Vec<u32>> {
    parts(model).into_iter().map(|part| bits(&device.state(sequence, part).unwrap())).collect()
}

/// What the oracle made of a prompt.
pub struct Golden {
    /// `nano/p0064`.
    pub name: String,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Those whose logits are kept.
    pub positions: Vec<usize>,
    /// A row each of `positions`.
    pub logits: Vec<Vec<f32>>,
    /// Ids from here on are padding.
    pub vocabulary: usize,
    /// What follows by always taking the most probable token.
    pub greedy: Vec<u32>,
    /// The mean error of transformers in bf16, of the mean |logit|.
    pub bf16_error: f64,
    file: Vec<u8>,
}

impl Golden {
    /// Those of a model in a folder of fixtures, in order.
    pub fn all(fixtures: &Path, model: &str) -> Vec<Golden> {
        let folder = fixtures.join(model);
        let errors = std::fs::read(folder.join("bf16_errors.json")).unwrap();
        let errors: serde_json::Value = serde_json::from_slice(&errors).unwrap();
        let files = std::fs::read_dir(folder.join("goldens")).unwrap();
        let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
        files.sort();
        let golden = |path: &PathBuf| {
            let file = std::fs::read(path).unwrap();
            let short = path.file_stem().unwrap().to_string_lossy().into_owned();
            let mut golden = Golden {
                name: format!("{model}/{short}"),
                tokens: Vec::new(),
                positions: Vec::new(),
                logits: Vec::new(),
                vocabulary: 0,
                greedy: Vec::new(),
                bf16_error: errors[&*short]["mean"].as_f64().unwrap(),
                file,
            };
            golden.tokens = golden.ids("tokens");
            golden.positions = golden.ids("positions").into_iter().map(|p| p as usize).collect();
            let logits = golden.f32("logits");
            golden.logits =
                logits.chunks(logits.len() / golden.positions.len()).map(<[f32]>::to_vec).collect();
            golden.vocabulary = golden.ids("tokenizer_size")[0] as usize;
            golden.greedy = golden.ids("greedy_tokens");
            golden
        };
        files.iter().map(golden).collect()
    }

    /// Those of short prompts.
    pub fn short(fixtures: &Path, model: &str, longest: usize) -> Vec<Golden> {
        Golden::all(fixtures, model).into_iter().filter(|g| g.tokens.len() <= longest).collect()
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = safetensors::SafeTensors::deserialize(&self.file).unwrap();
        file.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec()
    }

    /// A tensor of the file, as floats.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    /// A tensor of the file, as token ids or positions.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).into_iter().map(u32::from_le_bytes).collect()
    }
}

/// Of the largest |logit|: f32 activations.
pub const EXACT: f32 = 1e-4;

/// Holds logits of f32 activations against the oracle. Returns how far they are off, of the largest.
pub fn check_exact(golden: &Golden, rows: &[Vec<f32>], what: &str) -> f32 {
    let largest = golden.logits.iter().flatten().fold(0.0f32, |m, x| m.max(x.abs()));
    let mut off = 0.0f32;
    for (want, position) in golden.logits.iter().zip(&golden.positions) {
        off = off.max(worst(&rows[*position], want) / largest);
        assert_eq!(top(&rows[*position]), top(want), "{}, {what}, position {position}", golden.name);
    }
    assert!(off <= EXACT, "{}, {what}: {off:e} of the largest logit", golden.name);
    off
}

/// Mean |difference| by mean |logit|, over stored positions and ids that are no padding (bf16_errors.py).
pub fn mean_error(golden: &Golden, rows: &[Vec<f32>]) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    for (want, position) in golden.logits.iter().zip(&golden.positions) {
        for (got, want) in rows[*position].iter().zip(want).take(golden.vocabulary) {
            off += f64::from(got - want).abs();
            size += f64::from(*want).abs();
        }
    }
    off / size
}

/// Holds the most probable tokens of bf16 activations against the oracle's, where the oracle is sure: its best logit is
/// more than four mean errors before the second. Returns how many positions that are, and how many in all.
pub fn check_top(golden: &Golden, rows: &[Vec<f32>], error: f64, what: &str) -> (usize, usize) {
    let values = golden.logits.iter().flat_map(|row| &row[..golden.vocabulary]);
    let mean = values.clone().map(|x| f64::from(x.abs())).sum::<f64>() / values.count() as f64;
    let mut sure = 0;
    for (want, position) in golden.logits.iter().zip(&golden.positions) {
        let (got, want) = (&rows[*position][..golden.vocabulary], &want[..golden.vocabulary]);
        let best = top(want);
        let others = want.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, x)| *x);
        let margin = f64::from(want[best] - others.fold(f32::NEG_INFINITY, f32::max));
        if margin > 4.0 * error * mean {
            sure += 1;
            assert_eq!(top(got), best, "{}, {what}, position {position}: margin {margin}", golden.name);
        }
    }
    (sure, golden.positions.len())
}

/// Holds goldens in bf16 against what transformers has in bf16: the mean error of each within 1.5 x its, their sum within its.
#[derive(Default)]
pub struct Bf16Sum {
    errors: f64,
    allowed: f64,
}

impl Bf16Sum {
    /// A golden and all its logits.
    pub fn add(&mut self, golden: &Golden, rows: &[Vec<f32>], what: &str) {
        let (error, allowed) = (mean_error(golden, rows), golden.bf16_error);
        let (sure, of) = check_top(golden, rows, error, what);
        println!(
            "{}, {what}: mean error {error:.4}, transformers {allowed:.4}; sure at {sure} of {of}",
            golden.name
        );
        assert!(error <= 1.5 * allowed, "{}, {what}: {error}, transformers {allowed}", golden.name);
        self.errors += error;
        self.allowed += allowed;
    }

    /// For people.
    pub fn text(&self) -> String {
        format!("mean errors {:.4} in sum, transformers {:.4}", self.errors, self.allowed)
    }

    /// All of a run were added.
    pub fn check(&self, what: &str) {
        println!("{what}: {:.4} in sum, transformers {:.4}", self.errors, self.allowed);
        assert!(self.errors <= self.allowed, "{what}: {} in sum, transformers {}", self.errors, self.allowed);
    }
}

/// Absolute, of S and of raw qkv rows; the oracle itself is up to 8e-6 from f64.
pub const STATES: f32 = 1e-4;

/// Holds recurrent states behind a prompt against the oracle. Returns how far they are off.
pub fn check_states<D: Device>(
    golden: &Golden,
    runner: &Runner<D>,
    sequence: SequenceId,
    model: &Model,
) -> f32 {
    let (g, kept) = (&model.geometry, golden.ids("gdn_state_rows"));
    let mut off = 0.0f32;
    for layer in (0..g.layers.len()).filter(|l| g.layers[*l] == LayerKind::Delta) {
        let state = runner.state(sequence, StatePart::Delta { layer }).unwrap();
        let (dv, dk) = (g.delta.value_dim, g.delta.key_dim);
        let row = |h: usize, r: &u32| state[(h * dv + *r as usize) * dk..][..dk].to_vec();
        let got = (0..g.delta.value_heads).flat_map(|h| kept.iter().flat_map(move |r| row(h, r)));
        off = off.max(worst(&got.collect::<Vec<_>>(), &golden.f32(&format!("gdn_state.{layer}"))));
        let conv = runner.state(sequence, StatePart::Conv { layer }).unwrap();
        off = off.max(worst(&conv, &golden.f32(&format!("conv_state.{layer}"))));
    }
    assert!(off <= STATES, "{}: states off by {off:e}", golden.name);
    off
}

/// Profiles that take other kernels than a device's own: a mechanism off, or a threshold elsewhere.
pub fn other_profiles(all: &Profile) -> Vec<(String, Profile)> {
    let without = |s: Switch| (format!("without {}", s.name()), all.clone().without(s));
    let mut profiles: Vec<_> = Switch::ALL.into_iter().filter(|s| all.has(*s)).map(without).collect();
    let mut other = |name: &str, profile: Profile| profiles.push((name.to_owned(), profile));
    for switch in Switch::ALL.into_iter().filter(|s| !all.has(*s)) {
        other(&format!("with {}", switch.name()), all.clone().with_switches(all.switches.with(switch)));
    }
    other("without any", all.clone().with_switches(Switches::NONE));
    // shorter blocks than any real device has, so that short prompts have several
    let blocks = Profile { block_attention_above: 0, attention_block: 64, ..all.clone() };
    other("blocks", blocks.clone());
    for switch in [Switch::FuseQkPrep, Switch::CoalescedKv, Switch::GqaPack] {
        other(&format!("blocks without {}", switch.name()), blocks.clone().without(switch));
    }
    let prologue = Profile { gated_norm: GatedNormPlace::Prologue, ..all.clone() };
    other("the gated norm in the projection", prologue);
    for rows in [16, 32] {
        other(&format!("tiles of {rows} rows"), Profile { tile_rows: rows, ..all.clone() });
    }
    for pack in [1, 2, 8] {
        other(&format!("{pack} query heads in a pack"), Profile { gqa_pack: pack, ..all.clone() });
    }
    profiles
}
