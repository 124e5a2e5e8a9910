//! Which tensors a device holds, and where: the ones that its plans read, one after the other in one block.

use std::collections::BTreeMap;

use lily_model::device::TensorSource;
use lily_model::plan::{self, Buffer, DecodeShape, Plan, PlanError, Target};
use lily_model::{LogitRows, Packing, TensorId};

/// As the driver aligns memory: whatever vectors a kernel reads.
const ALIGN: usize = 256;

/// A run of bytes of a tensor of the checkpoint, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) tensor: TensorId,
    /// The first byte of the tensor.
    pub(crate) from: usize,
    /// The first byte of the block.
    pub(crate) to: usize,
    pub(crate) bytes: usize,
}

/// Where each tensor stands in the block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// First byte and bytes.
    places: BTreeMap<TensorId, (usize, usize)>,
    /// Bytes in all.
    pub(crate) bytes: usize,
    /// What the block consists of.
    pieces: Vec<Piece>,
}

impl Layout {
    /// Of all tensors that plans for this target read, each made as the packing says.
    pub(crate) fn new(
        target: Target<'_>,
        source: &dyn TensorSource,
        packing: &Packing,
    ) -> Result<Self, PlanError> {
        let mut layout = Layout::default();
        let prefill = |rows| plan::prefill(target, rows, 256, LogitRows::Last);
        for plan in [prefill(1)?, prefill(2)?, plan::decode(target, DecodeShape::logits(1, 256))?] {
            tensors(&plan).for_each(|tensor| layout.add(tensor, source, packing));
        }
        Ok(layout)
    }

    fn add(&mut self, tensor: TensorId, source: &dyn TensorSource, packing: &Packing) {
        if self.places.contains_key(&tensor) {
            return;
        }
        let start = self.bytes.next_multiple_of(ALIGN);
        let mut to = start;
        for part in packing.parts(tensor).unwrap_or(&[tensor]) {
            let bytes = source.len(*part);
            self.pieces.push(Piece { tensor: *part, from: 0, to, bytes });
            to += bytes;
        }
        self.places.insert(tensor, (start, to - start));
        self.bytes = to;
    }

    /// First byte and bytes of a tensor.
    pub(crate) fn place(&self, tensor: TensorId) -> Option<(usize, usize)> {
        self.places.get(&tensor).copied()
    }

    /// The pieces, none longer than `most`.
    pub(crate) fn pieces(&self, most: usize) -> Vec<Piece> {
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

fn tensors(plan: &Plan) -> impl Iterator<Item = TensorId> {
    plan.launches.iter().flat_map(|launch| &launch.bindings).filter_map(|view| match view.buffer {
        Buffer::Tensor(id) => Some(id),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lily_model::plan::{Profile, Switch, Switches};
    use lily_model::testing::{Spec, model_in_memory};

    use super::*;

    /// The block holds what plans read and nothing twice, whatever mechanisms are off.
    #[test]
    fn every_tensor_that_any_plan_reads_stands_in_the_block() {
        let model = Arc::new(model_in_memory(&Spec::tiny()));
        let (weights, packing) = model.weights.packed();
        let every = Profile::named("cuda:h200").unwrap();
        let off = Switch::ALL.map(|s| every.clone().without(s));
        for profile in [every.clone(), every.with_switches(Switches::NONE)].into_iter().chain(off) {
            let target = Target { geometry: &model.geometry, weights: &weights, profile: &profile };
            let layout = Layout::new(target, &*model, &packing).unwrap();
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
            assert!(places.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
            assert!(places.iter().all(|(start, _)| start.is_multiple_of(ALIGN)));
            assert!(layout.bytes as u64 <= model.checkpoint.total_bytes() + 256 * places.len() as u64);
        }
    }

    #[test]
    fn pieces_make_up_each_tensor() {
        let model = Arc::new(model_in_memory(&Spec::tiny()));
        let (weights, packing) = model.weights.packed();
        let profile = Profile::named("cuda:h200").unwrap();
        let target = Target { geometry: &model.geometry, weights: &weights, profile: &profile };
        let layout = Layout::new(target, &*model, &packing).unwrap();
        let mut block = vec![0xa5; layout.bytes];
        for piece in layout.pieces(1000) {
            assert!(piece.bytes > 0 && piece.bytes <= 1000);
            model.read(piece.tensor, piece.from, &mut block[piece.to..piece.to + piece.bytes]);
        }
        for (tensor, (start, bytes)) in &layout.places {
            let parts = packing.parts(*tensor).unwrap_or(std::slice::from_ref(tensor));
            let want: Vec<u8> =
                parts.iter().flat_map(|p| TensorSource::bytes(&*model, *p)).copied().collect();
            assert!(block[*start..start + bytes] == want[..], "{tensor:?}");
        }
    }
}
