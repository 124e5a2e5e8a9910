//! Whether a launch left what it should.

use super::{Case, Check as After, Store, half_to_f32};
use crate::bf16_to_f32;

impl Case {
    /// What a launch left that it should not have: the operands behind it, in order.
    pub fn complaint(&self, after: &[Vec<u8>]) -> Option<String> {
        let case = self;
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
