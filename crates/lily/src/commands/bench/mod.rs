//! `lily bench`: how fast a model reads prompts and answers on this machine, against what memory and arithmetic allow.

mod cases;
mod floor;
mod points;
mod report;
mod runs;
mod trials;

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

use self::floor::Work;
use self::points::{Circumstances, Points};
use self::report::{Line, Report, Shared};
use self::runs::{Ended, Measured, Watch};
use self::trials::{Group, Trial};
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
    if let Some(trace) = &flags.trace.trace {
        ensure!(
            flags.out.is_none(),
            "--trace {} makes what is measured slower, and --out keeps figures to compare: wanted one of them",
            trace.display()
        );
        remark("--trace: figures are slower than without it");
    }
    let (model, name) = setup::load_weights_routed(flags.model.model.as_deref(), flags.routing.of_model())?;
    let mut cases = cases::of(flags, model.geometry.max_context)?;
    if flags.model.model.is_none() {
        remark(DEMO_NOTICE);
    }
    let model = Arc::new(model);
    let chosen = setup::choose(&flags.model, &model)?.traced(&flags.trace)?;
    chosen.explain();
    let packed = chosen.profile.is_gpu().then(|| model.weights.packed().0);
    let weights = packed.as_ref().unwrap_or(&model.weights);
    let target = Target { geometry: &model.geometry, weights, profile: &chosen.profile };
    let mut groups = trials::groups(&mut cases, &flags.ablate, target, chosen.chunk, flags.is_apart())?;
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = flags.model.threads.map_or(all, usize::from);
    let session = Session { flags, model: &model, name: &name, chosen: &chosen, target, threads };
    session.leave_out_what_does_not_fit(&mut groups, &mut cases.left_out)?;
    for text in &cases.left_out {
        remark(format_args!("left out: {text}"));
    }
    session.measure(&groups, cancelled)
}

/// One call of `lily bench`.
struct Session<'a> {
    flags: &'a BenchFlags,
    model: &'a Arc<Model>,
    name: &'a str,
    chosen: &'a Chosen,
    target: Target<'a>,
    threads: usize,
}

