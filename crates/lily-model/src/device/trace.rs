//! When stages ran on a device, for whoever wants to know.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::plan::{Launch, Phase, Plan};

/// A time on a device, in seconds of its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// When it began.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// Who is told when stages ran: what they did ([`stage_label`]), and when. On any thread.
pub type Trace = Arc<dyn Fn(&str, Span) + Send + Sync>;

/// The clock of devices that have none of their own: seconds, since this was first asked for in this process.
pub fn clock() -> f64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// `in_proj of layer 3 (norm_matmul)`.
pub fn launch_label(launch: &Launch) -> String {
    let layer = launch.layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
    format!("{}{layer} ({})", launch.label, launch.kernel.name())
}

/// `decode: in_proj of layer 3 (norm_matmul)`, with all launches of the stage.
pub fn stage_label(plan: &Plan, stage: &Range<usize>) -> String {
    let labels: Vec<String> = plan.launches[stage.clone()].iter().map(launch_label).collect();
    format!("{}: {}", phase_name(plan.phase), labels.join(", "))
}

/// `prefill` or `decode`.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}
