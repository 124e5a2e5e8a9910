//! The states of sequences, in pools as a GPU holds them: for each DeltaNet layer a pool of states and one of conv states, for
//! each attention layer a pool of pages of keys and one of values. A place has the same number in all layers.
//!
//! A sequence has two places for its recurrent state. A run reads one and writes the other, and then they change roles. Pages are
//! shared by reference, and copied by who writes first. What nobody uses is poisoned.

use std::collections::HashMap;

use lily_kernels::{Activation, SLOT_WORDS};
use lily_model::device::{Room, StatePart};
use lily_model::{DeviceError, Geometry, LayerKind, SequenceId, SnapshotId};

use super::memory::{POISON, Pool};

/// Tokens of a page (`slot_page` in msl/slots.h).
pub(crate) const PAGE_TOKENS: usize = 64;

const RECURRENT: &str = "the recurrent state of a sequence";
const KEYS_AND_VALUES: &str = "keys and values";

/// The two pools of a layer.
pub(crate) enum Layer {
    /// Of f32, a place a state.
    Delta { state: Pool, conv: Pool },
    /// Of activations, a place a page: `[kv_heads, PAGE_TOKENS, head_dim]`.
    Attention { keys: Pool, values: Pool },
}

impl Layer {
    fn pools(&mut self) -> [&mut Pool; 2] {
        match self {
            Layer::Delta { state, conv } => [state, conv],
            Layer::Attention { keys, values } => [keys, values],
        }
    }

    fn kind(&self) -> LayerKind {
        match self {
            Layer::Delta { .. } => LayerKind::Delta,
            Layer::Attention { .. } => LayerKind::Attention,
        }
    }
}

