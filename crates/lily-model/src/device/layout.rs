//! Which tensors a GPU holds, and where: the ones that its plans read, one after the other in blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::TensorSource;
use crate::pack::PAGE;
use crate::plan::{self, Buffer, DecodeShape, Plan, PlanError, Target};
use crate::{LogitRows, Mapped, Packing, TensorId};

/// As drivers align memory: whatever vectors a kernel reads.
const ALIGN: usize = 256;

/// A run of bytes of a tensor of the checkpoint, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whose bytes.
    pub tensor: TensorId,
    /// The first byte of the tensor.
    pub from: usize,
    /// Into which block.
    pub block: usize,
    /// The first byte of the block.
    pub to: usize,
    /// How many.
    pub bytes: usize,
}

/// Where a tensor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// In which block.
    pub block: usize,
    /// The first byte of the block.
    pub start: usize,
    /// How many.
    pub bytes: usize,
}

/// Where each tensor stands in the blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    places: BTreeMap<TensorId, Spot>,
    /// Bytes of each block.
    blocks: Vec<usize>,
    /// What the blocks consist of, in their order.
    pieces: Vec<Piece>,
}

impl Layout {
    /// Of all tensors that plans for this target read, each made as the packing says, in blocks of at most `most` bytes; a longer
    /// tensor has a block of its own.
    ///
    /// # Errors
    /// Where no plan can be made.
    pub fn new(
        target: Target<'_>,
        source: &dyn TensorSource,
        packing: &Packing,
        most: usize,
    ) -> Result<Self, PlanError> {
        let mut layout = Layout::default();
        for plan in plans(target)? {
            tensors(&plan).for_each(|tensor| layout.add(tensor, source, packing, most));
        }
        Ok(layout)
    }

    /// The same tensors where they are mapped, without a copy: blocks of whole pages of files, of at most `most` bytes unless a tensor is
    /// longer. `None` where they do not stand in pages of their own, as in a packed checkpoint ([`crate::pack`]).
    ///
    /// # Errors
    /// Where no plan can be made.
    pub fn mapped(
        target: Target<'_>,
        source: &dyn TensorSource,
        packing: &Packing,
        most: usize,
    ) -> Result<Option<(Self, Vec<Mapped>)>, PlanError> {
        let mut stands: BTreeMap<TensorId, Mapped> = BTreeMap::new();
        for plan in plans(target)? {
            for tensor in
                tensors(&plan).filter(|tensor| !stands.contains_key(tensor)).collect::<BTreeSet<_>>()
            {
                let Some(stand) = stand(tensor, source, packing) else { return Ok(None) };
                stands.insert(tensor, stand);
            }
        }
        let mut stands: Vec<(TensorId, Mapped)> = stands.into_iter().collect();
        // By file, which is one beside another in memory or not at all, and by place.
        stands.sort_by_key(|(_, stand)| stand.as_slice().as_ptr().addr());
        let (mut layout, mut blocks) = (Layout::default(), Vec::<Mapped>::new());
        for (tensor, stand) in stands {
            let range = stand.range();
            let Some(pages) = stand.within_file(range.start..range.end.next_multiple_of(PAGE)) else {
                return Ok(None);
            };
            let with_last = |last: &Mapped| {
                let longer = last.range().start..pages.range().end;
                let fits = last.is_of_same_file(&pages) && longer.len() <= most;
                if fits { last.within_file(longer) } else { None }
            };
            match blocks.last().and_then(with_last) {
                Some(longer) => {
                    blocks.pop();
                    blocks.push(longer);
                }
                None => blocks.push(pages),
            }
            let block = blocks.len() - 1;
            let start = range.start - blocks[block].range().start;
            layout.places.insert(tensor, Spot { block, start, bytes: range.len() });
        }
        layout.blocks = blocks.iter().map(|block| block.range().len()).collect();
        Ok(Some((layout, blocks)))
    }

    fn add(&mut self, tensor: TensorId, source: &dyn TensorSource, packing: &Packing, most: usize) {
        if self.places.contains_key(&tensor) {
            return;
        }
        let own = [tensor];
        let parts = packing.parts(tensor).unwrap_or(&own);
        let bytes: usize = parts.iter().map(|part| source.len(*part)).sum();
        let start = match self.blocks.last() {
            Some(held) if held.next_multiple_of(ALIGN) + bytes <= most => held.next_multiple_of(ALIGN),
            _ => {
                self.blocks.push(0);
                0
            }
        };
        let block = self.blocks.len() - 1;
        let mut to = start;
        for part in parts {
            let bytes = source.len(*part);
            self.pieces.push(Piece { tensor: *part, from: 0, block, to, bytes });
            to += bytes;
        }
        self.places.insert(tensor, Spot { block, start, bytes });
        self.blocks[block] = to;
    }

    /// Where a tensor stands.
    pub fn place(&self, tensor: TensorId) -> Option<Spot> {
        self.places.get(&tensor).copied()
    }

    /// Bytes of each block.
    pub fn blocks(&self) -> &[usize] {
        &self.blocks
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().sum()
    }

