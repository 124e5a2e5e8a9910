//! What is on its way to the GPU: the commands that are being written down, those that were submitted, and whose states are lost
//! when some of them fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lily_model::device::Trace;
use lily_model::{DeviceError, SequenceId, SnapshotId};

use crate::estimate::MOST_SECONDS;
use crate::gpu::{Commands, Fault, Gpu, GpuError, Submitted};

/// The most submissions that are not done: one runs, and one waits for it, so that the GPU always has something to do and nothing is
/// far behind.
pub const MOST_IN_FLIGHT: usize = 2;

/// How long one submission is waited for. Each is estimated under half a second; a machine that sleeps stops this clock as well.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whose state commands read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Sequence(SequenceId),
    Snapshot(SnapshotId),
    /// Of all: a pool that moves.
    Pool,
}

struct Open<G: Gpu> {
    commands: G::Commands,
    label: String,
    seconds: f64,
    /// The last thing in them is a dispatch.
    dispatched: bool,
    reads: BTreeSet<Owner>,
    writes: BTreeSet<Owner>,
}

struct Flying<G: Gpu> {
    serial: u64,
    submitted: G::Submitted,
    label: String,
    reads: BTreeSet<Owner>,
    writes: BTreeSet<Owner>,
}

struct Inner<G: Gpu> {
    gpu: G,
    open: Option<Open<G>>,
    flying: VecDeque<Flying<G>>,
    submitted: u64,
    /// Whose states the work at hand reads and writes, whatever number of submissions it takes.
    reads: BTreeSet<Owner>,
    writes: BTreeSet<Owner>,
    /// Why the GPU takes no more commands.
    lost: Option<String>,
    /// Whose state was in commands that failed, and how those did.
    spoiled: BTreeMap<Owner, String>,
    trace: Option<Trace>,
}

/// The commands of a device, in order. A clone is the same.
pub(crate) struct Queue<G: Gpu>(Arc<Mutex<Inner<G>>>);

impl<G: Gpu> Clone for Queue<G> {
    fn clone(&self) -> Self {
        Queue(self.0.clone())
    }
}

