//! Measurements as people and programs read them.

use lily_cpu::Roof;
use serde::{Deserialize, Serialize};

use super::floor::{Floor, Limit, Work};
use super::trials::Trial;
use crate::cli::{Fill, Phase, Routing};

/// Everything that was measured. `device`, `threads` and `results` with their first five fields are what other programs
/// count on.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) shared: Shared,
    pub(super) results: Vec<Line>,
}

/// What is the same for all figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Shared {
    pub(super) device: String,
    pub(super) threads: usize,
    pub(super) precision: String,
    pub(super) model: String,
    pub(super) version: &'static str,
    /// What the program was built from.
    pub(super) commit: String,
    /// Bytes of the model's tensors.
    pub(super) model_bytes: u64,
    /// The most that keys, values and recurrent states took.
    pub(super) state_bytes: usize,
    /// Of a GPU, all that was in use on it, other programs included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device_memory_bytes: Option<usize>,
    /// The most that this process took of the machine's memory, where the system says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) process_peak_bytes: Option<usize>,
    /// How the states that decode starts from were made.
    pub(super) fill: &'static str,
    /// How a random model spreads tokens over its experts.
    pub(super) routing: &'static str,
    /// What the floor's operations are.
    #[serde(skip)]
    pub(super) floor_of: String,
    pub(super) read_bytes_per_second: f64,
    pub(super) flops_per_second: f64,
    pub(super) repeats: usize,
}

/// One case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    phase: String,
    context: usize,
    tok_s: f64,
    spread: f64,
    floor_tok_s: f64,
    floor_by: String,
    share_of_floor: f64,
    tokens: usize,
    mean: f64,
    min: f64,
    max: f64,
    floor_bytes_per_token: f64,
    flops_per_token: f64,
    /// The mechanism that it was measured without, or `all`.
    without: Option<String>,
    /// The speed with it, measured in turn, and its spread.
    with_tok_s: Option<f64>,
    with_spread: Option<f64>,
    /// What the mechanism gives: the speed with it over that without.
    gain: Option<f64>,
}

impl Line {
    /// Decode behind other tokens.
    fn is_deep(&self) -> bool {
        self.phase == "decode" && self.context > 0
    }

    /// Of a trial, and the one beside it that has the mechanism.
    pub(super) fn new(trial: &Trial, speeds: &[f64], beside: Option<&[f64]>, work: Work, roof: Roof) -> Line {
        let case = trial.case;
        let floor = Floor::of(case, work, roof);
        let tok_s = median(speeds);
        Line {
            phase: phase(case.phase()).to_owned(),
            context: case.context(),
            tok_s,
            spread: deviation(speeds),
            floor_tok_s: floor.tokens_per_second,
            floor_by: match floor.limit {
                Limit::Bytes => "bytes".to_owned(),
                Limit::Flops => "flops".to_owned(),
            },
            share_of_floor: tok_s / floor.tokens_per_second,
            tokens: case.tokens(),
            mean: mean(speeds),
            min: speeds.iter().copied().fold(f64::INFINITY, f64::min),
            max: speeds.iter().copied().fold(0.0, f64::max),
            floor_bytes_per_token: work.bytes,
            flops_per_token: work.flops,
            without: trial.without.clone(),
            with_tok_s: beside.map(median),
            with_spread: beside.map(deviation),
            gain: beside.map(|speeds| median(speeds) / tok_s),
        }
    }

    /// Whether it is the figure of a trial.
    pub(super) fn is_of(&self, trial: &Trial) -> bool {
        let case = trial.case;
        self.phase == phase(case.phase())
            && self.context == case.context()
            && self.tokens == case.tokens()
            && self.without == trial.without
    }

