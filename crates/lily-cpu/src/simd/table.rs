//! The inner loops, compiled once for each instruction set.

use super::Isa;
use crate::loops::{attend, delta, gemm, integer, norm, peak, rounding};
use crate::rounded;

macro_rules! loops {
    ($($name:ident : $module:ident ( $($arg:ident : $type:ty),* $(,)? );)*) => {
        /// Pointers to the inner loops of one instruction set.
        ///
        /// Calling one is unsafe only because it must run on a processor with that instruction set, which
        /// [`Loops::new`] has checked.
        #[derive(Clone, Copy)]
        pub(crate) struct Loops {
            $(pub(crate) $name: unsafe fn($($type),*)),*
        }

        /// The loops of one instruction set, each an entry of its own, so that everything inlined below it may use it.
        macro_rules! compiled {
            ($set:ident, $simd:ty, [$attribute:meta]) => {
                mod $set {
                    use super::*;
                    $(
                        #[$attribute]
                        pub(super) unsafe fn $name($($arg: $type),*) {
                            $module::$name::<$simd>($($arg),*)
                        }
                    )*
                    pub(super) const LOOPS: Loops = Loops { $($name),* };
                }
            };
        }

        #[cfg(target_arch = "x86_64")]
        compiled!(vnni, crate::simd::avx512::Avx512<true>, [target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]);
        #[cfg(target_arch = "x86_64")]
        compiled!(avx512, crate::simd::avx512::Avx512<false>, [target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]);
        #[cfg(target_arch = "x86_64")]
        compiled!(avx2, crate::simd::avx2::Avx2, [target_feature(enable = "avx2,fma")]);
        #[cfg(target_arch = "aarch64")]
        compiled!(dotprod, crate::simd::neon::Neon<true>, [target_feature(enable = "neon,dotprod")]);
        #[cfg(target_arch = "aarch64")]
        compiled!(neon, crate::simd::neon::Neon<false>, [target_feature(enable = "neon")]);
        compiled!(portable, crate::simd::portable::Portable, [inline(never)]);
    };
}

loops! {
    pack_panel: gemm(x: &[&[f32]], bits: usize, panel: &mut [f32]);
    gemm_block: gemm(matrix: &gemm::Matrix<'_>, outputs: std::ops::Range<usize>, panel: &[f32], out: &mut [f32]);
    unpack_row: gemm(matrix: &gemm::Matrix<'_>, row: usize, out: &mut [f32]);
    round_row: rounding(x: &[f32], group: usize, row: &mut rounded::RowMut<'_>);
    integer_block: integer(
        matrix: &gemm::Matrix<'_>,
        outputs: std::ops::Range<usize>,
        rows: &[rounded::Row<'_>],
        panel: &mut integer::Panel,
        out: &mut [f32],
    );
    silu_mul: norm(gate: &[f32], up: &[f32], out: &mut [f32]);
    rms_norm: norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    gated_norm: norm(y: &[f32], z: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    scale_add: norm(scale: f32, x: &[f32], out: &mut [f32]);
    four_taps: delta(weight: &[u8], out: &mut [f32]);
    conv_row: delta(rows: &[&[f32]], taps: &[&[f32]], out: &mut [f32]);
    l2_norm: delta(x: &[f32], eps: f32, scale: f32, out: &mut [f32]);
    dot_to: delta(a: &[f32], b: &[f32], out: &mut f32);
    scan_rows: delta(scan: &delta::RowScan<'_>, state: &mut [f32]);
    attend_block: attend(block: &attend::Block<'_>, heads: &mut attend::Heads<'_>);
    finish_heads: attend(heads: &attend::Heads<'_>, gates: &[&[f32]], out: &mut [f32]);
    read_through: peak(values: &[f32], streams: peak::Streams, sum: &mut f32);
    multiply_adds: peak(rounds: usize, factor: f32, made: &mut peak::Made);
}

/// AVX-512 with VNNI but for products of integers.
#[cfg(target_arch = "x86_64")]
mod amx {
    use super::*;

    #[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    unsafe fn integer_block(
        matrix: &gemm::Matrix<'_>,
        outputs: std::ops::Range<usize>,
        rows: &[rounded::Row<'_>],
        panel: &mut integer::Panel,
        out: &mut [f32],
    ) {
        crate::simd::amx::integer_block(matrix, outputs, rows, panel, out);
    }

    pub(super) const LOOPS: Loops = Loops { integer_block, ..vnni::LOOPS };
}

impl Loops {
    /// The loops for an instruction set, or nothing if this processor does not have it.
    pub(crate) fn new(isa: Isa) -> Option<Loops> {
        if !Isa::available().contains(&isa) {
            return None;
        }
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Some(amx::LOOPS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Some(vnni::LOOPS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Some(avx512::LOOPS),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(avx2::LOOPS),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => Some(dotprod::LOOPS),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Some(neon::LOOPS),
            Isa::Portable => Some(portable::LOOPS),
            #[allow(unreachable_patterns)] // the sets of other architectures
            _ => None,
        }
    }
}