impl Session<'_> {
    /// With each length by itself, those that memory has no room for; all of them are too many.
    fn leave_out_what_does_not_fit(&self, groups: &mut Vec<Group>, left_out: &mut Vec<String>) -> Result<()> {
        if !self.flags.is_apart() {
            return Ok(());
        }
        let mut last = None;
        groups.retain(|group| match self.room(std::slice::from_ref(group)) {
            Ok(_) => true,
            Err(error) => {
                left_out.push(format!("{}: {error:#}", group[group.len() - 1].name()));
                last = Some(error);
                false
            }
        });
        match last {
            Some(error) if groups.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// How a runner for these groups is made, if memory allows it, and the bytes that states may take.
    fn room(&self, groups: &[Group]) -> Result<(RunnerOptions, usize)> {
        let trials = || groups.iter().flatten();
        let chunk = trials().map(|trial| trial.chunk).max().unwrap_or(self.chosen.chunk);
        let budget = setup::Budget::for_model(self.model, self.chosen, chunk, None, Some(0))?;
        let fill = self.flags.fill();
        let of = |group: &Group| state_bytes(self.model, &self.chosen.profile, group, fill);
        let need = groups.iter().map(of).max().unwrap_or(0);
        ensure!(
            need <= budget.state,
            "not enough memory for {}: keys, values and states take {}, and {} are left beside the weights and what is kept \
             free; shorter ones take less",
            trials().map(|trial| trial.case.flags()).collect::<Vec<_>>().join(" and "),
            setup::readable(need),
            setup::readable(budget.state)
        );
        let options =
            RunnerOptions { context: budget.context, max_chunk: chunk, max_decode_rows: setup::DECODE_ROWS };
        Ok((options, budget.state))
    }

    /// What each case cannot do without.
    fn work(&self, trial: &Trial) -> Result<Work> {
        Work::of(self.target, trial.case).with_context(|| trial.case.flags())
    }

    /// All groups, and those that are kept already; nothing if it was cancelled.
    fn measure(&self, groups: &[Group], cancelled: &(dyn Fn() -> bool + Sync)) -> Result<Option<Report>> {
        let mut points = match &self.flags.out {
            Some(folder) => Some(Points::open(folder, self.circumstances())?),
            None => None,
        };
        let is_kept = |group: &Group, points: &Option<Points>| {
            points.as_ref().is_some_and(|kept| {
                group.iter().filter(|trial| trial.is_reported).all(|trial| kept.find(trial).is_some())
            })
        };
        let missing: Vec<Group> = groups.iter().filter(|group| !is_kept(group, &points)).cloned().collect();
        if points.is_some() && missing.len() < groups.len() {
            remark(format_args!("{} of {} were measured before", groups.len() - missing.len(), groups.len()));
        }
        let works = missing.iter().flatten().map(|trial| self.work(trial)).collect::<Result<Vec<_>>>()?;
        let (options, state) = self.room(if missing.is_empty() { groups } else { &missing })?;
        let mut runner = self.chosen.runner(self.model, options, state)?;
        let mut shared = self.shared(runner.device().describe());
        let mut roof = roof(self.chosen, self.threads)?;
        let (mut measured, mut works) = (Vec::new(), works.into_iter());
        for group in &missing {
            if cancelled() {
                return Ok(None);
            }
            let runs = match on_its_own_thread(|| watched(self.flags, &mut runner, group, cancelled))? {
                Ok(runs) => runs,
                Err(Ended::Cancelled) => return Ok(None),
                Err(Ended::Failed(error)) => {
                    return Err(error).with_context(|| group[group.len() - 1].name());
                }
            };
            shared.state_bytes = shared.state_bytes.max(runs.state_bytes);
            // Pools never shrink, so what is in use now is the most that was.
            shared.device_memory_bytes = match &self.chosen.kind {
                Kind::Cuda(gpu) => gpu.memory().ok().map(|(free, total)| total - free),
                Kind::Metal(opened) => Some(opened.allocated()),
                _ => None,
            };
            shared.process_peak_bytes = setup::process_peak();
            let works: Vec<Work> = works.by_ref().take(group.len()).collect();
            if let Some(points) = &mut points {
                (shared.read_bytes_per_second, shared.flops_per_second) =
                    (roof.bytes_per_second, roof.flops_per_second);
                for line in lines(group, &runs.speeds, &works, roof) {
                    points.add(line, &shared)?;
                }
            }
            measured.push((group.clone(), runs.speeds, works));
        }
        drop(runner);
        if points.is_none() || !missing.is_empty() {
            roof = self::roof(self.chosen, self.threads)?.or(roof);
        }
        (shared.read_bytes_per_second, shared.flops_per_second) =
            (roof.bytes_per_second, roof.flops_per_second);
        let results = match &points {
            Some(points) => groups.iter().flatten().filter_map(|trial| points.find(trial).cloned()).collect(),
            None => {
                measured.iter().flat_map(|(group, speeds, works)| lines(group, speeds, works, roof)).collect()
            }
        };
        Ok(Some(Report { shared, results }))
    }

    /// Under what figures are kept: everything that was asked for but the lengths and the mechanisms, which are the figures' own.
    fn circumstances(&self) -> Circumstances {
        let (flags, kind) = (self.flags, &self.chosen.kind);
        let device = match kind {
            Kind::Cuda(gpu) => gpu.describe(),
            Kind::Cpu => format!("cpu, {} threads", self.threads),
            Kind::Emu => format!("emu, {} threads", self.threads),
            Kind::Metal(opened) => opened.name(),
        };
        let isa = flags.model.isa.map_or(String::new(), |isa| format!(", {}", isa.word()));
        let kernels = flags.model.kernels.and_then(|kernels| kernels.to_possible_value());
        let kernels = kernels.map_or(String::new(), |kernels| format!(", {} kernels", kernels.get_name()));
        let asked = format!(
            "{} on {device}{isa}{kernels}, precision {}, routing {}, fill {}, {} repeats",
            self.name,
            precision(self.chosen),
            flags.routing.name(),
            flags.fill().name(),
            flags.repeat
        );
        Circumstances { commit: env!("LILY_COMMIT").to_owned(), asked }
    }

    fn shared(&self, device: String) -> Shared {
        let threads = self.threads;
        Shared {
            device,
            threads,
            precision: precision(self.chosen),
            model: self.name.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("LILY_COMMIT").to_owned(),
            model_bytes: self.model.checkpoint.total_bytes(),
            state_bytes: 0,
            device_memory_bytes: None,
            process_peak_bytes: None,
            floor_of: match self.chosen.kind {
                Kind::Cuda(_) => "16 bits on tensor cores (mma.sync), measured on the GPU".to_owned(),
                Kind::Metal(_) => "what the maker says of the chip; nothing was measured".to_owned(),
                _ => {
                    format!("float32, measured with {threads} thread{}", if threads == 1 { "" } else { "s" })
                }
            },
            fill: self.flags.fill().name(),
            routing: self.flags.routing.name(),
            read_bytes_per_second: 0.0,
            flops_per_second: 0.0,
            repeats: usize::from(self.flags.repeat),
        }
    }
}

fn precision(chosen: &Chosen) -> String {
    chosen.precision.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The lines of a group's trials that have one.
fn lines(group: &Group, speeds: &[Vec<f64>], works: &[Work], roof: Roof) -> Vec<Line> {
    let of = |((trial, of_trial), work): ((&Trial, &Vec<f64>), &Work)| {
        let beside = trial.beside.and_then(|at| speeds.get(at)).map(Vec::as_slice);
        Line::new(trial, of_trial, beside, *work, roof)
    };
    let reported = |((trial, _), _): &((&Trial, &Vec<f64>), &Work)| trial.is_reported;
    group.iter().zip(speeds).zip(works).filter(reported).map(of).collect()
}

/// Bytes of keys, values and recurrent states that are held at the same time: the states that decode starts from, and the longest
/// sequence beside them. Where they were computed, shallower ones share keys and values with the deepest; made-up ones share
/// nothing.
fn state_bytes(model: &Model, profile: &Profile, group: &[Trial], fill: Fill) -> usize {
    let bytes = |tokens| setup::sequence_bytes(&model.geometry, profile, tokens);
    let depths = runs::depths(group);
    let starts = match fill {
        Fill::Computed => bytes(depths.last().copied().unwrap_or(0)) + depths.len() * bytes(0),
        Fill::Synthetic => bytes(0) + depths.iter().map(|depth| bytes(*depth)).sum::<usize>(),
    };
    starts + bytes(group.iter().map(|trial| trial.case.end()).max().unwrap_or(0))
}

/// What memory and arithmetic give the device now.
fn roof(chosen: &Chosen, threads: usize) -> Result<Roof> {
    if let Kind::Cuda(gpu) = &chosen.kind {
        let lily_cuda::Roof { bytes_per_second, flops_per_second } =
            gpu.roof().context("the GPU's limits")?;
        return Ok(Roof { bytes_per_second, flops_per_second });
    }
    if let Kind::Metal(_) = &chosen.kind
        && let Some((bytes_per_second, flops_per_second)) = setup::metal::nominal(&chosen.profile)
    {
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
    group: &[Trial],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Measured, Ended> {
    let repeats = usize::from(flags.repeat);
    let bar = ProgressBar::new(runs::tokens(group, repeats, flags.fill()) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens, {eta} left, {msg}") {
        bar.set_style(style);
    }
    let watch = Watch {
        computed: &|tokens| bar.inc(tokens as u64),
        begins: &|trial| bar.set_message(trial.name()),
        cancelled,
    };
    let measured = runs::measure(runner, group, repeats, flags.fill(), watch);
    bar.finish_and_clear();
    measured
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lily_model::testing::{Spec, model_in_memory};

    use super::cases::Case;
    use super::*;
    use crate::cli::{Cli, Command};

    pub(super) fn of_case(case: Case) -> Trial {
        let switches = lily_model::plan::Switches::ALL;
        Trial { case, switches, chunk: 512, without: None, beside: None, is_reported: true }
    }

    pub(super) fn plain(tokens: usize) -> Trial {
        of_case(Case::Prefill { tokens })
    }

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
        let decode = |depth| of_case(Case::Decode { depth, steps: 10 });
        let of = |group: &[Trial]| state_bytes(&model, &profile, group, Fill::Computed);
        assert_eq!(of(&[plain(500)]), bytes(0) + bytes(500));
        assert_eq!(of(&[plain(500), decode(70)]), bytes(70) + bytes(500) + bytes(0));
        assert_eq!(of(&[decode(70), decode(600)]), bytes(600) + bytes(610) + 2 * bytes(0));
        let made_up = state_bytes(&model, &profile, &[decode(70), decode(600)], Fill::Synthetic);
        assert_eq!(made_up, bytes(0) + bytes(70) + bytes(600) + bytes(610));
    }

    #[test]
    fn what_is_kept_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let out =
            format!("--out {} --prompt 20,3 --gen 2 --repeat 2 --threads 2 --json", folder.path().display());
        let of = |arguments: &str, cancelled: bool| bench(&flags(arguments), &|| cancelled).unwrap();
        // A number that is read again may differ in its last digit.
        let speeds = |report: Option<Report>| -> Vec<String> {
            let json = serde_json::to_value(report.unwrap()).unwrap();
            let of = |line: &serde_json::Value| {
                format!("{} {:.6}", line["phase"], line["tok_s"].as_f64().unwrap())
            };
            json["results"].as_array().unwrap().iter().map(of).collect()
        };
        let first = speeds(of(&out, false));
        assert_eq!(first.len(), 3);
        // Nothing is left to do, so nothing can be cancelled; figures differ from run to run.
        assert_eq!(speeds(of(&out, true)), first);
        let more = speeds(of(&out.replace("20,3", "20,4"), false));
        assert!(more[0] == first[0] && more[1] != first[1] && more[2] == first[2]);
        assert!(of(&out.replace("--repeat 2", "--repeat 1"), true).is_none());
        let kept = std::fs::read_to_string(folder.path().join("points.jsonl")).unwrap();
        assert_eq!(kept.lines().count(), 4);
        assert!(
            kept.lines()
                .all(|line| line.contains("\"commit\":\"") && line.contains("\"device\":\"CPU, 2 thr")),
            "{kept}"
        );
    }

    #[test]
    fn skewed_routing_is_for_random_models() {
        let refused = bench(&flags("--routing skewed"), &|| true).unwrap_err().to_string();
        assert!(refused.contains("--routing skewed is for random models"), "{refused}");
        let refused = bench(&flags("--ablate gqa-pack --device cpu"), &|| true).unwrap_err().to_string();
        assert!(refused.contains("cpu has no mechanisms"), "{refused}");
    }

    #[test]
    fn an_explicit_output_counts() {
        assert_eq!(flags("").output(), BenchOutput::Md);
        assert_eq!(flags("--json -o csv").output(), BenchOutput::Csv);
    }
}
