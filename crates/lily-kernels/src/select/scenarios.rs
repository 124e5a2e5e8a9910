//! Rows of the tests: logits, parameters and state, in every combination that takes another way through the texts.

use super::reference::{self, Entry, Outcome};
use super::{END_TOKENS, Request, SEEN_IN_PROMPT};
use crate::random::Random;

/// The logits of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Logits {
    /// Uniform, so far to each side of 0; some outliers eight times as far.
    Spread(f32),
    /// Uniform, without outliers.
    Flat(f32),
    /// Seven whole numbers: many ties at every rank.
    Levels,
    /// All the same.
    Equal(f32),
    /// Mostly -inf, as a model bans tokens.
    Banned,
    /// The largest and smallest floats, and some small ones.
    Extreme,
    /// Zeros of both signs and denormals.
    Zeros,
    /// A broken one somewhere.
    Broken(f32),
}

/// A row's way through the texts.
#[derive(Clone, Debug)]
struct Way {
    request: Request,
    logits: Logits,
    /// The sequence was done before.
    done: bool,
    /// No token is allowed.
    all_masked: bool,
    /// The token that must come out is an end token.
    ends: bool,
}

/// A row of a launch, with the part of the pools that is its own.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) request: Request,
    pub(super) logits: Vec<f32>,
    pub(super) scores: Vec<f32>,
    pub(super) counts: Vec<u32>,
    pub(super) bias: Vec<f32>,
    pub(super) mask: Vec<u32>,
    pub(super) done: bool,
    pub(super) outcome: Outcome,
}

/// The number of ways.
pub(super) fn ways() -> usize {
    list().len()
}

/// All ways; the first ones are for a true vocabulary, too.
fn list() -> Vec<Way> {
    let plain = Request { temperature: 1.0, ..Request::greedy(0) };
    let way = |request: &Request, logits| Way {
        request: request.clone(),
        logits,
        done: false,
        all_masked: false,
        ends: false,
    };
    let penalties = Request {
        repetition: 1.3,
        presence: 0.7,
        frequency: 0.3,
        has_counts: true,
        has_bias: true,
        has_mask: true,
        ..plain.clone()
    };
    let greedy = Request { temperature: 0.0, ..penalties.clone() };
    let with = |temperature, top_k, top_p, min_p, base: &Request| Request {
        temperature,
        top_k,
        top_p,
        min_p,
        ..base.clone()
    };
    use Logits::{Banned, Broken, Equal, Extreme, Flat, Levels, Spread, Zeros};
    let mut all = vec![
        way(&Request::greedy(0), Spread(4.0)),
        way(&with(0.6, 20, 0.95, 0.0, &penalties), Spread(4.0)),
        way(&with(1.0, 0, 0.9, 0.0, &plain), Flat(20.0)),
        way(&plain, Equal(1.5)),
        way(&with(1.0, 0, 0.7, 0.0, &plain), Equal(-2.0)),
        way(&with(1.5, 700, 1.0, 0.0, &plain), Flat(8.0)),
        way(&with(3.0, 5_000_000, 1.0, 1e-4, &penalties), Flat(3.0)),
        way(&with(0.8, 0, 1.0, 0.05, &plain), Spread(6.0)),
        way(&greedy, Levels),
        way(&greedy, Equal(0.0)),
        way(&plain, Spread(3.0)),
        way(&plain, Flat(1.0)),
        way(&with(0.7, 1, 1.0, 0.0, &penalties), Levels),
        way(&with(1.0, 5, 1.0, 0.0, &plain), Levels),
        way(&with(1.0, 0, 0.8, 0.0, &penalties), Flat(2.0)),
        way(&with(2.0, 0, 0.95, 0.0, &plain), Flat(1.0)),
        way(&with(1.0, 0, 0.01, 0.0, &plain), Spread(2.0)),
        way(&with(1.0, 0, 0.6, 0.0, &plain), Levels),
        way(&with(1.5, 8, 0.9, 0.1, &penalties), Levels),
        way(&with(1.0, 300, 0.8, 0.01, &plain), Flat(4.0)),
        way(&with(1.0, 2000, 1.0, 0.0, &plain), Flat(2.0)),
        way(&with(1.0, 2000, 0.9, 0.0, &penalties), Flat(2.0)),
        way(&with(1.0, 1500, 0.5, 0.0, &plain), Levels),
        way(&with(1.0, 1500, 0.5, 0.0, &plain), Equal(0.25)),
        way(&with(1.0, 3, 0.5, 0.0, &plain), Equal(0.25)),
        way(&with(1.0, 0, 1.0, 1.0, &plain), Levels),
        way(&with(0.5, 0, 0.9, 0.3, &plain), Flat(6.0)),
        way(&with(1e-45, 0, 1.0, 0.0, &plain), Levels),
        way(&with(f32::MIN_POSITIVE, 3, 0.9, 0.1, &plain), Spread(1.0)),
        way(&with(f32::MAX, 5, 0.9, 0.1, &plain), Extreme),
        way(&with(f32::MAX, 0, 1.0, 0.0, &plain), Spread(1.0)),
        way(&with(1.0, 0, 0.9, 0.0, &plain), Banned),
        way(&with(1.0, 40, 1.0, 0.0, &plain), Banned),
        way(&with(1.0, 0, 1.0, 0.0, &penalties), Banned),
        way(&with(1.0, 10, 0.9, 0.0, &plain), Zeros),
        way(&Request::greedy(0), Zeros),
        way(&Request { presence: 1.5, has_counts: true, ..with(1.0, 20, 0.95, 0.0, &plain) }, Spread(4.0)),
        way(&Request { repetition: 0.7, frequency: -1.0, has_counts: true, ..plain.clone() }, Spread(2.0)),
        way(&Request { has_bias: true, ..Request::greedy(0) }, Extreme),
        way(&Request { has_mask: true, ..plain.clone() }, Spread(2.0)),
    ];
    for (repetition, presence) in [(1e-45, f32::MAX), (f32::MAX, f32::MIN), (f32::MAX, f32::MAX)] {
        let extreme = Request { repetition, presence, frequency: -presence, ..penalties.clone() };
        all.push(way(&with(1.0, 5, 0.9, 0.1, &extreme), Extreme));
    }
    for request in [&greedy, &with(1.0, 20, 0.9, 0.0, &penalties)] {
        all.push(Way { ends: true, ..way(request, Spread(3.0)) });
        all.push(Way { done: true, ..way(request, Spread(3.0)) });
        all.push(Way { done: true, ..way(request, Broken(f32::NAN)) });
        all.push(Way { all_masked: true, ..way(request, Spread(3.0)) });
    }
    all.push(way(&greedy, Broken(f32::NAN)));
    all.push(way(&plain, Broken(f32::INFINITY)));
    all.push(way(&Request { has_mask: true, ..Request::greedy(0) }, Broken(f32::INFINITY)));
    all
}

