//! Faults of the device, full queues, and the end of an engine.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use lily_engine::EngineConfig;
use lily_protocol::{Engine, FinishReason, SubmitError};

use crate::fake::*;
use crate::helpers::*;

#[test]
fn a_failed_prefill_fails_its_request_only() {
    let (engine, controls) = engine(config());
    let asked = request(text(20, 100), 30);
    controls.allow(1);
    let good = engine.submit(asked.clone()).unwrap();
    let bad = engine.submit(request([&text(21, 20)[..], &[FAIL, 9]].concat(), 3)).unwrap();
    controls.open_gate();
    assert_eq!(read(bad).failure(), "the device failed: the fake was asked to");
    assert_same(&read(good), &asked);
    assert_eq!(controls.sequences.load(SeqCst), 0);
    check(&engine, &request(text(22, 20), 3));
}

#[test]
fn a_failed_decode_fails_its_rows_only() {
    let (engine, controls) = engine(EngineConfig { parallel: 5, ..config() });
    let (requests, generations) = five_at_a_step(&engine, &controls);
    controls.failing_decodes.store(1, SeqCst);
    controls.open_gate();
    let answers: Vec<_> = generations.into_iter().map(read).collect();
    let failed = answers.iter().filter(|a| a.end.as_ref().unwrap().is_err()).count();
    assert!((1..=ROWS).contains(&failed), "{failed} failed");
    for (answer, request) in answers.iter().zip(&requests) {
        if answer.end.as_ref().unwrap().is_ok() {
            assert_same(answer, request);
        }
    }
    assert_eq!(controls.sequences.load(SeqCst), 0);
}

#[test]
fn a_snapshot_that_cannot_be_restored_is_dropped_and_computed_again() {
    let (engine, controls) = engine(config());
    let asked = request(text(20, 60), 5);
    check(&engine, &asked);
    assert_eq!(controls.snapshots.load(SeqCst), 2);
    controls.failing_restores.store(1, SeqCst);
    assert_eq!(check(&engine, &asked).usage().cached_tokens, 32, "the next shorter one serves");
    controls.failing_restores.store(9, SeqCst);
    assert_eq!(check(&engine, &asked).usage().cached_tokens, 0);
    controls.failing_restores.store(0, SeqCst);
    assert_eq!(check(&engine, &asked).usage().cached_tokens, 48);
}

#[test]
fn a_smaller_window_of_the_device_ends_an_answer() {
    let (engine, controls) = engine(config());
    controls.context_less.store(CONTEXT - 50, SeqCst);
    let answer = run(&engine, &request(text(20, 40), 30));
    assert!(matches!(answer.end, Some(Ok((FinishReason::Length, _)))), "{:?}", answer.end);
    assert_eq!(answer.tokens, expected(&request(text(20, 40), 11)).0);
    let answer = run(&engine, &request(text(20, 60), 30));
    assert!(answer.failure().contains("do not fit its context of 50"), "{}", answer.failure());
}

#[test]
fn a_logit_that_is_no_number_fails_its_request_only() {
    let (engine, _) = engine(config());
    let answer = run(&engine, &request([&text(21, 20)[..], &[NAN]].concat(), 3));
    assert!(answer.failure().contains("logit NaN for token 3"), "{}", answer.failure());
    check(&engine, &request(text(22, 20), 3));
}

