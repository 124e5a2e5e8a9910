//! A model that nobody asks for is let go, and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use lily_engine::{LocalEngine, Renewal, start_with};
use lily_model::Forward;
use lily_protocol::Engine;

use crate::fake::*;
use crate::helpers::*;

const AFTER: Duration = Duration::from_millis(150);

/// A model made again, or what is said instead.
type Made = Result<Box<dyn Forward>, String>;

/// An engine that sleeps, and how often its model was made again. `made` says what the n-th time gives.
fn sleeper(made: fn(usize, Arc<Controls>) -> Made) -> (LocalEngine, Handle, Arc<AtomicUsize>) {
    let (controls, count) = (Arc::new(Controls::default()), Arc::new(AtomicUsize::new(0)));
    let make = {
        let (controls, count) = (controls.clone(), count.clone());
        Box::new(move || made(count.fetch_add(1, SeqCst), controls.clone()))
    };
    let fake = Box::new(Fake::new(controls.clone()));
    let engine = start_with(config(), fake, Some(Renewal { idle: Some(AFTER), make })).unwrap();
    (engine, Handle(controls), count)
}

fn again(_: usize, controls: Arc<Controls>) -> Made {
    Ok(Box::new(Fake::new(controls)))
}

fn falls_asleep(engine: &LocalEngine) -> Duration {
    let started = Instant::now();
    while !engine.load().asleep {
        assert!(started.elapsed() < Duration::from_secs(10), "it never sleeps");
        // looking does not keep it awake
        assert!(engine.limits().context == CONTEXT && engine.is_open());
        std::thread::sleep(Duration::from_millis(1));
    }
    started.elapsed()
}

#[test]
fn a_model_that_nobody_asks_is_let_go_and_comes_back_with_the_next_request() {
    let (engine, handle, count) = sleeper(again);
    let prompt = request(text(11, 100), 20);
    check(&engine, &prompt);
    assert!(!engine.load().asleep);
    let slept_after = falls_asleep(&engine);
    assert!(slept_after >= AFTER / 2, "{slept_after:?}");
    assert_eq!((engine.load().state_bytes, count.load(SeqCst)), (0, 0));
    assert_eq!((handle.0.snapshots.load(SeqCst), handle.0.pages.load(SeqCst)), (0, 0), "all memory is free");
    std::thread::sleep(AFTER);
    assert_eq!(count.load(SeqCst), 0, "looking does not wake it");
    let answer = check(&engine, &prompt);
    assert_eq!((answer.usage().cached_tokens, count.load(SeqCst)), (0, 1));
    assert!(!engine.load().asleep);
    assert!(check(&engine, &prompt).usage().cached_tokens > 0, "awake, it remembers again");
    falls_asleep(&engine);
    engine.shutdown(true);
}

#[test]
fn many_requests_wake_it_once() {
    let (engine, _, count) = sleeper(again);
    falls_asleep(&engine);
    let prompts: Vec<_> = (0..10).map(|n| request(text(20 + n, 40), 10)).collect();
    let running: Vec<_> = prompts.iter().map(|prompt| engine.submit(prompt.clone()).unwrap()).collect();
    for (generation, prompt) in running.into_iter().zip(&prompts) {
        assert_same(&read(generation), prompt);
    }
    assert_eq!((count.load(SeqCst), engine.load().running), (1, 0));
}

#[test]
fn a_model_that_does_not_come_back_fails_its_requests_and_not_the_engine() {
    let (engine, _, count) = sleeper(|time, controls| match time {
        0 => Err("the folder is gone".into()),
        1 => panic!("a fault of the loader"),
        _ => again(time, controls),
    });
    falls_asleep(&engine);
    let prompt = request(text(11, 10), 3);
    for said in ["the folder is gone", "a fault of the loader"] {
        let failure = run(&engine, &prompt);
        assert!(failure.failure().contains(said), "{}", failure.failure());
        assert!(engine.load().asleep || count.load(SeqCst) == 1);
    }
    check(&engine, &prompt);
    assert_eq!((count.load(SeqCst), engine.load().waiting), (3, 0));
}

#[test]
fn a_sleeping_engine_ends() {
    let (engine, _, count) = sleeper(again);
    falls_asleep(&engine);
    drop(engine.submit(request(text(11, 10), 3)).unwrap());
    engine.shutdown(true);
    assert!(count.load(SeqCst) <= 1 && !engine.is_open());
}