/// Which places of the pools of one kind are in use, and by how many.
#[derive(Default)]
struct Places {
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl Places {
    fn used(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    fn hold(&mut self, place: u32) {
        self.holders[place as usize] += 1;
    }

    /// True if nobody holds it any more.
    fn release(&mut self, place: u32) -> bool {
        let holders = &mut self.holders[place as usize];
        *holders -= 1;
        let gone = *holders == 0;
        if gone {
            self.free.push(place);
        }
        gone
    }
}

struct Sequence {
    pages: Vec<u32>,
    /// The place that holds the state, and the one that the next run writes.
    places: [u32; 2],
}

struct Snapshot {
    pages: Vec<u32>,
    place: u32,
}

/// Pages that a sequence needs before it takes more tokens.
struct Need {
    missing: usize,
    /// A shared page, by its place in the sequence, that has to be copied.
    copy: Option<usize>,
}

/// All sequences and snapshots of a device.
pub(crate) struct State {
    layers: Vec<Layer>,
    /// The most bytes that sequences and snapshots may take together.
    budget: usize,
    recurrent: Places,
    pages: Places,
    sequences: HashMap<SequenceId, Sequence>,
    snapshots: HashMap<SnapshotId, Snapshot>,
    next: u64,
}

impl State {
    pub(crate) fn new(g: &Geometry, activation: Activation, budget: usize) -> Result<Self, DeviceError> {
        let page = g.attention.kv_heads * PAGE_TOKENS * g.attention.head_dim * activation.bytes();
        let layers = g.layers.iter().map(|kind| {
            Ok(match kind {
                LayerKind::Delta => Layer::Delta {
                    state: Pool::new(RECURRENT, 4 * g.delta.state_len())?,
                    conv: Pool::new(RECURRENT, 4 * g.delta.conv_state_len())?,
                },
                LayerKind::Attention => Layer::Attention {
                    keys: Pool::new(KEYS_AND_VALUES, page)?,
                    values: Pool::new(KEYS_AND_VALUES, page)?,
                },
            })
        });
        Ok(State {
            layers: layers.collect::<Result<_, _>>()?,
            budget,
            recurrent: Places::default(),
            pages: Places::default(),
            sequences: HashMap::new(),
            snapshots: HashMap::new(),
            next: 0,
        })
    }

    fn place_bytes(&self, kind: LayerKind) -> usize {
        let bytes = |layer: &Layer| match layer {
            Layer::Delta { state, conv } => state.place_bytes() + conv.place_bytes(),
            Layer::Attention { keys, values } => keys.place_bytes() + values.place_bytes(),
        };
        self.layers.iter().filter(|l| l.kind() == kind).map(bytes).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages.used() * self.place_bytes(LayerKind::Attention)
            + self.recurrent.used() * self.place_bytes(LayerKind::Delta)
    }

    fn places(&mut self, kind: LayerKind) -> &mut Places {
        match kind {
            LayerKind::Delta => &mut self.recurrent,
            LayerKind::Attention => &mut self.pages,
        }
    }

    /// Takes `count` places, all or none.
    fn take(&mut self, what: &'static str, kind: LayerKind, count: usize) -> Result<Vec<u32>, DeviceError> {
        let need_bytes = count * self.place_bytes(kind);
        let left_bytes = self.budget.saturating_sub(self.bytes());
        if need_bytes > left_bytes {
            return Err(DeviceError::OutOfMemory { what, need_bytes, left_bytes });
        }
        let (used, there) = (self.places(kind).used(), self.places(kind).holders.len());
        if used + count > there {
            let wanted = (used + count).max(2 * there);
            for pool in self.layers.iter_mut().filter(|l| l.kind() == kind).flat_map(Layer::pools) {
                pool.grow(what, wanted)?;
            }
            let places = self.places(kind);
            places.holders.resize(wanted, 0);
            places.free.extend((there..wanted).rev().map(|place| place as u32));
        }
        let places = self.places(kind);
        let taken = places.free.split_off(places.free.len() - count);
        taken.iter().for_each(|place| places.hold(*place));
        Ok(taken)
    }

    fn free(&mut self, kind: LayerKind, places: &[u32]) {
        for place in places {
            if self.places(kind).release(*place) {
                self.fill(kind, *place, POISON);
            }
        }
    }

    fn fill(&mut self, kind: LayerKind, place: u32, byte: u8) {
        for pool in self.layers.iter_mut().filter(|l| l.kind() == kind).flat_map(Layer::pools) {
            pool.fill(place, byte);
        }
    }

    fn copy(&mut self, kind: LayerKind, from: u32, to: u32) {
        for pool in self.layers.iter_mut().filter(|l| l.kind() == kind).flat_map(Layer::pools) {
            pool.copy(from, to);
        }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, DeviceError> {
        self.sequences.get(&id).ok_or_else(|| unknown(id))
    }

    fn two_places(&mut self) -> Result<[u32; 2], DeviceError> {
        let taken = self.take(RECURRENT, LayerKind::Delta, 2)?;
        Ok([taken[0], taken[1]])
    }

    pub(crate) fn open(&mut self) -> Result<SequenceId, DeviceError> {
        let places = self.two_places()?;
        self.fill(LayerKind::Delta, places[0], 0);
        let id = SequenceId(self.fresh());
        self.sequences.insert(id, Sequence { pages: Vec::new(), places });
        Ok(id)
    }

    pub(crate) fn close(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.free(LayerKind::Attention, &sequence.pages);
            self.free(LayerKind::Delta, &sequence.places);
        }
    }

    pub(crate) fn snapshot(&mut self, id: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        let sequence = self.sequence(id)?;
        let (from, pages) = (sequence.places[0], sequence.pages[..length.div_ceil(PAGE_TOKENS)].to_vec());
        let place = self.take("a snapshot", LayerKind::Delta, 1)?[0];
        self.copy(LayerKind::Delta, from, place);
        pages.iter().for_each(|page| self.pages.hold(*page));
        let id = SnapshotId(self.fresh());
        self.snapshots.insert(id, Snapshot { pages, place });
        Ok(id)
    }

    pub(crate) fn restore(&mut self, id: SnapshotId) -> Result<SequenceId, DeviceError> {
        let unknown = || DeviceError::Unknown(format!("no snapshot {id:?}"));
        let snapshot = self.snapshots.get(&id).ok_or_else(unknown)?;
        let (from, pages) = (snapshot.place, snapshot.pages.clone());
        let places = self.two_places()?;
        self.copy(LayerKind::Delta, from, places[0]);
        pages.iter().for_each(|page| self.pages.hold(*page));
        let id = SequenceId(self.fresh());
        self.sequences.insert(id, Sequence { pages, places });
        Ok(id)
    }

    pub(crate) fn discard(&mut self, id: SnapshotId) {
        if let Some(snapshot) = self.snapshots.remove(&id) {
            self.free(LayerKind::Attention, &snapshot.pages);
            self.free(LayerKind::Delta, &[snapshot.place]);
        }
    }

    pub(crate) fn snapshot_bytes(&self, id: SnapshotId) -> usize {
        let Some(snapshot) = self.snapshots.get(&id) else { return 0 };
        let own = snapshot.pages.iter().filter(|page| self.pages.holders[**page as usize] == 1).count();
        own * self.place_bytes(LayerKind::Attention) + self.place_bytes(LayerKind::Delta)
    }

    /// Makes pages for the tokens that sequences are to take, and a page of its own where the first of them goes into a
    /// shared one: the one place where a page is copied.
    pub(crate) fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        let needs = self.needs(rooms)?;
        let fresh = needs.iter().map(|need| need.missing + usize::from(need.copy.is_some())).sum();
        let mut pages = self.take(KEYS_AND_VALUES, LayerKind::Attention, fresh)?;
        for (room, need) in rooms.iter().zip(needs) {
            if let Some(at) = need.copy
                && let Some(page) = pages.pop()
            {
                let shared = self.sequence(room.sequence)?.pages[at];
                self.copy(LayerKind::Attention, shared, page);
                self.pages.release(shared);
                self.sequence_mut(room.sequence)?.pages[at] = page;
            }
            let fresh = pages.split_off(pages.len() - need.missing);
            self.sequence_mut(room.sequence)?.pages.extend(fresh);
        }
        Ok(())
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, DeviceError> {
        self.sequences.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// What each sequence needs. Of sequences that share a page with nobody else, the last keeps it.
    fn needs(&self, rooms: &[Room]) -> Result<Vec<Need>, DeviceError> {
        let mut left: Vec<u32> = Vec::new();
        let mut needs = Vec::with_capacity(rooms.len());
        for room in rooms {
            let pages = &self.sequence(room.sequence)?.pages;
            let missing = room.to.div_ceil(PAGE_TOKENS).saturating_sub(pages.len());
            let mut copy = None;
            if room.from < room.to && !room.from.is_multiple_of(PAGE_TOKENS) {
                let partial = room.from / PAGE_TOKENS;
                let page = pages[partial];
                let gone = left.iter().filter(|other| **other == page).count() as u32;
                if self.pages.holders[page as usize] - gone > 1 {
                    left.push(page);
                    copy = Some(partial);
                }
            }
            needs.push(Need { missing, copy });
        }
        Ok(needs)
    }

    /// The table `slots` of a run. A token behind a sequence's pages would be found on a page that no pool has.
    pub(crate) fn slots(&self, sequences: &[SequenceId], context: usize) -> Result<Vec<u32>, DeviceError> {
        let tables = context.div_ceil(PAGE_TOKENS);
        let mut words = Vec::with_capacity(sequences.len() * (SLOT_WORDS + tables));
        for (slot, id) in sequences.iter().enumerate() {
            let [from, to] = self.sequence(*id)?.places;
            let table = sequences.len() * SLOT_WORDS + slot * tables;
            words.extend([from, to, table as u32, 0]);
        }
        for id in sequences {
            let pages = &self.sequence(*id)?.pages;
            words.extend((0..tables).map(|i| pages.get(i).copied().unwrap_or(u32::MAX)));
        }
        Ok(words)
    }

    /// The other place holds the recurrent state from now on: after a run that wrote it, or to take such a run back.
    pub(crate) fn flip(&mut self, id: SequenceId) -> Result<(), DeviceError> {
        self.sequence_mut(id)?.places.reverse();
        Ok(())
    }

    /// The pools of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Option<&Layer> {
        self.layers.get(layer)
    }

    /// The layers that have a recurrent state.
    pub(crate) fn delta_layers(&self) -> usize {
        self.layers.iter().filter(|l| l.kind() == LayerKind::Delta).count()
    }

    /// A copy of a part of a sequence's recurrent state.
    pub(crate) fn read(&self, id: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        let place = self.sequence(id)?.places[0];
        let (StatePart::Delta { layer } | StatePart::Conv { layer }) = part;
        let bytes = match (part, self.layer(layer)) {
            (StatePart::Delta { .. }, Some(Layer::Delta { state, .. })) => state.bytes(place),
            (StatePart::Conv { .. }, Some(Layer::Delta { conv, .. })) => conv.bytes(place),
            _ => return Err(DeviceError::Unknown(format!("layer {layer} has no recurrent state"))),
        };
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}

fn unknown(id: SequenceId) -> DeviceError {
    DeviceError::Unknown(format!("no sequence {id:?}"))
}
