//! A device that goes away: who was at work is told, who waits is answered on the next one.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use lily_engine::{EngineConfig, LocalEngine, Renewal, start, start_with};
use lily_model::Forward;
use lily_protocol::Engine;

use crate::fake::*;
use crate::helpers::*;

const SAID: &str = "the device is lost: the fake was asked to";

/// An engine whose model can be made again, and how often it was. The first `missing` times there is no device.
fn renewable(config: EngineConfig, missing: usize) -> (LocalEngine, Handle, Arc<AtomicUsize>) {
    let (controls, count) = (Arc::new(Controls::default()), Arc::new(AtomicUsize::new(0)));
    let make = {
        let (controls, count) = (controls.clone(), count.clone());
        Box::new(move || match count.fetch_add(1, SeqCst) {
            n if n < missing => Err("there is no device".to_owned()),
            _ => Ok(Box::new(Fake::new(controls.clone())) as Box<dyn Forward>),
        })
    };
    let fake = Box::new(Fake::new(controls.clone()));
    let engine = start_with(config, fake, Some(Renewal { idle: None, make })).unwrap();
    (engine, Handle(controls), count)
}

#[test]
fn a_lost_device_fails_who_was_at_work_and_the_rest_is_answered_on_the_next() {
    let (engine, controls, count) = renewable(EngineConfig { parallel: 2, ..config() }, 0);
    let asked = request(text(20, 60), 5);
    check(&engine, &asked);
    assert!(check(&engine, &asked).usage().cached_tokens > 0 && controls.snapshots.load(SeqCst) > 0);
    controls.allow(0);
    let at_work = engine.submit(request(text(21, 60), 30)).unwrap();
    let fatal = engine.submit(request([&text(22, 20)[..], &[LOSE, 9]].concat(), 3)).unwrap();
    let waits = engine.submit(asked.clone()).unwrap();
    controls.open_gate();
    assert_eq!((read(fatal).failure(), read(at_work).failure()), (SAID, SAID));
    let answer = read(waits);
    assert_same(&answer, &asked);
    assert_eq!((answer.usage().cached_tokens, count.load(SeqCst)), (0, 1), "nothing of the old one is used");
    assert!(check(&engine, &asked).usage().cached_tokens > 0);
    let load = engine.load();
    assert_eq!((load.running, load.waiting, load.asleep, controls.sequences.load(SeqCst)), (0, 0, false, 0));
}

/// Steps under way, whoever chooses their tokens.
#[test]
fn a_device_that_is_lost_in_a_step_fails_its_rows_and_others_at_work() {
    for on_host in [false, true] {
        let (engine, controls, count) = renewable(EngineConfig { parallel: 5, ..config() }, 0);
        controls.on_host.store(on_host, SeqCst);
        let (requests, generations) = five_at_a_step(&engine, &controls);
        controls.losing_steps.store(1, SeqCst);
        controls.open_gate();
        for generation in generations {
            assert_eq!(read(generation).failure(), SAID, "on host: {on_host}");
        }
        check(&engine, &requests[0]);
        assert_eq!(count.load(SeqCst), 1);
    }
}

/// With nobody left there is no hurry: a machine that wakes up may have its device back a little later.
#[test]
fn a_device_that_stays_away_fails_one_request_at_a_time() {
    let (engine, controls, count) = renewable(config(), 2);
    let failed = run(&engine, &request(vec![20, LOSE], 3));
    assert_eq!(failed.failure(), SAID);
    wait_until("the model is gone", || engine.load().asleep);
    assert_eq!((count.load(SeqCst), controls.sequences.load(SeqCst), engine.load().state_bytes), (0, 0, 0));
    let asked = request(text(23, 20), 3);
    for _ in 0..2 {
        let failure = run(&engine, &asked);
        assert!(failure.failure().contains("there is no device"), "{}", failure.failure());
    }
    check(&engine, &asked);
    assert_eq!(count.load(SeqCst), 3);
}

/// Whoever cannot make another one goes on saying so.
#[test]
fn without_a_renewal_every_request_is_told() {
    let controls = Arc::new(Controls::default());
    let engine = start(config(), Box::new(Fake::new(controls.clone()))).unwrap();
    for prompt in [vec![20, LOSE], text(21, 20), text(22, 20)] {
        assert_eq!(run(&engine, &request(prompt, 3)).failure(), SAID);
    }
    assert!(engine.is_open());
}
