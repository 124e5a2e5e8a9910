//! Native texts over the cases of the shared ones: the same inputs, results and bounds.

use std::collections::BTreeMap;

use lily_cuda::{KernelSet, Single};
use lily_kernels::testing::{Case, gpu_cases};
use lily_model::testing::checks::{Check, check};

use crate::set::Set;

const SET: KernelSet = KernelSet::Native;

pub(crate) fn all() -> Vec<Check<Set>> {
    let mut by_kernel: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for case in gpu_cases() {
        by_kernel
            .entry(format!("native {} {}", case.kernel.name(), case.activation.name()))
            .or_default()
            .push(case);
    }
    by_kernel.into_iter().map(|(name, cases)| check(name, move |set: &Set| run(set, &cases))).collect()
}

fn run(set: &Set, cases: &[Case]) -> String {
    let (mut launched, mut wrong) = (0, Vec::new());
    for cores in [set.gpu.found().cores, 1] {
        let mut single = Single::new(&set.gpu, cores, set.cubins.clone());
        for case in cases {
            if !single.is_native(&case.kernel, case.activation, SET) {
                continue;
            }
            launched += 1;
            let before: Vec<&[u8]> = case.operands.iter().map(|o| &o.bytes[..]).collect();
            match single.run(&case.kernel, case.activation, SET, &before, &case.slots) {
                Ok(after) => wrong.extend(case.complaint(&after)),
                Err(error) => wrong.push(format!("{:?}: {error}", case.kernel)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {launched}: {}", wrong.len(), wrong[..wrong.len().min(4)].join("\n"));
    format!("{launched} launches of {} cases, shaped for this GPU and for one of a core", cases.len())
}