    /// The pieces in the order of blocks and bytes, none longer than `most`.
    pub fn pieces(&self, most: usize) -> Vec<Piece> {
        let cut = |piece: &Piece| {
            let piece = *piece;
            (0..piece.bytes).step_by(most.max(1)).map(move |start| Piece {
                from: piece.from + start,
                to: piece.to + start,
                bytes: most.min(piece.bytes - start),
                ..piece
            })
        };
        self.pieces.iter().flat_map(cut).collect()
    }
}

/// Plans that between them read every tensor that any plan reads.
fn plans(target: Target<'_>) -> Result<[Plan; 3], PlanError> {
    let prefill = |rows| plan::prefill(target, rows, 256, LogitRows::Last);
    Ok([prefill(1)?, prefill(2)?, plan::decode(target, DecodeShape::logits(1, 256))?])
}

/// Where a tensor is mapped: its parts one behind the other, from the start of a page on.
fn stand(tensor: TensorId, source: &dyn TensorSource, packing: &Packing) -> Option<Mapped> {
    let own = [tensor];
    let mut parts = packing.parts(tensor).unwrap_or(&own).iter();
    let mut whole = source.mapped(*parts.next()?)?;
    for part in parts {
        let next = source.mapped(*part)?;
        if !next.is_of_same_file(&whole) || next.range().start != whole.range().end {
            return None;
        }
        whole = whole.within_file(whole.range().start..next.range().end)?;
    }
    whole.range().start.is_multiple_of(PAGE).then_some(whole)
}

fn tensors(plan: &Plan) -> impl Iterator<Item = TensorId> {
    plan.launches.iter().flat_map(|launch| &launch.bindings).filter_map(|view| match view.buffer {
        Buffer::Tensor(id) => Some(id),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::{Profile, Switch, Switches};
    use crate::testing::{Spec, model_in_memory};

    /// Blocks hold what plans read and nothing twice, whatever mechanisms are off and however long blocks may be.
    #[test]
    fn every_tensor_that_any_plan_reads_stands_in_a_block() {
        let model = Arc::new(model_in_memory(&Spec::tiny()));
        let (weights, packing) = model.weights.packed();
        let every = Profile::named("cuda:h200").unwrap();
        let off = Switch::ALL.map(|s| every.clone().without(s));
        for profile in [every.clone(), every.with_switches(Switches::NONE)].into_iter().chain(off) {
            let target = Target { geometry: &model.geometry, weights: &weights, profile: &profile };
            for most in [usize::MAX, 5000] {
                let layout = Layout::new(target, &*model, &packing, most).unwrap();
                for rows in [1, 3, 70] {
                    for logits in [LogitRows::None, LogitRows::Last, LogitRows::All] {
                        let plan = plan::prefill(target, rows, 512, logits).unwrap();
                        assert!(tensors(&plan).all(|t| layout.place(t).is_some()), "{rows} rows");
                    }
                }
                let plan = plan::decode(target, DecodeShape::logits(4, 2048)).unwrap();
                assert!(tensors(&plan).all(|t| layout.place(t).is_some()));

                let mut places: Vec<_> = layout.places.values().copied().collect();
                places.sort_unstable();
                let apart = |w: &[Spot]| w[0].block < w[1].block || w[0].start + w[0].bytes <= w[1].start;
                assert!(places.windows(2).all(apart));
                assert!(places.iter().all(|spot| spot.start.is_multiple_of(ALIGN)));
                assert!(layout.bytes() as u64 <= model.checkpoint.total_bytes() + 256 * places.len() as u64);
                for (block, bytes) in layout.blocks().iter().enumerate() {
                    let held: Vec<_> = places.iter().filter(|spot| spot.block == block).collect();
                    assert!(*bytes <= most || held.len() == 1, "{bytes} bytes of {} tensors", held.len());
                }
                assert_eq!(layout.blocks().len() > 1, most == 5000);
            }
        }
    }

    #[test]
    fn pieces_make_up_each_tensor() {
        let model = Arc::new(model_in_memory(&Spec::tiny()));
        let (weights, packing) = model.weights.packed();
        let profile = Profile::named("cuda:h200").unwrap();
        let target = Target { geometry: &model.geometry, weights: &weights, profile: &profile };
        for most in [usize::MAX, 20_000] {
            let layout = Layout::new(target, &*model, &packing, most).unwrap();
            let mut blocks: Vec<Vec<u8>> = layout.blocks().iter().map(|bytes| vec![0xa5; *bytes]).collect();
            let mut before = (0, 0);
            for piece in layout.pieces(1000) {
                assert!(piece.bytes > 0 && piece.bytes <= 1000);
                assert!(before <= (piece.block, piece.to), "in order");
                before = (piece.block, piece.to + piece.bytes);
                let into = &mut blocks[piece.block][piece.to..piece.to + piece.bytes];
                model.read(piece.tensor, piece.from, into);
            }
            for (tensor, spot) in &layout.places {
                let parts = packing.parts(*tensor).unwrap_or(std::slice::from_ref(tensor));
                let want: Vec<u8> =
                    parts.iter().flat_map(|p| TensorSource::bytes(&*model, *p)).copied().collect();
                assert!(blocks[spot.block][spot.start..spot.start + spot.bytes] == want[..], "{tensor:?}");
            }
        }
    }
}
