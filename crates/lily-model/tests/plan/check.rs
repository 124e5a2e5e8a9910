//! Holds a plan against what every plan must be. It shares no code with the builder: overlaps, sizes and uses are worked
//! out again.

use std::collections::BTreeMap;
use std::ops::Range;

use lily_kernels::quant::Output;
use lily_kernels::{Access, Kernel, SLOT_WORDS};
use lily_model::plan::{Buffer, Launch, Plan, View};
use lily_model::{LayerKind, Model, Packing};

use super::sizes::operand_bytes;

pub(crate) fn check(plan: &Plan, model: &Model, packing: Option<&Packing>) -> Result<(), String> {
    stages_follow_each_other(plan)?;
    for launch in &plan.launches {
        bindings_fit_the_kernel(launch)?;
        for view in &launch.bindings {
            view_lies_in_its_buffer(view, launch, plan, model, packing)?;
        }
    }
    nothing_in_a_stage_conflicts(plan)?;
    reads_find_what_was_written(plan)?;
    match packing {
        None => tensors_have_their_uses(plan, model)?,
        Some(packing) => packed_tensors_have_their_uses(plan, model, packing)?,
    }
    states_have_their_uses(plan, model)
}

fn fail<T>(what: &str, launch: &Launch) -> Result<T, String> {
    Err(format!("{} of layer {:?}: {what}", launch.label, launch.layer))
}

fn stages_follow_each_other(plan: &Plan) -> Result<(), String> {
    let mut at = 0;
    for stage in &plan.stages {
        if stage.start != at || stage.is_empty() {
            return Err(format!("stage {stage:?} does not start at {at}"));
        }
        at = stage.end;
    }
    if at != plan.launches.len() {
        return Err(format!("stages end at {at} of {}", plan.launches.len()));
    }
    Ok(())
}

/// Each binding with its operand's number.
fn operands(kernel: &Kernel) -> Vec<usize> {
    let all = kernel.operands().iter().enumerate();
    all.flat_map(|(i, o)| std::iter::repeat_n(i, if o.per_slot { kernel.slots() } else { 1 })).collect()
}

fn bindings_fit_the_kernel(launch: &Launch) -> Result<(), String> {
    let (operands, bytes) = (operands(&launch.kernel), operand_bytes(&launch.kernel));
    if bytes.len() != launch.kernel.operands().len() || operands.len() != launch.bindings.len() {
        return fail("wrong number of bindings", launch);
    }
    for (operand, view) in operands.iter().zip(&launch.bindings) {
        if view.bytes.len() != bytes[*operand] {
            let name = launch.kernel.operands()[*operand].name;
            return fail(&format!("{name} needs {} bytes, bound to {view:?}", bytes[*operand]), launch);
        }
    }
    Ok(())
}

fn view_lies_in_its_buffer(
    view: &View,
    launch: &Launch,
    plan: &Plan,
    model: &Model,
    packing: Option<&Packing>,
) -> Result<(), String> {
    let (g, total) = (&model.geometry, plan.slots * plan.rows);
    let per_slot = |slot: usize, layer: usize, kind: LayerKind, len: usize| {
        let right = slot < plan.slots && launch.layer == Some(layer) && g.layers[layer] == kind;
        if right { 4 * len } else { 0 }
    };
    let cache = plan.context * g.attention.kv_heads * g.attention.head_dim;
    // All but activations are bound whole.
    let whole = match view.buffer {
        Buffer::Arena => {
            let aligned = view.bytes.start.is_multiple_of(4);
            return if aligned && view.bytes.end <= plan.arena_bytes {
                Ok(())
            } else {
                fail(&format!("{view:?} of {} bytes", plan.arena_bytes), launch)
            };
        }
        Buffer::Tensor(id) => {
            let own = [id];
            let parts = packing.and_then(|p| p.parts(id)).unwrap_or(&own);
            parts.iter().map(|part| model.checkpoint.bytes(*part).len()).sum()
        }
        Buffer::Tokens | Buffer::Positions | Buffer::NextTokens | Buffer::NextPositions | Buffer::Chosen => {
            4 * total
        }
        Buffer::Slots | Buffer::NextSlots => 4 * total * SLOT_WORDS,
        Buffer::Requests | Buffer::Counts | Buffer::Bias | Buffer::Mask => view.bytes.len(),
        Buffer::Keys { slot, layer } | Buffer::Values { slot, layer } => {
            per_slot(slot, layer, LayerKind::Attention, cache)
        }
        Buffer::DeltaState { slot, layer } => per_slot(slot, layer, LayerKind::Delta, g.delta.state_len()),
        Buffer::ConvState { slot, layer } => {
            per_slot(slot, layer, LayerKind::Delta, g.delta.conv_state_len())
        }
        Buffer::Logits => 4 * plan.logit_rows * g.vocab,
    };
    if view.bytes == (0..whole) { Ok(()) } else { fail(&format!("{view:?} of {whole} bytes"), launch) }
}

