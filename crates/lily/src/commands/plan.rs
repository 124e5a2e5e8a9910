//! `lily plan`: what a device would launch, without weights and without the device.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use lily_model::plan::{
    self, Cost, DecodeShape, Effect, Plan, PlanCost, Profile, Switch, Switches, Tail, Target,
};
use lily_model::synth::Synth;
use lily_model::{LogitRows, Model};

use crate::cli::{ByteSize, Phase, PlanFlags};
use crate::setup::{Footprint, load_weights, preset, readable};

pub(crate) fn run(flags: &PlanFlags) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    if flags.ablate.iter().any(|name| name == "list") {
        flags.ablate.iter().filter(|name| *name != "list").try_for_each(|name| without(name).map(|_| ()))?;
        write!(out, "{}", list(flags.json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = profile(flags)?;
    let (model, name) = model(flags)?;
    let packed = profile.is_gpu().then(|| model.weights.packed().0);
    let weights = packed.as_ref().unwrap_or(&model.weights);
    let target = Target { geometry: &model.geometry, weights, profile: &profile };
    let plan = build(flags, target)?;
    let cost = PlanCost::of(target, &plan);
    let memory = Memory::of(&model, target, plan.context, flags.memory)?;
    if flags.json {
        let json = Json { cost: &cost, off: off(&profile), memory };
        writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
    } else {
        write!(out, "{}", text(&name, &profile, &plan, &cost, &memory, flags.full))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The device without the mechanisms that are named.
fn profile(flags: &PlanFlags) -> Result<Profile> {
    let device = if flags.device == "auto" { "metal:m5-max" } else { &flags.device };
    let mut profile = Profile::named(device).with_context(|| {
        format!("--device {} is not known; known are {}", flags.device, Profile::names().join(", "))
    })?;
    for name in &flags.ablate {
        profile = match without(name)? {
            Some(switch) => profile.without(switch),
            None => profile.with_switches(Switches::NONE),
        };
    }
    Ok(profile)
}

/// The mechanism of a name; none stands for all of them.
fn without(name: &str) -> Result<Option<Switch>> {
    match Switch::named(name) {
        Some(switch) => Ok(Some(switch)),
        None if name == "all" => Ok(None),
        None => bail!(
            "--ablate {name} names no mechanism; `lily plan --ablate list` names them, and `all` stands for \
             every one"
        ),
    }
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    cost: &'a PlanCost,
    /// Mechanisms that are off.
    off: Vec<&'static str>,
    memory: Memory,
}

/// What the context of a plan takes, and what fits.
#[derive(serde::Serialize)]
struct Memory {
    #[serde(flatten)]
    takes: Footprint,
    total_bytes: usize,
    longest: Vec<Longest>,
}

/// The longest context in so much memory; `null` where the model does not fit.
#[derive(serde::Serialize)]
struct Longest {
    memory_bytes: usize,
    context: Option<usize>,
}

/// Memories of GPUs that are sold.
const MEMORIES: [usize; 4] = [24 << 30, 32 << 30, 48 << 30, 80 << 30];

impl Memory {
    fn of(model: &Model, target: Target<'_>, context: usize, asked: Option<ByteSize>) -> Result<Memory> {
        let profile = target.profile;
        let takes = Footprint::of(model, profile, context)?;
        let memories = asked.map_or(MEMORIES.to_vec(), |size| vec![size.0]);
        let longest = |memory_bytes| {
            let context = takes.longest(target.geometry, profile, memory_bytes);
            Longest { memory_bytes, context }
        };
        Ok(Memory { takes, total_bytes: takes.total(), longest: memories.into_iter().map(longest).collect() })
    }

    fn lines(&self, context: usize) -> Vec<String> {
        let Footprint { weights, state, working, driver } = self.takes;
        let driver = if driver > 0 { format!(", {} the driver's", readable(driver)) } else { String::new() };
        let longest = self.longest.iter().map(|Longest { memory_bytes, context }| match context {
            Some(tokens) => format!("{tokens} in {}", readable(*memory_bytes)),
            None => format!("none in {}", readable(*memory_bytes)),
        });
        vec![
            format!(
                "memory for {context} tokens: {}, of it {} weights, {} keys, values and states, {} working space{driver}",
                readable(self.total_bytes),
                readable(weights),
                readable(state),
                readable(working)
            ),
            format!("the longest context: {}", longest.collect::<Vec<_>>().join(", ")),
        ]
    }
}

/// The mechanisms that a GPU's plan does without: those named, and those that its profile has off.
fn off(profile: &Profile) -> Vec<&'static str> {
    let off = Switch::ALL.into_iter().filter(|s| profile.is_gpu() && !profile.has(*s));
    off.map(Switch::name).collect()
}

/// What is planned for, and its name; of a preset's model nothing but sizes is made.
fn model(flags: &PlanFlags) -> Result<(Model, String)> {
    if let Some(named) = &flags.model {
        return load_weights(Some(named));
    }
    let name = flags.preset.as_deref().unwrap_or("qwen3.6-35b-a3b");
    Ok((Model::random(name, &Synth::new(preset(name)?, 0)?, &[]), name.to_owned()))
}

fn build(flags: &PlanFlags, target: Target<'_>) -> Result<Plan> {
    let (profile, most) = (target.profile, target.geometry.max_context);
    let context = flags.context.map_or(most.min(4096), |n| n as usize);
    let rows = flags.rows.map(|n| n as usize);
    ensure!(context <= most, "--context {context} is more than the model's {most}");
    let plan = match flags.phase {
        Phase::Decode => {
            let slots = rows.unwrap_or(1);
            let hands_over = profile.is_gpu() && profile.has(Switch::TokenHandoff);
            let tail = if hands_over { Tail::Select { entries: slots } } else { Tail::Logits };
            plan::decode(target, DecodeShape { slots, rows: 1, context, tail })
        }
        Phase::Prefill => {
            let chunk = if profile.has(Switch::ChunkedPrefill) { profile.prefill_chunk } else { context };
            plan::prefill(target, rows.unwrap_or(chunk.min(context)), context, LogitRows::Last)
        }
    };
    let rows = flags.rows.map_or(String::new(), |n| format!("--rows {n}, "));
    plan.with_context(|| format!("no plan for {rows}--context {context}"))
}

/// The mechanisms, what they fall back to, and where.
fn list(json: bool) -> Result<String> {
    let phase = |s: Switch| match s.effect() {
        Effect::Prefill => "prefill",
        Effect::Decode => "decode",
        Effect::Both => "both",
    };
    if json {
        let all = Switch::ALL
            .map(|s| serde_json::json!({ "name": s.name(), "phase": phase(s), "fallback": s.fallback() }));
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let mut text = format!("{:<18} {:<8} {}\n", "mechanism", "phase", "without it");
    for s in Switch::ALL {
        text += &format!("{:<18} {:<8} {}\n", s.name(), phase(s), s.fallback());
    }
    Ok(text)
}

/// Bytes as engineers compare them: powers of 1000.
fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// Launches of the same name and kernel together, in the order in which they first come.
fn by_kind(cost: &PlanCost) -> Vec<String> {
    let mut kinds: Vec<(String, &str, usize, u64)> = Vec::new();
    for l in &cost.launches {
        let label = format!("{}{}", l.label, if l.on_host { " (host)" } else { "" });
        let kernel = l.kernel;
        match kinds.iter_mut().find(|kind| kind.0 == label && kind.1 == kernel) {
            Some(kind) => (kind.2, kind.3) = (kind.2 + 1, kind.3 + l.read + l.written),
            None => kinds.push((label, kernel, 1, l.read + l.written)),
        }
    }
    let mut lines =
        vec![format!("{:<32} {:<18} {:>6} {:>14} {:>7}", "launch", "kernel", "times", "bytes", "share")];
    let all = kinds.iter().map(|kind| kind.3).sum::<u64>().max(1) as f64;
    lines.extend(kinds.iter().map(|(label, kernel, times, bytes)| {
        let share = 100.0 * *bytes as f64 / all;
        format!("{label:<32} {kernel:<18} {times:>6} {:>14} {share:>6.1}%", megabytes(*bytes))
    }));
    lines.push("--full shows each launch".to_owned());
    lines
}

fn text(name: &str, profile: &Profile, plan: &Plan, cost: &PlanCost, memory: &Memory, full: bool) -> String {
    let rows = plan.slots * plan.rows;
    let phase = match plan.phase {
        plan::Phase::Prefill => "prefill",
        plan::Phase::Decode => "decode",
    };
    let without = match off(profile).join(", ") {
        none if none.is_empty() => none,
        names => format!(", without {names}"),
    };
    let mut lines = vec![
        format!(
            "{name}, {} on {}: {rows} row{}, context {}, activations {}{}",
            phase,
            profile.name,
            if rows == 1 { "" } else { "s" },
            plan.context,
            plan.activation.name(),
            without
        ),
        String::new(),
        format!(
            "{:<16} {:>8} {:>7} {:>6} {:>14} {:>14} {:>7} {:>12}",
            "", "launches", "stages", "waits", "bytes", "floor", "ratio", "GFLOP"
        ),
    ];
    let row = |name: &str, c: &Cost| {
        let ratio = c.bytes as f64 / c.floor_bytes.max(1) as f64;
        format!(
            "{name:<16} {:>8} {:>7} {:>6} {:>14} {:>14} {ratio:>7.3} {:>12.3}",
            c.launches,
            c.stages,
            c.host_waits,
            megabytes(c.bytes),
            megabytes(c.floor_bytes),
            c.flops as f64 / 1e9
        )
    };
    lines.extend(cost.per_layer.gdn.as_ref().map(|c| row("a GDN layer", c)));
    lines.extend(cost.per_layer.attention.as_ref().map(|c| row("an attention", c)));
    lines.push(row("in all", &cost.total));
    if profile.bandwidth > 0.0 {
        let floor = cost.total.floor_bytes as f64 / profile.bandwidth / 1e6;
        lines.push(String::new());
        lines.push(format!(
            "the floor at the nominal {} GB/s: {floor:.3} ms (arithmetic and latencies aside)",
            profile.bandwidth
        ));
    }
    lines.push(String::new());
    lines.extend(memory.lines(plan.context));
    lines.push(String::new());
    if !full {
        lines.extend(by_kind(cost));
        return lines.join("\n") + "\n";
    }
    lines.push(format!(
        "{:>5} {:>5}  {:<26} {:<18} {:>14} {:>14}",
        "stage", "layer", "launch", "kernel", "read", "written"
    ));
    for l in &cost.launches {
        let layer = l.layer.map_or(String::new(), |i| i.to_string());
        let host = if l.on_host { " (host)" } else { "" };
        lines.push(format!(
            "{:>5} {layer:>5}  {:<26} {:<18} {:>14} {:>14}",
            l.stage,
            format!("{}{host}", l.label),
            l.kernel,
            megabytes(l.read),
            megabytes(l.written)
        ));
    }
    lines.join("\n") + "\n"
}
