//! Tokens that a [`Runner`] has chosen on the device are those that its logits give, whoever joins, leaves or is served by the host
//! in between.

use std::sync::Arc;

use lily_kernels::random::Random;
use lily_kernels::select::reference::{Entry, Outcome, adjusted, choose, ranked};
use lily_kernels::select::{Request, SEEN_IN_PROMPT};

use super::{Subject, runner, short_blocks, tiny};
use crate::device::Device;
use crate::plan::{Activation, Switch};
use crate::testing::oracle::states;
use crate::testing::random_tokens;
use crate::{Choosing, ChoosingRow, Chosen, DeviceError, Forward, LogitRows, Model, Runner, SequenceId};

/// Steps of each sequence: over the end of a page, and of a bucket of contexts.
const STEPS: usize = 24;

/// How far a choice is at least from another one (as a probability) where sums of floats cannot make another.
const MARGIN: f64 = 1e-5;

/// Of all choices, those that may be closer.
const MOST_CLOSE: usize = 6;

fn greedy(vocabulary: usize) -> Choosing {
    Choosing {
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        seed: 0,
        bias: Vec::new(),
        banned: Vec::new(),
        ends: Vec::new(),
        vocabulary,
    }
}

struct Asked {
    prompt: Vec<u32>,
    choosing: Choosing,
}

/// What the sampler of an engine would choose behind `output`, and how far that is from another token.
fn by_host(one: &Asked, output: &[u32], logits: &[f32]) -> (u32, f64) {
    let (c, vocab) = (&one.choosing, logits.len());
    let mut counts = vec![0; vocab];
    one.prompt.iter().for_each(|id| counts[*id as usize] = SEEN_IN_PROMPT);
    output.iter().for_each(|id| counts[*id as usize] += 1);
    let mut bias = vec![0.0; vocab];
    c.bias.iter().for_each(|(id, add)| bias[*id as usize] = *add);
    let mut mask = vec![u32::MAX; vocab.div_ceil(32)];
    c.banned.iter().for_each(|id| mask[*id as usize / 32] &= !(1 << (id % 32)));
    let request = Request {
        temperature: c.temperature,
        top_p: c.top_p,
        min_p: c.min_p,
        top_k: c.top_k,
        repetition: c.repetition,
        presence: c.presence,
        frequency: c.frequency,
        seed: c.seed,
        step: output.len() as u32,
        has_counts: true,
        has_bias: true,
        has_mask: true,
        ..Request::greedy(c.vocabulary as u32)
    };
    let scores = adjusted(&request, logits, Entry { counts: &counts, bias: &bias, mask: &mask });
    match choose(&request, &ranked(&request, &scores)) {
        Outcome::Token(token, margin) => (token, margin),
        other => panic!("{other:?}"),
    }
}

fn requests(model: &Model) -> Vec<Asked> {
    let vocab = model.geometry.vocab;
    // Ids from here on do not exist.
    let plain = greedy(vocab - 3);
    let sampled = Choosing { temperature: 0.9, top_p: 0.95, top_k: 20, seed: 7, ..plain.clone() };
    let penalized = Choosing {
        temperature: 1.3,
        min_p: 0.02,
        repetition: 1.2,
        presence: 0.3,
        frequency: 0.2,
        seed: 11,
        bias: vec![(3, 1.5), (8, -2.0)],
        banned: vec![5, 6, 40],
        ..plain.clone()
    };
    let counted = Choosing { repetition: 1.1, frequency: 0.5, ..plain.clone() };
    let all = [(60, plain), (5, sampled), (249, penalized), (17, counted)];
    let one = |(n, (length, choosing)): (usize, (usize, Choosing))| {
        let random = &mut Random::new(n as u64 + 1);
        let mut prompt = random_tokens(random, model, length);
        prompt.iter_mut().for_each(|id| *id %= (vocab - 3) as u32);
        Asked { prompt, choosing }
    };
    all.into_iter().enumerate().map(one).collect()
}

struct Live<'a, D> {
    runner: &'a mut Runner<D>,
    requests: &'a [Asked],
    sequences: Vec<SequenceId>,
    outputs: Vec<Vec<u32>>,
}

impl<D: Device> Live<'_, D> {
    fn begin(&mut self, rows: &[usize]) -> Result<(), DeviceError> {
        let row = |n: &usize| ChoosingRow {
            sequence: self.sequences[*n],
            token: *self.outputs[*n].last().unwrap(),
            choosing: &self.requests[*n].choosing,
            prompt: &self.requests[*n].prompt,
            output: &self.outputs[*n],
        };
        self.runner.begin(&rows.iter().map(row).collect::<Vec<_>>())
    }

    fn take(&mut self, rows: &[usize]) {
        for (n, chosen) in rows.iter().zip(self.runner.take().unwrap()) {
            let Chosen::Token(token) = chosen else { panic!("row {n}: {chosen:?}") };
            self.outputs[*n].push(token);
        }
    }

    /// So many steps with the next always under way, as an engine runs them.
    fn run(&mut self, rows: &[usize], count: usize) -> usize {
        let mut begun = 0;
        let mut left = count;
        while left > 0 {
            if self.runner.under_way() == 0 {
                self.begin(rows).unwrap();
                begun += 1;
            }
            if left > 1 {
                self.runner.ahead().unwrap();
            }
            self.take(rows);
            left -= 1;
        }
        begun
    }

    /// One step whose logits the host reads.
    fn on_host(&mut self, n: usize) {
        self.runner.decode(&[(self.sequences[n], *self.outputs[n].last().unwrap())]).unwrap();
        let (token, _) = by_host(&self.requests[n], &self.outputs[n], self.runner.logits(0));
        self.outputs[n].push(token);
    }
}

