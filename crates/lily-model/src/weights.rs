//! The tensors of a model by their role. Made by the checkpoint reader, read by the plan builders.

use crate::Concatenated;

/// A tensor of a checkpoint; an index into `Checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

/// An affine-quantized matrix, or a stack of `experts` of them: w = scale * q + bias per group along the input.
///
/// `weight` is a little-endian bit stream of `bits`-bit values per row (element 0 in the low bits of byte 0), so a row
/// takes `cols * bits / 8` bytes; `scales` and `biases` are bf16 `[experts, rows, cols / group]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedMatrix {
    /// Packed values, u32 `[experts, rows, cols * bits / 32]`.
    pub weight: TensorId,
    /// bf16 `[experts, rows, cols / group]`.
    pub scales: TensorId,
    /// bf16 `[experts, rows, cols / group]`.
    pub biases: TensorId,
    /// 1 for an ordinary matrix.
    pub experts: usize,
    /// Outputs of one matrix.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// 32, 64 or 128 inputs share a scale and a bias.
    pub group: usize,
}

impl QuantizedMatrix {
    /// Bytes of packed values of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.bits / 8
    }

    /// Bytes of all three tensors: values, scales, biases.
    pub fn bytes(&self) -> usize {
        self.experts * self.rows * (self.row_bytes() + 4 * (self.cols / self.group))
    }
}

/// A vector or a small plain tensor and how its elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainTensor {
    /// Which.
    pub tensor: TensorId,
    /// Stored as f32 (otherwise bf16).
    pub is_f32: bool,
    /// Elements.
    pub len: usize,
}

/// All tensors of a model.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab, hidden]`.
    pub embed: QuantizedMatrix,
    /// `[vocab, hidden]`; the embedding itself where the config ties them.
    pub lm_head: QuantizedMatrix,
    /// `[hidden]`.
    pub final_norm: PlainTensor,
    /// In order.
    pub layers: Vec<LayerWeights>,
}

/// The tensors of one layer.
#[derive(Clone, Debug)]
pub struct LayerWeights {
    /// Before the mixer, `[hidden]`.
    pub input_norm: PlainTensor,
    /// Before the experts, `[hidden]`.
    pub post_norm: PlainTensor,
    /// DeltaNet or attention.
    pub mixer: MixerWeights,
    /// The experts.
    pub moe: MoeWeights,
}

/// The token mixer of a layer.
#[derive(Clone, Debug)]
pub enum MixerWeights {
    /// Gated DeltaNet.
    Delta(DeltaWeights),
    /// Gated attention.
    Attention(AttentionWeights),
}

/// Tensors of a Gated DeltaNet layer.
#[derive(Clone, Debug)]
pub struct DeltaWeights {
    /// `[channels, hidden]`: q, then k, then v.
    pub qkv: QuantizedMatrix,
    /// `[value_width, hidden]`.
    pub z: QuantizedMatrix,
    /// `[value_heads, hidden]`.
    pub a: QuantizedMatrix,
    /// `[value_heads, hidden]`.
    pub b: QuantizedMatrix,
    /// `[channels, conv_taps, 1]`.
    pub conv: PlainTensor,
    /// `[value_heads]`.
    pub a_log: PlainTensor,
    /// `[value_heads]`.
    pub dt_bias: PlainTensor,
    /// `[value_dim]`.
    pub norm: PlainTensor,
    /// `[hidden, value_width]`.
    pub out: QuantizedMatrix,
    /// qkv, z, a and b in one, after [`Weights::packed`].
    pub in_proj: Option<Concatenated>,
}

/// Tensors of an attention layer.
#[derive(Clone, Debug)]
pub struct AttentionWeights {
    /// `[query_heads * 2 * head_dim, hidden]`: of each head first q, then the gate.
    pub q: QuantizedMatrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub k: QuantizedMatrix,
    /// `[kv_heads * head_dim, hidden]`.
    pub v: QuantizedMatrix,
    /// `[hidden, query_heads * head_dim]`.
    pub o: QuantizedMatrix,
    /// q, k and v in one, after [`Weights::packed`].
    pub qkv: Option<Concatenated>,
    /// `[head_dim]`.
    pub q_norm: PlainTensor,
    /// `[head_dim]`.
    pub k_norm: PlainTensor,
}

/// Tensors of a mixture of experts.
#[derive(Clone, Debug)]
pub struct MoeWeights {
    /// `[experts, hidden]`.
    pub router: QuantizedMatrix,
    /// A stack of `[expert_width, hidden]`.
    pub gate: QuantizedMatrix,
    /// A stack of `[expert_width, hidden]`.
    pub up: QuantizedMatrix,
    /// A stack of `[hidden, expert_width]`.
    pub down: QuantizedMatrix,
    /// `[shared_width, hidden]`.
    pub shared_gate_proj: QuantizedMatrix,
    /// `[shared_width, hidden]`.
    pub shared_up: QuantizedMatrix,
    /// `[hidden, shared_width]`.
    pub shared_down: QuantizedMatrix,
    /// `[1, hidden]`: the scalar that scales the shared expert, before its sigmoid.
    pub shared_gate: QuantizedMatrix,
    /// router and shared_gate in one, after [`Weights::packed`].
    pub router_and_gate: Option<Concatenated>,
}
