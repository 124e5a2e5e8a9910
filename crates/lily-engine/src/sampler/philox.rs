//! Counter-based random numbers.
//!
//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a keyed bijection of a
//! 128-bit counter. The key is the request's seed, the counter its token's index, so the number for a token is known
//! without any state and cannot depend on what ran before or runs beside.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The random numbers of one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
}

impl Philox {
    /// The low word of the seed is the key's first word.
    pub fn new(seed: u64) -> Self {
        Philox { key: [seed as u32, (seed >> 32) as u32] }
    }

    /// A number in [0, 1) with 53 random bits: the first two words of the block of counter (step, 0).
    pub fn uniform(&self, step: u64) -> f64 {
        let block = self.block([step as u32, (step >> 32) as u32, 0, 0]);
        let bits = (u64::from(block[0]) << 32 | u64::from(block[1])) >> 11;
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// The four words of a counter.
    pub fn block(&self, counter: [u32; 4]) -> [u32; 4] {
        let [mut a, mut b, mut c, mut d] = counter;
        let mut key = self.key;
        for _ in 0..ROUNDS {
            let first = u64::from(a) * u64::from(MULTIPLIERS[0]);
            let second = u64::from(c) * u64::from(MULTIPLIERS[1]);
            a = (second >> 32) as u32 ^ b ^ key[0];
            b = second as u32;
            c = (first >> 32) as u32 ^ d ^ key[1];
            d = first as u32;
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        let cases = [
            (0, [0; 4], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            (u64::MAX, [u32::MAX; 4], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                0x299F_31D0_A409_3822,
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ];
        for (seed, counter, words) in cases {
            assert_eq!(Philox::new(seed).block(counter), words);
        }
    }

    #[test]
    fn uniform_takes_the_high_bits_of_the_first_two_words() {
        let wanted = ((0x6627_E8D5_E169_C58D_u64 >> 11) as f64) / (1u64 << 53) as f64;
        assert_eq!(Philox::new(0).uniform(0), wanted);
    }

    #[test]
    fn uniform_stays_below_one_and_is_level() {
        let random = Philox::new(7);
        let mut bins = [0u32; 16];
        for step in 0..16_000 {
            let number = random.uniform(step);
            assert!((0.0..1.0).contains(&number));
            bins[(number * 16.0) as usize] += 1;
        }
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 37.7, "chi-square {chi} over 15 degrees of freedom (p = 0.001)");
    }
}
