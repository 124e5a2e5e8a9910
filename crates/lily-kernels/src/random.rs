//! Reproducible test data: a counter-based stream, so that a case's inputs depend on its seed alone.

use crate::format::{PlainType, QuantFormat};

/// SplitMix64 (Steele, Lea, Flood 2014): a bijective mix of a counter.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        ((self.next_u64() >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    }

    /// `n` values of about `scale`, one in 64 of them eight times larger, so that a result is not trivial.
    pub fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n)
            .map(|_| {
                let v = self.unit() * scale;
                if self.below(64) == 0 { v * 8.0 } else { v }
            })
            .collect()
    }

    /// A random quantized matrix `[rows, cols]`: packed values, scales and biases (bf16), weights of about
    /// `1 / sqrt(cols)`, scales of both signs.
    pub fn quantized(&mut self, rows: usize, cols: usize, format: QuantFormat) -> QuantizedBytes {
        let weight = (0..rows * format.row_bytes(cols)).map(|_| self.next_u64() as u8).collect();
        let groups = rows * cols / format.group;
        let top = ((1usize << format.bits) - 1) as f32;
        let (mut scales, mut biases) = (Vec::with_capacity(groups), Vec::with_capacity(groups));
        for _ in 0..groups {
            let size = (1.0 + 0.5 * self.unit()) * 3.0 / (cols as f32).sqrt() / top;
            let scale = if self.below(2) == 0 { size } else { -size };
            scales.push(scale);
            biases.push(-scale * top * (0.5 + 0.05 * self.unit()));
        }
        QuantizedBytes {
            weight,
            scales: PlainType::Bf16.encode(&scales),
            biases: PlainType::Bf16.encode(&biases),
        }
    }
}

/// The three tensors of a quantized matrix, as bytes.
#[derive(Clone, Debug)]
pub struct QuantizedBytes {
    /// Packed values.
    pub weight: Vec<u8>,
    /// bf16.
    pub scales: Vec<u8>,
    /// bf16.
    pub biases: Vec<u8>,
}
