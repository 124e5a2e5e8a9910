//! Where a step's or a chunk's time goes: `times [--preset NAME] [--repeat N] [--cubins FOLDER] [--json FILE] [--ablate SWITCH]...
//! [--kernels native|shared] decode:CONTEXT | step:CONTEXT | prefill:TOKENS[@BEFORE] ...`. A step chooses its token (temperature 0.6, top_p 0.95,
//! top_k 20) and hands it to the next one; 64 run after another. Each plan is run launch by launch with an event behind each, and launches of one label
//! are added up: medians of the repeats, beside the time that their bytes and operations would take at the rates measured first.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lily_cuda::{CudaDevice, CudaOptions, Gpu, KernelSet, Roof};
use lily_kernels::select::Request;
use lily_model::device::{Batch, Choices, Device, Room, Steps};
use lily_model::plan::{self, DecodeShape, Plan, PlanCost, Switch, Tail, Target};
use lily_model::synth::Synth;
use lily_model::{LogitRows, Model, Preset, Weights};

struct Flags {
    preset: String,
    repeat: usize,
    cubins: Option<PathBuf>,
    json: Option<PathBuf>,
    ablate: Vec<Switch>,
    kernels: KernelSet,
    cases: Vec<String>,
}

fn flags() -> Result<Flags, Box<dyn Error>> {
    let mut flags = Flags {
        preset: "qwen3.6-35b-a3b".into(),
        repeat: 9,
        cubins: None,
        json: None,
        ablate: Vec::new(),
        kernels: KernelSet::Native,
        cases: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} takes a value"));
        match name.as_str() {
            "--preset" => flags.preset = value()?,
            "--repeat" => flags.repeat = value()?.parse()?,
            "--cubins" => flags.cubins = Some(value()?.into()),
            "--json" => flags.json = Some(value()?.into()),
            "--kernels" => {
                flags.kernels = match value()?.as_str() {
                    "native" => KernelSet::Native,
                    "shared" => KernelSet::Shared,
                    other => {
                        return Err(format!("--kernels {other}: wanted native or shared").into());
                    }
                };
            }
            "--ablate" => {
                let name = value()?;
                flags.ablate.push(Switch::named(&name).ok_or(format!("--ablate {name} is not a switch"))?);
            }
            case => flags.cases.push(case.to_owned()),
        }
    }
    Ok(flags)
}

/// Steps that run after another.
const STEPS: usize = 64;

/// What launches of one label took and would have to take.
#[derive(Clone, Default)]
struct Row {
    launches: usize,
    seconds: f64,
    bytes: f64,
    flops: f64,
}

struct Bench {
    device: CudaDevice,
    model: Model,
    weights: Weights,
    roof: Roof,
}

impl Bench {
    /// The plan of a case, and the tokens that stand before it.
    fn plan(&self, case: &str) -> Result<(Plan, usize), Box<dyn Error>> {
        let profile = self.device.profile();
        let target = Target { geometry: &self.model.geometry, weights: &self.weights, profile };
        if let Some(context) = case.strip_prefix("decode:") {
            let context: usize = context.parse()?;
            return Ok((plan::decode(target, DecodeShape::logits(1, context))?, context - 1));
        }
        if let Some(context) = case.strip_prefix("step:") {
            let context: usize = context.parse()?;
            let before = context.checked_sub(STEPS).ok_or(format!("{case}: wanted at least {STEPS}"))?;
            let shape = DecodeShape { tail: Tail::Select { entries: 1 }, ..DecodeShape::logits(1, context) };
            return Ok((plan::decode(target, shape)?, before));
        }
        let tokens = case.strip_prefix("prefill:").ok_or(format!("{case}: see the head of this file"))?;
        let (tokens, before) = tokens.split_once('@').unwrap_or((tokens, "0"));
        let (tokens, before): (usize, usize) = (tokens.parse()?, before.parse()?);
        Ok((plan::prefill(target, tokens, before + tokens, LogitRows::Last)?, before))
    }

