//! docs/switches.md is made from the plans themselves: `LILY_BLESS=1 cargo test -p lily-model --test plan` writes it.

use std::fmt::Write as _;
use std::path::Path;

use lily_model::plan::{
    Cost, DecodeShape, Effect, PlanCost, Profile, Switch, Switches, Tail, Target, decode, prefill,
};
use lily_model::{LogitRows, Preset};

const HEAD: &str = "\
# Mechanisms and what each does to a plan

Every mechanism can be turned off alone (`lily plan --ablate NAME`, repeated; `--ablate list` names them). The table is the
plan of Qwen3.6-35B-A3B, 4-bit, one sequence, on the profile `metal:m5-max`, counted and not run: launches, stages (runs of launches
between barriers), and bytes that launches move, each byte once a launch. It says nothing of time: two plans with equal numbers
may differ in how well a kernel reads (`coalesced-kv`) or how often it reads again what caches hold (`gqa-pack`, `tile32x4`).

The prefill column is the last chunk of a prompt of 4,096 tokens, in decode the context is 4,096 and 131,072 tokens. A dash: no
effect in that phase.

";

fn preset_cost(preset: &Preset, profile: &Profile, context: Option<usize>) -> Cost {
    let (weights, _) = preset.weights().packed();
    let target = Target { geometry: &preset.geometry, weights: &weights, profile };
    let plan = match context {
        None => prefill(target, 4096, 4096, LogitRows::Last).unwrap(),
        Some(context) => {
            let hands_over = profile.has(Switch::TokenHandoff);
            let tail = if hands_over { Tail::Select { entries: 1 } } else { Tail::Logits };
            decode(target, DecodeShape { slots: 1, rows: 1, context, tail }).unwrap()
        }
    };
    PlanCost::of(target, &plan).total
}

fn table() -> String {
    let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
    let on = Profile::named("metal:m5-max").unwrap();
    let mut text = String::from(HEAD);
    text += "| off | decode 4K: launches | stages | GB | decode 128K: launches | stages | GB | prefill 4K: launches | \
             stages | GB | without it |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
    let mut row = |name: &str, profile: &Profile, effect: Effect, fallback: &str| {
        let cells = |context: Option<usize>, has: bool| {
            if !has {
                return "- | - | -".to_owned();
            }
            let cost = preset_cost(&preset, profile, context);
            format!("{} | {} | {:.3}", cost.launches, cost.stages, cost.bytes as f64 / 1e9)
        };
        let (in_decode, in_prefill) = (effect != Effect::Prefill, effect != Effect::Decode);
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {fallback} |",
            cells(Some(4096), in_decode),
            cells(Some(131_072), in_decode),
            cells(None, in_prefill)
        );
    };
    row("nothing", &on, Effect::Both, "");
    for switch in Switch::ALL.into_iter().filter(|s| on.has(*s)) {
        row(&format!("`{}`", switch.name()), &on.clone().without(switch), switch.effect(), switch.fallback());
    }
    for switch in Switch::ALL.into_iter().filter(|s| !on.has(*s)) {
        let name = format!("nothing, and `{}` on", switch.name());
        row(&name, &on.clone().with_switches(on.switches.with(switch)), switch.effect(), "");
    }
    row("everything", &on.clone().with_switches(Switches::NONE), Effect::Both, "");
    let floor = |context| preset_cost(&preset, &on, context).floor_bytes as f64 / 1e9;
    let _ = write!(
        text,
        "\nThe floors: {:.3} GB a step at 4K, {:.3} GB at 128K, {:.3} GB for the chunk. \
         `chunked-prefill` decides how long a chunk is, not what it launches.\n",
        floor(Some(4096)),
        floor(Some(131_072)),
        floor(None)
    );
    text
}

#[test]
fn the_table_of_mechanisms_is_that_of_the_plans() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/switches.md");
    let made = table();
    if std::env::var_os("LILY_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "docs/switches.md is not what plans are: run with LILY_BLESS=1");
}
