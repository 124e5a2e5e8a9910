//! The books of state: what sequences and snapshots take, what they share, and that a refusal changes nothing.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_kernels::random::Random;
use lily_model::testing::{Spec, model_in_memory, random_tokens};
use lily_model::{DeviceError, Forward, LogitRows, Model, Runner, RunnerOptions, SequenceId, SnapshotId};

/// Tokens of a page.
const PAGE: usize = 64;

/// A model, and the bytes of a page and of a recurrent state.
struct Sizes {
    model: Arc<Model>,
    page: usize,
    recurrent: usize,
}

impl Sizes {
    fn tiny() -> Self {
        let model = Arc::new(model_in_memory(&Spec::tiny()));
        let page = PAGE * model.geometry.kv_bytes_per_token(4);
        let recurrent = model.geometry.recurrent_state_bytes();
        Sizes { model, page, recurrent }
    }

    fn bytes(&self, states: usize, pages: usize) -> usize {
        states * self.recurrent + pages * self.page
    }

    /// A runner whose state may take so many recurrent states and pages, and not a byte more.
    fn runner(&self, states: usize, pages: usize) -> Runner<CpuDevice> {
        let state_bytes = self.bytes(states, pages);
        let options =
            CpuOptions { threads: Some(1), pin: false, isa: None, precision: Precision::Exact, state_bytes };
        let device = CpuDevice::new(&self.model.geometry, self.model.clone(), &options).unwrap();
        let options = RunnerOptions { context: 300, max_chunk: 300, max_decode_rows: 4 };
        Runner::new(self.model.geometry.clone(), self.model.weights.clone(), device, options)
    }

    fn tokens(&self, len: usize) -> Vec<u32> {
        random_tokens(&mut Random::new(len as u64), &self.model, len)
    }

    /// Appends `len` tokens; their ids depend on their places alone.
    fn extend(
        &self,
        runner: &mut Runner<CpuDevice>,
        sequence: SequenceId,
        len: usize,
    ) -> Result<(), DeviceError> {
        let start = runner.length(sequence);
        let tokens = random_tokens(&mut Random::new(7), &self.model, start + len);
        runner.prefill(sequence, &tokens[start..], LogitRows::Last)
    }

    /// What one more token makes of a sequence; on a restored copy, which is closed again.
    fn next_logits(&self, runner: &mut Runner<CpuDevice>, snapshot: SnapshotId) -> Vec<f32> {
        let sequence = runner.restore(snapshot).unwrap();
        self.extend(runner, sequence, 1).unwrap();
        let logits = runner.logits(0).to_vec();
        runner.close(sequence);
        logits
    }
}

fn refused(result: Result<(), DeviceError>) -> (usize, usize) {
    match result {
        Err(DeviceError::OutOfMemory { need_bytes, left_bytes, .. }) => (need_bytes, left_bytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sequence_takes_its_recurrent_state_and_whole_pages() {
    let sizes = Sizes::tiny();
    let mut runner = sizes.runner(10, 20);
    let sequence = runner.open().unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(1, 0));
    for (more, pages) in [(1, 1), (PAGE - 1, 1), (1, 2), (2 * PAGE - 1, 3), (1, 4)] {
        sizes.extend(&mut runner, sequence, more).unwrap();
        assert_eq!(runner.state_bytes(), sizes.bytes(1, pages), "{} tokens", runner.length(sequence));
    }
    runner.close(sequence);
    runner.close(sequence);
    assert_eq!(runner.state_bytes(), 0);
}

#[test]
fn shared_pages_count_once() {
    let sizes = Sizes::tiny();
    let mut runner = sizes.runner(10, 20);
    let sequence = runner.open().unwrap();
    sizes.extend(&mut runner, sequence, PAGE + 6).unwrap();
    let snapshot = runner.snapshot(sequence).unwrap();
    let second = runner.snapshot(sequence).unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(3, 2));
    // its pages are the sequence's too: only the recurrent state would go
    assert_eq!(runner.snapshot_bytes(snapshot), sizes.bytes(1, 0));
    let copy = runner.restore(snapshot).unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(4, 2));
    runner.close(sequence);
    runner.close(copy);
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 2));
    // pages of two snapshots count for the last holder
    assert_eq!(runner.snapshot_bytes(snapshot), sizes.bytes(1, 0));
    runner.discard(second);
    runner.discard(second);
    assert_eq!(runner.snapshot_bytes(snapshot), sizes.bytes(1, 2));
    assert_eq!(runner.state_bytes(), sizes.bytes(1, 2));
    runner.discard(snapshot);
    assert_eq!((runner.state_bytes(), runner.snapshot_bytes(snapshot)), (0, 0));
    assert!(matches!(runner.restore(snapshot), Err(DeviceError::Unknown(_))));
}

