//! Matrices of a layer that read the same input, put one below the other, so that one launch makes all their products.

use lily_kernels::quant::Parts;

use crate::{MixerWeights, QuantizedMatrix, TensorId, Weights};

/// Several matrices of one format as one: their rows one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concatenated {
    /// The whole.
    pub matrix: QuantizedMatrix,
    /// Rows of each.
    pub parts: Parts,
}

/// Tensors that a device makes while it loads a model: the bytes of others one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing(Vec<Vec<TensorId>>);

impl Packing {
    /// Ids from here on are tensors of a packing.
    const FIRST: u32 = 1 << 31;

    /// What a tensor is made of, in order; `None` for tensors of the checkpoint.
    pub fn parts(&self, tensor: TensorId) -> Option<&[TensorId]> {
        let index = tensor.0.checked_sub(Self::FIRST)?;
        self.0.get(index as usize).map(Vec::as_slice)
    }

    /// Every tensor that is made, with its parts.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &[TensorId])> {
        self.0.iter().enumerate().map(|(i, parts)| (TensorId(Self::FIRST + i as u32), parts.as_slice()))
    }

    fn tensor(&mut self, parts: Vec<TensorId>) -> TensorId {
        self.0.push(parts);
        TensorId(Self::FIRST + self.0.len() as u32 - 1)
    }

    /// One matrix of several; `None` where formats or inputs differ, or where a result that kernels read as vectors would
    /// not start at a multiple of 16 bytes behind the others'.
    fn concatenate(&mut self, matrices: &[&QuantizedMatrix], vectors: usize) -> Option<Concatenated> {
        let first = matrices[0];
        let same = |m: &&QuantizedMatrix| {
            (m.bits, m.group, m.cols, m.experts) == (first.bits, first.group, first.cols, 1)
        };
        // Of the narrowest type of activations, two bytes.
        let aligned = matrices[..vectors - 1].iter().all(|m| m.rows.is_multiple_of(8));
        if !matrices.iter().all(same) || !aligned {
            return None;
        }
        let all = |part: fn(&QuantizedMatrix) -> TensorId| matrices.iter().map(|m| part(m)).collect();
        let widths: Vec<usize> = matrices.iter().map(|m| m.rows).collect();
        let matrix = QuantizedMatrix {
            weight: self.tensor(all(|m| m.weight)),
            scales: self.tensor(all(|m| m.scales)),
            biases: self.tensor(all(|m| m.biases)),
            rows: widths.iter().sum(),
            ..first.clone()
        };
        Some(Concatenated { matrix, parts: Parts::new(&widths) })
    }
}

impl Weights {
    /// The weights with concatenated projections where formats allow it, and what those consist of.
    pub fn packed(&self) -> (Weights, Packing) {
        let (mut weights, mut packing) = (self.clone(), Packing::default());
        for layer in &mut weights.layers {
            match &mut layer.mixer {
                MixerWeights::Delta(w) => w.in_proj = packing.concatenate(&[&w.qkv, &w.z, &w.a, &w.b], 2),
                MixerWeights::Attention(w) => w.qkv = packing.concatenate(&[&w.q, &w.k, &w.v], 3),
            }
            let moe = &mut layer.moe;
            moe.router_and_gate = packing.concatenate(&[&moe.router, &moe.shared_gate], 1);
        }
        (weights, packing)
    }
}
