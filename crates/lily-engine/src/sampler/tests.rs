//! The sampler against a plain f64 reference that sorts everything, and by its distribution.

use proptest::prelude::*;

use super::*;

/// The distribution a request asks for, step by step as the module's head says, by rising id. Also the smallest distance of any comparison from going the other way, so that a test can leave out cases that
/// hang on the last bit.
fn reference(
    sampling: &Sampling,
    logits: &[f32],
    prompt: &[u32],
    output: &[u32],
    banned: &[u32],
) -> (Vec<(u32, f64)>, f64) {
    let mut values: Vec<f64> = logits.iter().map(|&v| f64::from(v)).collect();
    for &(id, bias) in &sampling.logit_bias {
        values[id as usize] += f64::from(bias);
    }
    for id in 0..values.len() as u32 {
        let value = &mut values[id as usize];
        let count = output.iter().filter(|t| **t == id).count();
        if prompt.contains(&id) || count > 0 {
            let penalty = f64::from(sampling.repetition_penalty);
            *value = if *value > 0.0 { *value / penalty } else { *value * penalty };
        }
        if count > 0 {
            let frequency = f64::from(sampling.frequency_penalty) * count as f64;
            *value -= f64::from(sampling.presence_penalty) + frequency;
        }
        if banned.contains(&id) {
            *value = f64::NEG_INFINITY;
        }
    }
    let mut ranked: Vec<(u32, f64)> = values.into_iter().enumerate().map(|(id, v)| (id as u32, v)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut margin = f64::INFINITY;
    for pair in ranked.windows(2) {
        // Values that are equal in f32 may differ in f64 and the other way round: 2e-6 is an ulp or two of theirs.
        if pair[0].1 != pair[1].1 {
            margin = margin.min((pair[0].1 - pair[1].1).abs() * 50.0);
        }
    }
    if sampling.temperature == 0.0 {
        return (vec![(ranked[0].0, 1.0)], margin);
    }
    let largest = ranked[0].1;
    let mut kept: Vec<(u32, f64)> =
        ranked.iter().map(|&(id, v)| (id, ((v - largest) / f64::from(sampling.temperature)).exp())).collect();
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k);
    }
    if sampling.top_p < 1.0 {
        let total: f64 = kept.iter().map(|(_, w)| w).sum();
        let mut sum = 0.0;
        let mut count = 0;
        for (_, weight) in &kept {
            sum += weight / total;
            count += 1;
            margin = margin.min((sum - f64::from(sampling.top_p)).abs());
            if sum >= f64::from(sampling.top_p) {
                break;
            }
        }
        kept.truncate(count);
    }
    for (_, weight) in &kept {
        if *weight != f64::from(sampling.min_p) {
            margin = margin.min((weight - f64::from(sampling.min_p)).abs());
        }
    }
    kept.retain(|(_, w)| *w >= f64::from(sampling.min_p) && *w > 0.0);
    kept.sort_by_key(|(id, _)| *id);
    let total: f64 = kept.iter().map(|(_, w)| w).sum();
    (kept.into_iter().map(|(id, w)| (id, w / total)).collect(), margin)
}

/// The token that a random number stands for, and how far the number is from the next border.
fn inverse(distribution: &[(u32, f64)], random: f64) -> (u32, f64) {
    let mut sum = 0.0;
    let mut margin = f64::INFINITY;
    let mut found = None;
    for &(id, p) in distribution {
        sum += p;
        if sum < 1.0 - 1e-12 {
            margin = margin.min((sum - random).abs());
        }
        if random < sum {
            found = found.or(Some(id));
        }
    }
    (found.unwrap_or(distribution[distribution.len() - 1].0), margin)
}

