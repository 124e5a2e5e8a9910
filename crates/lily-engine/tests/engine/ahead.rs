//! Steps whose tokens the device chooses: when the next one is under way, and what becomes of it.

use std::sync::atomic::Ordering::SeqCst;

use lily_engine::EngineConfig;
use lily_protocol::{Engine, Event, FinishReason, GenerationRequest, Sampling};

use crate::fake::*;
use crate::helpers::*;

fn decodes(controls: &Controls) -> usize {
    controls.calls.lock().unwrap().iter().filter(|call| matches!(call, Call::Decode(_))).count()
}

#[test]
fn the_next_step_is_under_way_while_a_token_is_told() {
    let (engine, controls) = engine(config());
    check(&engine, &request(text(20, 16), 60));
    // The first token is the prompt's. The last step of a page, and of the answer, has nothing behind it.
    assert_eq!(decodes(&controls), 59, "no step runs too far where the end is known");
    assert_eq!(controls.ahead.load(SeqCst), 59 - 59usize.div_ceil(PAGE_TOKENS));
}

#[test]
fn a_token_is_told_while_the_next_is_computed() {
    let (engine, controls) = engine(config());
    controls.allow(3);
    let mut generation = engine.submit(request(text(20, 16), 60)).unwrap();
    // The prompt and two steps have run, and the third has not: the first step's token is there.
    controls.wait_for_arrivals(4);
    let mut told = 0;
    while told < 2 {
        told += usize::from(matches!(generation.next_blocking(), Some(Event::Tokens(_))));
    }
    controls.open_gate();
}

#[test]
fn a_device_that_chooses_no_tokens_gets_no_steps() {
    let (engine, controls) = engine(config());
    controls.on_host.store(true, SeqCst);
    check(&engine, &request(text(20, 16), 60));
    assert_eq!((decodes(&controls), controls.ahead.load(SeqCst)), (59, 0));
}

#[test]
fn who_wants_logits_is_served_by_the_host() {
    let (engine, controls) = engine(config());
    let asked = GenerationRequest { logprobs: Some(0), ..request(text(20, 16), 20) };
    check(&engine, &asked);
    let twice = Sampling { logit_bias: vec![(7, 1.0), (7, 1.0)], ..Sampling::greedy() };
    check(&engine, &GenerationRequest { sampling: twice, ..request(text(21, 16), 20) });
    assert_eq!(controls.ahead.load(SeqCst), 0);
}

#[test]
fn a_step_that_ran_too_far_leaves_no_trace() {
    // Requests that end by themselves at a token that nobody could know, beside one that goes on.
    let (engine, controls) = engine(config());
    let ends = (0..1000u64)
        .map(|seed| {
            let sampling = Sampling { temperature: 1.5, seed, ..Sampling::greedy() };
            GenerationRequest { sampling, ignore_end: false, ..request(text(20, 16), 300) }
        })
        .find(
            |asked| matches!(expected(asked), (tokens, FinishReason::Stop) if (4..9).contains(&tokens.len())),
        );
    let ends = ends.unwrap();
    let goes_on = request(text(31, 20), 100);
    controls.allow(0);
    let generations = [&goes_on, &ends].map(|asked| engine.submit(asked.clone()).unwrap());
    controls.open_gate();
    for (generation, asked) in generations.into_iter().zip([&goes_on, &ends]) {
        assert_same(&read(generation), asked);
    }
    assert!(controls.ahead.load(SeqCst) > 0);
    assert_eq!(controls.given_up.load(SeqCst), 0);
}

#[test]
fn nothing_is_under_way_ahead_of_a_prompt() {
    let (engine, controls) = engine(config());
    controls.allow(1);
    let writing = engine.submit(request(text(60, 10), 40)).unwrap();
    controls.wait_for_arrivals(2);
    let long = engine.submit(request(text(61, 300), 1)).unwrap();
    controls.open_gate();
    let (writing, long) = (read(writing), read(long));
    assert_eq!((writing.tokens.len(), long.tokens.len()), (40, 1));
    let calls = controls.calls.lock().unwrap();
    let first = calls.iter().position(|call| matches!(call, Call::Prefill(61, _))).unwrap();
    assert!(first <= 3, "the step at the gate, and one under way: {:?}", &calls[..first]);
}

#[test]
fn who_waits_for_a_place_does_not_stop_the_steps() {
    let (engine, controls) = engine(EngineConfig { parallel: 1, ..config() });
    controls.allow(0);
    let requests = [request(text(60, 16), 40), request(text(61, 16), 40)];
    let generations = requests.each_ref().map(|asked| engine.submit(asked.clone()).unwrap());
    controls.open_gate();
    for (generation, asked) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), asked);
    }
    assert_eq!(controls.ahead.load(SeqCst), 2 * (39 - 39usize.div_ceil(PAGE_TOKENS)));
}

/// Of five answers, more than a step has rows, and one that the host chooses for: each is what it is alone.
#[test]
fn more_than_a_step_has_rows_take_turns_and_nothing_is_ahead() {
    let (engine, controls) = engine(EngineConfig { parallel: 6, ..config() });
    controls.allow(0);
    let mut requests: Vec<_> = (0..6).map(|i| request(text(20 + i, 10), 30)).collect();
    requests[5].logprobs = Some(0);
    let generations: Vec<_> = requests.iter().map(|asked| engine.submit(asked.clone()).unwrap()).collect();
    controls.open_gate();
    for (generation, asked) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), asked);
    }
    let calls = controls.calls.lock().unwrap();
    let rows: Vec<_> =
        calls.iter().filter_map(|c| if let Call::Decode(n) = c { Some(*n) } else { None }).collect();
    assert_eq!(rows.iter().sum::<usize>(), 6 * 29);
    assert!(rows.windows(3).any(|steps| steps == [3, 2, 1]), "{rows:?}");
}

#[test]
fn a_failed_step_fails_its_rows_only() {
    for after in [1, 2, 3] {
        let (engine, controls) = engine(config());
        controls.allow(0);
        let generation = engine.submit(request(text(20, 16), 30)).unwrap();
        controls.allow(after);
        controls.wait_for_arrivals(after + 1);
        controls.failing_decodes.store(1, SeqCst);
        controls.open_gate();
        assert_eq!(read(generation).failure(), "the device failed: a decode was asked to");
        check(&engine, &request(text(21, 20), 10));
        assert_eq!(controls.sequences.load(SeqCst), 0);
    }
}
