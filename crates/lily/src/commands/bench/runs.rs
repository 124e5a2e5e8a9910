//! The runs themselves: what answers do, without text and server. A GPU that chooses tokens itself does so here as it does for the
//! server, and without `token-handoff` the host does; on the CPU the choice is no part of a step, as in other engines' measurements.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lily_engine::{Sampler, Scratch};
use lily_model::device::Device;
use lily_model::plan::Switches;
use lily_model::{
    ChoosingRow, Chosen, DeviceError, Forward, LogitRows, Runner, SamplingDefaults, SequenceId, SnapshotId,
};
use lily_protocol::Sampling;

use super::cases::{Case, order};
use super::trials::Trial;
use crate::cli::Fill;
use crate::commands::ids::ids;
use crate::setup;

/// A model whose mechanisms can be turned off.
pub(super) trait Ablate: Forward {
    /// Uses these from now on.
    fn use_switches(&mut self, switches: Switches);

    /// Whether the device can choose tokens, whatever mechanisms are on.
    fn device_chooses(&self) -> bool {
        false
    }
}

impl<D: Device> Ablate for Runner<D> {
    fn use_switches(&mut self, switches: Switches) {
        Runner::use_switches(self, switches);
    }

    fn device_chooses(&self) -> bool {
        self.device().chooses()
    }
}

/// Where a run tells how far it is, and learns that it shall end.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    /// Called with a number of tokens that were computed.
    pub(super) computed: &'a (dyn Fn(usize) + Sync),
    /// Called with a trial that begins.
    pub(super) begins: &'a (dyn Fn(&Trial) + Sync),
    /// Asked after every chunk and every step.
    pub(super) cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Why there are no measurements.
#[derive(Debug, PartialEq)]
pub(super) enum Ended {
    Cancelled,
    Failed(DeviceError),
}

impl From<DeviceError> for Ended {
    fn from(error: DeviceError) -> Self {
        Ended::Failed(error)
    }
}

/// What was measured.
#[derive(Debug, PartialEq)]
pub(super) struct Measured {
    /// Of each case, tokens a second of each repeat.
    pub(super) speeds: Vec<Vec<f64>>,
    /// The most that sequences and snapshots took.
    pub(super) state_bytes: usize,
}

/// Tokens that all of this computes: the states that decode starts from, a warm-up, and the repeats.
pub(super) fn tokens(trials: &[Trial], repeats: usize, fill: Fill) -> usize {
    let deepest = match fill {
        Fill::Computed => depths(trials).last().copied().unwrap_or(0),
        Fill::Synthetic => 0,
    };
    deepest + (repeats + 1) * trials.iter().map(|trial| trial.case.tokens()).sum::<usize>()
}

/// Measures each trial `repeats` times, in turn, after all of them have been run once. What decode starts from is computed with the
/// first one's mechanisms.
pub(super) fn measure(
    forward: &mut dyn Ablate,
    trials: &[Trial],
    repeats: usize,
    fill: Fill,
    watch: Watch<'_>,
) -> Result<Measured, Ended> {
    let mut bench = Bench { forward, watch, starts: BTreeMap::new(), state_bytes: 0 };
    match fill {
        Fill::Computed => bench.keep_starts(trials)?,
        Fill::Synthetic => bench.make_starts_up(trials)?,
    }
    let mut speeds = vec![Vec::with_capacity(repeats); trials.len()];
    for round in 0..=repeats {
        for at in order(trials.len(), round) {
            (watch.begins)(&trials[at]);
            let time = bench.run(&trials[at])?;
            if round > 0 {
                speeds[at].push(trials[at].case.tokens() as f64 / time.as_secs_f64().max(1e-9));
            }
        }
    }
    let state_bytes = bench.state_bytes;
    bench.starts.into_values().for_each(|start| forward.discard(start));
    Ok(Measured { speeds, state_bytes })
}

struct Bench<'a> {
    forward: &'a mut dyn Ablate,
    watch: Watch<'a>,
    /// States that decode starts from, by the tokens they hold.
    starts: BTreeMap<usize, SnapshotId>,
    state_bytes: usize,
}

