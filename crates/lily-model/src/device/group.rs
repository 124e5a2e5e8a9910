//! What a plan leaves to the host: grouping rows by expert, where the mechanism `device-routing` is off.

use lily_kernels::moe::GroupTiles;

/// Order and tiles of the chosen experts ([`GroupTiles::reference`]), by counting.
///
/// Ids at or above the number of experts, which no router makes, are left out.
pub fn group(kernel: &GroupTiles, ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut counts = vec![0usize; kernel.experts];
    for id in ids {
        if let Some(count) = counts.get_mut(*id as usize) {
            *count += 1;
        }
    }
    let mut starts = Vec::with_capacity(kernel.experts);
    let mut tiles = vec![0u32];
    let mut place = 0;
    for count in &counts {
        starts.push(place);
        let end = place + count;
        let height = kernel.heights.height(*count);
        let expert = starts.len() as u32 - 1;
        while place < end {
            let rows = height.min(end - place);
            tiles.extend([expert, place as u32, rows as u32]);
            tiles[0] += 1;
            place += rows;
        }
    }
    let mut order = vec![0u32; ids.len()];
    for (pair, id) in ids.iter().enumerate() {
        if let Some(start) = starts.get_mut(*id as usize) {
            order[*start] = pair as u32;
            *start += 1;
        }
    }
    tiles.resize(kernel.tiles_len(), 0);
    (order, tiles)
}

#[cfg(test)]
mod tests {
    use lily_kernels::random::Random;

    use super::*;

    #[test]
    fn groups_are_those_of_the_definition() {
        let random = &mut Random::new(1);
        for kernel in GroupTiles::cases() {
            let mut ids = Vec::new();
            for _ in 0..kernel.rows {
                let first = random.below(kernel.experts);
                ids.extend((0..kernel.top_k).map(|k| ((first + k) % kernel.experts) as u32));
            }
            assert_eq!(group(&kernel, &ids), kernel.reference(&ids), "{kernel:?}");
        }
    }
}
