//! Steps that choose their tokens on the device: what they start from, and what the device knows of sequences.

use lily_kernels::attention::PAGE_TOKENS;
use lily_kernels::select::{NONE_LEFT, NOT_FINITE, Request, SEEN_IN_PROMPT};

use super::{PlanKey, Runner};
use crate::device::{Batch, Choices, Device, Fresh, Steps};
use crate::plan::Tail;
use crate::{Choosing, ChoosingRow, Chosen, DeviceError, Forward as _, SequenceId};

/// Which sequence each entry of the device's pools of counts, biases and masks belongs to. There are as many as a step has rows;
/// a sequence whose entry was taken by another one brings its past again.
pub(super) struct Entries(Vec<Option<Entry>>);

struct Entry {
    sequence: SequenceId,
    choosing: Choosing,
    /// Tokens of the output that its counts know.
    step: usize,
}

impl Entries {
    pub(super) fn new(rows: usize) -> Self {
        Entries((0..rows).map(|_| None).collect())
    }

    pub(super) fn forget(&mut self, sequence: SequenceId) {
        for entry in &mut self.0 {
            entry.take_if(|entry| entry.sequence == sequence);
        }
    }

    /// The place of a sequence's entry.
    fn of(&self, sequence: SequenceId) -> Option<usize> {
        self.0.iter().position(|entry| entry.as_ref().is_some_and(|entry| entry.sequence == sequence))
    }

    /// The entry of a row, which may be that of a sequence without a row, and what is new in it.
    fn place(&mut self, row: &ChoosingRow<'_>, rows: &[ChoosingRow<'_>], vocab: usize) -> Option<Fresh> {
        let has_row = |entry: &Entry| rows.iter().any(|row| row.sequence == entry.sequence);
        let free = || self.0.iter().position(|entry| entry.as_ref().is_none_or(|entry| !has_row(entry)));
        let place = self.of(row.sequence).or_else(free)?;
        let known =
            self.0[place].take().filter(|e| e.sequence == row.sequence && e.choosing == *row.choosing);
        let (choosing, step) = (row.choosing, row.output.len());
        let new = known.is_none();
        let fresh = Fresh {
            entry: place,
            counts: (choosing.has_penalties() && known.is_none_or(|entry| entry.step != step))
                .then(|| counts(row, vocab)),
            bias: (new && !choosing.bias.is_empty()).then(|| bias(choosing, vocab)),
            mask: (new && !choosing.banned.is_empty()).then(|| mask(choosing, vocab)),
        };
        self.0[place] = Some(Entry { sequence: row.sequence, choosing: choosing.clone(), step });
        Some(fresh)
    }

    fn chose(&mut self, sequence: SequenceId) {
        if let Some(place) = self.of(sequence)
            && let Some(entry) = &mut self.0[place]
        {
            entry.step += 1;
        }
    }
}

/// Ids that do not exist are left out, here and in the two below.
fn counts(row: &ChoosingRow<'_>, vocab: usize) -> Vec<u32> {
    let mut counts = vec![0; vocab];
    for id in row.prompt {
        if let Some(count) = counts.get_mut(*id as usize) {
            *count = SEEN_IN_PROMPT;
        }
    }
    for id in row.output {
        if let Some(count) = counts.get_mut(*id as usize) {
            *count += 1;
        }
    }
    counts
}

fn bias(choosing: &Choosing, vocab: usize) -> Vec<f32> {
    let mut bias = vec![0.0; vocab];
    for (id, add) in &choosing.bias {
        if let Some(bias) = bias.get_mut(*id as usize) {
            *bias = *add;
        }
    }
    bias
}