    /// `pp512`, `tg128 @ d2048`.
    fn name(&self) -> String {
        match (self.phase.as_str(), self.context) {
            ("prefill", context) => format!("pp{context}"),
            (_, 0) => format!("tg{}", self.tokens),
            (_, context) => format!("tg{} @ d{context}", self.tokens),
        }
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

impl Report {
    /// A table, and below it how it came about.
    pub(super) fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let shared = &self.shared;
        let mut lines = Vec::new();
        let plain = || self.results.iter().filter(|line| line.without.is_none());
        if plain().next().is_some() {
            lines.push("| model | device | test | tok/s | median | floor | of floor |".to_owned());
            lines.push("|---|---|---|---:|---:|---:|---:|".to_owned());
        }
        for line in plain() {
            lines.push(format!(
                "| {} | {} | {} | {} ± {} | {} | {} ({}) | {:.0}% |",
                cell(&shared.model),
                cell(&shared.device),
                line.name(),
                figure(line.mean),
                figure(line.spread),
                figure(line.tok_s),
                figure(line.floor_tok_s),
                line.floor_by,
                100.0 * line.share_of_floor
            ));
        }
        lines.extend(self.ablations());
        lines.push(String::new());
        lines.push(format!(
            "lily {}, precision {}, {} repeat{} in turn: mean ± standard deviation, median. The floor is by {:.1} GB/s read and {:.0} GFLOP/s of \
             {}.{}",
            shared.version,
            shared.precision,
            shared.repeats,
            if shared.repeats == 1 { "" } else { "s" },
            shared.read_bytes_per_second / 1e9,
            shared.flops_per_second / 1e9,
            shared.floor_of,
            if shared.fill == Fill::Synthetic.name() && self.results.iter().any(Line::is_deep) {
                " What decode starts from at a depth was filled synthetically: made-up keys, values and states, no prefill."
            } else {
                ""
            }
        ));
        if shared.routing != Routing::default().name() {
            lines.push(format!(
                "Routing is {}: the busiest expert of a layer has about eight times the mean.",
                shared.routing
            ));
        }
        let gib = |bytes: f64| bytes / f64::from(1u32 << 30);
        if let Some(bytes) = shared.process_peak_bytes {
            lines.push(format!(
                "Memory of this process at its peak: {:.2} GiB, files that are mapped included.",
                gib(bytes as f64)
            ));
        }
        if let Some(bytes) = shared.device_memory_bytes {
            lines.push(format!(
                "Memory of the GPU in use: {:.2} GiB, of it {:.2} GiB weights and {:.2} GiB keys, values and states.",
                gib(bytes as f64),
                gib(shared.model_bytes as f64),
                gib(shared.state_bytes as f64)
            ));
        }
        lines.join("\n") + "\n"
    }

    /// A table of what each mechanism gives.
    fn ablations(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for line in &self.results {
            let (Some(without), Some(with), Some(gain)) = (&line.without, line.with_tok_s, line.gain) else {
                continue;
            };
            if lines.is_empty() {
                let head = "| test | mechanism | tok/s without it | with it | with over without | floor | of floor |";
                let gap = if self.results.iter().any(|line| line.without.is_none()) {
                    vec![String::new()]
                } else {
                    vec![]
                };
                lines = gap;
                lines.extend([head.to_owned(), "|---|---|---:|---:|---:|---:|---:|".to_owned()]);
            }
            lines.push(format!(
                "| {} | {without} | {} ± {} | {} ± {} | {gain:.3} | {} ({}) | {:.0}% |",
                line.name(),
                figure(line.tok_s),
                figure(line.spread),
                figure(with),
                figure(line.with_spread.unwrap_or(0.0)),
                figure(line.floor_tok_s),
                line.floor_by,
                100.0 * with / line.floor_tok_s
            ));
        }
        lines
    }

    /// A line for each case, with what is the same for all of them repeated.
    pub(super) fn csv(&self) -> serde_json::Result<String> {
        let serde_json::Value::Object(mut shared) = serde_json::to_value(self)? else {
            return Ok(String::new());
        };
        let results = shared.remove("results");
        let mut text = String::new();
        for result in results.as_ref().and_then(|r| r.as_array()).into_iter().flatten() {
            let fields: Vec<_> = result.as_object().into_iter().flatten().chain(&shared).collect();
            if text.is_empty() {
                text = fields.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",") + "\n";
            }
            text += &(fields.iter().map(|(_, value)| field(value)).collect::<Vec<_>>().join(",") + "\n");
        }
        Ok(text)
    }
}