/// Views that a launch reads, and views that it writes.
fn reads_and_writes(launch: &Launch) -> (Vec<&View>, Vec<&View>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (operand, view) in operands(&launch.kernel).into_iter().zip(&launch.bindings) {
        let access = launch.kernel.operands()[operand].access;
        // A product that does not add to its output only writes it.
        let replaces = match &launch.kernel {
            Kernel::Matmul(k) => k.out != Output::Add,
            Kernel::NormMatmul(k) => k.out != Output::Add,
            _ => false,
        };
        if access == Access::Read || (access == Access::ReadWrite && !replaces) {
            reads.push(view);
        }
        if access != Access::Read {
            writes.push(view);
        }
    }
    (reads, writes)
}

fn share_a_byte(a: &View, b: &View) -> bool {
    a.buffer == b.buffer && a.bytes.start.max(b.bytes.start) < a.bytes.end.min(b.bytes.end)
}

fn nothing_in_a_stage_conflicts(plan: &Plan) -> Result<(), String> {
    for stage in &plan.stages {
        for i in stage.clone() {
            let launch = &plan.launches[i];
            let (_, writes) = reads_and_writes(launch);
            // A kernel's tasks run in any order: an output is nothing that the kernel reads as another operand.
            let twice = |write: &View| launch.bindings.iter().filter(|v| share_a_byte(v, write)).count() > 1;
            if writes.iter().any(|write| twice(write)) {
                return fail("an output shares bytes with another operand", launch);
            }
            for other in (stage.clone()).filter(|other| *other != i) {
                let (reads, also_written) = reads_and_writes(&plan.launches[other]);
                let touched: Vec<_> = reads.iter().chain(&also_written).collect();
                if writes.iter().any(|write| touched.iter().any(|view| share_a_byte(view, write))) {
                    return fail(&format!("beside {}", plan.launches[other].label), launch);
                }
            }
        }
    }
    Ok(())
}

/// Who wrote which bytes last: disjoint ranges by their starts.
#[derive(Default)]
struct LastWriters(BTreeMap<(Buffer, usize), (usize, usize)>);

impl LastWriters {
    fn overlapping(&self, view: &View) -> Vec<(Range<usize>, usize)> {
        let all = self.0.range((view.buffer, 0)..(view.buffer, view.bytes.end));
        let ranges = all.map(|((_, start), (end, writer))| (*start..*end, *writer));
        ranges.filter(|(range, _)| range.end > view.bytes.start).collect()
    }

    fn write(&mut self, view: &View, writer: usize) {
        for (range, other) in self.overlapping(view) {
            self.0.remove(&(view.buffer, range.start));
            if range.start < view.bytes.start {
                self.0.insert((view.buffer, range.start), (view.bytes.start, other));
            }
            if range.end > view.bytes.end {
                self.0.insert((view.buffer, view.bytes.end), (range.end, other));
            }
        }
        self.0.insert((view.buffer, view.bytes.start), (view.bytes.end, writer));
    }
}

