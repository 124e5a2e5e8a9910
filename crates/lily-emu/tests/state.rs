//! The books of state: what sequences and snapshots take, what they share, and that a refusal changes nothing.
#![allow(clippy::unwrap_used)] // failures of a test

use std::sync::Arc;

use lily_emu::{EmuDevice, EmuOptions};
use lily_kernels::Activation;
use lily_kernels::random::Random;
use lily_model::device::{Device, Room, StatePart, TensorSource};
use lily_model::plan::Profile;
use lily_model::testing::Spec;
use lily_model::{DeviceError, LayerKind, Packing, SequenceId, SnapshotId, TensorId};

/// Tokens of a page.
const PAGE: usize = 64;

struct Nothing;

impl TensorSource for Nothing {
    fn bytes(&self, _: TensorId) -> &[u8] {
        &[]
    }
}

/// Bytes of recurrent states (a sequence has two, a snapshot one) and of pages.
fn bytes(activation: Activation, states: usize, pages: usize) -> usize {
    let g = Spec::tiny().geometry;
    states * g.recurrent_state_bytes() + pages * PAGE * g.kv_bytes_per_token(activation.bytes())
}

/// A device whose states may take so many recurrent states and pages, and not a byte more.
fn device(activation: Activation, states: usize, pages: usize) -> EmuDevice {
    let state_bytes = bytes(activation, states, pages);
    let options = EmuOptions {
        profile: Profile::emulator().with_activation(activation),
        threads: Some(1),
        seed: 0,
        state_bytes,
    };
    EmuDevice::new(&Spec::tiny().geometry, Arc::new(Nothing), Packing::default(), &options).unwrap()
}

