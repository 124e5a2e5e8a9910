//! Evaluations as people and programs read them.

use serde::Serialize;

use super::measure::Apart;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) version: &'static str,
    /// Where the tokens come from.
    pub(super) text: String,
    pub(super) tokens: usize,
    /// Tokens that the text has.
    pub(super) tokens_of_text: usize,
    pub(super) prefill_chunk: usize,
    /// The tokens that came one at a time, at the end.
    pub(super) decode_steps: usize,
    pub(super) device: Side,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) against: Option<Side>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) comparison: Option<Comparison>,
    /// What whoever reads the figures has to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// A device.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) precision: String,
    pub(super) perplexity: f64,
}

/// The device of `--device` measured by that of `--against`.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Of perplexities: (device - against) / against.
    perplexity_difference: f64,
    /// The share of positions with the same most probable token.
    top1_agreement: f64,
    /// The largest difference of a logit over the largest logit.
    logit_difference_relative: f64,
    #[serde(flatten)]
    apart: Apart,
}

impl Comparison {
    pub(super) fn of(device: &Side, against: &Side, apart: Apart) -> Self {
        Comparison {
            perplexity_difference: device.perplexity / against.perplexity - 1.0,
            top1_agreement: apart.same_top as f64 / apart.positions.max(1) as f64,
            logit_difference_relative: apart.relative_difference(),
            apart,
        }
    }
}

impl Report {
    /// Lines for people.
    pub(super) fn text(&self) -> String {
        let cut = match self.tokens_of_text {
            all if all > self.tokens => format!(" of {all}"),
            _ => String::new(),
        };
        let steps = match self.decode_steps {
            0 => String::new(),
            n => format!(", the last {n} one at a time"),
        };
        let mut lines = vec![
            format!("{}, {}{cut} tokens: {}", self.model, self.tokens, self.text),
            format!("in chunks of {}{steps}", self.prefill_chunk),
            String::new(),
        ];
        let name = |side: &Side| format!("{}, {}", side.name, side.precision);
        let sides = [Some(&self.device), self.against.as_ref()];
        let width = sides.iter().flatten().map(|side| name(side).chars().count()).max().unwrap_or(0).max(10);
        for side in sides.into_iter().flatten() {
            lines.push(format!("{:<width$}   perplexity {}", name(side), figure(side.perplexity)));
        }
        if let Some(comparison) = &self.comparison {
            let apart = &comparison.apart;
            lines.push(String::new());
            lines.push(format!(
                "perplexity              {:+.4}% of the second",
                100.0 * comparison.perplexity_difference
            ));
            lines.push(format!(
                "KL divergence           mean {:.1e}, largest {:.1e} (position {})",
                apart.kl_mean, apart.kl_max, apart.kl_max_position
            ));
            lines.push(format!(
                "same most probable      {} of {} ({:.2}%)",
                apart.same_top,
                apart.positions,
                100.0 * comparison.top1_agreement
            ));
            lines.push(format!(
                "worst logit             off by {:.1e} of the largest (position {})",
                comparison.logit_difference_relative, apart.logit_difference_position
            ));
        }
        if let Some(note) = &self.note {
            lines.push(String::new());
            lines.push(note.clone());
        }
        lines.join("\n") + "\n"
    }
}

/// Six digits, as many as an agreement to 0.1% needs and some more.
fn figure(x: f64) -> String {
    match x {
        x if x < 100.0 => format!("{x:.4}"),
        x if x < 1e6 => format!("{x:.2}"),
        x => format!("{x:.5e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::Sums;
    use super::*;

    fn side(precision: &str, perplexity: f64) -> Side {
        Side { name: "CPU, 2 threads".into(), precision: precision.into(), perplexity }
    }

    fn report(against: Side) -> Report {
        let mut sums = Sums::default();
        sums.add(&[0.0, 0.0], Some(&[3f32.ln(), 0.0]), None).unwrap();
        sums.add(&[1.0, 0.0], Some(&[2.0, 0.0]), None).unwrap();
        let device = side("fast", 12.0);
        let comparison = Comparison::of(&device, &against, sums.apart);
        Report {
            model: "m".into(),
            version: "1.2.3",
            text: "the built-in text".into(),
            tokens: 2,
            tokens_of_text: 9,
            prefill_chunk: 128,
            decode_steps: 1,
            device,
            against: Some(against),
            comparison: Some(comparison),
            note: Some("a note".into()),
        }
    }

    #[test]
    fn people_read_lines() {
        assert_eq!(
            report(side("exact", 10.0)).text(),
            "\
m, 2 of 9 tokens: the built-in text
in chunks of 128, the last 1 one at a time

CPU, 2 threads, fast    perplexity 12.0000
CPU, 2 threads, exact   perplexity 10.0000

perplexity              +20.0000% of the second
KL divergence           mean 9.9e-2, largest 1.3e-1 (position 0)
same most probable      2 of 2 (100.00%)
worst logit             off by 5.5e-1 of the largest (position 0)

a note
"
        );
    }

    #[test]
    fn programs_read_fields() {
        let json = serde_json::to_value(report(side("exact", 10.0))).unwrap();
        let comparison = &json["comparison"];
        assert!((comparison["perplexity_difference"].as_f64().unwrap() - 0.2).abs() < 1e-12);
        assert_eq!((&comparison["top1_agreement"], &comparison["positions"]), (&1.0.into(), &2.into()));
        assert_eq!(
            (&json["device"]["precision"], &json["against"]["precision"]),
            (&"fast".into(), &"exact".into())
        );
        let alone = Report { against: None, comparison: None, ..report(side("exact", 10.0)) };
        let json = serde_json::to_value(&alone).unwrap();
        assert!(json.get("against").is_none() && json.get("comparison").is_none());
        assert!(!alone.text().contains("KL"));
    }
}
