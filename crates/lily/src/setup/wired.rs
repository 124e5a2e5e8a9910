//! How much of a Mac's memory its GPU may use, and what to do where a model takes more.

use lily_metal::gpu::Facts;

use super::memory::readable;

/// What macOS and other programs need beside a model: with less than this left, the machine moves memory to disk.
const KEPT_FOR_MACOS: usize = 3 << 30;

/// Limits are proposed in multiples of this.
const STEP_MB: usize = 256;

/// The limit, of what, and who chose it.
pub(super) fn limit(facts: &Facts) -> String {
    let whose = match facts.wired_limit {
        Some(_) => "as iogpu.wired_limit_mb says",
        None => "macOS's own choice",
    };
    format!("{} of {} for the GPU ({whose})", readable(facts.working_set), readable(facts.memory))
}

/// What there is to do where `need` bytes in all are more than the limit.
pub(super) fn advice(facts: &Facts, need: usize) -> String {
    let limit_mb = need.div_ceil(1 << 20).next_multiple_of(STEP_MB);
    let most = facts.memory.saturating_sub(KEPT_FOR_MACOS);
    let raise = if limit_mb << 20 <= most {
        format!(
            "`sudo sysctl iogpu.wired_limit_mb={limit_mb}` raises the limit far enough, until the next start of this Mac (docs/mac.md)"
        )
    } else {
        format!(
            "no limit would do: it takes {}, and macOS itself needs {} of this Mac's {}",
            readable(need),
            readable(KEPT_FOR_MACOS),
            readable(facts.memory)
        )
    };
    format!("{}: {}; {raise}; a model of fewer bits takes less", facts.name, limit(facts))
}

#[cfg(test)]
mod tests {
    use lily_metal::fake::FakeGpu;
    use lily_metal::gpu::Gpu as _;

    use super::*;

    const GIB: usize = 1 << 30;

    fn mac(memory: usize, working_set: usize, wired_limit: Option<usize>) -> Facts {
        let gpu = FakeGpu::new().with_facts(|facts| {
            (facts.memory, facts.working_set, facts.wired_limit) = (memory, working_set, wired_limit);
        });
        gpu.facts().clone()
    }

    #[test]
    fn a_limit_is_proposed_that_is_enough_and_leaves_macos_its_own() {
        let small = mac(24 * GIB, 16 * GIB, None);
        let said = advice(&small, 20 * GIB + 1);
        for words in ["16.0 GiB of 24.0 GiB", "macOS's own choice", "iogpu.wired_limit_mb=20736`"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let said = advice(&small, 21 * GIB);
        assert!(said.contains("iogpu.wired_limit_mb=21504`"), "{said}");
        let said = advice(&small, 21 * GIB + 1);
        assert!(said.contains("no limit would do") && !said.contains("sudo"), "{said}");
    }

    #[test]
    fn a_limit_that_somebody_set_is_said_to_be_theirs() {
        let set = mac(24 * GIB, 8 * GIB, Some(8 * GIB));
        assert_eq!(limit(&set), "8.0 GiB of 24.0 GiB for the GPU (as iogpu.wired_limit_mb says)");
        assert!(advice(&set, 10 * GIB).contains("=10240`"));
    }
}
