//! An engine over the emulator: answers are the same whether the device chooses their tokens or the host does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use lily_engine::{EngineConfig, start};
use lily_kernels::random::Random;
use lily_model::plan::{Profile, Switch};
use lily_model::testing::random_tokens;
use lily_model::{Forward, Runner, RunnerOptions};
use lily_protocol::{Engine, Event, FinishReason, GenerationRequest, Limits, Sampling};
use support::*;

const CONTEXT: usize = 160;
const CHUNK: usize = 48;

/// The last ids are padding.
fn vocabulary(model: &lily_model::Model) -> usize {
    model.geometry.vocab - 2
}

/// A request, and after how many tokens its reader goes away, as one does that found a stop string.
struct Asked {
    request: GenerationRequest,
    leaves: Option<usize>,
}

fn asked(model: &lily_model::Model, n: usize, length: usize, max_tokens: usize, sampling: Sampling) -> Asked {
    let mut prompt = random_tokens(&mut Random::new(n as u64), model, length);
    prompt.iter_mut().for_each(|id| *id %= vocabulary(model) as u32);
    let request = GenerationRequest {
        prompt,
        text: None,
        max_tokens: Some(max_tokens),
        sampling: Sampling { seed: n as u64, ..sampling },
        logprobs: None,
        prompt_logprobs: None,
        ignore_end: false,
    };
    Asked { request, leaves: None }
}

/// Greedy and sampled, with every parameter; limits of tokens and of the context; one that the host has to choose for, and two that
/// leave.
fn mix(model: &lily_model::Model) -> Vec<Asked> {
    let greedy = Sampling::greedy;
    let usual = Sampling { temperature: 0.6, top_p: 0.95, top_k: 20, ..greedy() };
    let all = Sampling {
        temperature: 1.2,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        logit_bias: vec![(3, 2.0), (9, -4.0)],
        ..greedy()
    };
    let mut mix = vec![
        asked(model, 1, 60, 12, greedy()),
        asked(model, 2, 5, 25, usual.clone()),
        asked(model, 3, 100, 9, all.clone()),
        asked(model, 4, 150, 40, usual.clone()),
        asked(model, 5, 20, 7, Sampling { frequency_penalty: 0.7, ..greedy() }),
        asked(model, 6, 33, 20, all),
        asked(model, 7, 62, 30, usual),
        asked(model, 8, 12, 1, greedy()),
    ];
    mix[1].request.ignore_end = true;
    mix[4].request.logprobs = Some(2);
    mix[5].leaves = Some(4);
    mix[6].leaves = Some(3);
    mix
}

type Answer = (Vec<u32>, Option<FinishReason>);

/// All of them at once; there is memory for so many sequences of 144 tokens.
fn answers(on_device: bool, sequences: Option<usize>) -> Vec<Answer> {
    let model = fixture("nano");
    let profile = Profile { block_attention_above: 64, attention_block: 64, ..Profile::emulator() };
    let profile = if on_device { profile } else { profile.without(Switch::TokenHandoff) };
    let options = lily_emu::EmuOptions { profile, threads: None, seed: 0, state_bytes: 1 << 28 };
    let (weights, packing) = model.weights.packed();
    let device = lily_emu::EmuDevice::new(&model.geometry, model.clone(), packing, &options).unwrap();
    let options = RunnerOptions { context: CONTEXT, max_chunk: CHUNK, max_decode_rows: 4 };
    let mut runner = Runner::new(model.geometry.clone(), weights, device, options);
    assert_eq!(runner.chooses(), on_device);
    let sequence = runner.open().unwrap();
    (0..3).for_each(|_| runner.prefill(sequence, &[1; CHUNK], lily_model::LogitRows::None).unwrap());
    let state_memory = sequences.map_or(usize::MAX, |n| n * runner.state_bytes());
    runner.close(sequence);
    let limits = Limits { context: CONTEXT, model_context: CONTEXT, vocabulary: vocabulary(&model) };
    let ends = model.end_tokens.iter().copied().chain([17, 40]).collect();
    let config = EngineConfig {
        chunk: CHUNK,
        parallel: 5,
        end_tokens: ends,
        cache_memory: 0,
        state_memory,
        ..EngineConfig::new(limits)
    };
    let engine = start(config, Box::new(runner)).unwrap();
    let mix = mix(&model);
    let generations: Vec<_> = mix.iter().map(|asked| engine.submit(asked.request.clone()).unwrap()).collect();
    let readers: Vec<_> = generations
        .into_iter()
        .zip(&mix)
        .map(|(mut generation, asked)| {
            let leaves = asked.leaves.unwrap_or(usize::MAX);
            std::thread::spawn(move || {
                let (mut tokens, mut reason) = (Vec::new(), None);
                while tokens.len() < leaves
                    && let Some(event) = generation.next_blocking()
                {
                    match event {
                        Event::Tokens(more) => tokens.extend(more.iter().map(|token| token.id)),
                        Event::Finished { reason: end, .. } => reason = Some(end),
                        Event::Failed(sentence) => panic!("{sentence}"),
                        _ => {}
                    }
                }
                (tokens, reason)
            })
        })
        .collect();
    let answers = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    engine.shutdown(true);
    answers
}

#[test]
fn answers_are_those_that_the_host_chooses() {
    let want = answers(false, None);
    assert!(want.iter().map(|(tokens, _)| tokens.len()).sum::<usize>() > 50, "{want:?}");
    assert_eq!(answers(true, None), want);
}

/// Requests lose their sequences, and repeat their own tokens.
#[test]
fn answers_are_the_same_where_memory_is_short() {
    let want = answers(true, None);
    assert_eq!(answers(true, Some(2)), want);
}
