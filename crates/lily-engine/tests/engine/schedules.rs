//! Many requests at once, cancelled at random, with any budget: each answer is the one it gives alone.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use lily_engine::EngineConfig;
use lily_protocol::{Engine, Event, Generation, GenerationRequest, Sampling};
use proptest::prelude::*;

use crate::fake::*;
use crate::helpers::*;

/// Reads `tokens` tokens or progress events, then goes away.
fn read_some(mut generation: Generation, events: usize) {
    for _ in 0..events {
        match generation.next_blocking() {
            Some(Event::Finished { .. } | Event::Failed(_)) | None => return,
            Some(_) => {}
        }
    }
}

fn sampled(prompt: Vec<u32>, max_tokens: usize, seed: u64) -> GenerationRequest {
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.95,
        presence_penalty: 0.5,
        seed,
        ..Sampling::greedy()
    };
    GenerationRequest { sampling, ignore_end: seed.is_multiple_of(2), ..request(prompt, max_tokens) }
}

#[test]
fn of_twenty_requests_half_are_cut_off_and_the_others_do_not_notice() {
    for round in 0..5u64 {
        let (engine, controls) = engine(EngineConfig { parallel: 6, ..config() });
        controls.delay_micros.store(50, SeqCst);
        let system = [&[8], &text(20, 29)[..], &[TURN_END]].concat();
        let readers: Vec<_> = (0..20u64)
            .map(|i| {
                let own = text(21 + i as u32, 10 + (i as usize * 37) % 200);
                let request = sampled([&system[..], &own].concat(), 20 + i as usize * 3, round * 100 + i);
                let generation = engine.submit(request.clone()).unwrap();
                std::thread::spawn(move || {
                    if i % 2 == 0 {
                        read_some(generation, ((i * 7 + round * 11) % 30) as usize);
                    } else {
                        assert_same(&read(generation), &request);
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        wait_until("all sequences to be closed", || controls.sequences.load(SeqCst) == 0);
        wait_until("the load to be told", || engine.load().running + engine.load().waiting == 0);
        assert_eq!(engine.load().state_bytes, controls.bytes());
        engine.shutdown(true);
        assert_eq!((controls.snapshots.load(SeqCst), controls.bytes()), (0, 0));
    }
}

#[test]
fn without_a_cache_all_memory_comes_back() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 0, ..config() });
    let generations: Vec<_> =
        (0..20).map(|i| engine.submit(sampled(text(20 + i, 90), 40, u64::from(i))).unwrap()).collect();
    for (i, generation) in generations.into_iter().enumerate() {
        read_some(generation, i * 3);
    }
    wait_until("all memory to come back", || controls.bytes() == 0 && engine.load().running == 0);
}

/// A request of a random schedule.
#[derive(Clone, Debug)]
struct Step {
    request: GenerationRequest,
    /// Goes away after so many events.
    leaves_after: Option<usize>,
    pause_micros: u64,
}

prop_compose! {
    fn steps()(
        // Prompts of few words share prefixes, and contain markers.
        words in prop::collection::vec(0usize..6, 1..14),
        max_tokens in 0usize..40,
        seed in 0u64..1000,
        leaves_after in prop::option::weighted(0.3, 0usize..20),
        pause_micros in 0u64..300,
        // Some that the host has to choose for, which may be beside others.
        logprobs in prop::option::weighted(0.15, 0usize..3),
        logit_bias in prop::collection::vec((0u32..VOCABULARY as u32, -3.0f32..3.0), 0..3),
    ) -> Step {
        let word = |w: usize| match w {
            0 => vec![TURN_END, 7],
            1 => HEADER.to_vec(),
            2 => text(30, 21),
            3 => text(31, 5),
            4 => text(32, 16),
            _ => vec![THINK, 7],
        };
        let prompt = words.into_iter().flat_map(word).collect();
        let mut request = GenerationRequest { logprobs, ..sampled(prompt, max_tokens, seed) };
        request.sampling.logit_bias = logit_bias;
        Step { request, leaves_after, pause_micros }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(90))]
    #[test]
    fn any_schedule_gives_each_request_its_own_answer(
        steps in prop::collection::vec(steps(), 1..14),
        parallel in 1usize..6,
        cache_memory in prop_oneof![Just(0usize), 500usize..30_000],
        state_memory in prop_oneof![Just(usize::MAX), 1_000usize..9_000],
        limit_bytes in prop_oneof![Just(0usize), 5_000usize..20_000],
        context_less in prop_oneof![3 => Just(0usize), 1 => Just(CONTEXT - 330)],
        on_host in prop::bool::weighted(0.25),
        delay_micros in prop_oneof![Just(0usize), Just(60)],
    ) {
        let (engine, controls) = engine(EngineConfig { parallel, cache_memory, state_memory, ..config() });
        // The largest request alone needs 1000 + 330 / 8 pages of 80, less than 5000.
        controls.limit_bytes.store(limit_bytes, SeqCst);
        controls.on_host.store(on_host, SeqCst);
        controls.delay_micros.store(delay_micros, SeqCst);
        controls.context_less.store(context_less, SeqCst);
        let mut readers = Vec::new();
        for step in steps {
            std::thread::sleep(Duration::from_micros(step.pause_micros));
            let generation = engine.submit(step.request.clone()).unwrap();
            readers.push(std::thread::spawn(move || match step.leaves_after {
                Some(events) => read_some(generation, events),
                None => {
                    let answer = read(generation);
                    let (tokens, _) = expected(&step.request);
                    if context_less == 0 || step.request.prompt.len() + tokens.len() <= CONTEXT - context_less {
                        assert_same(&answer, &step.request);
                    } else if matches!(answer.end, Some(Ok(_))) {
                        // The device's window is the smaller one.
                        assert_eq!(answer.tokens, tokens[..answer.tokens.len()]);
                        assert_eq!(step.request.prompt.len() + answer.tokens.len(), CONTEXT - context_less + 1);
                    }
                }
            }));
        }
        for reader in readers {
            prop_assert!(reader.join().is_ok());
        }
        wait_until("all sequences to be closed", || controls.sequences.load(SeqCst) == 0);
        prop_assert!(controls.bytes() <= cache_memory, "{} of {} bytes", controls.bytes(), cache_memory);
        engine.shutdown(true);
        prop_assert_eq!(controls.bytes(), 0);
        prop_assert_eq!(controls.given_up.load(SeqCst), 0);
    }
}