#[test]
fn a_panic_fails_everybody_and_closes_the_engine() {
    let (engine, controls) = engine(EngineConfig { parallel: 2, ..config() });
    controls.allow(0);
    let prompts = [text(20, 100), [&text(21, 5)[..], &[PANIC]].concat(), text(22, 30)];
    let generations: Vec<_> =
        prompts.map(|prompt| engine.submit(request(prompt, 5)).unwrap()).into_iter().collect();
    controls.open_gate();
    for generation in generations {
        let answer = read(generation);
        assert!(answer.failure().contains("the fake was asked to panic"), "{}", answer.failure());
    }
    wait_until("the engine to close", || !engine.is_open());
    assert_eq!(refusal(&engine, request(text(23, 5), 5)), SubmitError::ShuttingDown);
    engine.shutdown(true);
    assert_eq!(engine.load(), Default::default());
    assert_eq!(controls.bytes(), 0);
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let (engine, controls) = engine(EngineConfig { parallel: 2, queue: 3, ..config() });
    controls.allow(0);
    let taken: Vec<_> = (0..5).map(|i| engine.submit(request(text(20 + i, 10), 5)).unwrap()).collect();
    controls.wait_for_arrivals(1);
    wait_until("two to run", || engine.load().running == 2 || engine.load().waiting == 5);
    let SubmitError::QueueFull { retry_after_seconds, .. } = refusal(&engine, request(text(30, 10), 5))
    else {
        panic!("not the queue");
    };
    assert!((1..=120).contains(&retry_after_seconds));
    controls.open_gate();
    taken.into_iter().for_each(|generation| assert_eq!(read(generation).tokens.len(), 5));
    check(&engine, &request(text(30, 10), 5));
    assert_eq!((engine.load().running, engine.load().waiting), (0, 0));
}

#[test]
fn cancelled_waiting_requests_free_their_places() {
    let (engine, controls) = engine(EngineConfig { parallel: 1, queue: 2, ..config() });
    controls.allow(0);
    let first = engine.submit(request(text(20, 100), 5)).unwrap();
    controls.wait_for_arrivals(1);
    let waiting: Vec<_> = (0..2).map(|i| engine.submit(request(text(21 + i, 10), 5)).unwrap()).collect();
    assert!(matches!(refusal(&engine, request(text(30, 10), 5)), SubmitError::QueueFull { .. }));
    drop(waiting);
    controls.allow(1);
    controls.wait_for_arrivals(2);
    let late = engine.submit(request(text(30, 10), 5)).unwrap();
    controls.open_gate();
    read(first);
    assert_eq!(read(late).tokens.len(), 5);
}

#[test]
fn draining_finishes_what_was_taken() {
    let (engine, controls) = engine(EngineConfig { parallel: 2, ..config() });
    controls.allow(0);
    let requests: Vec<_> = (0..6).map(|i| request(text(20 + i, 40), 10)).collect();
    let generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let engine = Arc::new(engine);
    let draining = std::thread::spawn({
        let engine = engine.clone();
        move || engine.shutdown(true)
    });
    wait_until("the engine to close", || !engine.is_open());
    assert_eq!(refusal(&engine, request(text(30, 10), 5)), SubmitError::ShuttingDown);
    controls.open_gate();
    for (generation, request) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), request);
    }
    draining.join().unwrap();
    assert_eq!(controls.bytes(), 0);
}

#[test]
fn a_drain_can_be_hurried() {
    let (engine, controls) = engine(config());
    controls.delay_micros.store(20_000, SeqCst);
    let engine = Arc::new(engine);
    let generations: Vec<_> =
        (0..6).map(|i| engine.submit(request(text(20 + i, 900), 100)).unwrap()).collect();
    let draining = std::thread::spawn({
        let engine = engine.clone();
        move || engine.shutdown(true)
    });
    wait_until("the engine to close", || !engine.is_open());
    engine.shutdown(false);
    draining.join().unwrap();
    for generation in generations {
        assert_eq!(read(generation).failure(), "the engine is shutting down");
    }
    assert_eq!(controls.bytes(), 0);
}

#[test]
fn dropping_the_engine_ends_its_thread() {
    let (engine, controls) = engine(config());
    controls.delay_micros.store(20_000, SeqCst);
    let generation = engine.submit(request(text(20, 900), 100)).unwrap();
    drop(engine);
    assert_eq!(read(generation).failure(), "the engine is shutting down");
    assert_eq!(Arc::strong_count(&controls.0), 1, "the model is freed");
}
