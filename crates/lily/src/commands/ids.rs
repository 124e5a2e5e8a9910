//! Token ids without text.

/// Token ids of these positions by a public rule: text without meaning, the same for every engine, that meets all rows of
/// the embedding alike.
pub(super) fn ids(positions: std::ops::Range<usize>, vocab: usize) -> Vec<u32> {
    let id = |i: usize| (i as u64).wrapping_mul(2_654_435_761) % (1 << 32) % vocab as u64;
    positions.map(|i| id(i) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_public_rule() {
        // Worked out by hand: 2654435761 mod 1000, then 5308871522 - 2^32 = 1013904226 mod 1000.
        assert_eq!(ids(0..3, 1000), [0, 761, 226]);
        assert_eq!(ids(262_143..262_144, 248_320), [152_655]);
    }
}
