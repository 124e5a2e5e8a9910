//! The state of sequences: recurrent state of their own, keys and values in pages shared by reference.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use lily_model::device::{MadeUp, Room};
use lily_model::{DeviceError, Geometry, LayerKind, SequenceId, SnapshotId};

pub(crate) use lily_kernels::attention::PAGE_TOKENS;

/// Keys and values of `PAGE_TOKENS` tokens in all attention layers: [attention layers, 2, kv_heads, PAGE_TOKENS,
/// head_dim]. A head's keys stand together, so that a page is a block of the attention loop.
type Page = Arc<PageMemory>;

/// Cells, because sequences and snapshots hold a page by shared reference, and a plan that runs writes through it.
struct PageMemory(Box<[UnsafeCell<f32>]>);

// SAFETY: cells are written only by tasks of a running plan, under the rules of `crate::memory::Args`, and by
// `State::reserve`, which has the device to itself; a plan writes only pages that `State::reserve` gave to one sequence.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    fn start(&self) -> *mut f32 {
        UnsafeCell::raw_get(self.0.as_ptr())
    }
}

/// One layer's keys, or values, of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct PageTable<'a> {
    /// Page starts, moved to this layer's keys or values.
    pages: &'a [*mut f32],
    offset: usize,
    head_dim: usize,
}

impl<'a> PageTable<'a> {
    pub(crate) fn new(pages: &'a [*mut f32], offset: usize, head_dim: usize) -> Self {
        PageTable { pages, offset, head_dim }
    }

    /// Keys or values of head `head` in page `page`, the first `tokens` of them: [tokens, head_dim].
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    pub(crate) unsafe fn block(&self, page: usize, head: usize, tokens: usize) -> &'a [f32] {
        assert!(tokens <= PAGE_TOKENS);
        let start = self.offset + head * PAGE_TOKENS * self.head_dim;
        // SAFETY: the table was made for pages of this geometry (`State::layer_offset`), so head and tokens are inside.
        unsafe { std::slice::from_raw_parts(self.pages[page].add(start), tokens * self.head_dim) }
    }

    /// Where the token at `position` of head `head` is written: `[head_dim]`.
    ///
    /// # Safety
    /// Nobody else touches it while the slice lives, and the page is not shared (`State::reserve`).
    pub(crate) unsafe fn token(&self, position: usize, head: usize) -> &'a mut [f32] {
        let row = head * PAGE_TOKENS + position % PAGE_TOKENS;
        let start = self.offset + row * self.head_dim;
        // SAFETY: as in `block`; exclusive by the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.pages[position / PAGE_TOKENS].add(start), self.head_dim)
        }
    }
}

struct Sequence {
    pages: Vec<Page>,
    recurrent: Box<[f32]>,
}

struct Snapshot {
    pages: Vec<Page>,
    recurrent: Arc<Box<[f32]>>,
}

/// Pages that a sequence needs before it takes more tokens.
struct Need {
    missing: usize,
    /// A shared page, by its place in the sequence, that has to be copied.
    copy: Option<usize>,
}

/// All sequences and snapshots of a device.
pub(crate) struct State {
    sizes: Sizes,
    /// The most bytes that sequences and snapshots may take together.
    budget: usize,
    sequences: HashMap<SequenceId, Sequence>,
    snapshots: HashMap<SnapshotId, Snapshot>,
    next: u64,
    /// Pages alive, shared ones counted once.
    pages_alive: usize,
}

/// Sizes of state, in f32.
struct Sizes {
    page: usize,
    recurrent: usize,
    kv_layer: usize,
    delta: usize,
    conv: usize,
    /// For each layer, its number among the layers of its kind.
    index: Vec<(LayerKind, usize)>,
}

impl Sizes {
    fn new(g: &Geometry) -> Self {
        let kv_layer = g.attention.kv_heads * PAGE_TOKENS * g.attention.head_dim;
        let (delta, conv) = (g.delta.state_len(), g.delta.conv_state_len());
        let mut counts = [0, 0];
        let index = g.layers.iter().map(|kind| {
            let count = &mut counts[usize::from(*kind == LayerKind::Attention)];
            *count += 1;
            (*kind, *count - 1)
        });
        Sizes {
            index: index.collect(),
            page: g.count(LayerKind::Attention) * 2 * kv_layer,
            recurrent: g.count(LayerKind::Delta) * (delta + conv),
            kv_layer,
            delta,
            conv,
        }
    }
}

