//! Vectors of the widest kind that this processor has, behind one small trait, and the table of inner loops compiled
//! for each.
//!
//! Inner loops ([`super::loops`]) are written once, generic over [`Simd`], and compiled for each instruction set by
//! [`Loops`]'s constructors; which table to use is decided once, by asking the processor.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dot;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod table;

pub(crate) use dot::{Dot, OUTPUTS, Packed};
pub(crate) use table::Loops;

/// An instruction set that a [`crate::CpuDevice`] can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// x86-64 with AVX-512 VNNI, and tiles of bytes for integer products of several rows.
    Amx,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI: 16 lanes.
    Avx512Vnni,
    /// The same without VNNI.
    Avx512,
    /// x86-64 with AVX2 and FMA: 8 lanes.
    Avx2,
    /// 64-bit ARM with the dot products of ARMv8.2: 4 lanes.
    NeonDotprod,
    /// The same without them.
    Neon,
    /// Plain Rust, any processor.
    Portable,
}

impl Isa {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Amx => "AMX",
            Isa::Avx512Vnni => "AVX-512 VNNI",
            Isa::Avx512 => "AVX-512",
            Isa::Avx2 => "AVX2",
            Isa::NeonDotprod => "NEON with dot products",
            Isa::Neon => "NEON",
            Isa::Portable => "portable",
        }
    }

    /// All of them, the best first.
    const ALL: [Isa; 7] =
        [Isa::Amx, Isa::Avx512Vnni, Isa::Avx512, Isa::Avx2, Isa::NeonDotprod, Isa::Neon, Isa::Portable];

    /// As flags name it.
    pub fn word(self) -> &'static str {
        match self {
            Isa::Amx => "amx",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::NeonDotprod => "neon-dotprod",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }

    /// The set of this [`Isa::word`], whether this processor has it or not.
    pub fn named(word: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.word() == word)
    }

    /// Every instruction set that this processor runs, the best first.
    pub fn available() -> Vec<Isa> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let wide = is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 && wide && is_x86_feature_detected!("avx512f") {
                if is_x86_feature_detected!("avx512vnni") {
                    if amx::granted() {
                        found.push(Isa::Amx);
                    }
                    found.push(Isa::Avx512Vnni);
                }
                found.push(Isa::Avx512);
            }
            if avx2 {
                found.push(Isa::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                found.push(Isa::NeonDotprod);
            }
            found.push(Isa::Neon);
        }
        found.push(Isa::Portable);
        found
    }
}

/// f32 vectors of one instruction set.
///
/// # Safety
/// Every function may be called only on a processor with the instruction set, and pointers must be valid for `LANES`
/// values of any alignment.
pub(crate) unsafe trait Simd: Copy + 'static {
    /// f32 values in a vector.
    const LANES: usize;
    /// Whether [`Simd::fma`] rounds once (and is one instruction).
    const FUSED: bool;
    /// Whether [`Simd::tile4`] exists: 4-bit tiles straight from the packed bytes.
    const TILE4: bool = false;
    /// A vector.
    type V: Copy;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Sum of the lanes, in an order of its own that is always the same.
    unsafe fn sum(v: Self::V) -> f32;

    /// Has the cache line at an address, which need not be valid, brought nearer, where a processor can be asked to.
    unsafe fn fetch(_line: *const u8) {}

    /// LANES bytes as f32.
    #[inline(always)]
    unsafe fn widen8(p: *const u8) -> Self::V {
        // as many as any set has
        let mut lanes = [0.0f32; 16];
        // SAFETY: the caller's pointer is valid for LANES bytes.
        unsafe {
            for i in 0..Self::LANES {
                lanes[i] = f32::from(p.add(i).read());
            }
            Self::load(lanes.as_ptr())
        }
    }

    /// [`Simd::sum`] of each of sixteen vectors, to the bit.
    #[inline(always)]
    unsafe fn sums(all: [Self::V; 16]) -> [f32; 16] {
        let mut sums = [0.0; 16];
        for i in 0..16 {
            // SAFETY: the caller's promise.
            sums[i] = unsafe { Self::sum(all[i]) };
        }
        sums
    }

    /// 16 four-bit values from 8 packed bytes, looked up in a table of 16 weights: see [`super::loops::gemm`]. The
    /// order of the lanes is that of [`PANEL_ORDER`].
    unsafe fn tile4<const O: usize, const R: usize>(
        _weights: [*const u8; O],
        _scales: [*const u8; O],
        _biases: [*const u8; O],
        _group: usize,
        _cols: usize,
        _panel: *const f32,
    ) -> [[f32; R]; O] {
        unreachable!("TILE4 is false")
    }
}

/// Where the lanes of a 16-wide 4-bit tile come from: lane i holds input `PANEL_ORDER[i]` of its 16. Both halves of
/// eight packed bytes are broadcast to neighbouring lanes, so inputs of the two halves alternate.
pub(crate) const PANEL_ORDER: [usize; 16] = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15];

/// a * b + c for one value, rounding as vectors of `S` do.
#[inline(always)]
pub(crate) fn fma1<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// e^x to within 2 ulp for x <= 88; 0 below -87.3. Branch-free, so that loops over it become vector code.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7 (remainder below 1e-8 of the value).
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer while |x| < 2^22.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first with few bits, so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = fma1::<S>(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma1::<S>(n, -LN2_LOW, fma1::<S>(n, -LN2_HIGH, clamped));
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = fma1::<S>(p, r, c);
    }
    // The low bits of `shifted` hold n; moving them to the exponent multiplies by 2^n.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < -87.3 { 0.0 } else { scaled }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<S>(-x))
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu<S: Simd>(x: f32) -> f32 {
    x * sigmoid::<S>(x)
}

/// a . b, lanes first and then the tail, in one order.
#[inline(always)]
pub(crate) fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let whole = n - n % S::LANES;
    // SAFETY: every load ends at or before `whole`, which is within both slices; the caller runs on a processor of `S`.
    let mut sum = unsafe {
        let mut acc = S::splat(0.0);
        let mut i = 0;
        while i < whole {
            acc = S::fma(S::load(a.as_ptr().add(i)), S::load(b.as_ptr().add(i)), acc);
            i += S::LANES;
        }
        S::sum(acc)
    };
    for i in whole..n {
        sum = fma1::<S>(a[i], b[i], sum);
    }
    sum
}

/// Sum of all values, lanes first and then the tail, in one order.
#[inline(always)]
pub(crate) fn sum_all<S: Simd>(x: &[f32]) -> f32 {
    let whole = x.len() - x.len() % S::LANES;
    // SAFETY: every load ends at or before `whole`, which is within the slice; the caller runs on a processor of `S`.
    let mut sum = unsafe {
        let mut acc = S::splat(0.0);
        for i in (0..whole).step_by(S::LANES) {
            acc = S::add(acc, S::load(x.as_ptr().add(i)));
        }
        S::sum(acc)
    };
    for x in &x[whole..] {
        sum += x;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::portable::Portable;
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_f64() {
        let mut worst = 0.0f64;
        for i in 0..400_000 {
            let x = -87.0 + 175.0 * (i as f32 / 400_000.0);
            let want = f64::from(x).exp();
            let got = f64::from(exp::<Portable>(x));
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            worst = worst.max((got - want).abs() / ulp);
        }
        assert!(worst <= 2.0, "{worst} ulp");
        assert_eq!(exp::<Portable>(-100.0), 0.0);
        assert_eq!(exp::<Portable>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<Portable>(0.0), 1.0);
        assert!(exp::<Portable>(f32::NAN).is_nan());
    }
}