    fn case(&mut self, case: &str, repeat: usize) -> Result<serde_json::Value, Box<dyn Error>> {
        let (plan, before) = self.plan(case)?;
        let plan = Arc::new(plan);
        let tokens: Vec<u32> = (0..plan.rows as u32)
            .map(|i| i.wrapping_mul(2_654_435_761) % self.model.geometry.vocab as u32)
            .collect();
        let positions: Vec<u32> = (before..before + plan.rows).map(|p| p as u32).collect();
        let sequence = self.device.open()?;
        let chooses = plan.tail != Tail::Logits;
        let steps = if chooses { STEPS } else { 1 };
        self.device.reserve(&[Room { sequence, from: 0, to: before + steps * plan.rows }])?;
        self.device.make_up(sequence, before)?;
        let batch = Batch { sequences: &[sequence], tokens: &tokens, positions: &positions };
        let request = Request {
            temperature: 0.6,
            top_p: 0.95,
            top_k: 20,
            seed: 1,
            ..Request::greedy(self.model.geometry.vocab as u32)
        };
        let choices = Choices { requests: vec![request], entries: 1, fresh: Vec::new() };
        let (mut timed, mut whole) = (Vec::new(), Vec::new());
        // The first replays compile, load and capture.
        for i in 0..repeat + 3 {
            let mut under_way = chooses
                .then(|| Steps::begin(&mut self.device, plan.clone(), &batch, &choices, STEPS))
                .transpose()?;
            let began = Instant::now();
            match &mut under_way {
                Some(under_way) => {
                    for _ in 0..STEPS {
                        while under_way.submit(&mut self.device)? {}
                        under_way.take(&mut self.device)?;
                    }
                }
                None => self.device.run(&plan, &batch)?,
            }
            if i >= 3 {
                whole.push(began.elapsed().as_secs_f64() / steps as f64);
            }
        }
        for _ in 0..repeat {
            timed.push(self.device.run_timed(&plan, &batch)?);
        }
        self.device.close(sequence);
        let target =
            Target { geometry: &self.model.geometry, weights: &self.weights, profile: self.device.profile() };
        let cost = PlanCost::of(target, &plan);
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for (i, launch) in cost.launches.iter().enumerate() {
            let row = rows.entry(format!("{} ({})", launch.label, launch.kernel)).or_default();
            row.launches += 1;
            row.seconds += median(timed.iter().map(|run| run[i]));
            row.bytes += (launch.read + launch.written) as f64;
            row.flops += launch.flops as f64;
        }
        let (whole, sum) = (median(whole.into_iter()), rows.values().map(|row| row.seconds).sum::<f64>());
        let mut rows: Vec<(String, Row)> = rows.into_iter().collect();
        rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        println!(
            "\n{case}: {:.3} ms as it runs, {:.3} ms launch by launch, {} launches",
            whole * 1e3,
            sum * 1e3,
            plan.launches.len()
        );
        println!(
            "| launch | times | us each | share | us of its bytes | us of its operations |\n|---|---:|---:|---:|---:|---:|"
        );
        for (label, row) in &rows {
            let each = 1e6 / row.launches as f64;
            println!(
                "| {label} | {} | {:.2} | {:.1}% | {:.2} | {:.2} |",
                row.launches,
                row.seconds * each,
                100.0 * row.seconds / sum,
                row.bytes / self.roof.bytes_per_second * each,
                row.flops / self.roof.flops_per_second * each
            );
        }
        let launches: Vec<_> = rows
            .iter()
            .map(|(label, row)| {
                serde_json::json!({"launch": label, "times": row.launches, "seconds": row.seconds, "bytes": row.bytes, "flops": row.flops})
            })
            .collect();
        Ok(serde_json::json!({"case": case, "seconds": whole, "by_launch": sum, "launches": launches}))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = flags()?;
    let toolkits: Vec<PathBuf> =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    let gpu = Gpu::open(0, &toolkits).map_err(|missing| missing.to_string())?;
    let preset = Preset::named(&flags.preset).ok_or(format!("--preset {} is not known", flags.preset))?;
    let model = Model::random("times", &Synth::new(preset, 0)?, &[]);
    let profile = flags.ablate.iter().fold(gpu.profile(), |profile, switch| profile.without(*switch));
    let (weights, packing) = model.weights.packed();
    let options =
        CudaOptions { cubins: flags.cubins, kernels: flags.kernels, ..CudaOptions::new(profile, 16 << 30) };
    let roof = gpu.roof()?;
    let device = CudaDevice::new(&gpu, &model.geometry, &weights, &model, &packing, &options)?;
    println!(
        "{}: {:.0} GB/s, {:.0} TFLOP/s",
        device.describe(),
        roof.bytes_per_second / 1e9,
        roof.flops_per_second / 1e12
    );
    let mut bench = Bench { device, model, weights, roof };
    let cases: Result<Vec<_>, _> = flags.cases.iter().map(|case| bench.case(case, flags.repeat)).collect();
    if let Some(file) = flags.json {
        std::fs::write(file, serde_json::to_string_pretty(&cases?)? + "\n")?;
    }
    Ok(())
}
