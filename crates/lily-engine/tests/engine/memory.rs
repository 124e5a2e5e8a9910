//! Short memory: the cache gives way, requests wait, the youngest steps back, and no result changes.

use std::sync::atomic::Ordering::SeqCst;

use lily_engine::EngineConfig;
use lily_protocol::{Engine, GenerationRequest};

use crate::fake::*;
use crate::helpers::*;

fn together(engine: &lily_engine::LocalEngine, controls: &Controls, requests: &[GenerationRequest]) {
    controls.allow(0);
    let generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    controls.open_gate();
    for (generation, request) in generations.into_iter().zip(requests) {
        assert_same(&read(generation), request);
    }
    assert_eq!(controls.sequences.load(SeqCst), 0);
}

#[test]
fn the_cache_gives_way_to_a_request() {
    let (engine, controls) = engine(config());
    for first in 20..26 {
        check(&engine, &request(text(first, 60), 3));
    }
    assert!(controls.bytes() > 12_000);
    // 300 tokens need 38 pages and a state.
    controls.limit_bytes.store(5_000, SeqCst);
    check(&engine, &request(text(30, 300), 3));
}

#[test]
fn a_request_waits_until_another_has_freed_its_memory() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 0, ..config() });
    // Each needs 1000 + 25 pages of 80: room for one, and for a second one's start.
    controls.limit_bytes.store(4_600, SeqCst);
    let requests: Vec<_> = (20..26).map(|first| request(text(first, 150), 50)).collect();
    together(&engine, &controls, &requests);
    assert_eq!(controls.bytes(), 0);
}

#[test]
fn a_prompt_that_stalled_goes_on_where_it_was() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 0, ..config() });
    // Two states, the three pages of the first request, six of the second one's thirteen.
    controls.limit_bytes.store(2 * COPY_BYTES + 9 * PAGE_BYTES, SeqCst);
    let requests = [request(text(20, 17), 7), request(text(21, 100), 3)];
    controls.allow(2);
    let first = engine.submit(requests[0].clone()).unwrap();
    controls.wait_for_arrivals(3);
    let second = engine.submit(requests[1].clone()).unwrap();
    controls.open_gate();
    assert_same(&read(first), &requests[0]);
    assert_same(&read(second), &requests[1]);
    assert_eq!(controls.prefilled_tokens(), 117, "nothing was computed twice");
}

#[test]
fn answers_that_outgrow_the_memory_are_repeated_and_do_not_change() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 0, ..config() });
    // All four start; none could finish beside the others.
    controls.limit_bytes.store(6_500, SeqCst);
    let requests: Vec<_> = (20..24).map(|first| request(text(first, 20), 200)).collect();
    together(&engine, &controls, &requests);
    let repeated = controls.prefilled_tokens() - 4 * 20;
    assert!(repeated > 0, "somebody had to step back");
    let calls = controls.calls.lock().unwrap();
    let of_oldest = calls.iter().filter(|call| matches!(call, Call::Prefill(20, _))).count();
    assert_eq!(of_oldest, 2, "the oldest never steps back");
}

#[test]
fn a_request_too_large_for_the_device_fails_with_its_sentence() {
    let (engine, controls) = engine(config());
    controls.limit_bytes.store(3_000, SeqCst);
    let answer = run(&engine, &request(text(30, 500), 3));
    assert!(answer.failure().starts_with("KV pages needs 160 bytes"), "{}", answer.failure());
    assert_eq!(controls.sequences.load(SeqCst), 0);
    check(&engine, &request(text(31, 50), 3));
    controls.limit_bytes.store(10, SeqCst);
    let answer = run(&engine, &request(text(30, 5), 3));
    assert!(answer.failure().starts_with("a sequence needs 1000 bytes"), "{}", answer.failure());
}

#[test]
fn a_large_request_does_not_take_the_small_ones_with_it() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 0, ..config() });
    controls.limit_bytes.store(5_000, SeqCst);
    controls.allow(0);
    let large = engine.submit(request(text(30, 900), 3)).unwrap();
    let small: Vec<_> = (20..24).map(|first| request(text(first, 30), 20)).collect();
    let generations: Vec<_> = small.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    controls.open_gate();
    for (generation, request) in generations.into_iter().zip(&small) {
        assert_same(&read(generation), request);
    }
    assert!(read(large).failure().contains("bytes are left"));
    assert_eq!(controls.bytes(), 0);
}

#[test]
fn the_state_budget_bounds_what_lives_together() {
    let (engine, controls) =
        engine(EngineConfig { cache_memory: 0, state_memory: 5_000, parallel: 8, ..config() });
    // The first request teaches what a token costs.
    check(&engine, &request(text(19, 100), 2));
    controls.delay_micros.store(200, SeqCst);
    let requests: Vec<_> = (20..28).map(|first| request(text(first, 100), 20)).collect();
    let generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let mut most = 0;
    while engine.load().running + engine.load().waiting > 0 {
        most = most.max(controls.bytes());
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    for (generation, request) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), request);
    }
    assert!(most > 2_500, "two fit: {most}");
    assert!(most <= 5_000, "{most} bytes");
    assert_eq!(controls.prefilled_tokens(), 9 * 100, "nobody was admitted only to step back");
}

#[test]
fn one_request_is_tried_whatever_the_budget() {
    let (engine, _) = engine(EngineConfig { cache_memory: 0, state_memory: 0, ..config() });
    check(&engine, &request(text(20, 100), 20));
}

#[test]
fn live_state_may_take_the_bytes_of_the_cache() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 8_000, state_memory: 3_000, ..config() });
    for first in 20..26 {
        check(&engine, &request(text(first, 60), 3));
    }
    assert!(controls.bytes() > 6_000);
    let most = std::sync::atomic::AtomicUsize::new(0);
    let asked = request(text(30, 600), 40);
    let mut generation = engine.submit(asked).unwrap();
    while generation.next_blocking().is_some() {
        most.fetch_max(controls.bytes(), SeqCst);
    }
    assert!(most.load(SeqCst) <= 11_000 + 2 * PAGE_BYTES, "{most:?} bytes");
}