impl State {
    pub(crate) fn new(geometry: &Geometry, budget: usize) -> Self {
        let (sequences, snapshots) = (HashMap::new(), HashMap::new());
        State { sizes: Sizes::new(geometry), budget, sequences, snapshots, next: 0, pages_alive: 0 }
    }

    fn page_bytes(&self) -> usize {
        4 * self.sizes.page
    }

    fn recurrent_bytes(&self) -> usize {
        4 * self.sizes.recurrent
    }

    pub(crate) fn bytes(&self) -> usize {
        let states = self.sequences.len() + self.snapshots.len();
        self.pages_alive * self.page_bytes() + states * self.recurrent_bytes()
    }

    fn check(&self, what: &'static str, need_bytes: usize) -> Result<(), DeviceError> {
        let left_bytes = self.budget.saturating_sub(self.bytes());
        if need_bytes > left_bytes {
            return Err(DeviceError::OutOfMemory { what, need_bytes, left_bytes });
        }
        Ok(())
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn open(&mut self) -> Result<SequenceId, DeviceError> {
        self.check("the recurrent state of a sequence", self.recurrent_bytes())?;
        let recurrent = zeros("the recurrent state of a sequence", self.sizes.recurrent)?;
        let id = SequenceId(self.fresh());
        self.sequences.insert(id, Sequence { pages: Vec::new(), recurrent });
        Ok(id)
    }

    pub(crate) fn close(&mut self, id: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.free(sequence.pages);
        }
    }

    fn free(&mut self, pages: Vec<Page>) {
        self.pages_alive -= pages.iter().filter(|p| Arc::strong_count(p) == 1).count();
    }

    pub(crate) fn snapshot(&mut self, id: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        self.check("a snapshot", self.recurrent_bytes())?;
        let sequence = self.sequence(id)?;
        let pages = sequence.pages[..length.div_ceil(PAGE_TOKENS)].to_vec();
        let recurrent = Arc::new(sequence.recurrent.clone());
        let id = SnapshotId(self.fresh());
        self.snapshots.insert(id, Snapshot { pages, recurrent });
        Ok(id)
    }

    pub(crate) fn restore(&mut self, id: SnapshotId) -> Result<SequenceId, DeviceError> {
        self.check("the recurrent state of a sequence", self.recurrent_bytes())?;
        let snapshot =
            self.snapshots.get(&id).ok_or_else(|| DeviceError::Unknown(format!("no snapshot {id:?}")))?;
        let (pages, recurrent) = (snapshot.pages.clone(), snapshot.recurrent.as_ref().clone());
        let id = SequenceId(self.fresh());
        self.sequences.insert(id, Sequence { pages, recurrent });
        Ok(id)
    }

    pub(crate) fn discard(&mut self, id: SnapshotId) {
        if let Some(snapshot) = self.snapshots.remove(&id) {
            self.free(snapshot.pages);
        }
    }

    pub(crate) fn snapshot_bytes(&self, id: SnapshotId) -> usize {
        let Some(snapshot) = self.snapshots.get(&id) else { return 0 };
        let own = snapshot.pages.iter().filter(|p| Arc::strong_count(p) == 1).count();
        own * self.page_bytes() + self.recurrent_bytes()
    }

