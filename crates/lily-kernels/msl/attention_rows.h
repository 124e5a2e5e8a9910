// Attention of one row, for decode: the query heads of a KV head that share a threadgroup, the keys split among its simdgroups.
//
// Simdgroups are numbered head group by head group: `parts` of them share the keys for the same HEADS heads. Part i takes every
// parts-th step of keys from the first on, whatever rows run beside, so that a row's sums have one order. A lane holds 8
// neighbouring elements of each head. Scores are in units of log2(e): q comes multiplied by log2(e) / sqrt(width).
#pragma once
#include "attention.h"

/// Simdgroups of the largest launch.
constant constexpr uint MOST_SIMDS = 16;
/// Query heads of a threadgroup at most (MOST_PACK of attention/mod.rs), rounded up to whole head groups.
constant constexpr uint MOST_PACKED = 8;
/// New rows of a sequence in a fused step at most (MOST_STEP_ROWS of attention/mod.rs).
constant constexpr uint MOST_ROWS = 4;
/// Floats of scratch memory: one head of each simdgroup.
constant constexpr uint SHARED_FLOATS = MOST_SIMDS * MOST_WIDTH;
/// Floats behind them: of each simdgroup the largest score of each of 4 heads, and a weight.
constant constexpr uint TOPS = MOST_SIMDS * 5;

/// Eight neighbouring elements as they are stored.
#ifdef ACT_IS_F32
struct Eight { float4 a; float4 b; };
inline float eight_at(thread const Eight& x, uint i) { return i < 4 ? x.a[i] : x.b[i - 4]; }
#define EIGHT_WHOLE(space) { x.a = *(space const float4*)(row + at); x.b = *(space const float4*)(row + at + 4); }
#define EIGHT_PUT(i, value) { if (i < 4) x.a[i] = value; else x.b[i - 4] = value; }
#else
struct Eight { uint4 words; };
inline float eight_at(thread const Eight& x, uint i) {
    const uint word = x.words[i / 2];
#ifdef ACT_IS_BF16
    return as_type<float>(i % 2 ? word & 0xffff0000u : word << 16);
#else
    return float(as_type<ACT>(ushort(i % 2 ? word >> 16 : word)));
#endif
}
#define EIGHT_WHOLE(space) x.words = *(space const uint4*)(row + at);
#define EIGHT_PUT(i, value) x.words[i / 2] = i % 2 ? x.words[i / 2] | uint(as_type<ushort>(value)) << 16 : uint(as_type<ushort>(value));
#endif

/// Elements from `first` on of a row, all of them at once if rows consist of whole eights. Behind the row's end stands something of
/// the row: what is multiplied with it is 0, and what it is added to is not used.
#define EIGHT_LOAD(name, space)                                                                 \
    inline void name(thread Eight& x, space const ACT* row, uint first, uint width, bool whole) { \
        if (whole) {                                                                            \
            const uint at = min(first, width - 8);                                              \
            EIGHT_WHOLE(space)                                                                  \
        } else {                                                                                \
            UNROLL for (uint i = 0; i < 8; ++i) EIGHT_PUT(i, row[min(first + i, width - 1)])    \
        }                                                                                       \
    }
EIGHT_LOAD(eight_load, device)
EIGHT_LOAD(eight_load_shared, threadgroup)

/// The keys that a row sees, and their values.
struct Seen {
    device const ACT* keys;
    device const ACT* values;
    device const uint* slots;
    uint slot;
    uint head;
    uint heads;
    uint width;
    /// Keys from `begin`, a multiple of 64, to before `end`.
    uint begin;
    uint end;
    /// Keys from here on are new and not in the cache.
    uint fresh;
    /// Rows of MOST_WIDTH: the new keys from `fresh` on.
    threadgroup const ACT* fresh_keys;
    /// Rows of heads * width: the new values from `fresh` on.
    device const ACT* fresh_values;
};

/// What one simdgroup has of HEADS heads; all lanes know `top` and `weight`.
template <uint HEADS> struct RowSums {
    float sum[HEADS][8];
    float top[HEADS];
    float weight[HEADS];
};

