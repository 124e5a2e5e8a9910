//! `lily bench`: how fast a model reads prompts and answers on this machine, against what memory and arithmetic allow.

mod cases;
mod floor;
mod report;
mod runs;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use lily_cpu::Roof;
use lily_model::device::Device;
use lily_model::plan::{Profile, Target};
use lily_model::{Model, Runner, RunnerOptions};

use self::cases::Case;
use self::floor::Work;
use self::report::{Line, Report};
use self::runs::{Ended, Measured, Watch};
use super::DEMO_NOTICE;
use crate::cli::{BenchFlags, BenchOutput, Fill};
use crate::interrupt::{self, Interruptible};
use crate::setup::{self, Chosen, Kind};
use crate::terminal::remark;

pub(crate) fn run(flags: &BenchFlags) -> Result<ExitCode> {
    interrupt::listen()?;
    let work = Interruptible::begin();
    let Some(report) = bench(flags, &|| work.interrupted())? else {
        remark("stopped; nothing was reported");
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    };
    let text = match flags.output() {
        BenchOutput::Md => report.markdown(),
        BenchOutput::Json => serde_json::to_string_pretty(&report)? + "\n",
        BenchOutput::Csv => report.csv()?,
    };
    write!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// Measures what the flags ask for; nothing if it was cancelled.
fn bench(flags: &BenchFlags, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<Option<Report>> {
    let (model, name) = setup::load_weights(flags.model.model.as_deref())?;
    let cases = cases::of(flags, model.geometry.max_context)?;
    if flags.model.model.is_none() {
        remark(DEMO_NOTICE);
    }
    let model = Arc::new(model);
    let chosen = setup::choose(&flags.model, &model)?;
    chosen.explain();
    let floors = work(&model, &chosen.profile, &cases)?;
    // Before the device pins a thread, after which the system names one processor only.
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = flags.model.threads.map_or(all, usize::from);
    let mut runner = runner(&chosen, &model, &cases, flags.fill)?;
    let device = runner.device().describe();
    let before = roof(&chosen, threads)?;
    if cancelled() {
        return Ok(None);
    }
    let measured = match on_its_own_thread(|| watched(flags, &mut runner, &cases, cancelled))? {
        Ok(measured) => measured,
        Err(Ended::Cancelled) => return Ok(None),
        Err(Ended::Failed(error)) => return Err(error.into()),
    };
    // Pools never shrink, so what is in use now is the most that was.
    let device_memory_bytes = match &chosen.kind {
        Kind::Cuda(gpu) => gpu.memory().ok().map(|(free, total)| total - free),
        _ => None,
    };
    drop(runner);
    let roof = roof(&chosen, threads)?.or(before);
    let lines = cases.iter().zip(&measured.speeds).zip(floors);
    Ok(Some(Report {
        device,
        threads,
        precision: chosen.precision.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned()),
        model: name,
        version: env!("CARGO_PKG_VERSION"),
        model_bytes: model.checkpoint.total_bytes(),
        state_bytes: measured.state_bytes,
        device_memory_bytes,
        floor_of: match chosen.kind {
            Kind::Cuda(_) => "16 bits on tensor cores (mma.sync), measured on the GPU".to_owned(),
            _ => format!("float32, measured with {threads} thread{}", if threads == 1 { "" } else { "s" }),
        },
        fill: flags.fill.name(),
        read_bytes_per_second: roof.bytes_per_second,
        flops_per_second: roof.flops_per_second,
        repeats: usize::from(flags.repeat),
        results: lines.map(|((case, speeds), work)| Line::new(*case, speeds, work, roof)).collect(),
    }))
}

/// What each case cannot do without.
fn work(model: &Model, profile: &Profile, cases: &[Case]) -> Result<Vec<Work>> {
    let packed = profile.is_gpu().then(|| model.weights.packed().0);
    let weights = packed.as_ref().unwrap_or(&model.weights);
    let target = Target { geometry: &model.geometry, weights, profile };
    cases.iter().map(|case| Work::of(target, *case).with_context(|| case.flags())).collect()
}

/// The model on its device, as it answers, if memory allows what is asked.
fn runner(
    chosen: &Chosen,
    model: &Arc<Model>,
    cases: &[Case],
    fill: Fill,
) -> Result<Runner<Box<dyn Device>>> {
    let chunk = chosen.chunk;
    let budget = setup::Budget::for_model(model, chosen, chunk, None, Some(0))?;
    let need = state_bytes(model, &chosen.profile, cases, fill);
    ensure!(
        need <= budget.state,
        "not enough memory for {}: keys, values and states take {}, and {} are left beside the weights and what is kept \
         free; shorter ones take less",
        cases.iter().map(|case| case.flags()).collect::<Vec<_>>().join(" and "),
        setup::readable(need),
        setup::readable(budget.state)
    );
    let options =
        RunnerOptions { context: budget.context, max_chunk: chunk, max_decode_rows: setup::DECODE_ROWS };
    chosen.runner(model, options, budget.state)
}

/// Bytes of keys, values and recurrent states that are held at the same time: the states that decode starts from, and the longest
/// sequence beside them. Where they were computed, shallower ones share keys and values with the deepest; made-up ones share
/// nothing.
fn state_bytes(model: &Model, profile: &Profile, cases: &[Case], fill: Fill) -> usize {
    let bytes = |tokens| setup::sequence_bytes(&model.geometry, profile, tokens);
    let depths = cases.iter().filter(|case| matches!(case, Case::Decode { .. })).map(|case| case.context());
    let starts = match fill {
        Fill::Computed => bytes(depths.clone().max().unwrap_or(0)) + depths.count() * bytes(0),
        Fill::Synthetic => bytes(0) + depths.map(bytes).sum::<usize>(),
    };
    starts + bytes(cases.iter().map(|case| case.end()).max().unwrap_or(0))
}

/// What memory and arithmetic give the device now.
fn roof(chosen: &Chosen, threads: usize) -> Result<Roof> {
    if let Kind::Cuda(gpu) = &chosen.kind {
        let lily_cuda::Roof { bytes_per_second, flops_per_second } =
            gpu.roof().context("the GPU's limits")?;
        return Ok(Roof { bytes_per_second, flops_per_second });
    }
    let bytes = Roof::read_bytes(threads).min(setup::machine().0 / 4);
    Roof::measure(&chosen.cpu_options(0), bytes).context("the bandwidth of memory")
}

/// The device pins the thread that runs it, and that must not be the one that measures the machine afterwards.
fn on_its_own_thread<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let running = std::thread::Builder::new().name("lily-bench".into()).spawn_scoped(scope, run);
        running
            .context("the thread of the measurements could not be started")?
            .join()
            .map_err(|_| anyhow!("the measurements panicked"))
    })
}

