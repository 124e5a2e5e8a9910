//! How products are spread over a GPU: sizes of launches that texts of several kernels share.

use super::{Output, Parts};

/// Outputs of a simdgroup in a product of few rows, and simdgroups of a threadgroup.
///
/// More outputs read x less often; fewer make more simdgroups, which hide the latency of memory. None of it changes a bit of
/// a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) outputs: usize,
    pub(crate) simdgroups: usize,
}

impl Rows {
    /// For a product with `streams` matrices of `outputs` rows each, at most 4 rows of them to a simdgroup.
    pub(crate) fn of(outputs: usize, streams: usize) -> Self {
        // A thousand simdgroups at least, where there are as many outputs.
        let most = match outputs * streams {
            ..2048 => 1,
            2048..4096 => 2,
            _ => 4,
        };
        Rows { outputs: most.min(4 / streams), simdgroups: 2 }
    }

    /// Threadgroups for so many outputs.
    pub(crate) fn grid(self, outputs: usize) -> usize {
        outputs.div_ceil(self.outputs * self.simdgroups)
    }

    /// Threads of each.
    pub(crate) fn threads(self) -> [usize; 3] {
        [32 * self.simdgroups, 1, 1]
    }
}

/// Rows of a tile and simdgroups of a threadgroup, each of which makes `outputs` columns of the tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    pub(crate) height: usize,
    pub(crate) simdgroups: usize,
    outputs: usize,
}

impl Tiles {
    /// Threadgroups that keep a large GPU busy.
    const ENOUGH: usize = 128;

    /// For a product of `rows` rows; `per_simdgroup` columns of the result in a simdgroup: 32, or 16 of two matrices.
    pub(crate) fn of(rows: usize, outputs: usize, per_simdgroup: usize) -> Self {
        let tiles = |height, simdgroups| Tiles { height, simdgroups, outputs: per_simdgroup };
        // Higher tiles dequantize less often; a threadgroup has as many simdgroups as its height has 16 rows, or more.
        let mut best = match rows {
            ..=16 => tiles(16, 4),
            17..=32 => tiles(32, 4),
            _ => tiles(64, 4),
        };
        let count = |t: Tiles| t.grid(rows, outputs).iter().product::<usize>();
        if count(best) < Tiles::ENOUGH / 2 && best.height == 64 {
            best = tiles(32, 4);
        }
        while count(best) < Tiles::ENOUGH && best.simdgroups > best.height / 16 {
            best.simdgroups /= 2;
        }
        best
    }

    /// Threadgroups: along the outputs, along the rows.
    pub(crate) fn grid(self, rows: usize, outputs: usize) -> [usize; 3] {
        [outputs.div_ceil(self.outputs * self.simdgroups), rows.div_ceil(self.height), 1]
    }

    /// Threads of each.
    pub(crate) fn threads(self) -> [usize; 3] {
        [32 * self.simdgroups, 1, 1]
    }
}

/// As `msl/output.h` numbers them.
pub(crate) fn output_kind(out: Output) -> u32 {
    match out {
        Output::Activation => 0,
        Output::F32 => 1,
        Output::Add => 2,
        Output::Fine => 3,
    }
}

/// Outputs of all parts and widths of the first three, as texts take them.
pub(crate) fn part_words(parts: Parts) -> [u32; 4] {
    let [a, b, c, _] = parts.widths().map(|w| w as u32);
    [parts.total() as u32, a, b, c]
}