/// A lane and the one `apart` from it add up their values: of N values each keeps half, of one both keep it.
template <uint N> inline void halve_over_lanes(thread float* v, uint apart, uint lane) {
    const bool upper = (lane & apart) != 0;
    if (N == 1) v[0] += simd_shuffle_xor(v[0], ushort(apart));
    UNROLL for (uint i = 0; i < N / 2; ++i) {
        // Read before it is chosen: a choice of addresses would keep v in memory.
        const float first = v[i], second = v[i + N / 2];
        v[i] = (upper ? second : first) + simd_shuffle_xor(upper ? first : second, ushort(apart));
    }
}
/// Sums over the lanes of N values, a power of two: lane i gets that of value i / (32 / N).
template <uint N> inline float sums_over_lanes(thread float* v, uint lane) {
    halve_over_lanes<N>(v, 16, lane);
    halve_over_lanes<(N + 1) / 2>(v, 8, lane);
    halve_over_lanes<(N + 3) / 4>(v, 4, lane);
    halve_over_lanes<(N + 7) / 8>(v, 2, lane);
    halve_over_lanes<(N + 15) / 16>(v, 1, lane);
    return v[0];
}

/// Neighbouring lanes read neighbouring elements; KEYS keys a step, 32 / (HEADS * KEYS) lanes for each score.
template <uint HEADS, uint KEYS, bool FRESH>
inline void attend_coalesced(thread RowSums<HEADS>& out, threadgroup const float* q, thread const Seen& seen, bool whole, uint part, uint parts, uint lane) {
    constexpr uint N = HEADS * KEYS, SHARE = 32 / N;
    const uint first = lane * 8;
    float query[HEADS][8];
    UNROLL for (uint h = 0; h < HEADS; ++h)
        UNROLL for (uint i = 0; i < 8; ++i) {
            query[h][i] = q[h * MOST_WIDTH + first + i];
            out.sum[h][i] = 0.0f;
        }
    // Of the head lane / (32 / HEADS), and of this lane's keys alone.
    float top = minus_infinity(), weight = 0.0f;
    for (uint at = seen.begin + part * KEYS; at < seen.end; at += parts * KEYS) {
        const ulong row = cache_at(seen.slots, seen.slot, at, seen.head, seen.heads, seen.width);
        Eight key[KEYS], value[KEYS];
        if (!FRESH || at + KEYS <= seen.fresh) {
            // Behind the last key it stands again: its weight is 0 there.
            UNROLL for (uint j = 0; j < KEYS; ++j) eight_load(key[j], seen.keys + row + min(j, seen.end - 1 - at) * seen.width, first, seen.width, whole);
            UNROLL for (uint j = 0; j < KEYS; ++j) eight_load(value[j], seen.values + row + min(j, seen.end - 1 - at) * seen.width, first, seen.width, whole);
        } else {
            UNROLL for (uint j = 0; j < KEYS; ++j) {
                const uint n = min(at + j, seen.end - 1);
                if (n >= seen.fresh) {
                    eight_load_shared(key[j], seen.fresh_keys + (n - seen.fresh) * MOST_WIDTH, first, seen.width, whole);
                    eight_load(value[j], seen.fresh_values + ulong(n - seen.fresh) * seen.heads * seen.width, first, seen.width, whole);
                } else {
                    eight_load(key[j], seen.keys + row + (n - at) * seen.width, first, seen.width, whole);
                    eight_load(value[j], seen.values + row + (n - at) * seen.width, first, seen.width, whole);
                }
            }
        }
        float scores[N];
        UNROLL for (uint h = 0; h < HEADS; ++h)
            UNROLL for (uint j = 0; j < KEYS; ++j) {
                float sum = 0.0f;
                UNROLL for (uint i = 0; i < 8; ++i) sum = fma(query[h][i], eight_at(key[j], i), sum);
                scores[h * KEYS + j] = sum;
            }
        float score = sums_over_lanes<N>(scores, lane);
        if (at + lane / SHARE % KEYS >= seen.end) score = minus_infinity();
        float next = max(top, score);
        UNROLL for (uint apart = SHARE; apart < 32 / HEADS; apart *= 2) next = max(next, simd_shuffle_xor(next, ushort(apart)));
        if (simd_any(next > top)) {
            const float fade = precise::exp2(top - next);
            weight *= fade;
            UNROLL for (uint h = 0; h < HEADS; ++h) {
                const float f = simd_broadcast(fade, ushort(h * (32 / HEADS)));
                UNROLL for (uint i = 0; i < 8; ++i) out.sum[h][i] *= f;
            }
            top = next;
        }
        const float p = precise::exp2(score - top);
        weight += p;
        UNROLL for (uint j = 0; j < KEYS; ++j)
            UNROLL for (uint h = 0; h < HEADS; ++h) {
                const float share = simd_broadcast(p, ushort((h * KEYS + j) * SHARE));
                UNROLL for (uint i = 0; i < 8; ++i) out.sum[h][i] = fma(share, eight_at(value[j], i), out.sum[h][i]);
            }
    }
    UNROLL for (uint apart = SHARE; apart < 32 / HEADS; apart *= 2) weight += simd_shuffle_xor(weight, ushort(apart));
    UNROLL for (uint h = 0; h < HEADS; ++h) {
        out.top[h] = simd_broadcast(top, ushort(h * (32 / HEADS)));
        out.weight[h] = simd_broadcast(weight, ushort(h * (32 / HEADS)));
    }
}

