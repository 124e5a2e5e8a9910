//! Native texts over the cases of the shared ones: the same inputs, results and bounds.

use std::collections::BTreeMap;

use lily_cuda::{KernelSet, Single};
use lily_kernels::bf16_to_f32;
use lily_kernels::testing::{Case, Check as After, Store, gpu_cases, half_to_f32};

use crate::set::Set;
use crate::{Check, check};

pub(crate) fn all() -> Vec<Check> {
    let mut by_kernel: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for case in gpu_cases() {
        by_kernel
            .entry(format!("native {} {}", case.kernel.name(), case.activation.name()))
            .or_default()
            .push(case);
    }
    by_kernel.into_iter().map(|(name, cases)| check(name, move |set| run(set, &cases))).collect()
}

fn run(set: &Set, cases: &[Case]) -> String {
    let (mut launched, mut wrong) = (0, Vec::new());
    for cores in [set.gpu.found().cores, 1] {
        let mut single = Single::new(&set.gpu, cores, set.cubins.clone());
        for case in cases {
            if !single.is_native(&case.kernel, case.activation) {
                continue;
            }
            launched += 1;
            let before: Vec<&[u8]> = case.operands.iter().map(|o| &o.bytes[..]).collect();
            match single.run(&case.kernel, case.activation, KernelSet::Native, &before, &case.slots) {
                Ok(after) => wrong.extend(complaint(case, &after)),
                Err(error) => wrong.push(format!("{:?}: {error}", case.kernel)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {launched}: {}", wrong.len(), wrong[..wrong.len().min(4)].join("\n"));
    format!("{launched} launches of {} cases, shaped for this GPU and for one of a core", cases.len())
}

/// What a launch left that it should not have.
fn complaint(case: &Case, after: &[Vec<u8>]) -> Option<String> {
    for (n, (operand, after)) in case.operands.iter().zip(after).enumerate() {
        let name = case.kernel.operands()[n].name;
        match &operand.check {
            After::Any => {}
            After::Same if operand.bytes == *after => {}
            After::Same => return Some(format!("{:?}: {name} is an input and was written", case.kernel)),
            After::Near { want, error } => {
                let size = operand.store.bytes();
                let worst = want.iter().zip(error).enumerate().filter_map(|(i, (want, error))| {
                    let bytes = |all: &[u8]| all[i * size..][..size].to_vec();
                    let got = value(operand.store, &bytes(after));
                    let right = if want.is_nan() {
                        bytes(after) == bytes(&operand.bytes)
                    } else {
                        (got - want).abs() <= *error || got == *want
                    };
                    (!right).then_some((i, got, *want, *error))
                });
                let all: Vec<_> = worst.collect();
                if let Some((i, got, want, error)) = all.first() {
                    return Some(format!(
                        "{:?}: {name}[{i}] is {got:e}, wanted {want:e} within {error:e}; {} of {} differ",
                        case.kernel,
                        all.len(),
                        want_len(&operand.check)
                    ));
                }
            }
        }
    }
    None
}

fn want_len(check: &After) -> usize {
    match check {
        After::Near { want, .. } => want.len(),
        _ => 0,
    }
}

fn value(store: Store, bytes: &[u8]) -> f64 {
    match store {
        Store::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        Store::U32 => f64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        Store::Bf16 => f64::from(bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))),
        Store::F16 => f64::from(half_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))),
        Store::U8 => f64::from(bytes[0]),
    }
}
