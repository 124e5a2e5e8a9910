//! The builder of plans: what both phases share, and the two entry points.

use lily_kernels::norm::RmsNorm;
use lily_kernels::quant::{Embed, Matmul, Method, NormMatmul, Output, Parts};
use lily_kernels::{Kernel, PlainType, QuantFormat};

use super::arena::{Arena, part_of, rows_of};
use super::{Buffer, Launch, Phase, Plan, Profile, Switch, View, check_limits, stages};
use crate::{Concatenated, Geometry, LogitRows, MixerWeights, PlainTensor, QuantizedMatrix, Weights};

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
    /// A model that the device's kernels are not written for.
    #[error("{field} is {found}; wanted at most {most}, the largest that the kernels of {device} take")]
    Size {
        /// As in config.json.
        field: &'static str,
        /// The model's.
        found: usize,
        /// The most.
        most: usize,
        /// Name of the profile.
        device: &'static str,
    },
    /// More rows of a decode step than products of few rows take.
    #[error("a decode step of {rows} rows: wanted at most {most}")]
    Rows {
        /// Rows asked for, of all sequences.
        rows: usize,
        /// The most.
        most: usize,
    },
}

/// A model on a device, as far as plans depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Its sizes.
    pub geometry: &'a Geometry,
    /// Its tensors; on GPUs after [`Weights::packed`].
    pub weights: &'a Weights,
    /// The device.
    pub profile: &'a Profile,
}

/// What stands at the end of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// The logits of each row: the host chooses.
    Logits,
    /// The next token of each row, chosen on the device and handed to the next step, with at most so many entries in the
    /// pools of counts, biases and masks.
    Select {
        /// Entries.
        entries: usize,
    },
}

/// The rows of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeShape {
    /// Sequences.
    pub slots: usize,
    /// Consecutive tokens of each: more than one to verify a draft.
    pub rows: usize,
    /// An upper bound of every position + 1.
    pub context: usize,
    /// What stands at the end.
    pub tail: Tail,
}

impl DecodeShape {
    /// A token each of `slots` sequences, whose logits the host wants.
    pub fn logits(slots: usize, context: usize) -> Self {
        DecodeShape { slots, rows: 1, context, tail: Tail::Logits }
    }
}

/// The plan that appends `rows` tokens to one sequence whose tokens then number at most `context`.
pub fn prefill(
    target: Target<'_>,
    rows: usize,
    context: usize,
    logits: LogitRows,
) -> Result<Plan, PlanError> {
    let logit_rows = match logits {
        LogitRows::None => 0..0,
        LogitRows::Last => rows.saturating_sub(1)..rows,
        LogitRows::All => 0..rows,
    };
    Builder::new(target, Phase::Prefill, 1, rows, context)?.plan(logit_rows, Tail::Logits)
}

/// The plan of a decode step.
pub fn decode(target: Target<'_>, shape: DecodeShape) -> Result<Plan, PlanError> {
    let DecodeShape { slots, rows, context, tail } = shape;
    let few = target.profile.has(Switch::RowGemv);
    if few && slots * rows > Method::MOST_ROWS {
        return Err(PlanError::Rows { rows: slots * rows, most: Method::MOST_ROWS });
    }
    Builder::new(target, Phase::Decode, slots, rows, context)?.plan(0..slots * rows, tail)
}

/// Collects launches.
pub(super) struct Builder<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) profile: &'a Profile,
    weights: &'a Weights,
    pub(super) phase: Phase,
    pub(super) slots: usize,
    /// Tokens of each sequence.
    pub(super) rows: usize,
    /// Tokens in all.
    pub(super) total: usize,
    pub(super) context: usize,
    pub(super) arena: Arena,
    layer: Option<usize>,
    launches: Vec<Launch>,
}

impl<'a> Builder<'a> {
    fn new(
        target: Target<'a>,
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
        let Target { geometry, weights, profile } = target;
        check_limits(geometry, profile)?;
        let (layer, launches, arena) = (None, Vec::new(), Arena::new(profile.activation));
        let total = slots * rows;
        Ok(Builder { geometry, profile, weights, phase, slots, rows, total, context, arena, layer, launches })
    }