pub(super) fn choosing<S: Subject>(set: &S, activation: Activation) -> String {
    let model: Arc<Model> = tiny();
    let profile = short_blocks(set.profile(activation));
    let mut runner = runner(set, &model, &profile);
    assert!(runner.chooses(), "{}", runner.device().describe());
    let requests = requests(&model);
    let (mut sequences, mut outputs) = (Vec::new(), Vec::new());
    for one in &requests {
        let sequence = runner.open().unwrap();
        runner.prefill(sequence, &one.prompt, LogitRows::Last).unwrap();
        sequences.push(sequence);
        outputs.push(vec![by_host(one, &[], runner.logits(0)).0]);
    }
    let mut live = Live { runner: &mut runner, requests: &requests, sequences, outputs };
    // Three, and at other steps others beside them; the host serves some in between, so that the device has to be told.
    let begun = live.run(&[0, 1, 2], 8);
    assert!(begun > 1, "the first comes to the end of its page");
    live.run(&[2, 3], 5);
    live.on_host(2);
    live.run(&[3, 2, 1, 0], 4);
    live.on_host(0);
    live.on_host(3);
    for n in 0..requests.len() {
        live.run(&[n], STEPS + 1 - live.outputs[n].len());
    }
    let mut close = 0;
    for (n, one) in requests.iter().enumerate() {
        let (sequence, output) = (live.sequences[n], live.outputs[n].clone());
        assert_eq!(live.runner.length(sequence), one.prompt.len() + STEPS, "request {n}");
        let alone = live.runner.open().unwrap();
        live.runner.prefill(alone, &one.prompt, LogitRows::Last).unwrap();
        for step in 0..STEPS {
            live.runner.decode(&[(alone, output[step])]).unwrap();
            let (token, margin) = by_host(one, &output[..=step], live.runner.logits(0));
            close += usize::from(margin <= MARGIN);
            assert!(
                margin <= MARGIN || token == output[step + 1],
                "request {n}, step {step}: {token}, {output:?}"
            );
        }
        let [of_device, of_host] = [sequence, alone].map(|s| states(live.runner.device(), &model, s));
        assert!(of_device == of_host, "request {n}: states");
        live.runner.close(alone);
    }
    assert!(close <= MOST_CLOSE, "{close} choices are too close to others to say anything");
    refusals(&mut live);
    format!("4 requests, 24 steps each, {close} of them close")
}

/// What must not come between steps does not; who goes takes the steps along, and the others are what they should be.
fn refusals<D: Device>(live: &mut Live<'_, D>) {
    let refused = |result: Result<(), DeviceError>| match result {
        Err(DeviceError::Unknown(text)) => assert!(text.contains("under way"), "{text}"),
        other => panic!("{other:?}"),
    };
    live.begin(&[0, 1]).unwrap();
    refused(live.begin(&[2]));
    refused(live.runner.decode(&[(live.sequences[3], 1)]));
    refused(live.runner.prefill(live.sequences[3], &[1], LogitRows::Last));
    refused(live.runner.snapshot(live.sequences[3]).map(|_| ()));
    assert!(live.runner.ahead().unwrap() && !live.runner.ahead().unwrap(), "two are under way");
    let (gone, stays) = (live.sequences[0], live.sequences[1]);
    let length = live.runner.length(stays);
    live.runner.close(gone);
    assert_eq!(live.runner.under_way(), 0);
    assert_eq!(live.runner.length(stays), length + 2);
    refused(live.runner.take().map(|_| ()));
    // A bias that is given twice, too many end tokens, and a mechanism that is off.
    let choosing = greedy(10);
    assert!(live.runner.can_choose(&choosing));
    assert!(
        !live.runner.can_choose(&Choosing { bias: vec![(1, 1.0), (2, 1.0), (1, 1.0)], ..choosing.clone() })
    );
    assert!(!live.runner.can_choose(&Choosing { ends: (0..17).collect(), ..choosing.clone() }));
    let switches = live.runner.device().profile().switches;
    live.runner.use_switches(switches.without(Switch::TokenHandoff));
    assert!(!live.runner.can_choose(&choosing));
    assert!(matches!(live.begin(&[1]), Err(DeviceError::Unknown(_))));
    live.runner.use_switches(switches);
}