impl Bench<'_> {
    /// Computes the states of all depths, each from the one before; they share keys and values.
    fn keep_starts(&mut self, trials: &[Trial]) -> Result<(), Ended> {
        let (Some(first), depths) = (trials.first(), depths(trials)) else { return Ok(()) };
        self.forward.use_switches(first.switches);
        let chunk = trials.iter().map(|trial| trial.chunk).min().unwrap_or(first.chunk);
        let sequence = self.forward.open()?;
        let mut held = 0;
        for depth in depths {
            self.prefill(sequence, held..depth, chunk)?;
            held = depth;
            self.starts.insert(depth, self.forward.snapshot(sequence)?);
        }
        self.forward.close(sequence);
        Ok(())
    }

    /// Makes the states of all depths up, each by itself: they share nothing.
    fn make_starts_up(&mut self, trials: &[Trial]) -> Result<(), Ended> {
        for depth in depths(trials) {
            let sequence = self.forward.open()?;
            if depth > 0 {
                self.forward.make_up(sequence, depth)?;
            }
            self.starts.insert(depth, self.forward.snapshot(sequence)?);
            self.forward.close(sequence);
            self.done(0)?;
        }
        Ok(())
    }

    fn run(&mut self, trial: &Trial) -> Result<Duration, Ended> {
        self.forward.use_switches(trial.switches);
        let start = match trial.case {
            Case::Prefill { .. } => None,
            Case::Decode { depth, .. } => self.starts.get(&depth).copied(),
        };
        let sequence = match start {
            Some(start) => self.forward.restore(start)?,
            None => self.forward.open()?,
        };
        let time = match trial.case {
            Case::Prefill { tokens } => self.prefill(sequence, 0..tokens, trial.chunk)?,
            Case::Decode { depth, steps } => self.decode(sequence, depth..depth + steps)?,
        };
        self.state_bytes = self.state_bytes.max(self.forward.state_bytes());
        self.forward.close(sequence);
        Ok(time)
    }

    /// In chunks; what is between the calls (a bar that is drawn) is not timed.
    fn prefill(
        &mut self,
        sequence: SequenceId,
        range: std::ops::Range<usize>,
        chunk: usize,
    ) -> Result<Duration, Ended> {
        let ids = ids(range.clone(), self.forward.vocab());
        let mut time = Duration::ZERO;
        for (i, part) in ids.chunks(chunk).enumerate() {
            let is_last = (i + 1) * chunk >= range.len();
            let rows = if is_last { LogitRows::Last } else { LogitRows::None };
            let began = Instant::now();
            self.forward.prefill(sequence, part, rows)?;
            time += began.elapsed();
            self.done(part.len())?;
        }
        Ok(time)
    }

    fn decode(&mut self, sequence: SequenceId, range: std::ops::Range<usize>) -> Result<Duration, Ended> {
        if self.forward.chooses() {
            return self.decode_on_device(sequence, range);
        }
        let mut choice = self.forward.device_chooses().then(|| self.sampler()).transpose()?;
        let mut time = Duration::ZERO;
        let mut chosen = None;
        for id in ids(range, self.forward.vocab()) {
            let began = Instant::now();
            self.forward.decode(&[(sequence, chosen.unwrap_or(id))])?;
            if let Some((sampler, scratch)) = &mut choice {
                chosen = Some(sampler.choose(self.forward.logits(0), scratch).map_err(failed)?);
            }
            time += began.elapsed();
            self.done(1)?;
        }
        Ok(time)
    }

    /// What is between the calls is timed too: the device goes on meanwhile.
    fn decode_on_device(
        &mut self,
        sequence: SequenceId,
        range: std::ops::Range<usize>,
    ) -> Result<Duration, Ended> {
        let choosing = self.sampler()?.0.choosing(&[]);
        let mut left = range.len();
        let mut output = ids(range.start..range.start + 1, self.forward.vocab());
        let began = Instant::now();
        while left > 0 {
            if self.forward.under_way() == 0 {
                let token = output.last().copied().unwrap_or_default();
                let (choosing, output) = (&choosing, &output[..]);
                self.forward.begin(&[ChoosingRow { sequence, token, choosing, prompt: &[], output }])?;
            }
            if self.forward.under_way() < left {
                self.forward.ahead()?;
            }
            match self.forward.take()?.first() {
                Some(Chosen::Token(token)) => output.push(*token),
                other => return Err(failed(format!("a step chose no token: {other:?}"))),
            }
            left -= 1;
            self.done(1)?;
        }
        Ok(began.elapsed())
    }

    /// The choice that the server makes for a model without wishes of its own.
    fn sampler(&self) -> Result<(Sampler, Scratch), Ended> {
        let sampling = Sampling { seed: 1, ..setup::default_sampling(&SamplingDefaults::default()) };
        let sampler = Sampler::new(sampling, self.forward.vocab(), &[], Vec::new()).map_err(failed)?;
        Ok((sampler, Scratch::default()))
    }

    fn done(&self, tokens: usize) -> Result<(), Ended> {
        (self.watch.computed)(tokens);
        if (self.watch.cancelled)() { Err(Ended::Cancelled) } else { Ok(()) }
    }
}