    fn plan(mut self, logit_rows: std::ops::Range<usize>, tail: Tail) -> Result<Plan, PlanError> {
        let (hidden, weights) = (self.geometry.hidden, self.weights);
        let x = self.arena.words(self.total * hidden);
        self.embed(&weights.embed, &x);
        for (i, layer) in weights.layers.iter().enumerate() {
            self.layer = Some(i);
            let mark = self.arena.mark();
            match &layer.mixer {
                MixerWeights::Delta(w) => self.delta(w, &layer.input_norm, i, &x),
                MixerWeights::Attention(w) => self.attention(w, &layer.input_norm, i, &x),
            }
            self.arena.release(mark);
            self.moe(&layer.moe, &layer.post_norm, &x);
            self.arena.release(mark);
        }
        self.layer = None;
        if !logit_rows.is_empty() {
            let rows = logit_rows.len();
            let x = rows_of(&x, logit_rows.clone(), hidden);
            let logits = View { buffer: Buffer::Logits, bytes: 0..4 * rows * self.geometry.vocab };
            self.lm_head(&x, &logits, rows);
            if let Tail::Select { entries } = tail {
                self.select(&logits, entries);
            }
        }
        let stages = if self.has(Switch::ConcurrentPass) {
            stages(&self.launches)
        } else {
            (0..self.launches.len()).map(|i| i..i + 1).collect()
        };
        Ok(Plan {
            phase: self.phase,
            activation: self.profile.activation,
            switches: self.profile.switches,
            slots: self.slots,
            rows: self.rows,
            context: self.context,
            logit_rows: logit_rows.len(),
            tail,
            arena_bytes: self.arena.peak(),
            stages,
            launches: self.launches,
        })
    }

    /// Whether a mechanism is on.
    pub(super) fn has(&self, switch: Switch) -> bool {
        self.profile.has(switch)
    }

    /// Whether a mechanism of prefill is on: a decode step that takes prefill's way does not lose them.
    pub(super) fn has_in_prefill(&self, switch: Switch) -> bool {
        self.phase == Phase::Decode || self.has(switch)
    }

    /// Whether the products of this plan are those of few rows.
    pub(super) fn by_rows(&self) -> bool {
        self.phase == Phase::Decode && self.has(Switch::RowGemv)
    }

    fn method(&self, rows: usize) -> Method {
        // The last row of a prompt alone meets lm_head.
        let few = self.by_rows() || (rows == 1 && self.has(Switch::RowGemv));
        if few { Method::Rows } else { Method::Tiles }
    }

    /// Adds a launch. That the bindings fit the kernel is an invariant of the builder, not of its input.
    pub(super) fn launch(&mut self, label: &'static str, kernel: impl Into<Kernel>, bindings: Vec<View>) {
        self.add(label, kernel.into(), bindings, false);
    }

    /// Adds a launch that the host executes between two waits for the device.
    pub(super) fn on_host(&mut self, label: &'static str, kernel: impl Into<Kernel>, bindings: Vec<View>) {
        self.add(label, kernel.into(), bindings, true);
    }

    fn add(&mut self, label: &'static str, kernel: Kernel, bindings: Vec<View>, on_host: bool) {
        assert_eq!(bindings.len(), kernel.binding_count(), "bindings of {label}");
        self.launches.push(Launch { label, layer: self.layer, kernel, bindings, on_host });
    }

    fn embed(&mut self, w: &QuantizedMatrix, x: &View) {
        let kernel = Embed { rows: self.total, vocab: w.rows, width: w.cols, format: format(w) };
        let tokens = self.per_row(Buffer::Tokens);
        let [weight, scales, biases] = matrix(w);
        self.launch("embed_tokens", kernel, vec![tokens, weight, scales, biases, x.clone()]);
    }

    /// u32 of each row.
    pub(super) fn per_row(&self, buffer: Buffer) -> View {
        View { buffer, bytes: 0..4 * self.total }
    }

    /// RMSNorm of rows of the residual stream's width, as activations.
    pub(super) fn norm(&mut self, label: &'static str, w: &PlainTensor, x: &View, rows: usize) -> View {
        let width = self.geometry.hidden;
        let out = self.arena.take(rows * width);
        let kernel = RmsNorm { rows, width, eps: self.geometry.rms_eps, weight: plain_type(w) };
        self.launch(label, kernel, vec![x.clone(), plain(w), out.clone()]);
        out
    }

