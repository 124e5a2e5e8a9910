//! Which launches multiply rounded activations, and the rounding itself.

use lily_kernels::quant::Output;
use lily_kernels::{Kernel, QuantFormat};

use crate::rounded::{RowShape, Rows};
use crate::simd::Loops;

/// The operand that is rounded: activations come first in every product.
pub(crate) const ROUNDED_OPERAND: usize = 0;

/// Rows of the activations that a launch takes as integers, and their shape; `None` where it takes them as they are.
///
/// Products that are stored as f32 and are not logits choose experts or close gates: a small error there changes everything
/// behind, and they are a hundredth of the bytes, so they stay exact.
pub(crate) fn rounds(kernel: &Kernel, makes_logits: bool) -> Option<(usize, RowShape)> {
    let (rows, cols, formats) = match kernel {
        Kernel::Matmul(k) if k.out != Output::F32 || makes_logits => (k.rows, k.inputs, [k.format; 2]),
        Kernel::Swiglu(k) => (k.rows, k.inputs, [k.gate, k.up]),
        Kernel::ExpertSwiglu(k) => (k.rows, k.inputs, [k.gate, k.up]),
        Kernel::ExpertDown(k) => (k.rows * k.top_k, k.inputs, [k.format; 2]),
        _ => return None,
    };
    let group = formats[0].group;
    let fit = |f: &QuantFormat| f.bits == 4 && f.group == group;
    formats.iter().all(fit).then_some((rows, RowShape { cols, group }))
}

/// Rounds row `row` of `x` ([rows, cols]).
///
/// # Safety
/// Nobody else touches the row of `rounded`.
pub(crate) unsafe fn round(loops: &Loops, x: &[f32], rounded: Rows<'_>, row: usize) {
    let RowShape { cols, group } = rounded.shape();
    // SAFETY: the caller's promise; the loops belong to this processor.
    unsafe { (loops.round_row)(&x[row * cols..][..cols], group, &mut rounded.write(row)) };
}