fn mask(choosing: &Choosing, vocab: usize) -> Vec<u32> {
    let mut mask = vec![u32::MAX; vocab.div_ceil(32)];
    for id in &choosing.banned {
        if let Some(word) = mask.get_mut(*id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }
    mask
}

fn needs_entry(choosing: &Choosing) -> bool {
    choosing.has_penalties() || !choosing.bias.is_empty() || !choosing.banned.is_empty()
}

fn request(row: &ChoosingRow<'_>, entry: usize) -> Request {
    let c = row.choosing;
    Request {
        temperature: c.temperature,
        top_p: c.top_p,
        min_p: c.min_p,
        top_k: c.top_k,
        repetition: c.repetition,
        presence: c.presence,
        frequency: c.frequency,
        seed: c.seed,
        step: row.output.len() as u32,
        vocabulary: c.vocabulary as u32,
        entry: entry as u32,
        has_counts: c.has_penalties(),
        has_bias: !c.bias.is_empty(),
        has_mask: !c.banned.is_empty(),
        end_tokens: c.ends.clone(),
    }
}

impl<D: Device> Runner<D> {
    pub(super) fn begin_steps(&mut self, rows: &[ChoosingRow<'_>]) -> Result<(), DeviceError> {
        if let Some(row) = rows.iter().find(|row| !self.can_choose(row.choosing)) {
            let sequence = row.sequence;
            return Err(DeviceError::Unknown(format!(
                "the tokens of {sequence:?} cannot be chosen on the device"
            )));
        }
        let sequences: Vec<SequenceId> = rows.iter().map(|row| row.sequence).collect();
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        self.check_rows(&sequences, &tokens)?;
        let most = self.room(&sequences)?;
        let lengths = self.reserve(&sequences, most)?;
        let positions: Vec<u32> = lengths.iter().map(|length| *length as u32).collect();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        // Nobody's pools: a step of requests without penalties, biases and bans needs no memory for them.
        let pooled = rows.iter().any(|row| needs_entry(row.choosing));
        let entries = if pooled { self.options.max_decode_rows } else { 0 };
        let (context, switches) = (self.bucket(longest + most), self.profile.switches);
        let tail = Tail::Select { entries };
        let plan = self.plan(PlanKey::Decode { slots: rows.len(), context, tail, switches })?;
        let mut choices = Choices { entries, ..Choices::default() };
        for row in rows {
            let fresh = needs_entry(row.choosing).then(|| self.entries.place(row, rows, self.geometry.vocab));
            let fresh = fresh.flatten();
            choices.requests.push(request(row, fresh.as_ref().map_or(0, |fresh| fresh.entry)));
            choices.fresh.extend(fresh);
        }
        let batch = Batch { sequences: &sequences, tokens: &tokens, positions: &positions };
        let begun = Steps::begin(&mut self.device, plan, &batch, &choices, most);
        let submitted = begun.and_then(|mut steps| steps.submit(&mut self.device).map(|_| steps));
        if submitted.is_err() {
            // What was written of the new contents is not known.
            sequences.iter().for_each(|sequence| self.entries.forget(*sequence));
        }
        self.steps = Some(submitted?);
        Ok(())
    }

    /// Steps up to the end of a page that one of the sequences is in: where it goes on is not known to steps under way, and pages
    /// that are not needed yet are nobody's.
    fn room(&self, sequences: &[SequenceId]) -> Result<usize, DeviceError> {
        let mut most = PAGE_TOKENS;
        for sequence in sequences {
            let (length, context) = (self.known_length(*sequence)?, self.options.context);
            most = most.min(PAGE_TOKENS - length % PAGE_TOKENS).min(context.saturating_sub(length).max(1));
        }
        Ok(most)
    }

    pub(super) fn submit_step(&mut self) -> Result<bool, DeviceError> {
        let Some(steps) = &mut self.steps else { return Ok(false) };
        let submitted = steps.submit(&mut self.device);
        if submitted.is_err() {
            self.steps = None;
        }
        submitted
    }

    pub(super) fn take_step(&mut self) -> Result<Vec<Chosen>, DeviceError> {
        let none = || DeviceError::Unknown("no step is under way".into());
        let steps = self.steps.as_mut().ok_or_else(none)?;
        let taken = match steps.take(&mut self.device) {
            Ok(taken) => taken,
            Err(error) => {
                self.steps = None;
                return Err(error);
            }
        };
        let mut chosen = Vec::with_capacity(taken.len());
        for (row, sequence) in taken.iter().zip(steps.sequences()) {
            if row.moved
                && let Some(length) = self.lengths.get_mut(sequence)
            {
                *length += 1;
            }
            chosen.push(match row.chosen {
                NONE_LEFT => Chosen::NoneLeft,
                NOT_FINITE => Chosen::NotFinite,
                token => {
                    self.entries.chose(*sequence);
                    Chosen::Token(token)
                }
            });
        }
        Ok(chosen)
    }

    /// Whether the device has nothing to do: what the caller wants now must not come between steps.
    pub(super) fn not_under_way(&self) -> Result<(), DeviceError> {
        match self.under_way() {
            0 => Ok(()),
            n => Err(DeviceError::Unknown(format!(
                "{n} steps are under way that choose their tokens: take them first"
            ))),
        }
    }

    /// A sequence of steps under way goes: so do they, for all of their rows.
    pub(super) fn give_up_steps(&mut self, sequence: SequenceId) {
        if self.steps.as_ref().is_some_and(|steps| steps.sequences().contains(&sequence)) {
            while self.under_way() > 0 && self.take_step().is_ok() {}
            self.steps = None;
        }
    }
}