/// What is read has been written in an earlier stage, all of it by one launch: a region that something else wrote into
/// in between would have two writers, or one that did not make what is read.
fn reads_find_what_was_written(plan: &Plan) -> Result<(), String> {
    let mut last = LastWriters::default();
    let mut top = 0;
    for stage in &plan.stages {
        for launch in &plan.launches[stage.clone()] {
            let (reads, _) = reads_and_writes(launch);
            for view in reads.iter().filter(|v| matches!(v.buffer, Buffer::Arena | Buffer::Logits)) {
                let found = last.overlapping(view);
                let [(range, writer)] = &found[..] else {
                    return fail(&format!("{view:?} was written by {} launches", found.len()), launch);
                };
                if range.start > view.bytes.start || range.end < view.bytes.end {
                    return fail(&format!("only {range:?} of {view:?} was written"), launch);
                }
                // Whole outputs are read, or whole rows of the residual stream.
                let whole = range.start == view.bytes.start && range.end == view.bytes.end;
                let in_parts = ["in_proj", "qkv_proj", "router"].contains(&plan.launches[*writer].label);
                if !whole && !in_parts && !["norm", "lm_head"].contains(&launch.label) {
                    return fail(&format!("{view:?} is a part of {}", plan.launches[*writer].label), launch);
                }
            }
        }
        for i in stage.clone() {
            for view in reads_and_writes(&plan.launches[i]).1 {
                last.write(view, i);
                if view.buffer == Buffer::Arena {
                    top = top.max(view.bytes.end);
                }
            }
        }
    }
    let made = last.overlapping(&View { buffer: Buffer::Logits, bytes: 0..usize::MAX });
    if made.len() != usize::from(plan.logit_rows > 0) {
        return Err(format!("logits were written by {} launches", made.len()));
    }
    if top.next_multiple_of(256) != plan.arena_bytes {
        return Err(format!("{} bytes of activations, of which {top} are written", plan.arena_bytes));
    }
    Ok(())
}

/// What a launch reads of the checkpoint, by the ends of the tensors' names. `*` stands for a matrix's three tensors.
fn tensors_of(label: &str, tied: bool) -> &'static [&'static str] {
    match label {
        "embed_tokens" => &["model.embed_tokens.*"],
        "input_layernorm" => &[".input_layernorm.weight"],
        "in_proj_qkv" => &[".linear_attn.in_proj_qkv.*"],
        "in_proj_z" => &[".linear_attn.in_proj_z.*"],
        "in_proj_a" => &[".linear_attn.in_proj_a.*"],
        "in_proj_b" => &[".linear_attn.in_proj_b.*"],
        "conv1d" => &[".linear_attn.conv1d.weight"],
        "qk_norm_and_gates" => &[".linear_attn.A_log", ".linear_attn.dt_bias"],
        "gated_norm" => &[".linear_attn.norm.weight"],
        "out_proj" => &[".linear_attn.out_proj.*"],
        "q_proj" => &[".self_attn.q_proj.*"],
        "k_proj" => &[".self_attn.k_proj.*"],
        "v_proj" => &[".self_attn.v_proj.*"],
        "qk_norm_rope_and_cache" => &[".self_attn.q_norm.weight", ".self_attn.k_norm.weight"],
        "o_proj" => &[".self_attn.o_proj.*"],
        "post_attention_layernorm" => &[".post_attention_layernorm.weight"],
        "router" => &[".mlp.gate.*"],
        "shared_expert_gate" => &[".mlp.shared_expert_gate.*"],
        "shared_gate_up" => &[".mlp.shared_expert.gate_proj.*", ".mlp.shared_expert.up_proj.*"],
        "shared_down" => &[".mlp.shared_expert.down_proj.*"],
        "expert_gate_up" => &[".mlp.switch_mlp.gate_proj.*", ".mlp.switch_mlp.up_proj.*"],
        "expert_down" => &[".mlp.switch_mlp.down_proj.*"],
        "norm" => &["model.norm.weight"],
        "lm_head" if tied => &["model.embed_tokens.*"],
        "lm_head" => &["lm_head.*"],
        _ => &[],
    }
}

