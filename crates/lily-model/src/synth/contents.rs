//! What a tensor's bytes are: a counter-based stream, so that byte i depends on the tensor's key and on i alone.

use std::sync::Arc;

/// SplitMix64's increment (Steele, Lea, Flood 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's bijective mix.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a name under a seed.
pub(super) fn key(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed.wrapping_add(STEP)), |key, byte| mix(key ^ u64::from(byte)).wrapping_add(STEP))
}

/// Draw `index` of a key: `mix(key + (index + 1) * STEP)`, 64 random bits.
pub fn draw(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

/// How the elements of a tensor follow from the draws of its key.
///
/// A table has a power of two of entries, at most 65,536: element i is the entry at the low bits of the 16-bit part i mod
/// 4 (0 in the low bits) of draw i / 4. Tables and integer operations, and no function of floating point, so that every
/// machine and device makes the same bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Contents {
    /// Bytes 8 i to 8 i + 7 are draw i, little-endian: uniform codes, whatever their width.
    Bits,
    /// Elements of two bytes (bf16).
    Bf16(Arc<[u16]>),
    /// Elements of two bytes (bf16), four times as large in some rows.
    Bf16Rows(Arc<[u16]>, HotRows),
    /// Elements of four bytes.
    F32(Arc<[f32]>),
}

/// Rows whose elements are four times as large: of those of `width` elements, each with `row mod every == first`. Exact, since it
/// adds 2 to an exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotRows {
    /// Elements of a row.
    pub width: usize,
    /// A row of so many is one.
    pub every: usize,
    /// The first.
    pub first: usize,
}

impl HotRows {
    /// An element of bf16 as it is at this position.
    fn of(self, element: u64, bits: u16) -> u16 {
        let row = (element / self.width as u64) % self.every as u64;
        // A zero, of either sign, stays one.
        if row == self.first as u64 && bits & 0x7fff != 0 { bits + (2 << 7) } else { bits }
    }
}

impl Contents {
    /// Writes the bytes from `offset` on.
    pub(super) fn fill(&self, key: u64, offset: u64, out: &mut [u8]) {
        let part = |draw: u64, i: usize| (draw >> (16 * i)) as u16 as usize;
        match self {
            Contents::Bits => fill(key, offset, out, |_, draw| draw.to_le_bytes()),
            Contents::Bf16(table) => {
                let mask = table.len() - 1;
                fill::<8>(key, offset, out, |_, draw| {
                    let bits = |i| u64::from(table[part(draw, i) & mask]) << (16 * i);
                    (bits(0) | bits(1) | bits(2) | bits(3)).to_le_bytes()
                });
            }
            Contents::Bf16Rows(table, hot) => {
                let mask = table.len() - 1;
                fill::<8>(key, offset, out, |index, draw| {
                    let bits = |i| hot.of(4 * index + i as u64, table[part(draw, i) & mask]);
                    (0..4).fold(0, |all, i| all | u64::from(bits(i)) << (16 * i)).to_le_bytes()
                });
            }
            Contents::F32(table) => {
                let mask = table.len() - 1;
                fill::<16>(key, offset, out, |_, draw| {
                    let bits = |i| u128::from(table[part(draw, i) & mask].to_bits()) << (32 * i);
                    (bits(0) | bits(1) | bits(2) | bits(3)).to_le_bytes()
                });
            }
        }
    }
}

/// The stream in which draw i makes bytes N i to N i + N - 1, from byte `offset` on.
fn fill<const N: usize>(key: u64, offset: u64, out: &mut [u8], bytes: impl Fn(u64, u64) -> [u8; N]) {
    let (mut index, skipped) = (offset / N as u64, (offset % N as u64) as usize);
    let first = if skipped == 0 { 0 } else { (N - skipped).min(out.len()) };
    let (head, rest) = out.split_at_mut(first);
    if !head.is_empty() {
        head.copy_from_slice(&bytes(index, draw(key, index))[skipped..skipped + first]);
        index += 1;
    }
    let (whole, tail) = rest.as_chunks_mut::<N>();
    for chunk in whole {
        *chunk = bytes(index, draw(key, index));
        index += 1;
    }
    tail.copy_from_slice(&bytes(index, draw(key, index))[..tail.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element by element, as the documentation of [`Contents`] has it.
    fn bytes_of(contents: &Contents, key: u64, len: usize) -> Vec<u8> {
        let entry =
            |i: usize, entries: usize| (draw(key, i as u64 / 4) >> (16 * (i % 4))) as u16 as usize % entries;
        match contents {
            Contents::Bits => (0..len).map(|i| draw(key, i as u64 / 8).to_le_bytes()[i % 8]).collect(),
            Contents::Bf16(table) => {
                (0..len / 2).flat_map(|i| table[entry(i, table.len())].to_le_bytes()).collect()
            }
            Contents::Bf16Rows(table, HotRows { width, every, first }) => {
                let factor = |i: usize| if i / width % every == *first { 2 << 7 } else { 0 };
                (0..len / 2).flat_map(|i| (table[entry(i, table.len())] + factor(i)).to_le_bytes()).collect()
            }
            Contents::F32(table) => {
                (0..len / 4).flat_map(|i| table[entry(i, table.len())].to_le_bytes()).collect()
            }
        }
    }

    #[test]
    fn any_range_is_that_range_of_the_whole() {
        let kinds = [
            Contents::Bits,
            Contents::Bf16((0..1024).collect()),
            Contents::Bf16Rows((1..1025).collect(), HotRows { width: 3, every: 5, first: 2 }),
            Contents::F32((0..64).map(|x| x as f32).collect()),
        ];
        for contents in kinds {
            let whole = bytes_of(&contents, 7, 200);
            for start in 0..40 {
                for len in 0..=40 {
                    let mut part = vec![0xAA; len];
                    contents.fill(7, start as u64, &mut part);
                    assert_eq!(part, whole[start..start + len], "{contents:?} from {start}, {len} bytes");
                }
            }
        }
    }

    #[test]
    fn hot_rows_are_four_times_as_large() {
        let hot = HotRows { width: 2, every: 3, first: 1 };
        let values: Vec<f32> =
            (0..8).map(|i| lily_kernels::bf16_to_f32(hot.of(i, lily_kernels::bf16_bits(-0.75)))).collect();
        assert_eq!(values, [-0.75, -0.75, -3.0, -3.0, -0.75, -0.75, -0.75, -0.75]);
        assert_eq!((hot.of(2, 0), hot.of(2, 0x8000)), (0, 0x8000));
    }

    #[test]
    fn draws_are_those_of_splitmix64() {
        // Of the authors' program, from the state 0.
        assert_eq!(draw(0, 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(draw(0, 1), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn keys_differ_by_seed_and_by_name() {
        let keys =
            [key(0, ""), key(0, "a"), key(0, "b"), key(0, "ab"), key(0, "ba"), key(1, "a"), key(1, "")];
        for (i, a) in keys.iter().enumerate() {
            assert!(!keys[i + 1..].contains(a), "{keys:x?}");
        }
    }
}