impl<G: Gpu> Queue<G> {
    pub(crate) fn new(gpu: &G) -> Self {
        Queue(Arc::new(Mutex::new(Inner {
            gpu: gpu.clone(),
            open: None,
            flying: VecDeque::new(),
            submitted: 0,
            reads: BTreeSet::new(),
            writes: BTreeSet::new(),
            lost: None,
            spoiled: BTreeMap::new(),
            trace: None,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner<G>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, tells when each submission ran.
    pub(crate) fn trace(&self, trace: Trace) {
        self.inner().trace = Some(trace);
    }

    /// Writes a launch down, which takes so long at most; what was open is submitted first where the two together would take too long.
    /// With `after_all`, it sees what everything before it wrote.
    pub(crate) fn dispatch(
        &self,
        label: &dyn Fn() -> String,
        seconds: f64,
        after_all: bool,
        write: impl FnOnce(&mut G::Commands),
    ) -> Result<(), DeviceError> {
        let mut inner = self.inner();
        if inner.open.as_ref().is_some_and(|open| open.seconds + seconds > MOST_SECONDS) {
            inner.submit()?;
        }
        let open = inner.open(label)?;
        if after_all && open.dispatched {
            open.commands.barrier();
        }
        write(&mut open.commands);
        open.dispatched = true;
        open.seconds += seconds;
        Ok(())
    }

    /// Writes copies or fills down; they come behind everything before them, and before everything behind them.
    pub(crate) fn move_bytes(
        &self,
        label: &str,
        write: impl FnOnce(&mut G::Commands),
    ) -> Result<(), DeviceError> {
        let mut inner = self.inner();
        let open = inner.open(&|| label.to_owned())?;
        write(&mut open.commands);
        open.dispatched = false;
        Ok(())
    }

    /// Begins work that reads and writes the states of these: what is open, and all that follows up to the next [`Queue::submit`].
    /// What is open for others is submitted first, so that neither pays for a failure of the other.
    pub(crate) fn begin(&self, owners: &[Owner]) -> Result<(), DeviceError> {
        self.part(owners)?;
        let mut inner = self.inner();
        if let Some(open) = &mut inner.open {
            open.reads.extend(owners);
            open.writes.extend(owners);
        }
        inner.reads.extend(owners);
        inner.writes.extend(owners);
        Ok(())
    }

    /// Submits what is open for others than these.
    pub(crate) fn part(&self, owners: &[Owner]) -> Result<(), DeviceError> {
        let mut inner = self.inner();
        let foreign = |open: &Open<G>| open.reads.union(&open.writes).any(|owner| !owners.contains(owner));
        if inner.open.as_ref().is_some_and(foreign) { inner.submit() } else { Ok(()) }
    }

    /// Says whose states the open commands read and write.
    pub(crate) fn own_open(&self, reads: &[Owner], writes: &[Owner]) {
        if let Some(open) = &mut self.inner().open {
            open.reads.extend(reads);
            open.writes.extend(writes);
        }
    }

    /// Submits what is open; the work goes on.
    pub(crate) fn cut(&self) -> Result<(), DeviceError> {
        self.inner().submit()
    }

    /// Submits what is open: the work is written down. Returns a number to wait for.
    pub(crate) fn submit(&self) -> Result<u64, DeviceError> {
        let mut inner = self.inner();
        inner.reads.clear();
        inner.writes.clear();
        inner.submit()?;
        Ok(inner.submitted)
    }

    /// Waits for a submission and all before it. That some of them failed is found in [`Queue::check`].
    pub(crate) fn wait_for(&self, serial: u64) -> Result<(), DeviceError> {
        let mut inner = self.inner();
        while inner.flying.front().is_some_and(|first| first.serial <= serial) {
            inner.finish_first();
        }
        inner.healthy()
    }

    /// Waits for everything that was submitted.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        self.wait_for(u64::MAX)
    }

    /// Drops what is open, because the work at hand cannot be finished: what it would have written is not there.
    pub(crate) fn abandon(&self, why: &DeviceError) {
        let mut inner = self.inner();
        inner.reads.clear();
        inner.writes.clear();
        if let Some(open) = inner.open.take() {
            inner.spoil(&open.writes, &why.to_string());
        }
    }

    /// Whether these states are what they should be.
    pub(crate) fn check(&self, owners: &[Owner]) -> Result<(), DeviceError> {
        let inner = self.inner();
        inner.healthy()?;
        match owners.iter().find_map(|owner| inner.spoiled.get(owner)) {
            Some(text) => Err(DeviceError::Failed(text.clone())),
            None => Ok(()),
        }
    }

    /// Nobody asks for this one any more.
    pub(crate) fn forget(&self, owner: Owner) {
        self.inner().spoiled.remove(&owner);
    }
}

impl<G: Gpu> Inner<G> {
    fn healthy(&self) -> Result<(), DeviceError> {
        match &self.lost {
            Some(text) => Err(DeviceError::Lost(text.clone())),
            None => Ok(()),
        }
    }

    fn open(&mut self, label: &dyn Fn() -> String) -> Result<&mut Open<G>, DeviceError> {
        self.healthy()?;
        if self.open.is_none() {
            let label = label();
            let begun = self.gpu.begin(&label);
            let commands = begun.map_err(|error| {
                let text = self.explain(&label, &error);
                self.healthy().err().unwrap_or(DeviceError::Failed(text))
            })?;
            self.open = Some(Open {
                commands,
                label,
                seconds: 0.0,
                dispatched: false,
                reads: self.reads.clone(),
                writes: self.writes.clone(),
            });
        }
        self.open.as_mut().ok_or_else(|| DeviceError::Failed("no commands are open".into()))
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        self.healthy()?;
        let Some(open) = self.open.take() else { return Ok(()) };
        while self.flying.len() >= MOST_IN_FLIGHT {
            self.finish_first();
        }
        self.healthy()?;
        self.submitted += 1;
        let Open { commands, label, reads, writes, .. } = open;
        let submitted = commands.submit();
        self.flying.push_back(Flying { serial: self.submitted, submitted, label, reads, writes });
        Ok(())
    }

    /// Waits for the oldest submission. What it wrote is spoiled if it failed, or if it read what was spoiled.
    fn finish_first(&mut self) {
        let Some(mut first) = self.flying.pop_front() else { return };
        let failed = match first.submitted.wait(PATIENCE) {
            Ok(Some(span)) => {
                if let Some(trace) = &self.trace {
                    trace(&first.label, span);
                }
                None
            }
            Ok(None) => {
                let seconds = PATIENCE.as_secs();
                let text = format!("{}: not done after {seconds} seconds", first.label);
                self.lost = Some(text.clone());
                Some(text)
            }
            Err(error) => Some(self.explain(&first.label, &error)),
        };
        let inherited = first.reads.iter().find_map(|owner| self.spoiled.get(owner).cloned());
        if let Some(text) = failed.or(inherited) {
            self.spoil(&first.writes, &text);
        }
    }

    fn spoil(&mut self, owners: &BTreeSet<Owner>, text: &str) {
        for owner in owners {
            self.spoiled.entry(*owner).or_insert_with(|| text.to_owned());
        }
    }

    /// The error of commands, in words that say what it means.
    fn explain(&mut self, label: &str, error: &GpuError) -> String {
        match error.kind {
            Fault::Timeout => {
                format!(
                    "{label}: the system ended commands that took too long ({error}); a smaller prefill chunk takes less"
                )
            }
            Fault::Memory => {
                format!(
                    "{label}: the GPU had not enough memory ({error}); close other programs or lower --context"
                )
            }
            Fault::Commands | Fault::Compiler => format!("{label}: {error}"),
            Fault::Lost => {
                let text = format!("{label}: {error}");
                self.lost.get_or_insert_with(|| text.clone());
                text
            }
        }
    }
}
