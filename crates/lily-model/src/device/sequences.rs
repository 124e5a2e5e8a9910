//! The states of sequences as GPUs hold them: for each DeltaNet layer a pool of states and one of conv states, for each attention
//! layer a pool of pages of keys and one of values. A place has the same number in all layers.
//!
//! A sequence has two places for its recurrent state. A run reads one and writes the other, and then they change roles. Pages are
//! shared by reference, and copied by who writes first.

use std::collections::HashMap;

use lily_kernels::attention::PAGE_TOKENS;
use lily_kernels::{Activation, SLOT_WORDS};

use super::{MadeUp, Room, StatePart};
use crate::plan::Buffer;
use crate::{DeviceError, Geometry, LayerKind, SequenceId, SnapshotId};

/// Different pages that are made up; a sequence has them in turn.
const MADE_UP_PAGES: usize = 16;

const RECURRENT: &str = "the recurrent state of a sequence";
const KEYS_AND_VALUES: &str = "keys and values";

/// Places of one size in the memory of a device: the states, or the pages, of all sequences in one layer. What is asked of it
/// happens after all that was asked before, runs of plans included.
pub trait Pool {
    /// Bytes of a place.
    fn place_bytes(&self) -> usize;

    /// How many places there should be where `there` are and at least `least` are needed: what growing costs says how far ahead.
    fn growth(there: usize, least: usize) -> usize;

