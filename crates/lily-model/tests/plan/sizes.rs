//! How many bytes each operand of a kernel has, written down once more: from the kernels' documentation, not from the
//! plan builder.

use lily_kernels::moe::GroupTiles;
use lily_kernels::{Kernel, QuantFormat};

/// The three tensors of `rows` rows of a matrix.
fn matrix(format: QuantFormat, rows: usize, cols: usize) -> [usize; 3] {
    [rows * cols * format.bits / 8, rows * cols / format.group * 2, rows * cols / format.group * 2]
}

/// Words of a list of tiles: each expert that can have rows begins one, and another for each full height beyond.
fn tiles(k: &GroupTiles) -> usize {
    let pairs = k.rows * k.top_k;
    let active = pairs.min(k.experts);
    let by_pairs = active + (pairs - active) / k.heights.largest;
    let by_rows = k.experts * k.rows.div_ceil(k.heights.largest);
    1 + 3 * by_pairs.min(by_rows)
}

/// Bytes of each operand, in order; a per-slot operand once.
pub(crate) fn operand_bytes(kernel: &Kernel) -> Vec<usize> {
    let words = |lens: &[usize]| lens.iter().map(|len| 4 * len).collect::<Vec<usize>>();
    match kernel {
        Kernel::Embed(k) => {
            let mut all = words(&[k.rows]);
            all.extend(matrix(k.format, k.vocab, k.width));
            all.extend(words(&[k.rows * k.width]));
            all
        }
        Kernel::Matmul(k) => {
            let mut all = words(&[k.rows * k.inputs]);
            all.extend(matrix(k.format, k.outputs(), k.inputs));
            all.extend(words(&[k.rows * k.outputs()]));
            all
        }
        Kernel::Swiglu(k) => {
            let mut all = words(&[k.rows * k.inputs]);
            all.extend(matrix(k.gate, k.outputs, k.inputs));
            all.extend(matrix(k.up, k.outputs, k.inputs));
            all.extend(words(&[k.rows * k.outputs]));
            all
        }
        Kernel::RmsNorm(k) => {
            let row = 4 * k.rows * k.width;
            vec![row, k.width * k.weight.bytes(), row]
        }
        Kernel::GatedNorm(k) => {
            let row = 4 * k.rows * k.heads * k.width;
            vec![row, row, k.width * k.weight.bytes(), row]
        }
        Kernel::ConvSilu(k) => {
            let row = 4 * k.slots * k.rows * k.channels;
            vec![row, k.channels * k.taps * k.weight.bytes(), row, 4 * (k.taps - 1) * k.channels]
        }
        Kernel::ConvState(k) => words(&[k.slots * k.rows * k.channels, (k.taps - 1) * k.channels]),
        Kernel::DeltaPrep(k) => {
            let (keys, values) = (k.rows * k.key_heads, k.rows * k.value_heads);
            let mut all = words(&[2 * keys * k.key_dim + values * k.value_dim, values, values]);
            all.extend([k.value_heads * k.a_log.bytes(), k.value_heads * k.dt_bias.bytes()]);
            all.extend(words(&[keys * k.key_dim, keys * k.key_dim, keys, values, values]));
            all
        }
        Kernel::DeltaScan(k) => {
            let (keys, values) = (k.slots * k.rows * k.key_heads, k.slots * k.rows * k.value_heads);
            let conv = 2 * keys * k.key_dim + values * k.value_dim;
            let state = k.value_heads * k.value_dim * k.key_dim;
            words(&[
                keys * k.key_dim,
                keys * k.key_dim,
                keys,
                values,
                values,
                conv,
                values * k.value_dim,
                state,
            ])
        }
        Kernel::DeltaStep(k) => {
            let (n, values) = (k.slots * k.rows, k.slots * k.rows * k.value_heads);
            let channels = 2 * k.key_heads * k.key_dim + k.value_heads * k.value_dim;
            let mut all = words(&[n * channels, values * k.value_dim, values, values]);
            all.extend([channels * k.taps * k.conv.bytes(), k.value_heads * k.a_log.bytes()]);
            all.extend([k.value_heads * k.dt_bias.bytes(), k.value_dim * k.norm.bytes()]);
            let state = k.value_heads * k.value_dim * k.key_dim;
            all.extend(words(&[values * k.value_dim, (k.taps - 1) * channels, state]));
            all
        }
        Kernel::DeltaStream(k) => {
            let (n, values) = (k.slots * k.rows, k.slots * k.rows * k.value_heads);
            let channels = 2 * k.key_heads * k.key_dim + k.value_heads * k.value_dim;
            let mut all = words(&[n * channels, values, values]);
            all.extend([channels * k.taps * k.conv.bytes(), k.value_heads * k.a_log.bytes()]);
            all.push(k.value_heads * k.dt_bias.bytes());
            let state = k.value_heads * k.value_dim * k.key_dim;
            all.extend(words(&[values * k.value_dim, (k.taps - 1) * channels, state]));
            all
        }
        Kernel::AttentionPrep(k) => {
            let (s, d) = (&k.shape, k.shape.head_dim);
            let (n, cache) = (s.slots * s.rows, s.context * s.kv_heads * d);
            let mut all = words(&[n * s.query_heads * 2 * d, n * s.kv_heads * d, n * s.kv_heads * d]);
            all.extend([d * k.q_norm.bytes(), d * k.k_norm.bytes()]);
            all.extend(words(&[n, n * s.query_heads * d, cache, cache]));
            all
        }
        Kernel::Attend(k) => {
            let (s, d) = (&k.shape, k.shape.head_dim);
            let (n, cache) = (s.slots * s.rows, s.context * s.kv_heads * d);
            let q = n * s.query_heads * d;
            words(&[q, 2 * q, n, q, cache, cache])
        }
        Kernel::AttendBlocks(k) => {
            let (s, d) = (&k.shape, k.shape.head_dim);
            let (n, cache) = (s.slots * s.rows, s.context * s.kv_heads * d);
            let heads = n * s.query_heads;
            words(&[heads * d, n, heads * s.context.div_ceil(k.block) * (d + 2), cache, cache])
        }
        Kernel::AttendCombine(k) => {
            let (s, d) = (&k.shape, k.shape.head_dim);
            let n = s.slots * s.rows;
            let heads = n * s.query_heads;
            words(&[heads * s.context.div_ceil(k.block) * (d + 2), heads * 2 * d, n, heads * d])
        }
        Kernel::AttendStep(k) => {
            let (s, d) = (&k.prep.shape, k.prep.shape.head_dim);
            let (n, cache) = (s.slots * s.rows, s.context * s.kv_heads * d);
            let mut all = words(&[n * s.query_heads * 2 * d, n * s.kv_heads * d, n * s.kv_heads * d]);
            all.extend([d * k.prep.q_norm.bytes(), d * k.prep.k_norm.bytes()]);
            all.extend(words(&[n, n * s.query_heads * d, cache, cache]));
            all
        }
        Kernel::AttendStepBlocks(k) => {
            let (s, d) = (&k.prep.shape, k.prep.shape.head_dim);
            let (n, cache) = (s.slots * s.rows, s.context * s.kv_heads * d);
            let partial = n * s.query_heads * s.context.div_ceil(k.block) * (d + 2);
            let mut all = words(&[n * s.query_heads * 2 * d, n * s.kv_heads * d, n * s.kv_heads * d]);
            all.extend([d * k.prep.q_norm.bytes(), d * k.prep.k_norm.bytes()]);
            all.extend(words(&[n, partial, cache, cache]));
            all
        }
        Kernel::SplitQuery(k) => {
            let q = k.rows * k.heads * k.head_dim;
            words(&[2 * q, q])
        }
        Kernel::HeadNorm(k) => {
            let x = 4 * k.rows * k.heads * k.head_dim;
            vec![x, k.head_dim * k.weight.bytes(), x]
        }
        Kernel::Rope(k) => {
            let x = k.rows * k.heads * k.head_dim;
            words(&[x, k.rows, x])
        }
        Kernel::CacheWrite(k) => {
            let (n, row) = (k.slots * k.rows, k.kv_heads * k.head_dim);
            words(&[n * row, n, k.context * row])
        }
        Kernel::Route(k) => words(&[k.rows * k.experts, k.rows * k.top_k, k.rows * k.top_k]),
        Kernel::Group(k) => {
            let pairs = k.rows * k.top_k;
            words(&[pairs, k.experts + 1, pairs, 1 + pairs.min(k.experts)])
        }
        Kernel::ExpertSwiglu(k) => {
            let pairs = k.rows * k.top_k;
            let mut all = words(&[k.rows * k.inputs, k.experts + 1, pairs, 1 + pairs.min(k.experts)]);
            all.extend(matrix(k.gate, k.experts * k.outputs, k.inputs));
            all.extend(matrix(k.up, k.experts * k.outputs, k.inputs));
            all.extend(words(&[pairs * k.outputs]));
            all
        }
        Kernel::ExpertDown(k) => {
            let pairs = k.rows * k.top_k;
            let mut all = words(&[pairs * k.inputs, k.experts + 1, pairs, 1 + pairs.min(k.experts)]);
            all.extend(matrix(k.format, k.experts * k.outputs, k.inputs));
            all.extend(words(&[pairs * k.outputs]));
            all
        }
        Kernel::Combine(k) => {
            let (pairs, row) = (k.rows * k.top_k, k.rows * k.width);
            words(&[pairs * k.width, pairs, row, k.rows, row])
        }
        Kernel::NormMatmul(k) => {
            let mut all = vec![4 * k.rows * k.inputs, k.inputs * k.norm.bytes()];
            all.extend(matrix(k.format, k.outputs(), k.inputs));
            all.extend(words(&[k.rows * k.outputs()]));
            all
        }
        Kernel::GatedNormMatmul(k) => {
            let row = 4 * k.rows * k.heads * k.width;
            let mut all = vec![row, row, k.width * k.norm.bytes()];
            all.extend(matrix(k.format, k.outputs, k.heads * k.width));
            all.extend(words(&[k.rows * k.outputs]));
            all
        }
        Kernel::NormSwiglu(k) => {
            let mut all = vec![4 * k.rows * k.inputs, k.inputs * k.norm.bytes()];
            all.extend(matrix(k.gate, k.outputs, k.inputs));
            all.extend(matrix(k.up, k.outputs, k.inputs));
            all.extend(words(&[k.rows * k.outputs]));
            all
        }
        Kernel::SiluMul(k) => words(&[k.len, k.len, k.len]),
        Kernel::Dequantize(k) => {
            let mut all = matrix(k.format, k.rows, k.cols).to_vec();
            all.extend(words(&[k.rows * k.cols]));
            all
        }
        Kernel::GroupTiles(k) => {
            let pairs = k.rows * k.top_k;
            words(&[pairs, pairs, tiles(k)])
        }
        Kernel::GroupedSwiglu(k) => {
            let pairs = k.rows * k.top_k;
            let mut all = words(&[k.rows * k.inputs, pairs, tiles(&k.grouping())]);
            all.extend(matrix(k.gate, k.experts * k.outputs, k.inputs));
            all.extend(matrix(k.up, k.experts * k.outputs, k.inputs));
            all.extend(words(&[pairs * k.outputs]));
            all
        }
        Kernel::GroupedMatmul(k) => {
            let pairs = k.rows * k.top_k;
            let x = if k.gather { k.rows } else { pairs };
            let mut all = words(&[x * k.inputs, pairs, tiles(&k.grouping()), pairs]);
            all.extend(matrix(k.format, k.experts * k.outputs, k.inputs));
            all.extend(words(&[pairs * k.outputs]));
            all
        }
        Kernel::GroupedDense(k) => {
            let pairs = k.rows * k.top_k;
            let x = if k.gather { k.rows } else { pairs };
            let weight = k.experts * k.outputs * k.inputs;
            words(&[x * k.inputs, pairs, tiles(&k.grouping()), pairs, weight, pairs * k.outputs])
        }
        Kernel::RoutedSwiglu(k) => {
            let mut all = vec![4 * k.rows * k.inputs, k.inputs * k.norm.bytes(), 4 * k.rows * k.experts];
            all.extend(matrix(k.gate, k.experts * k.outputs, k.inputs));
            all.extend(matrix(k.up, k.experts * k.outputs, k.inputs));
            all.extend(words(&[k.rows * k.top_k * k.outputs]));
            all
        }
        Kernel::RoutedMatmul(k) => {
            let pairs = k.rows * k.top_k;
            let x = if k.gather { k.rows } else { pairs };
            let mut all = words(&[x * k.inputs, pairs]);
            all.extend(matrix(k.format, k.experts * k.outputs, k.inputs));
            all.extend(words(&[pairs * k.outputs]));
            all
        }
        Kernel::DownCombine(k) => {
            let act = k.rows * k.top_k * k.inputs;
            let mut all = words(&[act, k.rows * k.experts, k.rows * k.shared_inputs, k.rows]);
            all.extend(matrix(k.format, k.experts * k.outputs, k.inputs));
            all.extend(matrix(k.shared_format, k.outputs, k.shared_inputs));
            all.extend(words(&[k.rows * k.outputs]));
            all
        }
        Kernel::SelectSlices(k) => {
            let (row, pool) = (k.rows * k.vocab, k.entries * k.vocab);
            let mask = k.entries * k.vocab.div_ceil(32);
            words(&[row, 32 * k.rows, pool, pool, mask, row, 2 * k.rows * k.slices, k.rows * k.slices])
        }
        Kernel::SelectToken(k) => {
            let (slices, n) = (k.rows * k.slices, k.rows);
            words(&[
                2 * slices,
                slices,
                n * k.vocab,
                n,
                n,
                4 * n,
                32 * n,
                k.entries * k.vocab,
                4 * n,
                n,
                n,
                n,
            ])
        }
    }
}
