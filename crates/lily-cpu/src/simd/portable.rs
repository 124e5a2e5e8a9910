//! Eight lanes in plain Rust.

use super::{Dot, OUTPUTS, Simd};

/// Any processor.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

// SAFETY: uses no instruction set; loads and stores touch exactly LANES values.
unsafe impl Simd for Portable {
    const LANES: usize = LANES;
    const FUSED: bool = false;
    type V = [f32; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller's pointer is valid for LANES values.
        unsafe { p.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller's pointer is valid for LANES values.
        unsafe { p.cast::<Self::V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
}

// SAFETY: as for `Simd`; each access stays within the values that the trait names.
unsafe impl Dot for Portable {
    type Sums = [i32; OUTPUTS];
    type Floats = [f32; OUTPUTS];
    const TILE: usize = 1;

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        [0; OUTPUTS]
    }

    #[inline(always)]
    unsafe fn no_floats() -> Self::Floats {
        [0.0; OUTPUTS]
    }

    #[inline(always)]
    unsafe fn dot(sums: Self::Sums, weights: *const u8, x: *const i8) -> Self::Sums {
        // SAFETY: see the trait.
        let (w, x) = unsafe { (weights.cast::<[[u8; 4]; OUTPUTS]>().read(), x.cast::<[i8; 4]>().read()) };
        let product = |o: usize, i: usize| i32::from(w[o][i]) * i32::from(x[i]);
        std::array::from_fn(|o| sums[o] + product(o, 0) + product(o, 1) + product(o, 2) + product(o, 3))
    }

    #[inline(always)]
    unsafe fn shift(sums: Self::Sums) -> Self::Sums {
        sums.map(|s| s << 8)
    }

    #[inline(always)]
    unsafe fn scale(
        sums: Self::Sums,
        scales: *const f32,
        biases: *const f32,
        x: f32,
        sum: f32,
        floats: Self::Floats,
    ) -> Self::Floats {
        // SAFETY: see the trait.
        let read = |p: *const f32| unsafe { p.cast::<[f32; OUTPUTS]>().read() };
        let (scales, biases) = (read(scales), read(biases));
        std::array::from_fn(|o| sums[o] as f32 * (scales[o] * x) + floats[o] + biases[o] * sum)
    }

    #[inline(always)]
    unsafe fn store_floats(p: *mut f32, floats: Self::Floats) {
        // SAFETY: see the trait.
        unsafe { p.cast::<Self::Floats>().write_unaligned(floats) }
    }
}