fn failed(error: impl ToString) -> Ended {
    Ended::Failed(DeviceError::Failed(error.to_string()))
}

/// Depths of decode cases, rising, each once.
pub(super) fn depths(trials: &[Trial]) -> Vec<usize> {
    let depth = |trial: &Trial| match trial.case {
        Case::Prefill { .. } => None,
        Case::Decode { depth, .. } => Some(depth),
    };
    let mut depths: Vec<usize> = trials.iter().filter_map(depth).collect();
    depths.sort_unstable();
    depths.dedup();
    depths
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lily_model::plan::{Profile, Switch};
    use lily_model::testing::{Spec, model_in_memory};

    use super::*;

    /// With chunks of 4.
    fn trials<const N: usize>(cases: &[Case; N]) -> [Trial; N] {
        cases.map(|case| Trial { chunk: 4, ..super::super::tests::of_case(case) })
    }

    const SILENT: Watch<'_> = Watch { computed: &|_| (), begins: &|_| (), cancelled: &|| false };

    /// Keeps the books of what is asked of it.
    #[derive(Default)]
    struct Books {
        switches: Vec<Switches>,
        lengths: BTreeMap<SequenceId, usize>,
        snapshots: BTreeMap<SnapshotId, usize>,
        calls: Vec<String>,
        next: u64,
        /// The device chooses tokens where `token-handoff` is on.
        chooses: bool,
        /// Of the run under way: its sequence, and the steps that were not taken.
        steps: Option<(SequenceId, usize)>,
        logits: Vec<f32>,
    }

    impl Books {
        fn submit(&mut self, sequence: SequenceId, what: &str) {
            let length = self.lengths.get_mut(&sequence).unwrap();
            *length += 1;
            self.calls.push(format!("{what} to {length}"));
            let under_way = self.under_way();
            self.steps = Some((sequence, under_way + 1));
        }
    }

    impl Ablate for Books {
        fn use_switches(&mut self, switches: Switches) {
            self.switches.push(switches);
        }

        fn device_chooses(&self) -> bool {
            self.chooses
        }
    }

    impl Forward for Books {
        fn vocab(&self) -> usize {
            100
        }
        fn max_chunk(&self) -> usize {
            4
        }
        fn max_decode_rows(&self) -> usize {
            1
        }
        fn open(&mut self) -> Result<SequenceId, DeviceError> {
            self.next += 1;
            self.logits.clear();
            self.lengths.insert(SequenceId(self.next), 0);
            Ok(SequenceId(self.next))
        }
        fn close(&mut self, sequence: SequenceId) {
            self.lengths.remove(&sequence).unwrap();
        }
        fn length(&self, sequence: SequenceId) -> usize {
            self.lengths[&sequence]
        }
        fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, DeviceError> {
            self.next += 1;
            self.snapshots.insert(SnapshotId(self.next), self.lengths[&sequence]);
            self.calls.push(format!("keep {}", self.lengths[&sequence]));
            Ok(SnapshotId(self.next))
        }
        fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
            let sequence = self.open()?;
            self.lengths.insert(sequence, self.snapshots[&snapshot]);
            Ok(sequence)
        }
        fn discard(&mut self, snapshot: SnapshotId) {
            self.snapshots.remove(&snapshot).unwrap();
        }
        fn snapshot_bytes(&self, _: SnapshotId) -> usize {
            0
        }
        fn state_bytes(&self) -> usize {
            self.lengths.values().sum()
        }
        fn prefill(
            &mut self,
            sequence: SequenceId,
            tokens: &[u32],
            rows: LogitRows,
        ) -> Result<(), DeviceError> {
            let length = self.lengths.get_mut(&sequence).unwrap();
            assert_eq!(tokens, ids(*length..*length + tokens.len(), 100));
            *length += tokens.len();
            self.calls.push(format!("prefill to {length}, {rows:?}"));
            Ok(())
        }
        fn decode(&mut self, rows: &[(SequenceId, u32)]) -> Result<(), DeviceError> {
            let length = self.lengths.get_mut(&rows[0].0).unwrap();
            let chosen = self.logits.iter().position(|logit| *logit > 0.0);
            assert_eq!(rows[0].1, chosen.map_or(ids(*length..*length + 1, 100)[0], |id| id as u32));
            *length += 1;
            self.calls.push(format!("decode to {length}"));
            if self.chooses {
                self.logits = vec![f32::NEG_INFINITY; 100];
                self.logits[*length] = 1.0;
            }
            Ok(())
        }
        fn logits(&self, _: usize) -> &[f32] {
            &self.logits
        }
        fn chooses(&self) -> bool {
            self.chooses && self.switches.last().is_some_and(|on| on.has(Switch::TokenHandoff))
        }
        fn begin(&mut self, rows: &[ChoosingRow<'_>]) -> Result<(), DeviceError> {
            assert_eq!(rows[0].output.last(), Some(&rows[0].token));
            self.submit(rows[0].sequence, "begin");
            Ok(())
        }
        fn ahead(&mut self) -> Result<bool, DeviceError> {
            let (sequence, _) = self.steps.unwrap();
            self.submit(sequence, "ahead");
            Ok(true)
        }
        fn under_way(&self) -> usize {
            self.steps.map_or(0, |(_, steps)| steps)
        }
        fn take(&mut self) -> Result<Vec<Chosen>, DeviceError> {
            self.calls.push("take".into());
            self.steps.as_mut().unwrap().1 -= 1;
            Ok(vec![Chosen::Token(7)])
        }
    }

    /// As the server runs it: with the next step under way, or with the host's choice.
    #[test]
    fn a_device_that_chooses_tokens_does_so() {
        let [with] = trials(&[Case::Decode { depth: 2, steps: 3 }]);
        let without = Trial { switches: with.switches.without(Switch::TokenHandoff), ..with.clone() };
        let mut books = Books { chooses: true, ..Books::default() };
        measure(&mut books, &[with, without], 1, Fill::Computed, SILENT).unwrap();
        let start = ["prefill to 2, Last", "keep 2"];
        let with = ["begin to 3", "ahead to 4", "take", "ahead to 5", "take", "take"];
        let without = ["decode to 3", "decode to 4", "decode to 5"];
        assert_eq!(books.calls[..11], [&start[..], &with, &without].concat());
    }

    #[test]
    fn runs_take_turns_and_a_depth_is_computed_once() {
        let cases = trials(&[
            Case::Prefill { tokens: 5 },
            Case::Decode { depth: 6, steps: 2 },
            Case::Decode { depth: 3, steps: 2 },
        ]);
        let (mut books, computed) = (Books::default(), AtomicUsize::new(0));
        let begun = Mutex::new(Vec::new());
        let watch = Watch {
            computed: &|n| {
                computed.fetch_add(n, Ordering::Relaxed);
            },
            begins: &|trial| begun.lock().unwrap().push(trial.name()),
            ..SILENT
        };
        let measured = measure(&mut books, &cases, 2, Fill::Computed, watch).unwrap();
        assert!(measured.speeds.iter().all(|of| of.len() == 2 && of.iter().all(|s| *s > 0.0)));
        assert_eq!(measured.state_bytes, 8);
        assert!(books.lengths.is_empty() && books.snapshots.is_empty());
        assert_eq!(computed.into_inner(), tokens(&cases, 2, Fill::Computed));
        let (pp, deep, low) = ("pp5", "tg2 @ d6", "tg2 @ d3");
        assert_eq!(begun.into_inner().unwrap(), [pp, deep, low, low, deep, pp, pp, deep, low]);
        let starts = ["prefill to 3, Last", "keep 3", "prefill to 6, Last", "keep 6"];
        let pp = ["prefill to 4, None", "prefill to 5, Last"];
        let deep = ["decode to 7", "decode to 8"];
        let low = ["decode to 4", "decode to 5"];
        assert_eq!(books.calls, [&starts[..], &pp, &deep, &low, &low, &deep, &pp, &pp, &deep, &low].concat());
    }

    #[test]
    fn each_trial_has_its_own_mechanisms_and_chunks() {
        let [with, without] = trials(&[Case::Prefill { tokens: 5 }; 2]);
        let without = Trial { switches: Switches::NONE, chunk: 5, ..without };
        let mut books = Books::default();
        measure(&mut books, &[with, without], 2, Fill::Computed, SILENT).unwrap();
        let (a, b) = (Switches::ALL, Switches::NONE);
        assert_eq!(books.switches, [a, a, b, b, a, a, b]);
        let (chunks, whole) = (["prefill to 4, None", "prefill to 5, Last"], ["prefill to 5, Last"]);
        assert_eq!(books.calls, [&chunks[..], &whole, &whole, &chunks, &chunks, &whole].concat());
    }

    #[test]
    fn a_run_ends_when_it_is_asked_to() {
        let cases = trials(&[Case::Prefill { tokens: 9 }, Case::Decode { depth: 0, steps: 3 }]);
        for after in [1, 4, 9, 10] {
            let computed = AtomicUsize::new(0);
            let watch = Watch {
                computed: &|n| {
                    computed.fetch_add(n, Ordering::Relaxed);
                },
                cancelled: &|| computed.load(Ordering::Relaxed) >= after,
                ..SILENT
            };
            assert_eq!(
                measure(&mut Books::default(), &cases, 1, Fill::Computed, watch),
                Err(Ended::Cancelled)
            );
            assert!(computed.into_inner() < after + 4);
        }
    }

    #[test]
    fn a_real_model_is_measured_and_nothing_of_it_stays() {
        let model = std::sync::Arc::new(model_in_memory(&Spec::tiny()));
        let flags = super::super::tests::flags("--threads 1").model;
        let options = lily_model::RunnerOptions { context: 64, max_chunk: 8, max_decode_rows: 1 };
        let mut runner = setup::choose(&flags, &model).unwrap().runner(&model, options, 64 << 20).unwrap();
        let cases = trials(&[Case::Prefill { tokens: 20 }, Case::Decode { depth: 9, steps: 3 }])
            .map(|trial| Trial { chunk: 8, switches: Profile::cpu().switches, ..trial });
        for fill in [Fill::Computed, Fill::Synthetic] {
            let measured = measure(&mut runner, &cases, 3, fill, SILENT).unwrap();
            assert!(measured.speeds.iter().flatten().all(|s| s.is_finite() && *s > 0.0));
            assert!(measured.state_bytes > 0);
            assert_eq!(runner.state_bytes(), 0);
            assert!(runner.logits(0).iter().all(|x| x.is_finite()), "{fill:?}");
        }
    }
}
