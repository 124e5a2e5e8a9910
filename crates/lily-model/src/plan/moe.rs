//! The launches of a mixture of experts.

use lily_kernels::moe::{Combine, ExpertDown, ExpertSwiglu, Group, Route};
use lily_kernels::quant::{Method, Swiglu};

use super::View;
use super::build::{Builder, format, matrix};
use crate::MoeWeights;

impl Builder<'_> {
    /// x += experts(normed) + shared(normed): reads `normed`, adds to `x`. Routing never leaves the device.
    pub(super) fn moe(&mut self, w: &MoeWeights, normed: &View, x: &View) {
        let (rows, experts, top_k) = (self.total, self.geometry.moe.experts, self.geometry.moe.top_k);
        let (hidden, width) = (self.geometry.hidden, self.geometry.moe.expert_width);

        let logits = self.matmul("router", &w.router, normed);
        let shared_gate = self.matmul("shared_expert_gate", &w.shared_gate, normed);
        let shared_act = self.arena.take(rows * w.shared_up.rows);
        let kernel = Swiglu {
            rows,
            outputs: w.shared_up.rows,
            inputs: hidden,
            gate: format(&w.shared_gate_proj),
            up: format(&w.shared_up),
            method: Method::Tiles,
        };
        let mut bindings = vec![normed.clone()];
        bindings.extend(matrix(&w.shared_gate_proj).into_iter().chain(matrix(&w.shared_up)));
        bindings.push(shared_act.clone());
        self.launch("shared_gate_up", kernel, bindings);

        let ids = self.arena.take(rows * top_k);
        let weights = self.arena.take(rows * top_k);
        self.launch("route", Route { rows, experts, top_k }, vec![logits, ids.clone(), weights.clone()]);
        let shared = self.matmul("shared_down", &w.shared_down, &shared_act);

        let kernel = Group { rows, experts, top_k };
        let offsets = self.arena.take(experts + 1);
        let order = self.arena.take(rows * top_k);
        let active = self.arena.take(1 + kernel.max_active());
        self.launch("group", kernel, vec![ids, offsets.clone(), order.clone(), active.clone()]);
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

        let bindings = vec![out, weights, shared, shared_gate, x.clone()];
        self.launch("combine", Combine { rows, top_k, width: hidden, weighted: true }, bindings);
    }
}
