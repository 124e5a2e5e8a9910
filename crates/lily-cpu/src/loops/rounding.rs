//! Rounding of activations to integers.

use crate::rounded::{LARGEST, RUN, RUN_BYTES, RowMut};
use crate::simd::Simd;

/// Groups whose largest value is below this are zero: its reciprocal, times the largest integer, has to stay finite.
const SMALLEST: f32 = 1e-36;

/// Rounds a row to integers, each group by itself: value = scale * integer, to within half a scale.
///
/// The largest |value| becomes [`LARGEST`]. A group with a value that is not a number gets a scale that is none, so that results
/// show it. Every step is one operation of f32 on one value, so all instruction sets make the same integers.
#[inline(always)]
pub(crate) fn round_row<S: Simd>(x: &[f32], group: usize, row: &mut RowMut<'_>) {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which the low bits of the sum then hold.
    const ROUND: f32 = 12_582_912.0;
    // As integers, so that a NaN, whose bits are larger than all numbers', is not lost.
    let largest = |x: &[f32]| x.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff));
    let mut out = row.values.chunks_exact_mut(RUN_BYTES);
    for (g, x) in x.chunks_exact(group).enumerate() {
        let most = f32::from_bits(largest(x));
        let (scale, inverse) = if most < SMALLEST { (0.0, 0.0) } else { (most / LARGEST, LARGEST / most) };
        let mut sum = 0i32;
        for (x, out) in x.chunks_exact(RUN).zip(&mut out) {
            for i in 0..RUN {
                let integer = (x[i] * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
                let at = i % 2 * 4 + i / 2;
                out[at] = (integer.wrapping_add(128) >> 8) as i8;
                out[RUN + at] = integer as i8;
                sum = sum.wrapping_add(integer);
            }
        }
        row.scales[g] = scale;
        row.sums[g] = scale * sum as f32;
    }
    out.for_each(|run| run.fill(0));
}

#[cfg(test)]
mod tests {
    use crate::memory::Block;
    use crate::rounded::{LARGEST, RUN, RUN_BYTES, RowShape, Rows};
    use crate::simd::{Isa, Loops};

    /// Rounds a row in groups of 32 and calls `check` with scales, integers and sums.
    fn rounded(x: &[f32], mut check: impl FnMut(&[f32], &[i32], &[f32])) {
        let shape = RowShape { cols: x.len(), group: 32 };
        for isa in Isa::available() {
            let mut memory = Block::default();
            memory.grow(shape.bytes()).unwrap();
            // SAFETY: the block is aligned and long enough, and nobody else knows of it.
            let rows = unsafe { Rows::new(memory.as_mut_ptr(), 1, shape) };
            let loops = Loops::new(isa).unwrap();
            // SAFETY: as above; the loops belong to this processor.
            unsafe { (loops.round_row)(x, 32, &mut rows.write(0)) };
            let row = rows.row(0);
            let value = |i: usize| {
                let at = i / RUN * RUN_BYTES + i % 2 * 4 + i % RUN / 2;
                256 * i32::from(row.values[at]) + i32::from(row.values[RUN + at])
            };
            let values: Vec<i32> = (0..row.values.len() / 2).map(value).collect();
            assert!(values[x.len()..].iter().all(|v| *v == 0), "{}: behind the row", isa.name());
            check(row.scales, &values, row.sums);
        }
    }

    #[test]
    fn values_are_within_half_a_step() {
        let mut x = lily_kernels::random::Random::new(7).values(160, 3.0);
        x[32..64].fill(0.0);
        x[64..96].iter_mut().for_each(|x| *x *= 1e-38);
        rounded(&x, |scales, values, sums| {
            for (g, x) in x.chunks(32).enumerate() {
                let step = f64::from(scales[g]);
                let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let mut sum = 0.0;
                for (x, v) in x.iter().zip(&values[32 * g..]) {
                    // two roundings of the step and its reciprocal, besides; tiny groups are zero
                    let bound = 0.5 * step + 4e-7 * f64::from(largest) + 1e-36;
                    assert!((f64::from(*x) - step * f64::from(*v)).abs() <= bound, "{x} {v} {step}");
                    assert!(v.abs() <= LARGEST as i32);
                    sum += step * f64::from(*v);
                }
                assert!((sum - f64::from(sums[g])).abs() <= 1e-7 * sum.abs(), "{sum} {}", sums[g]);
            }
        });
    }

    #[test]
    fn what_is_not_a_number_shows() {
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0f32; 64];
            x[37] = odd;
            rounded(&x, |scales, _, _| assert!(scales[0].is_finite() && !scales[1].is_finite()));
        }
    }
}
