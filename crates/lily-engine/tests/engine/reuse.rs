//! Prefix reuse: what is recomputed, what is kept, and that no result changes.

use std::sync::atomic::Ordering::SeqCst;

use lily_engine::EngineConfig;
use lily_protocol::Engine;

use crate::fake::*;
use crate::helpers::*;

/// A user's turn, and the header of the answer to it.
fn turn(message: &[u32]) -> Vec<u32> {
    [&[6], message, &[TURN_END, 7], &HEADER].concat()
}

#[test]
fn the_second_turn_of_a_thinking_chat_recomputes_nothing_before_the_first_answer() {
    let (engine, controls) = engine(config());
    let head = [&[8], &text(20, 29)[..], &[TURN_END, 7], &turn(&text(21, 45))].concat();
    let first = [&head[..], &[THINK, 7]].concat();
    check(&engine, &request(first.clone(), 30));
    assert_eq!(controls.prefilled_tokens(), first.len());
    // The template drops the reasoning: the next prompt parts from the first right after the header.
    let second = [&head[..], &text(22, 7), &[TURN_END, 7], &turn(&text(23, 9)), &[THINK, 7]].concat();
    let answer = check(&engine, &request(second.clone(), 30));
    assert_eq!(answer.usage().cached_tokens, head.len());
    assert_eq!(answer.progress[0], (head.len(), head.len()));
    assert_eq!(controls.prefilled_tokens(), first.len() + second.len() - head.len());
}

#[test]
fn a_repeated_prompt_computes_the_last_piece_only() {
    let (engine, _) = engine(config());
    for (length, reused) in [(5, 0), (16, 0), (17, 16), (33, 32), (48, 32)] {
        let asked = request(text(30 + length as u32, length), 6);
        assert_eq!(check(&engine, &asked).usage().cached_tokens, 0);
        assert_eq!(check(&engine, &asked).usage().cached_tokens, reused, "{length} tokens");
    }
}

#[test]
fn a_prompt_that_parts_inside_a_piece_reuses_up_to_the_cut_before() {
    let (engine, _) = engine(config());
    check(&engine, &request(text(30, 60), 6));
    let mut other = text(30, 60);
    other[40] = 9;
    assert_eq!(check(&engine, &request(other, 6)).usage().cached_tokens, 32);
}

#[test]
fn another_chat_reuses_the_system_prompt() {
    let (engine, _) = engine(config());
    let system = [&[8], &text(20, 29)[..], &[TURN_END]].concat();
    for (message, cached) in [(40, 0), (41, system.len()), (42, system.len())] {
        let prompt = [&system[..], &[7], &turn(&text(message, 50)), &[THINK, 7]].concat();
        assert_eq!(check(&engine, &request(prompt, 6)).usage().cached_tokens, cached);
    }
}

#[test]
fn without_cache_memory_nothing_is_kept() {
    let (engine, controls) = engine(EngineConfig { cache_memory: 0, ..config() });
    for _ in 0..2 {
        assert_eq!(check(&engine, &request(text(30, 60), 6)).usage().cached_tokens, 0);
    }
    assert_eq!(controls.snapshots.load(SeqCst), 0);
    assert_eq!(controls.bytes(), 0);
}

#[test]
fn a_long_prompt_does_not_snapshot_every_chunk() {
    let (engine, controls) = engine(config());
    check(&engine, &request(text(30, 40 * CHUNK + 3), 1));
    // The last two multiples and every sixteenth.
    assert_eq!(controls.snapshots.load(SeqCst), 4);
}

#[test]
fn the_cache_stays_within_its_bytes() {
    let budget = 12 * COPY_BYTES;
    let (engine, controls) = engine(EngineConfig { cache_memory: budget, ..config() });
    for first in 20..60 {
        check(&engine, &request(text(first, 20 + first as usize * 3), 4));
        assert!(controls.bytes() <= budget, "{} bytes after prompt {first}", controls.bytes());
    }
    assert!(controls.bytes() > budget / 2, "the budget is used: {} bytes", controls.bytes());
    assert_eq!(engine.load().state_bytes, controls.bytes());
    // The newest is still there, the oldest is not.
    assert!(check(&engine, &request(text(59, 20 + 59 * 3), 4)).usage().cached_tokens > 0);
    assert_eq!(check(&engine, &request(text(20, 20 + 20 * 3), 4)).usage().cached_tokens, 0);
}

#[test]
fn a_budget_below_one_snapshot_keeps_none() {
    let (engine, controls) = engine(EngineConfig { cache_memory: COPY_BYTES / 2, ..config() });
    for _ in 0..3 {
        check(&engine, &request(text(30, 60), 6));
    }
    assert_eq!(controls.bytes(), 0);
    assert_eq!(controls.taken.load(SeqCst), 1, "the first one tells what each would take");
}

#[test]
fn a_prompt_larger_than_the_cache_does_not_stay_in_it_while_it_runs() {
    // 800 tokens are 8000 bytes of pages.
    let (engine, controls) = engine(EngineConfig { cache_memory: 5_000, ..config() });
    let pieces = 800 / CHUNK;
    controls.allow(pieces);
    let generation = engine.submit(request(text(30, 800), 5)).unwrap();
    controls.wait_for_arrivals(pieces + 1);
    assert_eq!(controls.snapshots.load(SeqCst), 0);
    controls.open_gate();
    read(generation);
}

#[test]
fn what_the_device_really_holds_bounds_an_idle_cache() {
    let budget = 12 * COPY_BYTES;
    let (engine, controls) = engine(EngineConfig { cache_memory: budget, ..config() });
    controls.overhead_bytes.store(COPY_BYTES, SeqCst);
    for first in 20..40 {
        check(&engine, &request(text(first, 60), 4));
        assert!(controls.bytes() <= budget, "{} bytes after prompt {first}", controls.bytes());
    }
}

#[test]
fn of_requests_that_arrive_together_one_computes_what_they_share() {
    let (engine, controls) = engine(config());
    let system = [&[8], &text(20, 100)[..], &[TURN_END]].concat();
    let requests: Vec<_> = (0..4).map(|i| request([&system[..], &text(60 + i, 5)].concat(), 6)).collect();
    controls.allow(0);
    let generations: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    controls.open_gate();
    for (generation, request) in generations.into_iter().zip(&requests) {
        assert_same(&read(generation), request);
    }
    let separately = 4 * (system.len() + 5);
    let computed = controls.prefilled_tokens();
    assert!(computed < separately / 2, "{computed} of {separately} tokens");
}

#[test]
fn a_cancelled_prompt_leaves_its_finished_cuts() {
    let (engine, controls) = engine(config());
    let prompt = [&[8], &text(20, 29)[..], &[TURN_END], &text(24, 200)].concat();
    controls.allow(6);
    let generation = engine.submit(request(prompt.clone(), 5)).unwrap();
    controls.wait_for_arrivals(7);
    drop(generation);
    controls.open_gate();
    wait_until("the sequence to be freed", || controls.sequences.load(SeqCst) == 0);
    assert_eq!(check(&engine, &request(prompt, 5)).usage().cached_tokens, 31);
}

#[test]
fn shutting_down_frees_the_cache() {
    let (engine, controls) = engine(config());
    check(&engine, &request(text(30, 60), 6));
    assert!(controls.bytes() > 0);
    engine.shutdown(true);
    assert_eq!(controls.bytes(), 0);
    assert_eq!(engine.load().state_bytes, 0);
}