/// The runs, with a bar on a terminal.
fn watched(
    flags: &BenchFlags,
    runner: &mut Runner<Box<dyn Device>>,
    cases: &[Case],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Measured, Ended> {
    let repeats = usize::from(flags.repeat);
    let bar = ProgressBar::new(runs::tokens(cases, repeats, flags.fill) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens, {eta} left, {msg}") {
        bar.set_style(style);
    }
    let watch = Watch {
        computed: &|tokens| bar.inc(tokens as u64),
        begins: &|case| bar.set_message(case.name()),
        cancelled,
    };
    let measured = runs::measure(runner, cases, repeats, flags.fill, watch);
    bar.finish_and_clear();
    measured
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lily_model::testing::{Spec, model_in_memory};

    use super::*;
    use crate::cli::{Cli, Command};

    pub(super) fn flags(arguments: &str) -> BenchFlags {
        let command = ["lily", "bench"].into_iter().chain(arguments.split_whitespace());
        match Cli::try_parse_from(command).unwrap().command {
            Command::Bench(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_demo_model_is_measured_at_each_length() {
        let flags = flags("--prompt 20,3 --gen 2 --depth 0,5 --repeat 2 --threads 2 --json");
        assert_eq!(flags.output(), BenchOutput::Json);
        let report = bench(&flags, &|| false).unwrap().unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["model"], &json["threads"]), (&"lily-demo".into(), &2.into()));
        let lines = json["results"].as_array().unwrap();
        let of = |name: &str| lines.iter().map(|line| line[name].clone()).collect::<Vec<_>>();
        assert_eq!(of("phase"), ["prefill", "prefill", "decode", "decode"]);
        assert_eq!(of("context"), [20, 3, 0, 5]);
        for field in ["tok_s", "floor_tok_s", "share_of_floor", "mean", "min", "max", "floor_bytes_per_token"]
        {
            assert!(of(field).iter().all(|x| x.as_f64().is_some_and(|x| x > 0.0)), "{field}: {json}");
        }
        assert!(of("spread").iter().all(|x| x.as_f64().is_some_and(|x| x >= 0.0)), "{json}");
        assert!(bench(&flags, &|| true).unwrap().is_none());
    }

    #[test]
    fn what_is_held_together_is_counted_together() {
        let model = model_in_memory(&Spec::tiny());
        let profile = Profile::cpu();
        let bytes = |tokens| setup::sequence_bytes(&model.geometry, &profile, tokens);
        let decode = |depth| Case::Decode { depth, steps: 10 };
        let of = |cases: &[Case]| state_bytes(&model, &profile, cases, Fill::Computed);
        assert_eq!(of(&[Case::Prefill { tokens: 500 }]), bytes(0) + bytes(500));
        assert_eq!(of(&[Case::Prefill { tokens: 500 }, decode(70)]), bytes(70) + bytes(500) + bytes(0));
        assert_eq!(of(&[decode(70), decode(600)]), bytes(600) + bytes(610) + 2 * bytes(0));
        let made_up = state_bytes(&model, &profile, &[decode(70), decode(600)], Fill::Synthetic);
        assert_eq!(made_up, bytes(0) + bytes(70) + bytes(600) + bytes(610));
    }

    #[test]
    fn an_explicit_output_counts() {
        assert_eq!(flags("").output(), BenchOutput::Md);
        assert_eq!(flags("--json -o csv").output(), BenchOutput::Csv);
    }
}
