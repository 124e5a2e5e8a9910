//! The launches of a mixture of experts. Which experts a row has never leaves the device, unless the mechanism is off.

use lily_kernels::moe::{
    Combine, DownCombine, ExpertDown, ExpertSwiglu, Group, GroupTiles, GroupedDense, GroupedMatmul,
    GroupedSwiglu, Route, RoutedMatmul, RoutedSwiglu, Scatter, TileHeights,
};
use lily_kernels::quant::{Dequantize, Method, NormSwiglu, Output, SiluMul, Swiglu};

use super::build::{Builder, format, matrix, plain, plain_type};
use super::{ExpertKernels, Switch, View};
use crate::{MoeWeights, PlainTensor, QuantizedMatrix};

/// What the experts of a layer start from.
struct Inputs<'a> {
    x: &'a View,
    post_norm: &'a PlainTensor,
    /// f32 `[rows, experts]`.
    logits: View,
    /// f32 `[rows]`.
    shared_gate: View,
}

/// The choice of experts of each row.
#[derive(Clone)]
struct Chosen {
    ids: View,
    weights: View,
}

impl Builder<'_> {
    /// x += experts(norm(x)) + shared(norm(x)).
    pub(super) fn moe(&mut self, w: &MoeWeights, post_norm: &PlainTensor, x: &View) {
        let mut normed = None;
        let norm = self.norm_for("post_attention_layernorm", post_norm, x, &mut normed);
        let labels: &[&'static str] = match w.router_and_gate {
            Some(_) => &["router"],
            None => &["router", "shared_expert_gate"],
        };
        let matrices = [&w.router, &w.shared_gate];
        let views = self.project(labels, &matrices, w.router_and_gate.as_ref(), &norm, Output::F32);
        let Ok([logits, shared_gate]) = <[View; 2]>::try_from(views) else { unreachable!("two matrices") };
        let inputs = Inputs { x, post_norm, logits, shared_gate };
        if self.by_rows() {
            self.routed(w, &inputs, normed);
        } else {
            let normed = match normed {
                Some(normed) => normed,
                None => self.norm("post_attention_layernorm", post_norm, x, self.total),
            };
            self.grouped(w, &inputs, &normed);
        }
    }

    /// Few rows: each row's experts by themselves.
    fn routed(&mut self, w: &MoeWeights, inputs: &Inputs<'_>, mut normed: Option<View>) {
        let m = self.geometry.moe.clone();
        let (rows, hidden, x) = (self.total, self.geometry.hidden, inputs.x);
        let (fused_up, fused_down) = (self.has(Switch::FuseGateUp), self.has(Switch::FuseDownCombine));
        // In front of everything that waits for the router, so that the two run side by side.
        let shared = self.shared_rows(w, inputs, &mut normed);
        let chosen = (!fused_up || !fused_down).then(|| self.route(inputs));
        let act = self.arena.take(rows * m.top_k * m.expert_width);
        if fused_up {
            let kernel = RoutedSwiglu {
                rows,
                experts: m.experts,
                top_k: m.top_k,
                outputs: m.expert_width,
                inputs: hidden,
                eps: self.geometry.rms_eps,
                norm: plain_type(inputs.post_norm),
                gate: format(&w.gate),
                up: format(&w.up),
            };
            let mut bindings = vec![x.clone(), plain(inputs.post_norm), inputs.logits.clone()];
            bindings.extend(matrix(&w.gate).into_iter().chain(matrix(&w.up)));
            bindings.push(act.clone());
            self.launch("expert_gate_up", kernel, bindings);
        } else if let Some(chosen) = &chosen {
            let normed = self.normed(inputs, &mut normed);
            let gate = self.routed_matmul("expert_gate", &w.gate, &normed, chosen, true);
            let up = self.routed_matmul("expert_up", &w.up, &normed, chosen, true);
            self.silu_mul("expert_swiglu", rows * m.top_k * m.expert_width, gate, up, &act);
        }
        if fused_down {
            let kernel = DownCombine {
                rows,
                experts: m.experts,
                top_k: m.top_k,
                outputs: hidden,
                inputs: m.expert_width,
                shared_inputs: m.shared_width,
                format: format(&w.down),
                shared_format: format(&w.shared_down),
            };
            let mut bindings = vec![act, inputs.logits.clone(), shared, inputs.shared_gate.clone()];
            bindings.extend(matrix(&w.down).into_iter().chain(matrix(&w.shared_down)));
            bindings.push(x.clone());
            self.launch("down_combine", kernel, bindings);
        } else if let Some(chosen) = chosen {
            let out = self.routed_matmul("expert_down", &w.down, &act, &chosen, false);
            let shared = self.matmul("shared_down", &w.shared_down, &shared);
            self.combine(inputs, out, chosen.weights, shared, true);
        }
    }

    /// The norm of the residual stream, made once.
    fn normed(&mut self, inputs: &Inputs<'_>, normed: &mut Option<View>) -> View {
        let rows = self.total;
        let make = || self.norm("post_attention_layernorm", inputs.post_norm, inputs.x, rows);
        normed.get_or_insert_with(make).clone()
    }

    fn routed_matmul(
        &mut self,
        label: &'static str,
        w: &QuantizedMatrix,
        x: &View,
        chosen: &Chosen,
        gather: bool,
    ) -> View {
        let m = &self.geometry.moe;
        let (experts, top_k) = (m.experts, m.top_k);
        let out = self.arena.take(self.total * top_k * w.rows);
        let (rows, outputs, inputs, format) = (self.total, w.rows, w.cols, format(w));
        let kernel = RoutedMatmul { rows, experts, top_k, outputs, inputs, format, gather };
        let mut bindings = vec![x.clone(), chosen.ids.clone()];
        bindings.extend(matrix(w));
        bindings.push(out.clone());
        self.launch(label, kernel, bindings);
        out
    }

    fn silu_mul(&mut self, label: &'static str, len: usize, gate: View, up: View, out: &View) {
        self.launch(label, SiluMul { len }, vec![gate, up, out.clone()]);
    }

    /// The shared expert's activations of few rows, with the norm inside unless that mechanism is off.
    fn shared_rows(&mut self, w: &MoeWeights, inputs: &Inputs<'_>, normed: &mut Option<View>) -> View {
        let fuses = self.has(Switch::FuseNorm) && self.has(Switch::FuseGateUp);
        if !fuses {
            let normed = self.normed(inputs, normed);
            return self.shared(w, &normed, Method::Rows);
        }
        let (outputs, hidden) = (w.shared_up.rows, self.geometry.hidden);
        let act = self.arena.take(self.total * outputs);
        let kernel = NormSwiglu {
            rows: self.total,
            outputs,
            inputs: hidden,
            eps: self.geometry.rms_eps,
            norm: plain_type(inputs.post_norm),
            gate: format(&w.shared_gate_proj),
            up: format(&w.shared_up),
        };
        let mut bindings = vec![inputs.x.clone(), plain(inputs.post_norm)];
        bindings.extend(matrix(&w.shared_gate_proj).into_iter().chain(matrix(&w.shared_up)));
        bindings.push(act.clone());
        self.launch("shared_gate_up", kernel, bindings);
        act
    }

    /// The shared expert's activations.
    fn shared(&mut self, w: &MoeWeights, normed: &View, method: Method) -> View {
        let outputs = w.shared_up.rows;
        let act = self.arena.take(self.total * outputs);
        if self.has(Switch::FuseGateUp) {
            let kernel = Swiglu {
                rows: self.total,
                outputs,
                inputs: self.geometry.hidden,
                gate: format(&w.shared_gate_proj),
                up: format(&w.shared_up),
                method,
            };
            let mut bindings = vec![normed.clone()];
            bindings.extend(matrix(&w.shared_gate_proj).into_iter().chain(matrix(&w.shared_up)));
            bindings.push(act.clone());
            self.launch("shared_gate_up", kernel, bindings);
        } else {
            let gate = self.matmul("shared_gate", &w.shared_gate_proj, normed);
            let up = self.matmul("shared_up", &w.shared_up, normed);
            self.silu_mul("shared_swiglu", self.total * outputs, gate, up, &act);
        }
        act
    }

    fn route(&mut self, inputs: &Inputs<'_>) -> Chosen {
        let (rows, experts, top_k) = (self.total, self.geometry.moe.experts, self.geometry.moe.top_k);
        let ids = self.arena.words(rows * top_k);
        let weights = self.arena.words(rows * top_k);
        let bindings = vec![inputs.logits.clone(), ids.clone(), weights.clone()];
        self.launch("route", Route { rows, experts, top_k }, bindings);
        Chosen { ids, weights }
    }

    /// Many rows: each expert's rows together.
    fn grouped(&mut self, w: &MoeWeights, inputs: &Inputs<'_>, normed: &View) {
        let act = self.shared(w, normed, Method::Tiles);
        let chosen = self.route(inputs);
        let shared = self.matmul("shared_down", &w.shared_down, &act);
        if self.profile.experts == ExpertKernels::Cpu {
            let out = self.by_expert(w, normed, &chosen);
            return self.combine(inputs, out, chosen.weights, shared, true);
        }
        let (out, weighted) = self.by_tiles(w, normed, &chosen);
        self.combine(inputs, out, chosen.weights, shared, !weighted);
    }

    fn combine(&mut self, inputs: &Inputs<'_>, out: View, weights: View, shared: View, weighted: bool) {
        let (rows, top_k, width) = (self.total, self.geometry.moe.top_k, self.geometry.hidden);
        let bindings = vec![out, weights, shared, inputs.shared_gate.clone(), inputs.x.clone()];
        self.launch("combine", Combine { rows, top_k, width, weighted }, bindings);
    }

    /// The experts on the CPU device: one after the other over its rows.
    fn by_expert(&mut self, w: &MoeWeights, normed: &View, chosen: &Chosen) -> View {
        let (rows, experts, top_k) = (self.total, self.geometry.moe.experts, self.geometry.moe.top_k);
        let (hidden, width) = (self.geometry.hidden, self.geometry.moe.expert_width);
        let kernel = Group { rows, experts, top_k };
        let offsets = self.arena.words(experts + 1);
        let order = self.arena.words(rows * top_k);
        let active = self.arena.words(1 + kernel.max_active());
        let bindings = vec![chosen.ids.clone(), offsets.clone(), order.clone(), active.clone()];
        self.launch("group", kernel, bindings);
        let grouping = [offsets, order, active];

        let act = self.arena.take(rows * top_k * width);
        let kernel = ExpertSwiglu {
            rows,
            experts,
            top_k,
            outputs: width,
            inputs: hidden,
            gate: format(&w.gate),
            up: format(&w.up),
        };
        let bindings = [normed.clone()].into_iter().chain(grouping.iter().cloned());
        let bindings = bindings.chain(matrix(&w.gate)).chain(matrix(&w.up)).chain([act.clone()]);
        self.launch("expert_gate_up", kernel, bindings.collect());

        let out = self.arena.take(rows * top_k * hidden);
        let kernel =
            ExpertDown { rows, experts, top_k, outputs: hidden, inputs: width, format: format(&w.down) };
        let bindings = [act].into_iter().chain(grouping).chain(matrix(&w.down)).chain([out.clone()]);
        self.launch("expert_down", kernel, bindings.collect());
        out
    }

    /// The experts on GPUs: tiles of the rows of each. Returns their outputs by pair and whether those carry their weight.
    fn by_tiles(&mut self, w: &MoeWeights, normed: &View, chosen: &Chosen) -> (View, bool) {
        let (rows, experts, top_k) = (self.total, self.geometry.moe.experts, self.geometry.moe.top_k);
        let width = self.geometry.moe.expert_width;
        let largest = if self.has_in_prefill(Switch::Tile32x4) { self.profile.tile_rows } else { 16 };
        let kernel = GroupTiles { rows, experts, top_k, heights: TileHeights { largest } };
        let order = self.arena.words(rows * top_k);
        let tiles = self.arena.words(1 + 3 * kernel.max_tiles());
        let bindings = vec![chosen.ids.clone(), order.clone(), tiles.clone()];
        if self.has_in_prefill(Switch::DeviceRouting) {
            self.launch("group", kernel, bindings);
        } else {
            self.on_host("group", kernel, bindings);
        }
        let grouping = Grouping { order, tiles, weights: chosen.weights.clone(), largest };
        let act = self.arena.take(rows * top_k * width);
        if self.has(Switch::FuseGateUp) && self.has_in_prefill(Switch::Q4GroupedGemm) {
            let kernel = GroupedSwiglu {
                rows,
                experts,
                top_k,
                outputs: width,
                inputs: self.geometry.hidden,
                gate: format(&w.gate),
                up: format(&w.up),
                heights: TileHeights { largest },
            };
            let mut bindings = vec![normed.clone(), grouping.order.clone(), grouping.tiles.clone()];
            bindings.extend(matrix(&w.gate).into_iter().chain(matrix(&w.up)));
            bindings.push(act.clone());
            self.launch("expert_gate_up", kernel, bindings);
        } else {
            let gate = self.grouped_matmul("expert_gate", &w.gate, normed, &grouping, true, Scatter::None);
            let up = self.grouped_matmul("expert_up", &w.up, normed, &grouping, true, Scatter::None);
            self.silu_mul("expert_swiglu", rows * top_k * width, gate, up, &act);
        }
        let folded = self.has(Switch::FuseDownCombine);
        let scatter = if folded { Scatter::Weighted } else { Scatter::Pairs };
        (self.grouped_matmul("expert_down", &w.down, &act, &grouping, false, scatter), folded)
    }

    fn grouped_matmul(
        &mut self,
        label: &'static str,
        w: &QuantizedMatrix,
        x: &View,
        grouping: &Grouping,
        gather: bool,
        scatter: Scatter,
    ) -> View {
        let (rows, experts, top_k) = (self.total, self.geometry.moe.experts, self.geometry.moe.top_k);
        let (outputs, inputs, heights) = (w.rows, w.cols, TileHeights { largest: grouping.largest });
        let out = self.arena.take(rows * top_k * outputs);
        let mut bindings =
            vec![x.clone(), grouping.order.clone(), grouping.tiles.clone(), grouping.weights.clone()];
        if self.has_in_prefill(Switch::Q4GroupedGemm) {
            bindings.extend(matrix(w));
            bindings.push(out.clone());
            let format = format(w);
            let kernel =
                GroupedMatmul { rows, experts, top_k, outputs, inputs, format, heights, gather, scatter };
            self.launch(label, kernel, bindings);
            return out;
        }
        let mark = self.arena.mark();
        let dense = self.arena.take(experts * outputs * inputs);
        let mut weights = matrix(w).to_vec();
        weights.push(dense.clone());
        let kernel = Dequantize { rows: experts * outputs, cols: inputs, format: format(w) };
        self.launch("dequantize", kernel, weights);
        bindings.extend([dense, out.clone()]);
        let kernel = GroupedDense { rows, experts, top_k, outputs, inputs, heights, gather, scatter };
        self.launch(label, kernel, bindings);
        self.arena.release(mark);
        out
    }
}

/// Rows by expert, for the grouped products.
struct Grouping {
    order: View,
    tiles: View,
    weights: View,
    largest: usize,
}