prop_compose! {
    pub(super) fn samplings()(
        temperature in prop_oneof![Just(0.0f32), 0.1f32..3.0, Just(1.0f32)],
        top_p in prop_oneof![Just(1.0f32), 0.01f32..1.0],
        top_k in prop_oneof![Just(0usize), 1usize..40, Just(1000usize)],
        min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
        repetition_penalty in prop_oneof![Just(1.0f32), 0.5f32..2.0],
        presence_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        frequency_penalty in prop_oneof![Just(0.0f32), -2.0f32..2.0],
        logit_bias in prop::collection::vec((0u32..30, -5.0f32..5.0), 0..4),
        seed: u64,
    ) -> Sampling {
        Sampling {
            temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn equals_the_reference(
        sampling in samplings(),
        logits in prop::collection::vec(prop_oneof![-10.0f32..10.0, (-3i8..3).prop_map(f32::from)], 30..600),
        prompt in prop::collection::vec(0u32..30, 1..20),
        banned in prop::collection::vec(0u32..30, 0..4),
    ) {
        let vocabulary = logits.len();
        let mut padded = logits.clone();
        padded.extend([1e30, f32::NAN]);
        let random = Philox::new(sampling.seed);
        let mut sampler = Sampler::new(sampling.clone(), vocabulary, &prompt, banned.clone()).unwrap();
        let mut scratch = Scratch::default();
        let mut output = Vec::new();
        for step in 0..6 {
            let (distribution, margin) = reference(&sampling, &logits, &prompt, &output, &banned);
            let id = sampler.choose(&padded, &mut scratch).unwrap();
            prop_assert!((id as usize) < vocabulary);
            prop_assert!(!banned.contains(&id));
            let (wanted, distance) = inverse(&distribution, random.uniform(step));
            if margin > 1e-4 && distance > 1e-4 {
                prop_assert_eq!(id, wanted, "step {} of {:?}", step, sampling);

            }
            output.push(id);
        }
    }

    #[test]
    fn only_allowed_tokens_are_chosen(
        sampling in samplings(),
        logits in prop::collection::vec(-10.0f32..10.0, 30..300),
    ) {
        let plain = Sampling { logit_bias: Vec::new(), repetition_penalty: 1.0, presence_penalty: 0.0,
            frequency_penalty: 0.0, ..sampling };
        let id = Sampler::new(plain.clone(), logits.len(), &[0], vec![]).unwrap()
            .choose(&logits, &mut Scratch::default()).unwrap();
        let value = logits[id as usize];
        let above = logits.iter().filter(|v| **v > value).count();
        prop_assert!(plain.temperature > 0.0 || above == 0);
        prop_assert!(plain.top_k == 0 || above < plain.top_k);
        if plain.temperature > 0.0 {
            let weight = |v: &f32| (f64::from(*v) / f64::from(plain.temperature)).exp();
            let total: f64 = logits.iter().map(weight).sum();
            let before: f64 = logits.iter().filter(|v| **v > value).map(weight).sum();
            let largest = logits.iter().map(weight).fold(0.0, f64::max);
            // top_p of all is the weakest it can be: top_k before it only makes the set smaller.
            prop_assert!(before / total < f64::from(plain.top_p) + 1e-9);
            prop_assert!(weight(&value) >= largest * f64::from(plain.min_p) * (1.0 - 1e-9));
        }
    }

    #[test]
    fn no_numbers_make_it_panic(
        fields in prop::collection::vec(any::<f32>(), 7),
        top_k: usize,
        logits in prop::collection::vec(any::<f32>(), 0..100),
        vocabulary in 0usize..100,
    ) {
        let sampling = Sampling {
            temperature: fields[0], top_p: fields[1], min_p: fields[2], repetition_penalty: fields[3],
            presence_penalty: fields[4], frequency_penalty: fields[5], logit_bias: vec![(7, fields[6])],
            top_k, seed: 1,
        };
        if let Ok(mut sampler) = Sampler::new(sampling, vocabulary, &[3], vec![5]) {
            let mut scratch = Scratch::default();
            for _ in 0..3 {
                if let Ok(id) = sampler.choose(&logits, &mut scratch) {
                    prop_assert!((id as usize) < vocabulary && id != 5);
                }
            }
        }
    }

    #[test]
    fn extreme_but_valid_numbers_choose_an_allowed_token(
        temperature in prop_oneof![Just(f32::MIN_POSITIVE), Just(1e-45f32), Just(f32::MAX)],
        penalty in prop_oneof![Just(1e-45f32), Just(f32::MAX)],
        bias in prop_oneof![Just(f32::MAX), Just(f32::MIN)],
        logits in prop::collection::vec(prop_oneof![Just(f32::MAX), Just(f32::MIN), -1.0f32..1.0], 10..50),
    ) {
        let sampling = Sampling {
            temperature, repetition_penalty: penalty, presence_penalty: bias, frequency_penalty: -bias,
            logit_bias: vec![(1, bias), (2, -bias)], top_p: 0.9, top_k: 5, min_p: 0.1, seed: 3,
        };
        let mut sampler = Sampler::new(sampling, logits.len(), &[1, 2, 3], vec![0]).unwrap();
        for _ in 0..4 {
            let id = sampler.choose(&logits, &mut Scratch::default()).unwrap();
            prop_assert!(id > 0 && (id as usize) < logits.len());
        }
    }

    #[test]
    fn log_probabilities_equal_the_reference(
        logits in prop::collection::vec(prop_oneof![-30.0f32..30.0, Just(1.0f32)], 1..300),
        n in 0usize..25,
        chosen: prop::sample::Index,
    ) {
        let mut padded = logits.clone();
        padded.push(1e9);
        let chosen = chosen.index(logits.len());
        let got = logprobs(&padded, logits.len(), chosen as u32, n, &mut Scratch::default());
        let total: f64 = logits.iter().map(|v| f64::from(*v).exp()).sum();
        let log = |id: usize| f64::from(logits[id]) - total.ln();
        prop_assert!((f64::from(got.chosen) - log(chosen)).abs() < 1e-5);
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        ids.truncate(n);
        prop_assert_eq!(got.top.iter().map(|(id, _)| *id as usize).collect::<Vec<_>>(), ids);
        for (id, p) in got.top {
            prop_assert!((f64::from(p) - log(id as usize)).abs() < 1e-5);
        }
    }
}

/// Chi-square of 20,000 tokens, each the first of its own seed, against the reference's distribution.
fn chi_square(sampling: &Sampling, logits: &[f32]) -> (f64, usize) {
    const DRAWS: u32 = 20_000;
    let (distribution, _) = reference(sampling, logits, &[0], &[], &[]);
    let mut counts = vec![0u32; logits.len()];
    let mut scratch = Scratch::default();
    for seed in 0..u64::from(DRAWS) {
        let seeded = Sampling { seed, ..sampling.clone() };
        let mut sampler = Sampler::new(seeded, logits.len(), &[0], vec![]).unwrap();
        counts[sampler.choose(logits, &mut scratch).unwrap() as usize] += 1;
    }
    let chi = |&(id, p): &(u32, f64)| {
        let wanted = p * f64::from(DRAWS);
        (f64::from(counts[id as usize]) - wanted).powi(2) / wanted
    };
    assert_eq!(
        distribution.iter().map(|(id, _)| counts[*id as usize]).sum::<u32>(),
        DRAWS,
        "outside the support"
    );
    (distribution.iter().map(chi).sum(), distribution.len() - 1)
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..12).map(|i| ((i * 7) % 12) as f32 / 4.0).collect();
    let at = |temperature| Sampling { temperature, ..Sampling::greedy() };
    let cases = [
        at(1.0),
        at(0.7),
        at(2.0),
        Sampling { top_k: 5, ..at(1.0) },
        Sampling { top_p: 0.8, ..at(1.0) },
        Sampling { min_p: 0.2, ..at(1.0) },
        Sampling { top_k: 8, top_p: 0.9, min_p: 0.1, repetition_penalty: 1.3, ..at(1.5) },
    ];
    for sampling in cases {
        let (chi, freedom) = chi_square(&sampling, &logits);
        // The normal approximation's 0.01 % point; the seeds are fixed, so this either always holds or never.
        let bound = freedom as f64 + 3.72 * (2.0 * freedom as f64).sqrt() + 5.0;
        assert!(chi < bound, "chi-square {chi:.1} over {freedom} degrees of freedom: {sampling:?}");
    }
}

#[test]
fn greedy_takes_the_lower_of_equal_ids() {
    let mut sampler = Sampler::new(Sampling::greedy(), 5, &[0], vec![]).unwrap();
    assert_eq!(sampler.choose(&[1.0, 3.0, 3.0, -1.0, 3.0], &mut Scratch::default()), Ok(1));
}

#[test]
fn a_step_depends_on_seed_and_index_alone() {
    let sampling = Sampling { temperature: 1.0, seed: 42, ..Sampling::greedy() };
    let logits = [0.0f32; 1000];
    let mut shared = Scratch::default();
    let draw = |seed, scratch: &mut Scratch| {
        let seeded = Sampling { seed, ..sampling.clone() };
        let mut sampler = Sampler::new(seeded, 1000, &[0], vec![]).unwrap();
        (0..20).map(|_| sampler.choose(&logits, scratch).unwrap()).collect::<Vec<_>>()
    };
    let first = draw(42, &mut shared);
    let other = draw(43, &mut shared);
    assert_eq!(draw(42, &mut shared), first);
    assert_eq!(draw(42, &mut Scratch::default()), first);
    assert_ne!(first, other);
}

#[test]
fn broken_logits_are_errors_with_the_place() {
    let choose = |logits: &[f32]| {
        let mut sampler = Sampler::new(Sampling::greedy(), 3, &[0], vec![]).unwrap();
        sampler.choose(logits, &mut Scratch::default())
    };
    let infinity = f32::INFINITY;
    assert_eq!(choose(&[0.0, infinity, 1.0]), Err(SamplerError::NotFinite { id: 1, value: infinity }));
    assert!(matches!(choose(&[0.0, 1.0, f32::NAN]), Err(SamplerError::NotFinite { id: 2, .. })));
    assert_eq!(choose(&[0.0, 1.0]), Err(SamplerError::TooFew { found: 2, vocabulary: 3 }));
    assert_eq!(choose(&[-infinity; 3]), Err(SamplerError::NothingLeft));
    assert_eq!(choose(&[-infinity, -infinity, -3.0, f32::NAN]), Ok(2), "padding may be anything");
}

#[test]
fn banning_everything_leaves_nothing() {
    let mut sampler = Sampler::new(Sampling::greedy(), 2, &[0], vec![0, 1, 77]).unwrap();
    assert_eq!(sampler.choose(&[1.0, 2.0], &mut Scratch::default()), Err(SamplerError::NothingLeft));
}

#[test]
fn parameters_without_meaning_are_named() {
    let greedy = Sampling::greedy;
    let cases = [
        ("temperature", Sampling { temperature: -0.1, ..greedy() }),
        ("temperature", Sampling { temperature: f32::NAN, ..greedy() }),
        ("top_p", Sampling { top_p: 0.0, ..greedy() }),
        ("top_p", Sampling { top_p: 1.1, ..greedy() }),
        ("min_p", Sampling { min_p: -0.1, ..greedy() }),
        ("min_p", Sampling { min_p: f32::NAN, ..greedy() }),
        ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..greedy() }),
        ("presence_penalty", Sampling { presence_penalty: f32::INFINITY, ..greedy() }),
        ("frequency_penalty", Sampling { frequency_penalty: f32::NAN, ..greedy() }),
        ("logit_bias", Sampling { logit_bias: vec![(0, f32::NEG_INFINITY)], ..greedy() }),
    ];
    for (field, sampling) in cases {
        let error = Sampler::new(sampling, 4, &[0], vec![]).unwrap_err();
        assert_eq!(error.field, field);
        assert!(error.to_string().starts_with(field), "{error}");
    }
}