/// The rows of a launch: ways `first`, `first + 1`, ... of the list.
pub(super) fn rows(n: usize, vocab: usize, entries: usize, first: usize, random: &mut Random) -> Vec<Row> {
    let list = list();
    (0..n)
        .map(|r| {
            // Some padding behind every second vocabulary.
            let vocabulary = if r % 2 == 1 && vocab > 40 { vocab - 7 } else { vocab };
            row(&list[(first + r) % list.len()], vocab, vocabulary, (entries - 1 - r) as u32, random)
        })
        .collect()
}

fn logits(kind: Logits, vocab: usize, random: &mut Random) -> Vec<f32> {
    let each =
        |of: &dyn Fn(&mut Random) -> f32, random: &mut Random| (0..vocab).map(|_| of(random)).collect();
    match kind {
        Logits::Spread(scale) => random.values(vocab, scale),
        Logits::Broken(_) => random.values(vocab, 2.0),
        Logits::Flat(scale) => each(&|r| scale * r.unit(), random),
        Logits::Levels => each(&|r| r.below(7) as f32 - 3.0, random),
        Logits::Equal(value) => vec![value; vocab],
        Logits::Banned => each(&|r| if r.below(8) == 0 { 3.0 * r.unit() } else { f32::NEG_INFINITY }, random),
        Logits::Extreme => each(&|r| [f32::MAX, f32::MIN, r.unit()][r.below(3)], random),
        Logits::Zeros => each(&|r| [0.0, -0.0, 1e-40, -1e-40, -1.0][r.below(5)], random),
    }
}

fn row(way: &Way, vocab: usize, vocabulary: usize, entry: u32, random: &mut Random) -> Row {
    let mut request = Request {
        vocabulary: vocabulary as u32,
        entry,
        seed: random.next_u64(),
        step: random.below(100_000) as u32,
        ..way.request.clone()
    };
    let mut logits = logits(way.logits, vocab, random);
    for padding in &mut logits[vocabulary..] {
        *padding = [f32::NAN, 1e30][random.below(2)];
    }
    if let Logits::Broken(value) = way.logits {
        logits[random.below(vocabulary)] = value;
    }
    let seen = |r: &mut Random| [SEEN_IN_PROMPT, SEEN_IN_PROMPT + 1, 1, 2, 3, 0, 0, 0][r.below(8)];
    let counts: Vec<u32> = (0..vocab).map(|_| seen(random)).collect();
    let bias: Vec<f32> =
        (0..vocab).map(|_| if random.below(16) == 0 { 2.0 * random.unit() } else { 0.0 }).collect();
    let allowed = |r: &mut Random| if way.all_masked { 0 } else { r.next_u64() as u32 | 0x10 };
    let mask: Vec<u32> = (0..vocab.div_ceil(32)).map(|_| allowed(random)).collect();
    let entry = Entry { counts: &counts, bias: &bias, mask: &mask };
    let scores = reference::adjusted(&request, &logits, entry);
    let outcome = if reference::broken(&request, &logits) {
        Outcome::NotFinite
    } else {
        settle(&mut request, &scores, random)
    };
    let token = if let Outcome::Token(token, _) = outcome { token } else { 0 };
    // Others up to the most that there can be, and the token among them where it is to end the sequence.
    request.end_tokens = (1..=END_TOKENS as u32).map(|i| token + i).collect();
    if way.ends {
        request.end_tokens[random.below(END_TOKENS)] = token;
    } else if request.temperature == 0.0 {
        request.end_tokens.clear();
    }
    Row { request, logits, scores, counts, bias, mask, done: way.done, outcome }
}