/// Each launch reads the tensors of its name and layer, in order; each tensor of the model is read by one launch (the
/// embedding by two where lm_head is the same), but for those of the draft head and the vision tower.
fn tensors_have_their_uses(plan: &Plan, model: &Model) -> Result<(), String> {
    let tied = model.weights.embed.weight == model.weights.lm_head.weight;
    let mut uses = vec![0; model.checkpoint.tensors().count()];
    for launch in &plan.launches {
        let mut read = Vec::new();
        for view in &launch.bindings {
            if let Buffer::Tensor(id) = view.buffer {
                uses[id.0 as usize] += 1;
                read.push(model.checkpoint.info(id).name.as_str());
            }
        }
        let layer = launch.layer.map(|layer| format!("layers.{layer}."));
        let wanted = tensors_of(launch.label, tied).iter().flat_map(|name| match name.strip_suffix('*') {
            Some(path) => ["weight", "scales", "biases"].map(|part| format!("{path}{part}")).to_vec(),
            None => vec![(*name).to_owned()],
        });
        let wanted: Vec<String> = wanted.collect();
        let right = |(name, end): (&&str, &String)| {
            name.ends_with(end.as_str()) && layer.as_ref().is_none_or(|layer| name.contains(layer))
        };
        if read.len() != wanted.len() || !read.iter().zip(&wanted).all(right) {
            return fail(&format!("reads {read:?}, not {wanted:?}"), launch);
        }
    }
    for ((_, info), uses) in model.checkpoint.tensors().zip(uses) {
        let name = info.name.strip_prefix("language_model.").unwrap_or(&info.name);
        let of_logits = name.starts_with("lm_head.") || name == "model.norm.weight";
        let expected = match name {
            name if name.starts_with("mtp.") || name.starts_with("vision_tower.") => 0,
            _ if of_logits => usize::from(plan.logit_rows > 0),
            name if name.starts_with("model.embed_tokens.") && tied => 1 + usize::from(plan.logit_rows > 0),
            _ => 1,
        };
        if uses != expected {
            return Err(format!("{name} is read {uses} times, not {expected}"));
        }
    }
    Ok(())
}

/// Every tensor of a layer is read in that layer and nowhere else, by one launch or more (a norm that several launches
/// compute again); concatenated ones through what they became.
fn packed_tensors_have_their_uses(plan: &Plan, model: &Model, packing: &Packing) -> Result<(), String> {
    let mut used = vec![false; model.checkpoint.tensors().count()];
    for launch in &plan.launches {
        for view in &launch.bindings {
            let Buffer::Tensor(id) = view.buffer else { continue };
            let own = [id];
            for part in packing.parts(id).unwrap_or(&own) {
                used[part.0 as usize] = true;
                let name = &model.checkpoint.info(*part).name;
                if launch.layer.is_some_and(|layer| !name.contains(&format!("layers.{layer}."))) {
                    return fail(&format!("reads {name}"), launch);
                }
            }
        }
    }
    for ((_, info), used) in model.checkpoint.tensors().zip(used) {
        let name = info.name.strip_prefix("language_model.").unwrap_or(&info.name);
        let of_logits = name.starts_with("lm_head.") || name == "model.norm.weight";
        let other = name.starts_with("mtp.") || name.starts_with("vision_tower.");
        if used != (!other && (plan.logit_rows > 0 || !of_logits)) {
            return Err(format!("{name} is {}read", if used { "" } else { "not " }));
        }
    }
    Ok(())
}

/// Every layer moves each sequence's state on once, and after everything that reads it as it was.
fn states_have_their_uses(plan: &Plan, model: &Model) -> Result<(), String> {
    let mut moved: BTreeMap<Buffer, usize> = BTreeMap::new();
    for launch in &plan.launches {
        let (_, writes) = reads_and_writes(launch);
        let is_state = |view: &&&View| {
            matches!(
                view.buffer,
                Buffer::Keys { .. }
                    | Buffer::Values { .. }
                    | Buffer::DeltaState { .. }
                    | Buffer::ConvState { .. }
            )
        };
        for view in writes.iter().filter(is_state) {
            *moved.entry(view.buffer).or_default() += 1;
        }
        if matches!(launch.kernel, Kernel::ConvSilu(_)) {
            let early = launch.bindings.iter().any(|view| moved.contains_key(&view.buffer));
            if early {
                return fail("reads a conv state that has moved on", launch);
            }
        }
        let caches = match launch.kernel {
            Kernel::Attend(_) => &launch.bindings[4..],
            Kernel::AttendBlocks(_) => &launch.bindings[3..],
            _ => &[],
        };
        if caches.iter().any(|view| !moved.contains_key(&view.buffer)) {
            return fail("reads a cache before the rows' own keys and values are there", launch);
        }
    }
    let mut wanted = BTreeMap::new();
    for (layer, kind) in model.geometry.layers.iter().enumerate() {
        for slot in 0..plan.slots {
            let buffers = match kind {
                LayerKind::Delta => [Buffer::DeltaState { slot, layer }, Buffer::ConvState { slot, layer }],
                LayerKind::Attention => [Buffer::Keys { slot, layer }, Buffer::Values { slot, layer }],
            };
            wanted.extend(buffers.map(|buffer| (buffer, 1)));
        }
    }
    if moved == wanted { Ok(()) } else { Err(format!("states move on as {moved:?}, not {wanted:?}")) }
}