/// Each lane walks a key of its own: 32 keys a step. Values are read element by neighbouring element all the same, since the sums
/// are spread over the lanes that way.
template <uint HEADS, bool FRESH>
inline void attend_strided(thread RowSums<HEADS>& out, threadgroup const float* q, thread const Seen& seen, bool whole, uint part, uint parts, uint lane) {
    const uint first = lane * 8;
    UNROLL for (uint h = 0; h < HEADS; ++h) {
        UNROLL for (uint i = 0; i < 8; ++i) out.sum[h][i] = 0.0f;
        out.top[h] = minus_infinity();
        out.weight[h] = 0.0f;
    }
    for (uint at = seen.begin + part * 32; at < seen.end; at += parts * 32) {
        const ulong row = cache_at(seen.slots, seen.slot, at, seen.head, seen.heads, seen.width);
        const bool live = at + lane < seen.end;
        float score[HEADS];
        UNROLL for (uint h = 0; h < HEADS; ++h) score[h] = 0.0f;
        if (live) {
            for (uint e = 0; e < seen.width; e += 8) {
                Eight key;
                if (FRESH && at + lane >= seen.fresh)
                    eight_load_shared(key, seen.fresh_keys + (at + lane - seen.fresh) * MOST_WIDTH, e, seen.width, whole);
                else eight_load(key, seen.keys + row + lane * seen.width, e, seen.width, whole);
                UNROLL for (uint h = 0; h < HEADS; ++h)
                    UNROLL for (uint i = 0; i < 8; ++i) score[h] = fma(q[h * MOST_WIDTH + e + i], eight_at(key, i), score[h]);
            }
        }
        UNROLL for (uint h = 0; h < HEADS; ++h) {
            const float next = max(out.top[h], simd_max(live ? score[h] : minus_infinity()));
            const float fade = precise::exp2(out.top[h] - next);
            score[h] = live ? precise::exp2(score[h] - next) : 0.0f;
            out.top[h] = next;
            out.weight[h] = fma(out.weight[h], fade, score[h]);
            UNROLL for (uint i = 0; i < 8; ++i) out.sum[h][i] *= fade;
        }
        const uint count = min(32u, seen.end - at);
        for (uint j = 0; j < count; ++j) {
            Eight value;
            if (FRESH && at + j >= seen.fresh)
                eight_load(value, seen.fresh_values + ulong(at + j - seen.fresh) * seen.heads * seen.width, first, seen.width, whole);
            else eight_load(value, seen.values + row + j * seen.width, first, seen.width, whole);
            UNROLL for (uint h = 0; h < HEADS; ++h) {
                const float share = simd_shuffle(score[h], ushort(j));
                UNROLL for (uint i = 0; i < 8; ++i) out.sum[h][i] = fma(share, eight_at(value, i), out.sum[h][i]);
            }
        }
    }
    UNROLL for (uint h = 0; h < HEADS; ++h) out.weight[h] = simd_sum(out.weight[h]);
}

/// The finished row of a query head.
struct IntoOut {
    device FINE* out;
    /// Of the first head: the gates of each follow its queries.
    device const ACT* qg;
    uint width;
};
inline void put(thread const IntoOut& to, uint head, uint i, float sum, float, float weight) {
    to.out[head * to.width + i] = fine_of(sum / weight * sigmoid(float(to.qg[(2 * head + 1) * to.width + i])));
}

