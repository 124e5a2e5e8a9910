//! The definition that kernels of selection are held against chooses as the sampler does.

use lily_kernels::select::reference::{self, Entry, Outcome};
use lily_kernels::select::{Request, SEEN_IN_PROMPT};
use proptest::prelude::*;

use super::tests::samplings;
use super::*;

fn request(sampling: &Sampling, vocabulary: usize, step: u32) -> Request {
    Request {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        top_k: sampling.top_k,
        repetition: sampling.repetition_penalty,
        presence: sampling.presence_penalty,
        frequency: sampling.frequency_penalty,
        seed: sampling.seed,
        step,
        has_counts: true,
        has_bias: true,
        has_mask: true,
        ..Request::greedy(vocabulary as u32)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn the_definition_for_devices_chooses_the_same(
        mut sampling in samplings(),
        logits in prop::collection::vec(prop_oneof![-10.0f32..10.0, (-3i8..3).prop_map(f32::from)], 30..600),
        prompt in prop::collection::vec(0u32..30, 1..20),
        banned in prop::collection::vec(0u32..30, 0..4),
    ) {
        // A device adds one bias a token.
        sampling.logit_bias.sort_by_key(|(id, _)| *id);
        sampling.logit_bias.dedup_by_key(|(id, _)| *id);
        let vocabulary = logits.len();
        let mut bias = vec![0.0; vocabulary];
        sampling.logit_bias.iter().for_each(|(id, add)| bias[*id as usize] = *add);
        let mut mask = vec![u32::MAX; vocabulary.div_ceil(32)];
        banned.iter().for_each(|id| mask[*id as usize / 32] &= !(1 << (id % 32)));
        let mut counts = vec![0; vocabulary];
        prompt.iter().for_each(|id| counts[*id as usize] = SEEN_IN_PROMPT);
        let mut sampler = Sampler::new(sampling.clone(), vocabulary, &prompt, banned).unwrap();
        let mut scratch = Scratch::default();
        for step in 0..6 {
            let id = sampler.choose(&logits, &mut scratch).unwrap();
            let request = request(&sampling, vocabulary, step);
            let entry = Entry { counts: &counts, bias: &bias, mask: &mask };
            let scores = reference::adjusted(&request, &logits, entry);
            match reference::choose(&request, &reference::ranked(&request, &scores)) {
                Outcome::Token(wanted, margin) if margin > 1e-9 => prop_assert_eq!(id, wanted),
                Outcome::Token(..) => {}
                other => prop_assert!(false, "{:?}", other),
            }
            counts[id as usize] += 1;
        }
    }
}