    /// Makes pages for the tokens that sequences are to take, and a page of its own where the first of them goes into a
    /// shared one: the one place where a page is copied. All pages are there before any sequence changes.
    pub(crate) fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        const WHAT: &str = "keys and values";
        let needs = self.needs(rooms)?;
        let fresh = needs.iter().map(|need| need.missing + usize::from(need.copy.is_some())).sum();
        self.check(WHAT, fresh * self.page_bytes())?;
        let mut pages = Vec::with_capacity(fresh);
        for _ in 0..fresh {
            pages.push(Arc::new(PageMemory(zeros(WHAT, self.sizes.page)?)));
        }
        self.pages_alive += fresh;
        for (room, need) in rooms.iter().zip(needs) {
            let sequence = self.sequences.get_mut(&room.sequence).ok_or_else(|| unknown(room.sequence))?;
            if let Some(shared) = need.copy
                && let Some(page) = pages.pop()
            {
                // SAFETY: both pages have `sizes.page` values, one of them is not in use yet, and no plan runs.
                unsafe {
                    page.start().copy_from_nonoverlapping(sequence.pages[shared].start(), self.sizes.page);
                }
                sequence.pages[shared] = page;
            }
            sequence.pages.extend(pages.drain(pages.len() - need.missing..));
        }
        Ok(())
    }

    /// What each sequence needs. Of sequences that share a page with nobody else, the last keeps it.
    fn needs(&self, rooms: &[Room]) -> Result<Vec<Need>, DeviceError> {
        let mut left: Vec<&Page> = Vec::new();
        let mut needs = Vec::with_capacity(rooms.len());
        for room in rooms {
            let pages = &self.sequence(room.sequence)?.pages;
            let missing = room.to.div_ceil(PAGE_TOKENS).saturating_sub(pages.len());
            let partial = room.from / PAGE_TOKENS;
            let mut copy = None;
            if room.from < room.to && !room.from.is_multiple_of(PAGE_TOKENS) {
                let page = &pages[partial];
                let gone = left.iter().filter(|other| Arc::ptr_eq(other, page)).count();
                if Arc::strong_count(page) - gone > 1 {
                    left.push(page);
                    copy = Some(partial);
                }
            }
            needs.push(Need { missing, copy });
        }
        Ok(needs)
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, DeviceError> {
        self.sequences.get(&id).ok_or_else(|| unknown(id))
    }

    /// Keys, values and states of as many tokens that no text made (`Device::make_up`).
    pub(crate) fn make_up(&mut self, id: SequenceId, tokens: usize) -> Result<(), DeviceError> {
        let len = self.sizes.page;
        let sequence = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        for (i, page) in sequence.pages[..tokens.div_ceil(PAGE_TOKENS)].iter().enumerate() {
            // SAFETY: a page has `sizes.page` values; those that a reserve gave an empty sequence are its own, and no plan runs.
            let page = unsafe { std::slice::from_raw_parts_mut(page.start(), len) };
            MadeUp::Cache { page: i as u64 }.fill(page);
        }
        MadeUp::State { layer: 0 }.fill(&mut sequence.recurrent);
        Ok(())
    }

    /// Page starts of a sequence. Only pages that [`State::reserve`] made writable are written through them.
    pub(crate) fn page_starts(&self, id: SequenceId) -> Result<Vec<*mut f32>, DeviceError> {
        Ok(self.sequence(id)?.pages.iter().map(|p| p.start()).collect())
    }

    /// Where a layer's keys (values: `kv_layer` further) start in a page, in f32.
    pub(crate) fn kv_offset(&self, layer: usize, values: bool) -> usize {
        (2 * self.sizes.index[layer].1 + usize::from(values)) * self.sizes.kv_layer
    }

    /// The recurrent state of a sequence: where it starts, and its length in f32.
    pub(crate) fn recurrent_start(&mut self, id: SequenceId) -> Result<(*mut f32, usize), DeviceError> {
        let sequence = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        Ok((sequence.recurrent.as_mut_ptr(), sequence.recurrent.len()))
    }

    /// Where a layer's S, or with `conv` its conv state, lies in the recurrent state, in f32.
    pub(crate) fn recurrent_range(&self, layer: usize, conv: bool) -> Result<Range<usize>, DeviceError> {
        let (delta, conv_len) = (self.sizes.delta, self.sizes.conv);
        match self.sizes.index.get(layer) {
            Some((LayerKind::Delta, index)) => {
                let start = index * (delta + conv_len);
                Ok(if conv { start + delta..start + delta + conv_len } else { start..start + delta })
            }
            _ => Err(DeviceError::Unknown(format!("layer {layer} has no recurrent state"))),
        }
    }

    /// A copy of a layer's S, or with `conv` of its conv state.
    pub(crate) fn read(&self, id: SequenceId, layer: usize, conv: bool) -> Result<Vec<f32>, DeviceError> {
        Ok(self.sequence(id)?.recurrent[self.recurrent_range(layer, conv)?].to_vec())
    }
}

/// Zeros (of f32, or of cells of it), or an error where the system has no memory left.
fn zeros<T: Default>(what: &'static str, len: usize) -> Result<Box<[T]>, DeviceError> {
    let mut v = Vec::new();
    let need_bytes = len * size_of::<T>();
    v.try_reserve_exact(len).map_err(|_| DeviceError::OutOfMemory { what, need_bytes, left_bytes: 0 })?;
    v.resize_with(len, T::default);
    Ok(v.into_boxed_slice())
}

fn unknown(id: SequenceId) -> DeviceError {
    DeviceError::Unknown(format!("no sequence {id:?}"))
}
