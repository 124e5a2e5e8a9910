//! Measurements as people and programs read them.

use lily_cpu::Roof;
use serde::Serialize;

use super::cases::Case;
use super::floor::{Floor, Limit, Work};
use crate::cli::{Fill, Phase};

/// Everything that was measured. `device`, `threads` and `results` with their first five fields are what other programs
/// count on.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) device: String,
    pub(super) threads: usize,
    pub(super) precision: String,
    pub(super) model: String,
    pub(super) version: &'static str,
    /// Bytes of the model's tensors.
    pub(super) model_bytes: u64,
    /// The most that keys, values and recurrent states took.
    pub(super) state_bytes: usize,
    /// Of a GPU, all that was in use on it, other programs included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device_memory_bytes: Option<usize>,
    /// How the states that decode starts from were made.
    pub(super) fill: &'static str,
    /// What the floor's operations are.
    #[serde(skip)]
    pub(super) floor_of: String,
    pub(super) read_bytes_per_second: f64,
    pub(super) flops_per_second: f64,
    pub(super) repeats: usize,
    pub(super) results: Vec<Line>,
}

/// One case.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    phase: &'static str,
    context: usize,
    tok_s: f64,
    spread: f64,
    floor_tok_s: f64,
    floor_by: &'static str,
    share_of_floor: f64,
    tokens: usize,
    mean: f64,
    min: f64,
    max: f64,
    floor_bytes_per_token: f64,
    flops_per_token: f64,
    #[serde(skip)]
    name: String,
}

impl Line {
    /// Decode behind other tokens.
    fn is_deep(&self) -> bool {
        self.phase == "decode" && self.context > 0
    }

    pub(super) fn new(case: Case, speeds: &[f64], work: Work, roof: Roof) -> Line {
        let floor = Floor::of(case, work, roof);
        let tok_s = median(speeds);
        Line {
            phase: match case.phase() {
                Phase::Prefill => "prefill",
                Phase::Decode => "decode",
            },
            context: case.context(),
            tok_s,
            spread: deviation(speeds),
            floor_tok_s: floor.tokens_per_second,
            floor_by: match floor.limit {
                Limit::Bytes => "bytes",
                Limit::Flops => "flops",
            },
            share_of_floor: tok_s / floor.tokens_per_second,
            tokens: case.tokens(),
            mean: mean(speeds),
            min: speeds.iter().copied().fold(f64::INFINITY, f64::min),
            max: speeds.iter().copied().fold(0.0, f64::max),
            floor_bytes_per_token: work.bytes,
            flops_per_token: work.flops,
            name: case.name(),
        }
    }
}

impl Report {
    /// A table, and below it how it came about.
    pub(super) fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let mut lines = vec![
            "| model | device | test | tok/s | median | floor | of floor |".to_owned(),
            "|---|---|---|---:|---:|---:|---:|".to_owned(),
        ];
        for line in &self.results {
            lines.push(format!(
                "| {} | {} | {} | {} ± {} | {} | {} ({}) | {:.0}% |",
                cell(&self.model),
                cell(&self.device),
                line.name,
                figure(line.mean),
                figure(line.spread),
                figure(line.tok_s),
                figure(line.floor_tok_s),
                line.floor_by,
                100.0 * line.share_of_floor
            ));
        }
        lines.push(String::new());
        lines.push(format!(
            "lily {}, precision {}, {} repeat{} in turn: mean ± standard deviation, median. The floor is by {:.1} GB/s read and {:.0} GFLOP/s of \
             {}.{}",
            self.version,
            self.precision,
            self.repeats,
            if self.repeats == 1 { "" } else { "s" },
            self.read_bytes_per_second / 1e9,
            self.flops_per_second / 1e9,
            self.floor_of,
            if self.fill == Fill::Synthetic.name() && self.results.iter().any(Line::is_deep) {
                " What decode starts from at a depth was filled synthetically: made-up keys, values and states, no prefill."
            } else {
                ""
            }
        ));
        if let Some(bytes) = self.device_memory_bytes {
            let gib = |bytes: f64| bytes / f64::from(1u32 << 30);
            lines.push(format!(
                "Memory of the GPU in use: {:.2} GiB, of it {:.2} GiB weights and {:.2} GiB keys, values and states.",
                gib(bytes as f64),
                gib(self.model_bytes as f64),
                gib(self.state_bytes as f64)
            ));
        }
        lines.join("\n") + "\n"
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
mod tests {
    use super::*;

    fn report() -> Report {
        let roof = Roof { bytes_per_second: 2e9, flops_per_second: 4e9 };
        let work = Work { bytes: 1e7, flops: 4e7 };
        let prefill = Case::Prefill { tokens: 512 };
        let decode = Case::Decode { depth: 2048, steps: 128 };
        Report {
            device: "CPU, 2 threads, AVX-512".into(),
            threads: 2,
            precision: "exact".into(),
            model: "a|b\"c".into(),
            version: "1.2.3",
            model_bytes: 5,
            state_bytes: 6,
            device_memory_bytes: None,
            fill: "computed",
            floor_of: "float32, measured with 2 threads".to_owned(),
            read_bytes_per_second: roof.bytes_per_second,
            flops_per_second: roof.flops_per_second,
            repeats: 3,
            results: vec![
                Line::new(prefill, &[40.0, 60.0, 80.0], work, roof),
                Line::new(decode, &[100.0, 103.0, 157.0], work, roof),
            ],
        }
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
        let synthetic = Report { fill: Fill::Synthetic.name(), ..report() };
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
        assert!(lines[0].ends_with(",device,threads,precision,model,version,model_bytes,state_bytes,fill,read_bytes_per_second,flops_per_second,repeats"));
        assert!(lines[2].starts_with("\"decode\",2048,103.0,"), "{}", lines[2]);
        assert!(
            lines[2].contains(",\"CPU, 2 threads, AVX-512\",2,\"exact\",\"a|b\"\"c\",\"1.2.3\","),
            "{}",
            lines[2]
        );
        assert_eq!(lines[1].split(',').count(), lines[0].split(',').count() + 2);
    }
}
