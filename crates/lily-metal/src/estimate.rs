//! How long launches take at most, by what they move and compute: so that no commands keep the GPU for long.

use lily_model::LogitRows;
use lily_model::plan::{self, Launch, Plan, PlanError, Profile, Target};

/// The most that the commands of one submission may take. The screen's own drawing waits behind them, and the system ends what takes
/// some seconds.
pub(crate) const MOST_SECONDS: f64 = 0.5;

/// Of the nominal bandwidth and the nominal arithmetic, what counts here: an estimate that is too long costs a submission more, one
/// that is too short a picture that stutters. Nobody has measured either on a Mac.
const SHARE_OF_BANDWIDTH: f64 = 0.5;
const FLOPS_PER_CORE: f64 = 64e9;

/// A launch takes this long at least.
const LAUNCH_SECONDS: f64 = 5e-6;

/// Of a GPU that no table knows: the smallest there is.
const LEAST_CORES: usize = 7;
const LEAST_BANDWIDTH: f64 = 68.0;

/// No chunk is shorter: weights would be read once for very few rows.
const LEAST_CHUNK: usize = 128;

/// The tokens of a prefill chunk: as many as the profile says, or half of that, and so on, until no launch at this context takes too
/// long. A launch cannot be divided, and what a chunk consists of beside it can.
///
/// # Errors
/// Where no plan can be made.
pub fn prefill_chunk(target: Target<'_>, context: usize) -> Result<usize, PlanError> {
    let mut chunk = target.profile.prefill_chunk;
    let rates = Rates::of(target.profile);
    while chunk > LEAST_CHUNK {
        let plan = plan::prefill(target, chunk, context.max(chunk), LogitRows::Last)?;
        if rates.longest(&plan) <= MOST_SECONDS {
            break;
        }
        chunk /= 2;
    }
    Ok(chunk)
}

/// What a GPU is counted on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    bytes: f64,
    flops: f64,
}

impl Rates {
    pub(crate) fn of(profile: &Profile) -> Self {
        let cores = if profile.cores == 0 { LEAST_CORES } else { profile.cores };
        let bandwidth = if profile.bandwidth == 0.0 { LEAST_BANDWIDTH } else { profile.bandwidth };
        Rates { bytes: bandwidth * 1e9 * SHARE_OF_BANDWIDTH, flops: cores as f64 * FLOPS_PER_CORE }
    }

    /// Seconds of a launch, by itself.
    pub(crate) fn seconds(&self, launch: &Launch, plan: &Plan) -> f64 {
        let traffic = launch.kernel.traffic(plan.activation);
        let bytes: u64 = traffic.iter().map(|t| t.read.saturating_add(t.written)).sum();
        LAUNCH_SECONDS + (bytes as f64 / self.bytes).max(launch.kernel.flops() as f64 / self.flops)
    }

    /// The longest launch of a plan.
    pub(crate) fn longest(&self, plan: &Plan) -> f64 {
        plan.launches.iter().map(|launch| self.seconds(launch, plan)).fold(0.0, f64::max)
    }
}
