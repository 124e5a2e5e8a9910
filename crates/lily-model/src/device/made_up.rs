//! Keys, values and states that no text made: of the size of real ones, so that a step at a depth can be timed without the
//! prefill of so many tokens. The same each time, from the generator of random models.

use lily_kernels::Activation;

use crate::synth::draw;

/// Keys and values are about 1 behind their norms and projections.
const CACHE: f32 = 1.0;

/// Entries of S: a normalized key of 128 dimensions has entries of about a tenth, and what is remembered decays.
const STATE: f32 = 1.0 / 16.0;

/// What is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeUp {
    /// A page of keys or values.
    Cache {
        /// Another number is another page.
        page: u64,
    },
    /// A recurrent state.
    State {
        /// The layer.
        layer: u64,
    },
}

impl MadeUp {
    /// Eighths from -15/8 to 15/8, but smaller for states: any type of activations holds them exactly.
    pub fn fill(self, out: &mut [f32]) {
        let (key, scale) = match self {
            MadeUp::Cache { page } => (2 * page, CACHE),
            MadeUp::State { layer } => (2 * layer + 1, STATE),
        };
        for (i, chunk) in out.chunks_mut(16).enumerate() {
            let mut bits = draw(key, i as u64);
            for x in chunk {
                *x = (2 * (bits & 15) as i32 - 15) as f32 / 8.0 * scale;
                bits >>= 4;
            }
        }
    }

    /// So many elements of a type, as bytes.
    pub(super) fn bytes(self, count: usize, activation: Activation) -> Vec<u8> {
        let mut values = vec![0.0; count];
        self.fill(&mut values);
        match activation {
            Activation::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Activation::Bf16 => {
                values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
            }
            Activation::F16 => values.iter().flat_map(|x| half_bits(*x).to_le_bytes()).collect(),
        }
    }
}

/// float16 of a number that it holds exactly, is not zero and is not subnormal: sign, exponent by its own bias, the upper mantissa.
fn half_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let (sign, exponent, mantissa) = (bits >> 31, (bits >> 23 & 0xff) + 15 - 127, bits >> 13 & 0x3ff);
    (sign << 15 | exponent << 10 | mantissa) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_size_1_in_every_type() {
        let mut values = vec![0.0; 4096];
        MadeUp::Cache { page: 3 }.fill(&mut values);
        let mean = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        assert!((0.9..1.7).contains(&mean) && values.iter().all(|x| *x != 0.0), "{mean}");
        let words = |activation: Activation| MadeUp::Cache { page: 3 }.bytes(4096, activation);
        let f32s: Vec<f32> =
            words(Activation::F32).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!(f32s, values);
        let back = |b: &[u8; 2]| lily_kernels::bf16_to_f32(u16::from_le_bytes(*b));
        let bf16s: Vec<f32> = words(Activation::Bf16).as_chunks::<2>().0.iter().map(back).collect();
        assert_eq!(bf16s, values);
        assert_eq!([1.0, -1.875, 0.125].map(half_bits), [0x3c00, 0xbf80, 0x3000]);
    }
}