    /// The products of several matrices with the norm of the residual stream: in one launch, in two with a norm, or in one a
    /// matrix. `all` is the matrices in one, if they can be.
    pub(super) fn project(
        &mut self,
        labels: &[&'static str],
        matrices: &[&QuantizedMatrix],
        all: Option<&Concatenated>,
        norm: &Norm<'_>,
        out: Output,
    ) -> Vec<View> {
        let size = match out {
            Output::Activation => self.arena.size(lily_kernels::Element::Activation),
            Output::Fine => self.arena.size(lily_kernels::Element::Fine),
            Output::F32 | Output::Add => 4,
        };
        let take = |b: &mut Self, len| if size == 4 { b.arena.words(len) } else { b.arena.take(len) };
        let Some(all) = all else {
            let out_of = |b: &mut Self, m: &QuantizedMatrix| take(b, b.total * m.rows);
            let views: Vec<View> = matrices.iter().map(|m| out_of(self, m)).collect();
            for ((label, m), view) in labels.iter().zip(matrices).zip(&views) {
                self.product(label, m, Parts::one(m.rows), norm, view, out);
            }
            return views;
        };
        let whole = take(self, self.total * all.matrix.rows);
        self.product(labels[0], &all.matrix, all.parts, norm, &whole, out);
        let mut start = 0;
        let widths = all.parts.widths();
        widths[..all.parts.count()]
            .iter()
            .map(|width| {
                let elements = self.total * start..self.total * (start + width);
                start += width;
                part_of(&whole, elements, size)
            })
            .collect()
    }

    fn product(
        &mut self,
        label: &'static str,
        w: &QuantizedMatrix,
        parts: Parts,
        norm: &Norm<'_>,
        out: &View,
        out_as: Output,
    ) {
        let [weight, scales, biases] = matrix(w);
        let (rows, inputs, format) = (self.total, w.cols, format(w));
        match norm {
            Norm::Fused { x, weight: norm } => {
                let eps = self.geometry.rms_eps;
                let kernel =
                    NormMatmul { rows, parts, inputs, eps, norm: plain_type(norm), format, out: out_as };
                let bindings = vec![(*x).clone(), plain(norm), weight, scales, biases, out.clone()];
                self.launch(label, kernel, bindings);
            }
            Norm::Apart { normed } => {
                let method = self.method(rows);
                let kernel = Matmul { rows, parts, inputs, format, out: out_as, method };
                self.launch(label, kernel, vec![(*normed).clone(), weight, scales, biases, out.clone()]);
            }
        }
    }

    /// The norm before products: part of each, or a launch of its own.
    pub(super) fn norm_for<'v>(
        &mut self,
        label: &'static str,
        weight: &'v PlainTensor,
        x: &'v View,
        normed: &'v mut Option<View>,
    ) -> Norm<'v> {
        if self.by_rows() && self.has(Switch::FuseNorm) {
            return Norm::Fused { x, weight };
        }
        Norm::Apart { normed: normed.get_or_insert_with(|| self.norm(label, weight, x, self.total)) }
    }

    /// out = x W^T for all rows, in a new region.
    pub(super) fn matmul(&mut self, label: &'static str, w: &QuantizedMatrix, x: &View) -> View {
        let out = self.arena.take(self.total * w.rows);
        self.matmul_rows(label, w, x, &out, self.total, Output::Fine);
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
        let method = self.method(rows);
        let kernel = Matmul { method, ..Matmul::new(rows, w.rows, w.cols, format(w), out_as) };
        let [weight, scales, biases] = matrix(w);
        self.launch(label, kernel, vec![x.clone(), weight, scales, biases, out.clone()]);
    }

    fn lm_head(&mut self, x: &View, logits: &View, rows: usize) {
        let (w, norm) = (&self.weights.lm_head, &self.weights.final_norm);
        if self.method(rows) == Method::Rows && self.has(Switch::FuseNorm) {
            let kernel = NormMatmul {
                rows,
                parts: Parts::one(w.rows),
                inputs: w.cols,
                eps: self.geometry.rms_eps,
                norm: plain_type(norm),
                format: format(w),
                out: Output::F32,
            };
            let [weight, scales, biases] = matrix(w);
            let bindings = vec![x.clone(), plain(norm), weight, scales, biases, logits.clone()];
            self.launch("lm_head", kernel, bindings);
        } else {
            let normed = self.norm("norm", norm, x, rows);
            self.matmul_rows("lm_head", w, &normed, logits, rows, Output::F32);
        }
    }

    /// The whole of a per-sequence buffer of `len` elements, for each sequence.
    pub(super) fn per_slot(
        &self,
        buffer: impl Fn(usize) -> Buffer,
        len: usize,
        element: lily_kernels::Element,
    ) -> Vec<View> {
        let bytes = self.arena.size(element) * len;
        (0..self.slots).map(|slot| View { buffer: buffer(slot), bytes: 0..bytes }).collect()
    }
}

/// The input of products: the residual stream and its norm.
pub(super) enum Norm<'a> {
    /// The product computes the norm.
    Fused {
        /// f32.
        x: &'a View,
        /// Of the norm.
        weight: &'a PlainTensor,
    },
    /// The norm was computed before.
    Apart {
        /// Activations.
        normed: &'a View,
    },
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