/// A field of comma-separated values: text in quotes, which are doubled inside.
fn field(value: &serde_json::Value) -> String {
    match value.as_str() {
        Some(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        None if value.is_null() => String::new(),
        None => value.to_string(),
    }
}

/// A speed with about four digits.
fn figure(x: f64) -> String {
    match x {
        x if x < 100.0 => format!("{x:.2}"),
        x if x < 1000.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The middle one, or the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}

/// The standard deviation, as it is estimated from a sample; 0 of a single value.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    if values.len() < 2 { 0.0 } else { (squares / (values.len() - 1) as f64).sqrt() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cases::Case;
    use super::super::tests::{of_case, plain};
    use super::*;

    const ROOF: Roof = Roof { bytes_per_second: 2e9, flops_per_second: 4e9 };
    const WORK: Work = Work { bytes: 1e7, flops: 4e7 };

    pub(in super::super) fn line(trial: &Trial) -> Line {
        Line::new(trial, &[40.0, 60.0, 80.0], None, WORK, ROOF)
    }

    pub(in super::super) fn shared() -> Shared {
        Shared {
            device: "CPU, 2 threads, AVX-512".into(),
            threads: 2,
            precision: "exact".into(),
            model: "a|b\"c".into(),
            version: "1.2.3",
            commit: "c0ffee".into(),
            model_bytes: 5,
            state_bytes: 6,
            device_memory_bytes: None,
            process_peak_bytes: None,
            fill: "computed",
            routing: "uniform",
            floor_of: "float32, measured with 2 threads".to_owned(),
            read_bytes_per_second: ROOF.bytes_per_second,
            flops_per_second: ROOF.flops_per_second,
            repeats: 3,
        }
    }

    fn report() -> Report {
        let decode = of_case(Case::Decode { depth: 2048, steps: 128 });
        let results = vec![line(&plain(512)), Line::new(&decode, &[100.0, 103.0, 157.0], None, WORK, ROOF)];
        Report { shared: shared(), results }
    }

    #[test]
    fn ablations_have_a_table_of_their_own() {
        let without = Trial { without: Some("gqa-pack".into()), ..plain(512) };
        let mut report = report();
        report.results.push(Line::new(&without, &[50.0], Some(&[60.0]), WORK, ROOF));
        let text = report.markdown();
        assert!(text.contains("\n\n| test | mechanism |"), "{text}");
        assert!(
            text.contains("| pp512 | gqa-pack | 50.00 ± 0.00 | 60.00 ± 0.00 | 1.200 | 100.0 (flops) | 60% |"),
            "{text}"
        );
        assert!(report.csv().unwrap().lines().nth(3).unwrap().contains(",\"gqa-pack\",60.0,0.0,1.2,"));
        report.results.drain(..2);
        assert!(report.markdown().starts_with("| test | mechanism |"));
    }

    #[test]
    fn medians_and_deviations() {
        assert_eq!(
            (median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0]), median(&[7.0])),
            (2.0, 2.5, 7.0)
        );
        assert_eq!((mean(&[1.0, 2.0, 6.0]), deviation(&[7.0])), (3.0, 0.0));
        // Squares of 2 about the mean 5: 32 in all, over 8 - 1.
        let sample = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert!((deviation(&sample) - (32f64 / 7.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn markdown_is_a_table_with_its_circumstances() {
        assert_eq!(
            report().markdown(),
            "\
| model | device | test | tok/s | median | floor | of floor |
|---|---|---|---:|---:|---:|---:|
| a\\|b\"c | CPU, 2 threads, AVX-512 | pp512 | 60.00 ± 20.00 | 60.00 | 100.0 (flops) | 60% |
| a\\|b\"c | CPU, 2 threads, AVX-512 | tg128 @ d2048 | 120.0 ± 32.08 | 103.0 | 200.0 (bytes) | 52% |

lily 1.2.3, precision exact, 3 repeats in turn: mean ± standard deviation, median. The floor is by 2.0 GB/s read and 4 GFLOP/s of float32, \
measured with 2 threads.
"
        );
    }

    #[test]
    fn a_synthetic_fill_is_said_to_be_one() {
        let shared = Shared { fill: Fill::Synthetic.name(), ..shared() };
        let synthetic = Report { shared, ..report() };
        assert!(synthetic.markdown().contains("filled synthetically"), "{}", synthetic.markdown());
        assert_eq!(serde_json::to_value(&synthetic).unwrap()["fill"], "synthetic");
        let mut without_depth = synthetic;
        without_depth.results.pop();
        assert!(!without_depth.markdown().contains("synthetic"));
    }

    #[test]
    fn json_has_the_fields_that_others_count_on() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!((&json["device"], &json["threads"]), (&"CPU, 2 threads, AVX-512".into(), &2.into()));
        let results = json["results"].as_array().unwrap();
        for (line, phase, context, tok_s, floor) in
            [(&results[0], "prefill", 512, 60.0, 100.0), (&results[1], "decode", 2048, 103.0, 200.0)]
        {
            assert_eq!(line["phase"], phase);
            assert_eq!(line["context"], context);
            assert_eq!((line["tok_s"].as_f64(), line["floor_tok_s"].as_f64()), (Some(tok_s), Some(floor)));
            assert!(line["spread"].as_f64().unwrap() > 0.0);
        }
        assert_eq!((results.len(), results[0]["spread"].as_f64()), (2, Some(20.0)));
    }

    #[test]
    fn csv_has_a_head_and_a_line_for_each_case() {
        let csv = report().csv().unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with(
            "phase,context,tok_s,spread,floor_tok_s,floor_by,share_of_floor,tokens,mean,min,max,"
        ));
        assert!(lines[0].ends_with(",device,threads,precision,model,version,commit,model_bytes,state_bytes,fill,routing,read_bytes_per_second,flops_per_second,repeats"));
        assert!(lines[2].starts_with("\"decode\",2048,103.0,"), "{}", lines[2]);
        assert!(
            lines[2].contains(",\"CPU, 2 threads, AVX-512\",2,\"exact\",\"a|b\"\"c\",\"1.2.3\","),
            "{}",
            lines[2]
        );
        assert_eq!(lines[1].split(',').count(), lines[0].split(',').count() + 2);
    }
}