/// The first write behind a snapshot copies the page that is half full, and only that one; the last holder writes in
/// place.
#[test]
fn a_shared_page_is_copied_by_who_writes_first() {
    let sizes = Sizes::tiny();
    let mut runner = sizes.runner(10, 20);
    let sequence = runner.open().unwrap();
    sizes.extend(&mut runner, sequence, PAGE + 6).unwrap();
    let snapshot = runner.snapshot(sequence).unwrap();
    let before = sizes.next_logits(&mut runner, snapshot);
    runner.decode(&[(sequence, 3)]).unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 3));
    runner.decode(&[(sequence, 4)]).unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 3), "the page is its own by now");
    assert_eq!(sizes.next_logits(&mut runner, snapshot), before, "what was frozen changed");
    // two that share a page write in one step: the first copies, the second keeps
    let pair = [runner.restore(snapshot).unwrap(), runner.restore(snapshot).unwrap()];
    runner.close(sequence);
    runner.discard(snapshot);
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 2));
    runner.decode(&[(pair[0], 5), (pair[1], 5)]).unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 3));
    assert_eq!(runner.logits(0), runner.logits(1));
    pair.into_iter().for_each(|sequence| runner.close(sequence));
    assert_eq!(runner.state_bytes(), 0);

    // at the end of a page there is nothing to copy
    let sequence = runner.open().unwrap();
    sizes.extend(&mut runner, sequence, PAGE).unwrap();
    let snapshot = runner.snapshot(sequence).unwrap();
    runner.decode(&[(sequence, 3)]).unwrap();
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 2));
    runner.close(sequence);
    assert_eq!(runner.snapshot_bytes(snapshot), sizes.bytes(1, 1));
}

#[test]
fn a_full_budget_refuses_and_changes_nothing() {
    let sizes = Sizes::tiny();
    let error = sizes.runner(0, 0).open().unwrap_err();
    assert_eq!(refused(Err(error)), (sizes.recurrent, 0));

    let mut runner = sizes.runner(2, 1);
    let sequence = runner.open().unwrap();
    sizes.extend(&mut runner, sequence, PAGE - 1).unwrap();
    let full = runner.snapshot(sequence).unwrap();
    let bytes = runner.state_bytes();
    assert_eq!(bytes, sizes.bytes(2, 1));
    // each refusal leaves lengths, bytes and contents as they were
    assert_eq!(refused(runner.open().map(|_| ())), (sizes.recurrent, 0));
    assert_eq!(refused(runner.snapshot(sequence).map(|_| ())), (sizes.recurrent, 0));
    assert_eq!(refused(runner.restore(full).map(|_| ())), (sizes.recurrent, 0));
    assert_eq!(
        refused(sizes.extend(&mut runner, sequence, 1)),
        (sizes.page, 0),
        "the copy of the shared page"
    );
    assert_eq!(refused(sizes.extend(&mut runner, sequence, 2)), (2 * sizes.page, 0));
    assert_eq!(refused(runner.decode(&[(sequence, 1)])), (sizes.page, 0));
    assert_eq!((runner.length(sequence), runner.state_bytes()), (PAGE - 1, bytes));
    // without the snapshot, the page is its own, and one more token fits
    runner.discard(full);
    sizes.extend(&mut runner, sequence, 1).unwrap();
    let got = runner.logits(0).to_vec();
    assert_eq!(refused(sizes.extend(&mut runner, sequence, 1)), (sizes.page, sizes.recurrent));

    let mut other = sizes.runner(2, 1);
    let sequence = other.open().unwrap();
    sizes.extend(&mut other, sequence, PAGE).unwrap();
    assert_eq!(other.logits(0), got);
}

