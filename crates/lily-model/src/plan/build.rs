//! The builder of plans: what both phases share, and the two entry points.

use lily_kernels::norm::RmsNorm;
use lily_kernels::quant::{Embed, Matmul, Output};
use lily_kernels::{Kernel, PlainType, QuantFormat};

use super::arena::{Arena, rows_of};
use super::{Buffer, Launch, Phase, Plan, View, stages};
use crate::{Geometry, LogitRows, MixerWeights, PlainTensor, QuantizedMatrix, Weights};

/// Why there is no plan for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No rows, or no sequences.
    #[error("a plan needs at least one row")]
    Empty,
    /// More tokens than the context holds.
    #[error("{rows} rows do not fit a context of {context} tokens")]
    Context {
        /// Rows asked for.
        rows: usize,
        /// Tokens of context.
        context: usize,
    },
}

/// The plan that appends `rows` tokens to one sequence whose tokens then number at most `context`.
pub fn prefill(
    geometry: &Geometry,
    weights: &Weights,
    rows: usize,
    context: usize,
    logits: LogitRows,
) -> Result<Plan, PlanError> {
    let logit_rows = match logits {
        LogitRows::None => 0..0,
        LogitRows::Last => rows.saturating_sub(1)..rows,
        LogitRows::All => 0..rows,
    };
    Builder::new(geometry, Phase::Prefill, 1, rows, context)?.plan(weights, logit_rows)
}

/// The plan that appends one token to each of `slots` sequences, each then at most `context` tokens long.
pub fn decode(
    geometry: &Geometry,
    weights: &Weights,
    slots: usize,
    context: usize,
) -> Result<Plan, PlanError> {
    Builder::new(geometry, Phase::Decode, slots, 1, context)?.plan(weights, 0..slots)
}

/// Collects launches.
pub(super) struct Builder<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) slots: usize,
    /// Tokens of each sequence.
    pub(super) rows: usize,
    /// Tokens in all.
    pub(super) total: usize,
    pub(super) context: usize,
    pub(super) arena: Arena,
    phase: Phase,
    layer: Option<usize>,
    launches: Vec<Launch>,
}

impl<'a> Builder<'a> {
    fn new(
        geometry: &'a Geometry,
        phase: Phase,
        slots: usize,
        rows: usize,
        context: usize,
    ) -> Result<Self, PlanError> {
        if slots * rows == 0 {
            return Err(PlanError::Empty);
        }
        if rows > context {
            return Err(PlanError::Context { rows, context });
        }
        let (layer, launches, arena) = (None, Vec::new(), Arena::default());
        Ok(Builder { geometry, slots, rows, total: slots * rows, context, arena, phase, layer, launches })
    }

    fn plan(mut self, weights: &Weights, logit_rows: std::ops::Range<usize>) -> Result<Plan, PlanError> {
        let hidden = self.geometry.hidden;
        let x = self.arena.take(self.total * hidden);
        self.embed(&weights.embed, &x);
        for (i, layer) in weights.layers.iter().enumerate() {
            self.layer = Some(i);
            let mark = self.arena.mark();
            let normed = self.norm("input_layernorm", &layer.input_norm, &x, self.total);
            match &layer.mixer {
                MixerWeights::Delta(w) => self.delta(w, i, &normed, &x),
                MixerWeights::Attention(w) => self.attention(w, i, &normed, &x),
            }
            self.arena.release(mark);
            let normed = self.norm("post_attention_layernorm", &layer.post_norm, &x, self.total);
            self.moe(&layer.moe, &normed, &x);
            self.arena.release(mark);
        }
        self.layer = None;
        if !logit_rows.is_empty() {
            let rows = logit_rows.len();
            let x = rows_of(&x, logit_rows.clone(), hidden);
            let normed = self.norm("norm", &weights.final_norm, &x, rows);
            let logits = View { buffer: Buffer::Logits, bytes: 0..4 * rows * self.geometry.vocab };
            self.matmul_rows("lm_head", &weights.lm_head, &normed, &logits, rows, Output::F32);
        }
        Ok(Plan {
            phase: self.phase,
            slots: self.slots,
            rows: self.rows,
            context: self.context,
            logit_rows: logit_rows.len(),
            arena_bytes: self.arena.peak(),
            stages: stages(&self.launches),
            launches: self.launches,
        })
    }