/// What AttendCombine merges.
struct IntoPartial {
    device float* partial;
    /// From one head to the next.
    uint stride;
    uint width;
};
inline void put(thread const IntoPartial& to, uint head, uint i, float sum, float top, float weight) {
    device float* row = to.partial + ulong(head) * to.stride;
    row[i] = sum;
    if (i == 0) {
        row[to.width] = top;
        row[to.width + 1] = weight;
    }
}

/// Merges the parts of each head in their order. `tops` has TOPS floats, `shared` SHARED_FLOATS, which may be what q was read from.
template <uint HEADS, typename Into>
inline void merge_parts(thread RowSums<HEADS>& mine, thread const Into& into, threadgroup float* shared, threadgroup float* tops, uint width, uint pack,
                        uint part, uint parts, uint simd, uint simds, uint lane) {
    threadgroup float* weights = tops + simds * HEADS;
    if (lane == 0) {
        UNROLL for (uint h = 0; h < HEADS; ++h) tops[simd * HEADS + h] = mine.top[h];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint group = simd / parts, groups = simds / parts;
    for (uint h = 0; h < HEADS; ++h) {
        float top = minus_infinity();
        for (uint n = group * parts; n < (group + 1) * parts; ++n) top = max(top, tops[n * HEADS + h]);
        // Of a part without keys the largest score is -infinity, and this is 0.
        const float fade = precise::exp2(mine.top[0] - top);
        UNROLL for (uint i = 0; i < 8; ++i) shared[simd * MOST_WIDTH + lane * 8 + i] = mine.sum[0][i] * fade;
        if (lane == 0) weights[simd] = mine.weight[0] * fade;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint at = simd * 32 + lane; at < groups * MOST_WIDTH; at += simds * 32) {
            const uint g = at / MOST_WIDTH, i = at % MOST_WIDTH, head = g * HEADS + h;
            if (i >= width || head >= pack) continue;
            float high = minus_infinity(), sum = 0.0f, weight = 0.0f;
            for (uint n = g * parts; n < (g + 1) * parts; ++n) {
                high = max(high, tops[n * HEADS + h]);
                sum += shared[n * MOST_WIDTH + i];
                weight += weights[n];
            }
            put(into, head, i, sum, high, weight);
        }
        // The next head moves to the front: the loop needs no copy of itself for each.
        UNROLL for (uint k = 0; k + 1 < HEADS; ++k) {
            mine.top[k] = mine.top[k + 1];
            mine.weight[k] = mine.weight[k + 1];
            UNROLL for (uint i = 0; i < 8; ++i) mine.sum[k][i] = mine.sum[k + 1][i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

/// All of it: `pack` heads of q, rows of MOST_WIDTH in `shared` and zeros behind them, over the keys that the row sees.
template <uint HEADS, uint KEYS, bool FRESH, typename Into>
inline void attend_row(thread const Seen& seen, thread const Into& into, threadgroup float* shared, threadgroup float* tops, bool coalesced, uint pack, uint simd,
                       uint simds, uint lane) {
    const uint groups = pack > HEADS ? 2 : 1, parts = simds / groups, part = simd % parts;
    const bool whole = seen.width % 8 == 0;
    threadgroup const float* q = shared + simd / parts * HEADS * MOST_WIDTH;
    RowSums<HEADS> mine;
    if (coalesced) attend_coalesced<HEADS, KEYS, FRESH>(mine, q, seen, whole, part, parts, lane);
    else attend_strided<HEADS, FRESH>(mine, q, seen, whole, part, parts, lane);
    merge_parts<HEADS, Into>(mine, into, shared, tops, seen.width, pack, part, parts, simd, simds, lane);
}

/// The same for any pack: as many heads a simdgroup as registers allow, four.
template <bool FRESH, typename Into>
inline void attend_packed(thread const Seen& seen, thread const Into& into, threadgroup float* shared, threadgroup float* tops, bool coalesced, uint pack,
                          uint simd, uint simds, uint lane) {
    if (pack == 1) attend_row<1, 8, FRESH, Into>(seen, into, shared, tops, coalesced, pack, simd, simds, lane);
    else if (pack == 2) attend_row<2, 8, FRESH, Into>(seen, into, shared, tops, coalesced, pack, simd, simds, lane);
    else attend_row<4, 4, FRESH, Into>(seen, into, shared, tops, coalesced, pack, simd, simds, lane);
}