fn refused(result: Result<(), DeviceError>) -> (usize, usize) {
    match result {
        Err(DeviceError::OutOfMemory { need_bytes, left_bytes, .. }) => (need_bytes, left_bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sequence_takes_two_states_and_whole_pages() {
    for activation in Activation::ALL {
        let mut device = device(activation, 4, 10);
        let sequence = device.open().unwrap();
        assert_eq!(device.state_bytes(), bytes(activation, 2, 0));
        for (from, to, pages) in [(0, 1, 1), (1, PAGE, 1), (PAGE, PAGE + 1, 2), (PAGE + 1, 3 * PAGE, 3)] {
            device.reserve(&[Room { sequence, from, to }]).unwrap();
            assert_eq!(device.state_bytes(), bytes(activation, 2, pages), "{to} tokens");
        }
        let zero = |part| device.state(sequence, part).unwrap().iter().all(|v| *v == 0.0);
        for (layer, kind) in Spec::tiny().geometry.layers.into_iter().enumerate() {
            match kind {
                LayerKind::Delta => {
                    assert!(zero(StatePart::Delta { layer }) && zero(StatePart::Conv { layer }))
                }
                LayerKind::Attention => assert!(device.state(sequence, StatePart::Delta { layer }).is_err()),
            }
        }
        device.close(sequence);
        device.close(sequence);
        assert_eq!(device.state_bytes(), 0);
    }
}

/// The first write behind a snapshot copies the page that is half full, and only that one; the last holder keeps it.
#[test]
fn pages_are_shared_until_somebody_writes() {
    let activation = Activation::Bf16;
    let mut device = device(activation, 20, 20);
    let taken = |states, pages| bytes(activation, states, pages);
    let first = device.open().unwrap();
    device.reserve(&[Room { sequence: first, from: 0, to: PAGE + 6 }]).unwrap();
    let snapshot = device.snapshot(first, PAGE + 6).unwrap();
    assert_eq!((device.state_bytes(), device.snapshot_bytes(snapshot)), (taken(3, 2), taken(1, 0)));
    device.reserve(&[Room { sequence: first, from: PAGE + 6, to: PAGE + 7 }]).unwrap();
    assert_eq!((device.state_bytes(), device.snapshot_bytes(snapshot)), (taken(3, 3), taken(1, 1)));
    let pair = [device.restore(snapshot).unwrap(), device.restore(snapshot).unwrap()];
    device.close(first);
    device.discard(snapshot);
    assert_eq!(device.state_bytes(), taken(4, 2));
    // of two that share a page with nobody else, one copies and the other keeps
    let rooms = pair.map(|sequence| Room { sequence, from: PAGE + 6, to: PAGE + 7 });
    device.reserve(&rooms).unwrap();
    assert_eq!(device.state_bytes(), taken(4, 3));
    // at the end of a page there is nothing to copy
    let short = device.snapshot(pair[0], PAGE).unwrap();
    device.reserve(&[Room { sequence: pair[0], from: PAGE, to: PAGE + 1 }]).unwrap();
    assert_eq!(device.state_bytes(), taken(5, 3));
    pair.into_iter().for_each(|sequence| device.close(sequence));
    assert_eq!(device.snapshot_bytes(short), taken(1, 1));
    device.discard(short);
    assert_eq!((device.state_bytes(), device.snapshot_bytes(short)), (0, 0));
    assert!(matches!(device.restore(short), Err(DeviceError::Unknown(_))));
}

#[test]
fn a_full_budget_refuses_all_of_a_step_or_nothing() {
    let activation = Activation::F32;
    let one = bytes(activation, 1, 0);
    assert_eq!(refused(device(activation, 1, 0).open().map(|_| ())), (2 * one, one));
    let mut full = device(activation, 2, 0);
    let sequence = full.open().unwrap();
    assert_eq!(refused(full.snapshot(sequence, 0).map(|_| ())), (one, 0));
    let mut device = device(activation, 4, 3);
    let pair = [device.open().unwrap(), device.open().unwrap()];
    for sequence in pair {
        device.reserve(&[Room { sequence, from: 0, to: PAGE }]).unwrap();
    }
    let page = bytes(activation, 0, 1);
    let step = pair.map(|sequence| Room { sequence, from: PAGE, to: PAGE + 1 });
    assert_eq!(refused(device.reserve(&step)), (2 * page, page));
    assert_eq!(device.state_bytes(), bytes(activation, 4, 2));
    let unknown = Room { sequence: SequenceId(999), from: 0, to: 1 };
    assert!(matches!(device.reserve(&[step[0], unknown]), Err(DeviceError::Unknown(_))));
    device.reserve(&step[1..]).unwrap();
    assert_eq!(device.state_bytes(), bytes(activation, 4, 3));
}

/// Many orders of freezing, restoring and writing: what discarding frees is what was said, and at the end nothing is left.
#[test]
fn books_balance_in_any_order() {
    for seed in 0..50 {
        let random = &mut Random::new(seed);
        let mut device = device(Activation::F32, 12, 8);
        let mut live: Vec<(SequenceId, usize)> = Vec::new();
        let mut frozen: Vec<(SnapshotId, usize)> = Vec::new();
        for _ in 0..100 {
            let before = device.state_bytes();
            let result = match random.below(6) {
                0 => device.open().map(|sequence| live.push((sequence, 0))),
                1 if !live.is_empty() => {
                    let (sequence, length) = live[random.below(live.len())];
                    device.snapshot(sequence, length).map(|snapshot| frozen.push((snapshot, length)))
                }
                2 if !frozen.is_empty() => {
                    let (snapshot, length) = frozen[random.below(frozen.len())];
                    device.restore(snapshot).map(|sequence| live.push((sequence, length)))
                }
                3 if !live.is_empty() && random.below(3) == 0 => {
                    device.close(live.swap_remove(random.below(live.len())).0);
                    Ok(())
                }
                4 if !frozen.is_empty() => {
                    let (snapshot, _) = frozen.swap_remove(random.below(frozen.len()));
                    let frees = device.snapshot_bytes(snapshot);
                    device.discard(snapshot);
                    assert_eq!(device.state_bytes(), before - frees, "seed {seed}");
                    Ok(())
                }
                _ => {
                    let more = 1 + random.below(70);
                    let rooms: Vec<Room> = live
                        .iter()
                        .take(3)
                        .map(|(sequence, length)| Room {
                            sequence: *sequence,
                            from: *length,
                            to: length + more,
                        })
                        .collect();
                    device
                        .reserve(&rooms)
                        .map(|()| live.iter_mut().take(3).for_each(|(_, length)| *length += more))
                }
            };
            match result {
                Ok(()) => assert!(
                    device.state_bytes() <= bytes(Activation::F32, 12, 8),
                    "seed {seed}: over the budget"
                ),
                Err(DeviceError::OutOfMemory { .. }) => {
                    assert_eq!(device.state_bytes(), before, "seed {seed}: a refusal changed something");
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
        live.into_iter().for_each(|(sequence, _)| device.close(sequence));
        frozen.into_iter().for_each(|(snapshot, _)| device.discard(snapshot));
        assert_eq!(device.state_bytes(), 0, "seed {seed}");
    }
}