/// A step takes room for all of its rows or for none.
#[test]
fn a_step_that_does_not_fit_takes_no_page_for_any_row() {
    let sizes = Sizes::tiny();
    let mut runner = sizes.runner(2, 3);
    let pair = [runner.open().unwrap(), runner.open().unwrap()];
    for sequence in pair {
        sizes.extend(&mut runner, sequence, PAGE).unwrap();
    }
    assert_eq!(refused(runner.decode(&[(pair[0], 1), (pair[1], 1)])), (2 * sizes.page, sizes.page));
    assert_eq!(runner.state_bytes(), sizes.bytes(2, 2));
    runner.decode(&[(pair[1], 1)]).unwrap();
    assert_eq!((runner.length(pair[0]), runner.length(pair[1])), (PAGE, PAGE + 1));

    // nor does one in which a row is at the end of its context, or unknown
    let mut runner = sizes.runner(2, 20);
    let pair = [runner.open().unwrap(), runner.open().unwrap()];
    sizes.extend(&mut runner, pair[0], PAGE).unwrap();
    sizes.extend(&mut runner, pair[1], 300).unwrap();
    let bytes = runner.state_bytes();
    let full = DeviceError::ContextFull { length: 300, more: 1, context: 300 };
    assert_eq!(runner.decode(&[(pair[0], 1), (pair[1], 1)]), Err(full));
    assert!(matches!(runner.decode(&[(pair[0], 1), (SequenceId(999), 1)]), Err(DeviceError::Unknown(_))));
    let vocab = runner.vocab() as u32;
    assert!(matches!(runner.decode(&[(pair[0], vocab)]), Err(DeviceError::Unknown(_))));
    assert_eq!((runner.length(pair[0]), runner.state_bytes()), (PAGE, bytes));
}

/// Many orders of freezing, restoring and writing: bytes always are those of the states and different pages alive.
#[test]
fn books_balance_in_any_order() {
    let sizes = Sizes::tiny();
    for seed in 0..20 {
        let random = &mut Random::new(seed);
        let mut runner = sizes.runner(6, 8);
        let (mut live, mut frozen): (Vec<SequenceId>, Vec<SnapshotId>) = (Vec::new(), Vec::new());
        for _ in 0..80 {
            let before = (runner.state_bytes(), live.iter().map(|s| runner.length(*s)).collect::<Vec<_>>());
            let result = match random.below(6) {
                0 => runner.open().map(|sequence| live.push(sequence)),
                1 if !live.is_empty() => {
                    let sequence = live[random.below(live.len())];
                    runner.snapshot(sequence).map(|snapshot| frozen.push(snapshot))
                }
                2 if !frozen.is_empty() => {
                    let snapshot = frozen[random.below(frozen.len())];
                    runner.restore(snapshot).map(|sequence| live.push(sequence))
                }
                3 if !live.is_empty() && random.below(3) == 0 => {
                    runner.close(live.swap_remove(random.below(live.len())));
                    Ok(())
                }
                4 if !frozen.is_empty() => {
                    let snapshot = frozen.swap_remove(random.below(frozen.len()));
                    let (bytes, frees) = (runner.state_bytes(), runner.snapshot_bytes(snapshot));
                    runner.discard(snapshot);
                    assert_eq!(runner.state_bytes(), bytes - frees, "seed {seed}");
                    Ok(())
                }
                _ if !live.is_empty() => {
                    let rows: Vec<_> = live.iter().take(4).map(|sequence| (*sequence, 1)).collect();
                    match random.below(2) {
                        0 => runner.decode(&rows),
                        _ => runner.prefill(rows[0].0, &sizes.tokens(1 + random.below(70)), LogitRows::None),
                    }
                }
                _ => Ok(()),
            };
            match result {
                Ok(()) => assert!(runner.state_bytes() <= sizes.bytes(6, 8), "seed {seed}: over the budget"),
                Err(DeviceError::OutOfMemory { .. } | DeviceError::ContextFull { .. }) => {
                    let after = (runner.state_bytes(), live.iter().map(|s| runner.length(*s)).collect());
                    assert_eq!(before, after, "seed {seed}: a refusal changed something");
                }
                Err(other) => panic!("seed {seed}: {other}"),
            }
        }
        live.into_iter().for_each(|sequence| runner.close(sequence));
        frozen.into_iter().for_each(|snapshot| runner.discard(snapshot));
        assert_eq!(runner.state_bytes(), 0, "seed {seed}");
    }
}