    /// Makes the pool hold at least so many places; what is in it stays.
    fn grow(&mut self, what: &'static str, places: usize) -> Result<(), DeviceError>;

    /// Fills a place with zeros.
    fn clear(&mut self, place: u32) -> Result<(), DeviceError>;

    /// Copies a place to another one.
    fn copy(&mut self, from: u32, to: u32) -> Result<(), DeviceError>;

    /// Writes a whole place.
    fn write(&mut self, place: u32, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Nobody holds the place any more.
    fn release(&mut self, _place: u32) {}
}

/// The two pools of a layer.
pub enum LayerPools<P> {
    /// Of f32, a place a state.
    Delta {
        /// S.
        state: P,
        /// The last raw qkv rows.
        conv: P,
    },
    /// Of activations, a place a page: `[kv_heads, PAGE_TOKENS, head_dim]`.
    Attention {
        /// Keys.
        keys: P,
        /// Values.
        values: P,
    },
}

impl<P> LayerPools<P> {
    /// The pool of keys, values or a state; `None` where the layer has none, or the buffer is not one that sequences have of
    /// their own.
    pub fn pool(&self, buffer: Buffer) -> Option<&P> {
        match (self, buffer) {
            (LayerPools::Delta { state, .. }, Buffer::DeltaState { .. }) => Some(state),
            (LayerPools::Delta { conv, .. }, Buffer::ConvState { .. }) => Some(conv),
            (LayerPools::Attention { keys, .. }, Buffer::Keys { .. }) => Some(keys),
            (LayerPools::Attention { values, .. }, Buffer::Values { .. }) => Some(values),
            _ => None,
        }
    }

    /// Both of them.
    pub fn both(&self) -> [&P; 2] {
        match self {
            LayerPools::Delta { state, conv } => [state, conv],
            LayerPools::Attention { keys, values } => [keys, values],
        }
    }

    fn both_mut(&mut self) -> [&mut P; 2] {
        match self {
            LayerPools::Delta { state, conv } => [state, conv],
            LayerPools::Attention { keys, values } => [keys, values],
        }
    }

    fn kind(&self) -> LayerKind {
        match self {
            LayerPools::Delta { .. } => LayerKind::Delta,
            LayerPools::Attention { .. } => LayerKind::Attention,
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
pub struct Sequences<P> {
    layers: Vec<LayerPools<P>>,
    /// The most bytes that sequences and snapshots may take together.
    budget: usize,
    recurrent: Places,
    pages: Places,
    sequences: HashMap<SequenceId, Sequence>,
    snapshots: HashMap<SnapshotId, Snapshot>,
    next: u64,
}

impl<P: Pool> Sequences<P> {
    /// None yet, in pools that `pool` makes: given what they are for and the bytes of a place.
    pub fn new(
        g: &Geometry,
        activation: Activation,
        budget: usize,
        mut pool: impl FnMut(&'static str, usize) -> Result<P, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let page = g.attention.kv_heads * PAGE_TOKENS * g.attention.head_dim * activation.bytes();
        let layers = g.layers.iter().map(|kind| {
            Ok(match kind {
                LayerKind::Delta => LayerPools::Delta {
                    state: pool(RECURRENT, 4 * g.delta.state_len())?,
                    conv: pool(RECURRENT, 4 * g.delta.conv_state_len())?,
                },
                LayerKind::Attention => LayerPools::Attention {
                    keys: pool(KEYS_AND_VALUES, page)?,
                    values: pool(KEYS_AND_VALUES, page)?,
                },
            })
        });
        Ok(Sequences {
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
        let of_kind = self.layers.iter().filter(|l| l.kind() == kind);
        of_kind.flat_map(LayerPools::both).map(P::place_bytes).sum()
    }

    /// Bytes of all that sequences and snapshots hold.
    pub fn bytes(&self) -> usize {
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
            // No further ahead than the budget goes.
            let most = used + left_bytes / self.place_bytes(kind).max(1);
            let wanted = P::growth(there, used + count).clamp(used + count, most);
            for pool in self.pools(kind) {
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

    fn pools(&mut self, kind: LayerKind) -> impl Iterator<Item = &mut P> {
        self.layers.iter_mut().filter(move |l| l.kind() == kind).flat_map(LayerPools::both_mut)
    }

    fn free(&mut self, kind: LayerKind, places: &[u32]) {
        for place in places {
            if self.places(kind).release(*place) {
                self.pools(kind).for_each(|pool| pool.release(*place));
            }
        }
    }

    fn clear(&mut self, kind: LayerKind, place: u32) -> Result<(), DeviceError> {
        self.pools(kind).try_for_each(|pool| pool.clear(place))
    }

    fn copy(&mut self, kind: LayerKind, from: u32, to: u32) -> Result<(), DeviceError> {
        self.pools(kind).try_for_each(|pool| pool.copy(from, to))
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

    /// [`super::Device::open`].
    pub fn open(&mut self) -> Result<SequenceId, DeviceError> {
        let places = self.two_places()?;
        self.clear(LayerKind::Delta, places[0])?;
        let id = SequenceId(self.fresh());
        self.sequences.insert(id, Sequence { pages: Vec::new(), places });
        Ok(id)
    }

    /// [`super::Device::close`].
    pub fn close(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.free(LayerKind::Attention, &sequence.pages);
            self.free(LayerKind::Delta, &sequence.places);
        }
    }

    /// [`super::Device::snapshot`].
    pub fn snapshot(&mut self, id: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        let sequence = self.sequence(id)?;
        let (from, pages) = (sequence.places[0], sequence.pages[..length.div_ceil(PAGE_TOKENS)].to_vec());
        let place = self.take("a snapshot", LayerKind::Delta, 1)?[0];
        self.copy(LayerKind::Delta, from, place)?;
        pages.iter().for_each(|page| self.pages.hold(*page));
        let id = SnapshotId(self.fresh());
        self.snapshots.insert(id, Snapshot { pages, place });
        Ok(id)
    }

    /// [`super::Device::restore`].
    pub fn restore(&mut self, id: SnapshotId) -> Result<SequenceId, DeviceError> {
        let unknown = || DeviceError::Unknown(format!("no snapshot {id:?}"));
        let snapshot = self.snapshots.get(&id).ok_or_else(unknown)?;
        let (from, pages) = (snapshot.place, snapshot.pages.clone());
        let places = self.two_places()?;
        self.copy(LayerKind::Delta, from, places[0])?;
        pages.iter().for_each(|page| self.pages.hold(*page));
        let id = SequenceId(self.fresh());
        self.sequences.insert(id, Sequence { pages, places });
        Ok(id)
    }

    /// [`super::Device::discard`].
    pub fn discard(&mut self, id: SnapshotId) {
        if let Some(snapshot) = self.snapshots.remove(&id) {
            self.free(LayerKind::Attention, &snapshot.pages);
            self.free(LayerKind::Delta, &[snapshot.place]);
        }
    }

    /// [`super::Device::snapshot_bytes`].
    pub fn snapshot_bytes(&self, id: SnapshotId) -> usize {
        let Some(snapshot) = self.snapshots.get(&id) else { return 0 };
        let own = snapshot.pages.iter().filter(|page| self.pages.holders[**page as usize] == 1).count();
        own * self.place_bytes(LayerKind::Attention) + self.place_bytes(LayerKind::Delta)
    }

    /// Makes pages for the tokens that sequences are to take, and a page of its own where the first of them goes into a
    /// shared one: the one place where a page is copied.
    pub fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        let needs = self.needs(rooms)?;
        let fresh = needs.iter().map(|need| need.missing + usize::from(need.copy.is_some())).sum();
        let mut pages = self.take(KEYS_AND_VALUES, LayerKind::Attention, fresh)?;
        for (room, need) in rooms.iter().zip(needs) {
            if let Some(at) = need.copy
                && let Some(page) = pages.pop()
            {
                let shared = self.sequence(room.sequence)?.pages[at];
                self.copy(LayerKind::Attention, shared, page)?;
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

    /// [`super::Device::make_up`].
    pub fn make_up(
        &mut self,
        id: SequenceId,
        tokens: usize,
        activation: Activation,
    ) -> Result<(), DeviceError> {
        let sequence = self.sequence(id)?;
        let (place, pages) = (sequence.places[0], sequence.pages[..tokens.div_ceil(PAGE_TOKENS)].to_vec());
        for (layer, pools) in self.layers.iter_mut().enumerate() {
            let kind = pools.kind();
            for (n, pool) in pools.both_mut().into_iter().enumerate() {
                let number = (2 * layer + n) as u64;
                if kind == LayerKind::Delta {
                    let state = MadeUp::State { layer: number };
                    pool.write(place, &state.bytes(pool.place_bytes() / 4, Activation::F32))?;
                    continue;
                }
                let count = pool.place_bytes() / activation.bytes();
                let page = |i: usize| MadeUp::Cache { page: number << 8 | i as u64 }.bytes(count, activation);
                let made: Vec<Vec<u8>> = (0..MADE_UP_PAGES.min(pages.len())).map(page).collect();
                for (page, bytes) in pages.iter().zip(made.iter().cycle()) {
                    pool.write(*page, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// The table `slots` of a run. A token behind a sequence's pages would be found on a page that no pool has.
    pub fn slots(&self, sequences: &[SequenceId], context: usize) -> Result<Vec<u32>, DeviceError> {
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
    pub fn flip(&mut self, id: SequenceId) -> Result<(), DeviceError> {
        self.sequence_mut(id)?.places.reverse();
        Ok(())
    }

    /// The pools of a layer.
    pub fn layer(&self, layer: usize) -> Option<&LayerPools<P>> {
        self.layers.get(layer)
    }

    /// Where a part of a sequence's recurrent state is.
    pub fn part(&self, id: SequenceId, part: StatePart) -> Result<(&P, u32), DeviceError> {
        let place = self.sequence(id)?.places[0];
        let (StatePart::Delta { layer } | StatePart::Conv { layer }) = part;
        match (part, self.layer(layer)) {
            (StatePart::Delta { .. }, Some(LayerPools::Delta { state, .. })) => Ok((state, place)),
            (StatePart::Conv { .. }, Some(LayerPools::Delta { conv, .. })) => Ok((conv, place)),
            _ => Err(DeviceError::Unknown(format!("layer {layer} has no recurrent state"))),
        }
    }
}

fn unknown(id: SequenceId) -> DeviceError {
    DeviceError::Unknown(format!("no sequence {id:?}"))
}