/// Changes the request until no number behind its choice is close to a border: float cannot tell there what f64 does.
fn settle(request: &mut Request, scores: &[f32], random: &mut Random) -> Outcome {
    let ranked = reference::ranked(request, scores);
    let needed = (0.25 / ranked.len() as f64).min(1e-4);
    for _ in 0..1000 {
        let outcome = reference::choose(request, &ranked);
        match outcome {
            Outcome::Token(_, margin) if margin < needed => {}
            _ => return outcome,
        }
        request.seed = random.next_u64();
        if request.top_p < 1.0 {
            request.top_p *= 1.0 - 0.001 * random.unit().abs();
        }
        if request.min_p < 1.0 {
            request.min_p *= 1.0 - 0.001 * random.unit().abs();
        }
    }
    panic!("no number far enough from a border for {request:?}");
}

/// The operands that rows share.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) logits: Vec<f32>,
    pub(super) requests: Vec<u32>,
    pub(super) counts: Vec<u32>,
    pub(super) bias: Vec<f32>,
    pub(super) mask: Vec<u32>,
}

impl Pools {
    /// Entries of no row, and those that a request does not name, hold what would show.
    pub(super) fn new(rows: &[Row], vocab: usize, entries: usize) -> Self {
        let words = vocab.div_ceil(32);
        let mut counts = vec![u32::MAX - 7; entries * vocab];
        let mut bias = vec![f32::NAN; entries * vocab];
        let mut mask = vec![0x5a5a_5a5a; entries * words];
        for row in rows {
            let (r, entry) = (&row.request, row.request.entry as usize);
            if r.has_counts {
                counts[entry * vocab..][..vocab].copy_from_slice(&row.counts);
            }
            if r.has_bias {
                bias[entry * vocab..][..vocab].copy_from_slice(&row.bias);
            }
            if r.has_mask {
                mask[entry * words..][..words].copy_from_slice(&row.mask);
            }
        }
        Pools {
            logits: rows.iter().flat_map(|r| r.logits.iter().copied()).collect(),
            requests: rows.iter().flat_map(|r| r.request.words()).collect(),
            counts,
            bias,
            mask,
        }
    }
}

/// What the first launch finds in a slice.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) key: u32,
    pub(super) id: u32,
    pub(super) sum: f64,
    /// The sum of weights times the size of their exponents: by how much an error of the exponents enlarges the sum.
    pub(super) sum_of_exponents: f64,
}

/// The slices of a row.
pub(super) fn slices(row: &Row, slices: usize, len: usize) -> Vec<Slice> {
    let r = &row.request;
    let vocabulary = r.vocabulary as usize;
    let each = (0..slices).map(|i| {
        let (from, to) = ((i * len).min(vocabulary), ((i + 1) * len).min(vocabulary));
        let broken = row.logits[from..to].iter().any(|v| v.is_nan() || *v == f32::INFINITY);
        let score = |id: usize| {
            if row.scores[id].is_nan() { f32::NEG_INFINITY } else { row.scores[id].min(f32::MAX) }
        };
        let largest = (from..to).map(score).fold(f32::NEG_INFINITY, f32::max);
        let id = (from..to).find(|id| score(*id) == largest).unwrap_or(i * len) as u32;
        let mut slice = Slice { key: key(largest), id, sum: 0.0, sum_of_exponents: 0.0 };
        if broken {
            slice.sum = -1.0;
        } else if r.temperature > 0.0 && largest > f32::NEG_INFINITY {
            for id in from..to {
                let exponent = (f64::from(score(id)) - f64::from(largest)) / f64::from(r.temperature);
                slice.sum += exponent.exp();
                slice.sum_of_exponents += exponent.exp() * exponent.abs().min(1e3);
            }
        }
        slice
    });
    each.collect()
}

/// Whether every slice has a token that `min_p` keeps; the texts leave out the slices without one, such as those that a mask bans.
pub(super) fn every_slice_counts(row: &Row, len: usize) -> bool {
    let scores = &row.scores[..row.request.vocabulary as usize];
    let largest = |of: &[f32]| of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least =
        f64::from(largest(scores)) + f64::from(row.request.temperature) * f64::from(row.request.min_p).ln();
    scores.chunks(len).all(|slice| f64::from(largest(slice)) >= least)
}

/// A larger score has the larger key; both zeros have one.
fn key(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}