    /// Adds a launch. That the bindings fit the kernel is an invariant of the builder, not of its input.
    pub(super) fn launch(&mut self, label: &'static str, kernel: impl Into<Kernel>, bindings: Vec<View>) {
        let kernel = kernel.into();
        assert_eq!(bindings.len(), kernel.binding_count(), "bindings of {label}");
        self.launches.push(Launch { label, layer: self.layer, kernel, bindings });
    }

    fn embed(&mut self, w: &QuantizedMatrix, x: &View) {
        let kernel = Embed { rows: self.total, vocab: w.rows, width: w.cols, format: format(w) };
        let tokens = View { buffer: Buffer::Tokens, bytes: 0..4 * self.total };
        let [weight, scales, biases] = matrix(w);
        self.launch("embed_tokens", kernel, vec![tokens, weight, scales, biases, x.clone()]);
    }

    /// RMSNorm of rows of the residual stream's width.
    pub(super) fn norm(&mut self, label: &'static str, w: &PlainTensor, x: &View, rows: usize) -> View {
        let width = self.geometry.hidden;
        let out = self.arena.take(rows * width);
        let kernel = RmsNorm { rows, width, eps: self.geometry.rms_eps, weight: plain_type(w) };
        self.launch(label, kernel, vec![x.clone(), plain(w), out.clone()]);
        out
    }

    /// out = x W^T for all rows, in a new region.
    pub(super) fn matmul(&mut self, label: &'static str, w: &QuantizedMatrix, x: &View) -> View {
        let out = self.arena.take(self.total * w.rows);
        self.matmul_rows(label, w, x, &out, self.total, Output::Activation);
        out
    }

    /// out += x W^T for all rows: back into the residual stream.
    pub(super) fn matmul_add(&mut self, label: &'static str, w: &QuantizedMatrix, x: &View, out: &View) {
        self.matmul_rows(label, w, x, out, self.total, Output::Add);
    }

    fn matmul_rows(
        &mut self,
        label: &'static str,
        w: &QuantizedMatrix,
        x: &View,
        out: &View,
        rows: usize,
        out_as: Output,
    ) {
        let kernel = Matmul::new(rows, w.rows, w.cols, format(w), out_as);
        let [weight, scales, biases] = matrix(w);
        self.launch(label, kernel, vec![x.clone(), weight, scales, biases, out.clone()]);
    }

    /// The whole of a per-sequence buffer of `len` f32, for each sequence.
    pub(super) fn per_slot(&self, buffer: impl Fn(usize) -> Buffer, len: usize) -> Vec<View> {
        (0..self.slots).map(|slot| View { buffer: buffer(slot), bytes: 0..4 * len }).collect()
    }
}

/// Bits and group of a matrix.
pub(super) fn format(w: &QuantizedMatrix) -> QuantFormat {
    QuantFormat { bits: w.bits, group: w.group }
}

/// Values, scales and biases of a matrix or a stack of them.
pub(super) fn matrix(w: &QuantizedMatrix) -> [View; 3] {
    let rows = w.experts * w.rows;
    let scale_bytes = rows * format(w).scale_bytes(w.cols);
    let view = |tensor, len| View { buffer: Buffer::Tensor(tensor), bytes: 0..len };
    [view(w.weight, rows * w.row_bytes()), view(w.scales, scale_bytes), view(w.biases, scale_bytes)]
}

/// A plain tensor.
pub(super) fn plain(w: &PlainTensor) -> View {
    View { buffer: Buffer::Tensor(w.tensor), bytes: 0..w.len * plain_type(w).bytes() }
}

/// How a plain tensor is stored.
pub(super) fn plain_type(w: &PlainTensor) -> PlainType {
    if w.is_f32 { PlainType::F32 } else { PlainType::Bf16 }
}
