//! The (row, slot) pairs by expert, cut into tiles.

use crate::bindings::group_tiles;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// How high the tiles of the grouped products may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileHeights {
    /// 16, 32 or 64.
    pub largest: usize,
}

impl TileHeights {
    /// Rows of an expert's tiles: the smallest of 16, 32 and 64 that holds all of its rows, at most the largest.
    pub fn height(self, rows_of_expert: usize) -> usize {
        rows_of_expert.next_power_of_two().clamp(16, self.largest)
    }

    /// Tiles of an expert.
    pub fn tiles(self, rows_of_expert: usize) -> usize {
        rows_of_expert.div_ceil(self.height(rows_of_expert))
    }
}

/// A stable counting sort of the (row, slot) pairs by expert, and the tiles that the grouped products take:
///
/// - `order` lists pair numbers by expert, in rising order within an expert;
/// - `tiles[0]` is the number of tiles. Tile t is `tiles[1 + 3 t ..]`: its expert, its first place in `order`, its rows.
///   Tiles come by rising expert and place; only an expert's last one has fewer rows than its height. What is behind the
///   last tile is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupTiles {
    /// Rows.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses, all different.
    pub top_k: usize,
    /// Of the tiles.
    pub heights: TileHeights,
}

impl GroupTiles {
    /// ids u32 `[rows, top_k]`; order u32 `[rows * top_k]`; tiles u32 `[1 + 3 * max_tiles]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("ids").u32(), Operand::write("order").u32(), Operand::write("tiles").u32()];

    /// The most tiles that there can be: a tile for the first row of each expert that can have rows, and another for each
    /// `largest` rows beyond; but no expert has more than every row.
    pub fn max_tiles(&self) -> usize {
        let (pairs, largest) = (self.rows * self.top_k, self.heights.largest);
        let active = self.experts.min(pairs);
        (active + (pairs - active) / largest).min(self.experts * self.rows.div_ceil(largest))
    }

    /// Words of `tiles`.
    pub fn tiles_len(&self) -> usize {
        1 + 3 * self.max_tiles()
    }

    /// The definition: order and tiles.
    pub fn reference(&self, ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_by_key(|p| ids[*p as usize]);
        let mut tiles = vec![0];
        let mut place = 0;
        for expert in 0..self.experts as u32 {
            let mut left = ids.iter().filter(|id| **id == expert).count();
            let height = self.heights.height(left);
            while left > 0 {
                let rows = left.min(height);
                tiles.extend([expert, place, rows as u32]);
                tiles[0] += 1;
                place += rows as u32;
                left -= rows;
            }
        }
        assert!(tiles.len() <= self.tiles_len(), "{self:?}");
        tiles.resize(self.tiles_len(), 0);
        (order, tiles)
    }

    /// One row and true sizes; experts without rows, with all of them, and on both sides of each height.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for largest in [16, 32, 64] {
            for (rows, experts, top_k) in
                [(1, 256, 8), (200, 24, 8), (70, 3, 3), (7, 8, 1), (300, 5, 1), (1, 1, 1)]
            {
                cases.push(GroupTiles { rows, experts, top_k, heights: TileHeights { largest } });
            }
        }
        cases
    }
}

impl Contract for GroupTiles {
    fn traffic(&self, _: Activation) -> Vec<Traffic> {
        let pairs = 4 * self.rows * self.top_k;
        vec![Traffic::read(pairs), Traffic::written(pairs), Traffic::written(4 * self.tiles_len())]
    }

    fn flops(&self) -> u64 {
        0
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let params = group_tiles::Params {
            pairs: (self.rows * self.top_k) as u32,
            experts: self.experts as u32,
            max_tiles: self.max_tiles() as u32,
            largest: self.heights.largest as u32,
        };
        let grid = [self.experts, 1, 1];
        Some(Dispatch::new(&group_tiles::TEXT, vec![], params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for GroupTiles {
    /// More pairs than threads and fewer; more experts than are counted at once.
    fn gpu_cases() -> Vec<Self> {
        let heights = TileHeights { largest: 64 };
        let mut cases = GroupTiles::cases();
        cases.extend([
            GroupTiles { rows: 3, experts: 1040, top_k: 7, heights },
            GroupTiles { rows: 513, experts: 2, top_k: 1, heights },
            GroupTiles { rows: 128, experts: 256, top_k: 8, heights },
        ]);
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Choice, choose};
        let choice = [Choice::Random, Choice::Same, Choice::Skewed][self.rows % 3];
        let ids = choose(random, self.rows, self.experts, self.top_k, choice);
        let (order, tiles) = self.reference(&ids);
        crate::testing::CaseBuilder::new(*self, activation)
            .ids(&ids)
            .output_ids(&order)
            .output_ids(&tiles)
            .build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_hold_an_expert_or_are_the_largest() {
        let heights =
            |largest| [0, 1, 16, 17, 32, 33, 64, 65, 1000].map(|n| TileHeights { largest }.height(n));
        assert_eq!(heights(16), [16; 9]);
        assert_eq!(heights(32), [16, 16, 16, 32, 32, 32, 32, 32, 32]);
        assert_eq!(heights(64), [16, 16, 16, 32, 32, 64, 64, 64, 64]);
        assert_eq!([0, 1, 64, 65].map(|n| TileHeights { largest: 64 }.tiles(n)), [0, 1, 1, 2]);
    }

    #[test]
    fn tiles_stand_by_expert_and_place() {
        let k = GroupTiles { rows: 40, experts: 3, top_k: 1, heights: TileHeights { largest: 32 } };
        let ids: Vec<u32> = (0..40).map(|r| if r % 20 == 7 { 0 } else { 2 }).collect();
        let (order, tiles) = k.reference(&ids);
        assert_eq!(order[..4], [7, 27, 0, 1]);
        assert_eq!(k.max_tiles(), 4);
        assert_eq!(tiles, [3, 0, 0, 2, 2, 2, 32, 2, 34, 6, 0, 0, 0]);
    }

    /// Over the ways to give pairs to experts near the numbers where tiles begin.
    #[test]
    fn no_choice_of_experts_has_more_tiles_than_the_bound() {
        for largest in [16, 32, 64] {
            for (rows, experts, top_k) in
                [(40, 3, 1), (40, 3, 2), (40, 3, 3), (2, 9, 4), (100, 5, 2), (65, 1, 1)]
            {
                let k = GroupTiles { rows, experts, top_k, heights: TileHeights { largest } };
                let mut most = 0;
                counts(experts, rows, rows * top_k, &mut Vec::new(), &mut |n: &[usize]| {
                    most = most.max(n.iter().map(|n| k.heights.tiles(*n)).sum());
                });
                assert!(most <= k.max_tiles(), "{k:?}: {most}");
                assert!(most + 1 >= k.max_tiles(), "{k:?}: {most} of {}", k.max_tiles());
            }
        }
    }

    /// Ways to split `pairs` over experts of at most `rows` each.
    fn counts(experts: usize, rows: usize, pairs: usize, n: &mut Vec<usize>, see: &mut dyn FnMut(&[usize])) {
        if n.len() + 1 == experts {
            if pairs <= rows {
                n.push(pairs);
                see(n);
                n.pop();
            }
            return;
        }
        for count in [0, 1, 2, 16, 17, 32, 33, 49, 64, 65, 97, rows] {
            if count <= rows.min(pairs) {
                n.push(count);
                counts(experts, rows, pairs - count, n, see);
                n.pop();
            }
        }
    }
}
