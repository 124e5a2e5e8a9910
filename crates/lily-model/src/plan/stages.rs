//! Where launches have to wait, derived from the bytes they touch.

use std::ops::Range;

use super::Launch;

/// Cuts a list of launches into runs without conflicts inside: a launch starts a stage of its own when it touches bytes
/// that a launch of the current stage writes, or writes bytes that one of them touches.
pub fn stages(launches: &[Launch]) -> Vec<Range<usize>> {
    let mut stages = Vec::new();
    let mut start = 0;
    for (i, launch) in launches.iter().enumerate() {
        if launches[start..i].iter().any(|earlier| earlier.conflicts(launch)) {
            stages.push(start..i);
            start = i;
        }
    }
    if start < launches.len() {
        stages.push(start..launches.len());
    }
    stages
}

/// Two launches that may run side by side and must not: a barrier is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("launches {first} and {second} share bytes that one of them writes, and stand in one stage")]
pub struct Hazard {
    /// The earlier.
    pub first: usize,
    /// The later.
    pub second: usize,
}

/// Every pair of launches of one stage that conflicts: none, if the stages are right. It looks at every pair, where
/// [`stages()`] stops at the first.
pub fn hazards(launches: &[Launch], stages: &[Range<usize>]) -> Vec<Hazard> {
    let mut found = Vec::new();
    for stage in stages {
        for second in stage.clone() {
            let earlier = (stage.start..second).filter(|first| launches[*first].conflicts(&launches[second]));
            found.extend(earlier.map(|first| Hazard { first, second }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use lily_kernels::PlainType;
    use lily_kernels::norm::RmsNorm;

    use super::*;
    use crate::plan::{Buffer, View};

    fn norm(x: Range<usize>, out: Range<usize>) -> Launch {
        let view = |bytes| View { buffer: Buffer::Arena, bytes };
        let kernel = RmsNorm { rows: 1, width: 4, eps: 0.0, weight: PlainType::F32 }.into();
        Launch {
            label: "norm",
            layer: None,
            kernel,
            bindings: vec![view(x), view(900..916), view(out)],
            on_host: false,
        }
    }

    fn cuts(launches: &[Launch]) -> Vec<(usize, usize)> {
        stages(launches).iter().map(|stage| (stage.start, stage.end)).collect()
    }

    #[test]
    fn only_a_shared_byte_that_is_written_starts_a_stage() {
        let reads_the_same = [norm(0..16, 16..32), norm(0..16, 32..48)];
        assert_eq!(cuts(&reads_the_same), [(0, 2)]);
        let reads_what_was_written = [norm(0..16, 16..32), norm(31..47, 64..80)];
        assert_eq!(cuts(&reads_what_was_written), [(0, 1), (1, 2)]);
        let neighbours = [norm(0..16, 16..32), norm(32..48, 64..80)];
        assert_eq!(cuts(&neighbours), [(0, 2)]);
        let overwrites_what_was_read = [norm(0..16, 16..32), norm(100..116, 8..24)];
        assert_eq!(cuts(&overwrites_what_was_read), [(0, 1), (1, 2)]);
        let writes_the_same = [norm(0..16, 16..32), norm(100..116, 31..47)];
        assert_eq!(cuts(&writes_the_same), [(0, 1), (1, 2)]);
        assert_eq!(cuts(&[]), []);
    }
}
