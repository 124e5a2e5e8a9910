//! Who waits for whom: the order of calls into the model.

use std::sync::atomic::Ordering::SeqCst;

use lily_engine::EngineConfig;
use lily_protocol::Engine;

use crate::fake::*;
use crate::helpers::*;

/// Calls before the first one that belongs to the sequence that starts with `first`.
fn calls_before(calls: &[Call], first: u32) -> usize {
    calls.iter().position(|call| matches!(call, Call::Prefill(f, _) if *f == first)).unwrap()
}

#[test]
fn a_short_request_gets_its_first_token_within_two_chunks_of_a_long_prefill() {
    // A chat prompt of 20 tokens has several cuts; all of its pieces are one turn.
    let short = [&[71], &text(22, 4)[..], &[TURN_END, 7, 6, 9, TURN_END], &HEADER, &text(23, 7)].concat();
    assert_eq!(short.len(), 20);
    for before in 1..6 {
        let (engine, controls) = engine(EngineConfig { chunk: 32, ..config() });
        controls.allow(before);
        let long = engine.submit(request(text(70, 800), 2)).unwrap();
        controls.wait_for_arrivals(before + 1);
        // The long prompt's next chunk is being computed when the short one arrives.
        let mut generation = engine.submit(request(short.clone(), 1)).unwrap();
        controls.open_gate();
        while generation.next_blocking().is_some() {}
        let calls = controls.calls.lock().unwrap().clone();
        let own = calls.iter().rposition(|call| matches!(call, Call::Prefill(71, _))).unwrap();
        let long_chunks =
            calls[before..own].iter().filter(|call| matches!(call, Call::Prefill(70, _))).count();
        assert!(long_chunks <= 2, "{long_chunks} chunks of the long prompt came first");
        drop(long);
    }
}

#[test]
fn short_requests_pass_several_long_ones() {
    let (engine, controls) = engine(config());
    controls.allow(9);
    let _long: Vec<_> = (70..73).map(|first| engine.submit(request(text(first, 800), 2)).unwrap()).collect();
    controls.wait_for_arrivals(10);
    let short = engine.submit(request(text(74, 15), 1)).unwrap();
    controls.open_gate();
    read(short);
    let before = calls_before(&controls.calls.lock().unwrap(), 74);
    assert!(before <= 11, "{before} calls, 10 of them made or begun when it came");
}

#[test]
fn an_answer_advances_between_the_chunks_of_another_prompt() {
    let (engine, controls) = engine(config());
    controls.allow(1);
    let writing = engine.submit(request(text(60, 10), 40)).unwrap();
    controls.wait_for_arrivals(2);
    let long = engine.submit(request(text(61, 300), 1)).unwrap();
    controls.open_gate();
    read(writing);
    read(long);
    let calls = controls.calls.lock().unwrap();
    let start = calls_before(&calls, 61);
    for pair in calls[start..start + 30].windows(2) {
        let kinds = pair.iter().filter(|call| matches!(call, Call::Decode(_))).count();
        assert_eq!(kinds, 1, "prefill and decode alternate: {pair:?}");
    }
}

#[test]
fn answers_are_decoded_in_batches() {
    let (engine, controls) = engine(EngineConfig { parallel: 5, ..config() });
    let requests: Vec<_> = (0..5).map(|i| request(text(20 + i, 10), 30)).collect();
    controls.allow(0);
    let generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    controls.open_gate();
    for (generation, request) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), request);
    }
    let calls = controls.calls.lock().unwrap();
    let rows: Vec<_> =
        calls.iter().filter_map(|c| if let Call::Decode(n) = c { Some(*n) } else { None }).collect();
    assert_eq!(rows.iter().sum::<usize>(), 5 * 29);
    assert!(rows.len() <= 2 * 34, "{} decode calls", rows.len());
}

#[test]
fn no_more_than_parallel_sequences_are_open() {
    let (engine, controls) = engine(EngineConfig { parallel: 2, ..config() });
    controls.allow(0);
    let generations: Vec<_> = (0..6).map(|i| engine.submit(request(text(20 + i, 40), 10)).unwrap()).collect();
    controls.wait_for_arrivals(1);
    wait_until("the load to be told", || engine.load().running <= 2);
    controls.open_gate();
    for generation in generations {
        assert!(controls.sequences.load(SeqCst) <= 2);
        assert_eq!(read(generation).tokens.len(), 10);
    }
    assert_eq!(controls.sequences.load(SeqCst), 0);
}

#[test]
fn a_cancelled_request_stops_between_chunks() {
    let (engine, controls) = engine(config());
    controls.allow(3);
    let generation = engine.submit(request(text(40, 800), 5)).unwrap();
    controls.wait_for_arrivals(4);
    drop(generation);
    controls.open_gate();
    wait_until("the sequence to be freed", || controls.sequences.load(SeqCst) == 0);
    assert_eq!(controls.calls.lock().unwrap().len(), 4);
}

#[test]
fn a_cancelled_request_stops_between_the_pieces_of_a_turn() {
    let (engine, controls) = engine(config());
    controls.allow(1);
    let generation = engine.submit(request([9, TURN_END].repeat(7), 5)).unwrap();
    controls.wait_for_arrivals(2);
    drop(generation);
    controls.open_gate();
    wait_until("the sequence to be freed", || controls.sequences.load(SeqCst) == 0);
    assert_eq!(*controls.calls.lock().unwrap(), [Call::Prefill(9, 2), Call::Prefill(9, 2)]);
}

#[test]
fn a_cancelled_request_is_left_out_of_the_next_batch_of_the_same_step() {
    let (engine, controls) = engine(config());
    controls.allow(0);
    let mut generations: Vec<_> =
        (0..4).map(|i| engine.submit(request(text(20 + i, 10), 30)).unwrap()).collect();
    // Four prompts, and decode steps of 1, 2, 3 rows between them; then a batch of three, before one of the fourth.
    controls.allow(7);
    controls.wait_for_arrivals(8);
    drop(generations.pop());
    controls.open_gate();
    generations.into_iter().for_each(|generation| assert_eq!(read(generation).tokens.len(), 30));
    let calls = controls.calls.lock().unwrap();
    assert_eq!(calls[7..9], [Call::Decode(3), Call::Decode(3)]);
}

#[test]
fn answers_that_end_in_the_same_step_all_end() {
    let (engine, controls) = engine(config());
    controls.allow(0);
    // Each starts one token later than the one before it.
    let requests: Vec<_> = (0..3).map(|i| request(text(20 + i, 10), 30 - i as usize)).collect();
    let generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    controls.open_gate();
    for (generation, request) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), request);
    }
    assert_eq!(controls.calls.lock().unwrap().last(), Some(&Call::Decode(3)));
}

#[test]
fn a_cancelled_request_stops_between_tokens() {
    let (engine, controls) = engine(config());
    controls.allow(3);
    let generation = engine.submit(request(text(40, 10), 500)).unwrap();
    controls.wait_for_arrivals(4);
    drop(generation);
    controls.open_gate();
    wait_until("the sequence to be freed", || controls.sequences.load(SeqCst) == 0);
    assert_eq!(controls.calls.lock().unwrap().len(), 4);
}

#[test]
fn an_idle_engine_makes_no_calls_and_wakes_up() {
    let (engine, controls) = engine(config());
    check(&engine, &request(text(40, 10), 3));
    let calls = controls.calls.lock().unwrap().len();
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(controls.calls.lock().unwrap().len(), calls);
    check(&engine, &request(text(41, 10), 3));
}
