// Quantized matrices, MLX's affine format: w = scale * q + bias, with a bfloat scale and bias for each group of 32, 64 or 128
// inputs. A row is a stream of values of 2, 3, 4, 5, 6 or 8 bits, the first in the low bits of the first word. Rows are multiples
// of 32 values: a run of 32 is `bits` whole words, a run of 16 is `bits` whole halves of words, and with 4 and 8 bits every run is
// aligned for the vectors in which it is read.
//
// Values of 4 and 8 bits are masked where they stand in their half word, not shifted, and so come out 16 to the power of i % 4, or
// 256 to the power of i % 2, times too large. Whoever uses value i multiplies its other factor (x, or the scale) with
// quant_factor(bits, i): a power of two, so nothing is rounded.
//
// `bits` and `group` are function constants of the kernels; everything here is inlined, and what other formats need falls away.
//
//   const QuantMatrix matrix = {weight, scales, biases, cols, BITS, GROUP};
//   QuantRow row;
//   quant_row(row, matrix, o);
#pragma once
using namespace metal;

struct QuantMatrix {
    device const uint* weight;
    device const bfloat* scales;
    device const bfloat* biases;
    uint cols, bits, group;
};
struct QuantRow {
    device const uint* words;
    device const bfloat* scales;
    device const bfloat* biases;
    uint bits, group;
};

/// Row `row`, counted over all matrices that stand one behind the other: row o of expert e of `outputs` rows is e * outputs + o.
inline void quant_row(thread QuantRow& r, thread const QuantMatrix& m, ulong row) {
    r.words = m.weight + row * (m.cols / 32 * m.bits);
    r.scales = m.scales + row * (m.cols / m.group);
    r.biases = m.biases + row * (m.cols / m.group);
    r.bits = m.bits;
    r.group = m.group;
}

/// What undoes the place of value i (see above).
inline float quant_factor(uint bits, uint i) {
    if (bits == 4) return i % 4 == 0 ? 1.0f : i % 4 == 1 ? 0.0625f : i % 4 == 2 ? 0.00390625f : 0.000244140625f;
    return bits == 8 && i % 2 ? 0.00390625f : 1.0f;
}
/// An integer below 2^23, exactly.
inline float quant_real(uint v) {
#ifdef __CUDACC__
    // Conversions run at a fraction of the rate of additions there.
    return as_type<float>(v | 0x4b000000u) - 8388608.0f;
#else
    return float(v);
#endif
}

/// The words of 16 values from input k, a multiple of 16: two for 4 bits, four for 8, else `bits` halves, one a word.
inline void quant_load16(thread uint* w, thread const QuantRow& row, uint k) {
    if (row.bits == 4) {
        const uint2 v = *(device const uint2*)(row.words + k / 8);
        w[0] = v.x; w[1] = v.y;
    } else if (row.bits == 8) {
        const uint4 v = *(device const uint4*)(row.words + k / 4);
        w[0] = v.x; w[1] = v.y; w[2] = v.z; w[3] = v.w;
    } else {
        device const ushort* p = (device const ushort*)row.words + k / 16 * row.bits;
        UNROLL
        for (uint j = 0; j < 6; ++j) if (j < row.bits) w[j] = p[j];
    }
}
/// The words of 32 values from input k, a multiple of 32: `bits` of them.
inline void quant_load32(thread uint* w, thread const QuantRow& row, uint k) {
    device const uint* p = row.words + k / 32 * row.bits;
    if (row.bits == 4 || row.bits == 8) {
        UNROLL
        for (uint j = 0; j < 8; j += 4) {
            if (j >= row.bits) continue;
            const uint4 v = *(device const uint4*)(p + j);
            w[j] = v.x; w[j + 1] = v.y; w[j + 2] = v.z; w[j + 3] = v.w;
        }
    } else {
        UNROLL
        for (uint j = 0; j < 6; ++j) if (j < row.bits) w[j] = p[j];
    }
}
/// Value i of a stream that lies in w, `width` bits in each word.
inline float quant_value(thread const uint* w, uint bits, uint i, uint width) {
    const uint bit = i * bits, at = bit % width;
    uint v = w[bit / width] >> at;
    if (at + bits > width) v |= w[bit / width + 1] << (width - at);
    return quant_real(v & ((1u << bits) - 1));
}
/// 16 masked values of the two words (4 bits) or four words (8 bits) at w.
inline void quant_mask16(thread float* q, thread const uint* w, uint bits) {
    if (bits == 4) {
        UNROLL
        for (uint j = 0; j < 4; ++j) {
            const uint half_word = w[j / 2] >> j % 2 * 16;
            UNROLL
            for (uint i = 0; i < 4; ++i) q[4 * j + i] = quant_real(half_word & 0xfu << 4 * i);
        }
    } else {
        UNROLL
        for (uint j = 0; j < 8; ++j) {
            const uint half_word = w[j / 2] >> j % 2 * 16;
            q[2 * j] = quant_real(half_word & 0xffu);
            q[2 * j + 1] = quant_real(half_word & 0xff00u);
        }
    }
}
/// The 16 values that quant_load16 loaded, each to be multiplied with its factor.
inline void quant_unpack16(thread float* q, thread const uint* w, uint bits) {
    if (bits == 4 || bits == 8) {
        quant_mask16(q, w, bits);
    } else {
        UNROLL
        for (uint i = 0; i < 16; ++i) q[i] = quant_value(w, bits, i, 16);
    }
}
/// Values 0 to 15 (`upper` 0) or 16 to 31 (`upper` 1) of those that quant_load32 loaded, each to be multiplied with its factor.
inline void quant_unpack32(thread float* q, thread const uint* w, uint bits, uint upper) {
    if (bits == 4 || bits == 8) {
        quant_mask16(q, w + upper * (bits / 2), bits);
    } else {
        UNROLL
        for (uint i = 0; i < 16; ++i) q[i] = quant_value(w, bits, upper * 16 + i, 32);
    }
}
/// 16 weights of a row from input k, a multiple of 16.
inline void quant_run16(thread float* v, thread const QuantRow& row, uint k) {
    uint words[6];
    quant_load16(words, row, k);
    quant_unpack16(v, words, row.bits);
    const float scale = float(row.scales[k / row.group]), bias = float(row.biases[k / row.group]);
    UNROLL
    for (uint i = 0; i < 16; ++i) v[i] = fma(v[i], scale * quant_factor(row.bits, i), bias);
}
