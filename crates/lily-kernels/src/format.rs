//! How weights are stored: affine-quantized bit streams, and plain vectors.

use crate::Traffic;

/// Bits of a value and inputs of a group of an affine-quantized matrix (MLX's format).
///
/// A row of `cols` values is a little-endian bit stream of `cols * bits / 8` bytes: value i occupies bits
/// `i * bits .. (i + 1) * bits`, counted from the low bit of byte 0. w = scale * q + bias, scale and bias bf16 per group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantFormat {
    /// 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// 32, 64 or 128 inputs.
    pub group: usize,
}

impl QuantFormat {
    /// The bit widths that every device runs.
    pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
    /// The group sizes that every device runs.
    pub const GROUPS: [usize; 3] = [32, 64, 128];

    /// Bytes of packed values of a row of `cols`.
    pub fn row_bytes(self, cols: usize) -> usize {
        cols * self.bits / 8
    }

    /// Bytes of scales, and as many of biases, of a row of `cols`.
    pub fn scale_bytes(self, cols: usize) -> usize {
        cols / self.group * 2
    }

    /// What a launch reads of values, scales and biases of `rows` rows of `cols`.
    pub(crate) fn reads(self, rows: usize, cols: usize) -> [Traffic; 3] {
        let scales = Traffic::read(rows * self.scale_bytes(cols));
        [Traffic::read(rows * self.row_bytes(cols)), scales, scales]
    }

    /// Value `i` of a packed row.
    pub fn value(self, row: &[u8], i: usize) -> u32 {
        let bit = i * self.bits;
        let low = u32::from(row[bit / 8]);
        let high = row.get(bit / 8 + 1).map_or(0, |b| u32::from(*b));
        ((low | high << 8) >> (bit % 8)) & ((1 << self.bits) - 1)
    }

    /// Row `row` of a packed matrix `[rows, cols]` with its scales and biases: scale * q + bias. The product is exact, and
    /// the sum is rounded to f64 only; a device rounds it to f32.
    pub fn dequantize_row(
        self,
        weight: &[u8],
        scales: &[u8],
        biases: &[u8],
        row: usize,
        cols: usize,
    ) -> Vec<f64> {
        let packed = &weight[row * self.row_bytes(cols)..][..self.row_bytes(cols)];
        let at = |b: &[u8], g: usize| {
            let i = row * self.scale_bytes(cols) + 2 * g;
            bf16_to_f32(u16::from_le_bytes([b[i], b[i + 1]]))
        };
        (0..cols)
            .map(|i| {
                let g = i / self.group;
                f64::from(at(scales, g)) * f64::from(self.value(packed, i)) + f64::from(at(biases, g))
            })
            .collect()
    }
}

/// Element type of a plain (not quantized) tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlainType {
    /// bfloat16, little-endian.
    Bf16,
    /// float32, little-endian.
    F32,
}

impl PlainType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            PlainType::Bf16 => 2,
            PlainType::F32 => 4,
        }
    }

    /// Element `i` of a tensor's bytes, which may start at any address.
    #[inline]
    pub fn get(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            PlainType::Bf16 => bf16_to_f32(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])),
            PlainType::F32 => {
                f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
            }
        }
    }

    /// Elements `first..first + out.len()`.
    pub fn read(self, bytes: &[u8], first: usize, out: &mut [f32]) {
        let bytes = &bytes[first * self.bytes()..][..out.len() * self.bytes()];
        match self {
            PlainType::Bf16 => {
                for (b, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
                    *out = bf16_to_f32(u16::from_le_bytes(*b));
                }
            }
            PlainType::F32 => {
                for (b, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                    *out = f32::from_le_bytes(*b);
                }
            }
        }
    }

    /// The bytes of values in this type (rounded to nearest even).
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            PlainType::Bf16 => values.iter().flat_map(|v| bf16_bits(*v).to_le_bytes()).collect(),
            PlainType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}

/// A bf16 is the upper half of an f32.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16 of a finite f32, ties to even.
pub fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_a_little_endian_bit_stream() {
        // 0b101_011_001 in 3-bit values, low first: 1, 3, 5
        let f = QuantFormat { bits: 3, group: 32 };
        let row = [0b0101_1001u8, 0b1, 0];
        assert_eq!((0..3).map(|i| f.value(&row, i)).collect::<Vec<_>>(), [1, 3, 5]);
        let f = QuantFormat { bits: 4, group: 32 };
        assert_eq!((0..4).map(|i| f.value(&[0x21, 0x43], i)).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (v, b) in [(1.0f32, 0x3f80), (1.003_906_3, 0x3f80), (1.011_718_8, 0x3f82), (-2.0, 0xc000)] {
            assert_eq!(bf16_bits(v), b, "{v}");
        }
        assert_eq!(bf16_to_f32(0x3f81), 1.0078125);
    }
}
