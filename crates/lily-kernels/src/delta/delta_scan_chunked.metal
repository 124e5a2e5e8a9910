// The recurrence of Gated DeltaNet, sixteen tokens at a time as products of matrices (delta/scan.rs).
//
// Within a chunk that starts with the state S, let D(t,i) be the product of the decays of the tokens i + 1 ... t (1 for i = t), G(t) that
// of all up to t, E(i) that of all behind i. Unrolled, the recurrence says
//   delta_t = beta_t (v_t - G(t) S k_t - sum over i < t of D(t,i) (k_t.k_i) delta_i)
//   y_t     = G(t) S q_t + sum over i <= t of D(t,i) (q_t.k_i) delta_i
//   S'      = G(last) S + sum over i of E(i) delta_i k_i^T
// so S k, S q, k.k, q.k and the last sum are products of matrices, on tiles with the operands rounded to FINE and f32 sums; delta is a
// triangular system, solved in f32 by substitution, a row of S to a lane. The decays are multiplied up and never divided by: any
// between 0 and 1 is right.
//
// A threadgroup has 32 rows of S: 16 in the registers of each of two simdgroups, from the first chunk to the last. A third
// simdgroup makes the next chunk's k.k and q.k with their decays meanwhile. A chunk's results depend on the state before it alone:
// launches cut at multiples of 16 tokens give the bits of one launch.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
#include "activation.h"
#include "slots.h"
using namespace metal;
#include "fours.h"
#include "tile_chain.h"

// Key heads of so many 32s, up to 4.
FUNCTION_CONSTANT(uint, TILES, 0);

struct DeltaScanChunkedParams { uint rows; uint key_heads; uint value_heads; uint key_dim; uint value_dim; };

constant constexpr uint CHUNK = 16, STATE_SIMDS = 2, THREADS = 32 * (STATE_SIMDS + 1), MOST_TILES = 4;
// Two chunks are in work at a time; with f32 activations threadgroup memory holds one.
#ifdef ACT_IS_F32
constant constexpr uint BUFFERS = 1;
#else
constant constexpr uint BUFFERS = 2;
#endif
// Lengths of rows, longer than what they hold, so that neighbouring rows lie in different banks: of k and q, of a chunk's S k and
// S q, of delta.
constant constexpr uint KEYS_LD = 32 * MOST_TILES + 8, FOUND_LD = 36, DELTA_LD = CHUNK + 8;
// Of a chunk: rows 0-15 k, 16-31 q; coefficients [i][t]: t < 16 of delta_t, then of y_t; beta, G, E and the decays themselves.
constant constexpr uint KEYS_BYTES = 2 * CHUNK * KEYS_LD * sizeof(FINE), COEFFICIENTS = CHUNK * 32, GATES = 4 * CHUNK;
constant constexpr uint CHUNK_BYTES = KEYS_BYTES + (COEFFICIENTS + GATES) * 4;
// Of a simdgroup with rows of S: scratch, delta, and what tile_pass_on needs.
constant constexpr uint SCRATCH = CHUNK * FOUND_LD, OWN_BYTES = SCRATCH * 4 + (CHUNK * DELTA_LD + 512) * sizeof(FINE);
constant constexpr uint MEMORY = (BUFFERS * CHUNK_BYTES + STATE_SIMDS * OWN_BYTES) / 16;
// Fours of k and q that a thread fetches.
constant constexpr uint FETCHED = (2 * CHUNK * 8 * MOST_TILES + THREADS - 1) / THREADS;

struct Fetched { Fine4 x[FETCHED]; float decay; float beta; };

struct Inputs { device const FINE* q; device const FINE* k; device const float* decay; device const float* beta; ulong keys; uint value_heads; uint rows; };

// Zeros, and decays of 1, for tokens behind the last: they change nothing.
inline void fetch(thread Fetched& f, thread const Inputs& in, uint start, uint thread_index, uint lane) {
    UNROLL for (uint i = 0; i < FETCHED; ++i) {
        const uint four = i * THREADS + thread_index, row = four / (8 * TILES), t = start + row % CHUNK;
        f.x[i] = VEC(FINE, 4, float4(0.0f));
        if (row < 2 * CHUNK && t < in.rows) f.x[i] = *(device const Fine4*)((row < CHUNK ? in.k : in.q) + t * in.keys + four % (8 * TILES) * 4);
    }
    const uint t = start + lane;
    const bool there = lane < CHUNK && t < in.rows;
    f.decay = there ? in.decay[ulong(t) * in.value_heads] : 1.0f;
    f.beta = there ? in.beta[ulong(t) * in.value_heads] : 0.0f;
}

inline void put_keys(thread const Fetched& f, threadgroup FINE* keys, uint thread_index) {
    UNROLL for (uint i = 0; i < FETCHED; ++i) {
        const uint four = i * THREADS + thread_index, row = four / (8 * TILES);
        if (row < 2 * CHUNK) *(threadgroup Fine4*)(keys + row * KEYS_LD + four % (8 * TILES) * 4) = f.x[i];
    }
}

// Coefficients and products of decays of a chunk, by one simdgroup.
inline void prepare(float decay, float beta, threadgroup const FINE* keys, threadgroup float* coefficients, threadgroup float* gates, uint lane) {
    const uint t = lane % CHUNK;
    if (lane < CHUNK) {
        gates[t] = beta;
        gates[3 * CHUNK + t] = decay;
    }
    TileC products;
    tile_zero(products);
    for (uint j = 0; j < 2 * TILES; ++j) {
        TileA a;
        TileB b;
        tile_load_a(a, keys + j * 16, KEYS_LD);
        tile_load_b(b, keys + j * 16, KEYS_LD);
        tile_mma(products, a, b);
    }
    tile_put(products, coefficients, 32);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Lane t has the column of delta_t, lane 16 + t that of y_t.
    const bool of_y = lane >= CHUNK;
    const float factor = of_y ? 1.0f : gates[t];
    float product = 1.0f;
    for (uint n = 0; n < CHUNK; ++n) {
        const uint i = CHUNK - 1 - n;
        if (i < t) product *= gates[3 * CHUNK + i + 1];
        threadgroup float* c = coefficients + i * 32 + lane;
        *c = i < t || (of_y && i == t) ? *c * factor * product : 0.0f;
        if (lane == CHUNK - 1) gates[2 * CHUNK + i] = product;
    }
    if (lane < CHUNK) gates[CHUNK + t] = product * gates[3 * CHUNK];
}

// A chunk's tokens on 16 rows of S: y of the rows `mine` names, and the state behind the chunk. Lanes r and 16 + r have row r.
inline void advance(thread TileC* s, threadgroup const FINE* keys, threadgroup const float* coefficients, threadgroup const float* gates,
                    threadgroup float* scratch, threadgroup FINE* delta, threadgroup FINE* area, device const FINE* v, ulong channels,
                    device FINE* y, ulong values, uint tokens, bool mine, uint lane) {
    const uint row = lane % 16, upper = lane / 16 * 8;
    float d[CHUNK];
    UNROLL for (uint t = 0; t < CHUNK; ++t) d[t] = mine && t < tokens ? float(v[t * channels]) : 0.0f;
    TileC found;
    tile_zero(found);
    const float all = gates[2 * CHUNK - 1];
    UNROLL for (uint j = 0; j < MOST_TILES; ++j)
        if (j < TILES) {
            TileA left, right;
            TileB b;
            tile_pass_on(left, right, s[j], all, area, scratch);
            tile_load_b(b, keys + j * 32, KEYS_LD);
            tile_mma(found, left, b);
            tile_load_b(b, keys + j * 32 + 16, KEYS_LD);
            tile_mma(found, right, b);
        }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    tile_put(found, scratch, FOUND_LD);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* mine_found = scratch + row * FOUND_LD;
    UNROLL for (uint t = 0; t < CHUNK; ++t) d[t] = gates[t] * fma(-gates[CHUNK + t], mine_found[t], d[t]);
    UNROLL for (uint i = 0; i < CHUNK - 1; ++i)
        UNROLL for (uint t = 0; t < CHUNK; t += 4)
            if (t + 3 > i) {
                // 0 for those that delta_i does not touch.
                const float4 c = *(threadgroup const float4*)(coefficients + i * 32 + t);
                d[t] = fma(-c.x, d[i], d[t]);
                d[t + 1] = fma(-c.y, d[i], d[t + 1]);
                d[t + 2] = fma(-c.z, d[i], d[t + 2]);
                d[t + 3] = fma(-c.w, d[i], d[t + 3]);
            }
    // This lane's half of the tokens from here on.
    const float4 gate_low = *(threadgroup const float4*)(gates + CHUNK + upper), gate_high = *(threadgroup const float4*)(gates + CHUNK + upper + 4);
    float4 low = gate_low * *(threadgroup const float4*)(mine_found + CHUNK + upper);
    float4 high = gate_high * *(threadgroup const float4*)(mine_found + CHUNK + upper + 4);
    UNROLL for (uint i = 0; i < CHUNK; ++i) {
        low = fma(*(threadgroup const float4*)(coefficients + i * 32 + CHUNK + upper), float4(d[i]), low);
        high = fma(*(threadgroup const float4*)(coefficients + i * 32 + CHUNK + upper + 4), float4(d[i]), high);
    }
    const float results[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    UNROLL for (uint t = 0; t < 8; ++t)
        if (mine && upper + t < tokens) y[(upper + t) * values] = fine_of(results[t]);
    UNROLL for (uint t = 0; t < 8; t += 4) {
        const float4 rest = *(threadgroup const float4*)(gates + 2 * CHUNK + upper + t);
        const float4 own = upper == 0 ? float4(d[t], d[t + 1], d[t + 2], d[t + 3]) : float4(d[t + 8], d[t + 9], d[t + 10], d[t + 11]);
        *(threadgroup Fine4*)(delta + row * DELTA_LD + upper + t) = VEC(FINE, 4, rest * own);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    TileA a;
    tile_load_a(a, delta, DELTA_LD);
    UNROLL for (uint j = 0; j < MOST_TILES; ++j)
        if (j < TILES) {
            TileB b;
            tile_load_b_columns(b, keys + j * 32, KEYS_LD);
            tile_mma(s[j], a, b);
        }
}

kernel void delta_scan_chunked(device const FINE* q [[buffer(0)]],
                               device const FINE* k [[buffer(1)]],
                               device const float* kappa [[buffer(2)]],
                               device const float* decay [[buffer(3)]],
                               device const float* beta [[buffer(4)]],
                               device const FINE* conv [[buffer(5)]],
                               device FINE* y [[buffer(6)]],
                               device float* state [[buffer(7)]],
                               device const uint* slots [[buffer(8)]],
                               constant DeltaScanChunkedParams& p [[buffer(9)]],
                               uint3 group [[threadgroup_position_in_grid]],
                               uint thread_index [[thread_index_in_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]],
                               uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint4, memory, MEMORY);
    const uint head = group.y, slot = group.z, key_head = head / (p.value_heads / p.key_heads);
    const uint base = group.x * 16 * STATE_SIMDS + simd * 16, row = base + lane % 16;
    const bool has_rows = simd < STATE_SIMDS && base < p.value_dim, mine = simd < STATE_SIMDS && row < p.value_dim;
    const uint values = p.value_heads * p.value_dim;
    const ulong keys = p.key_heads * p.key_dim, channels = 2 * keys + values, first = ulong(slot) * p.rows;
    y += first * values + head * p.value_dim + row;
    if (slot_done(slots, slot)) {
        for (uint t = lane / 16; mine && t < p.rows; t += 2) y[ulong(t) * values] = fine_of(0.0f);
        return;
    }
    device const FINE* v = conv + first * channels + 2 * keys + head * p.value_dim + row;
    Inputs in;
    in.q = q + first * keys + key_head * p.key_dim;
    in.k = k + first * keys + key_head * p.key_dim;
    in.decay = decay + first * p.value_heads + head;
    in.beta = beta + first * p.value_heads + head;
    in.keys = keys;
    in.value_heads = p.value_heads;
    in.rows = p.rows;

    threadgroup char* bytes = (threadgroup char*)memory;
    // The third simdgroup has no rows and uses none of this.
    threadgroup char* own = bytes + BUFFERS * CHUNK_BYTES + min(simd, STATE_SIMDS - 1) * OWN_BYTES;
    threadgroup float* scratch = (threadgroup float*)own;
    threadgroup FINE* delta = (threadgroup FINE*)(own + SCRATCH * 4);
    threadgroup FINE* area = delta + CHUNK * DELTA_LD;

    const ulong entry = ulong(values) * p.key_dim, place = ulong(head * p.value_dim + base) * p.key_dim + lane;
    TileC s[MOST_TILES];
    if (has_rows) {
        device const float* from = state + slot_state(slots, slot) * entry + place;
        UNROLL for (uint j = 0; j < MOST_TILES; ++j)
            if (j < TILES) {
                for (uint i = 0; i < 16; ++i) scratch[i * 32 + lane] = base + i < p.value_dim ? from[i * p.key_dim + j * 32] : 0.0f;
                simdgroup_barrier(mem_flags::mem_threadgroup);
                tile_take(s[j], scratch, 32);
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
    }
    const uint chunks = (p.rows + CHUNK - 1) / CHUNK, lag = BUFFERS - 1;
    Fetched next;
    fetch(next, in, 0, thread_index, lane);
    for (uint step = 0; step < chunks + lag; ++step) {
        threadgroup char* fresh = bytes + step % BUFFERS * CHUNK_BYTES;
        const float own_decay = next.decay, own_beta = next.beta;
        if (step < chunks) {
            put_keys(next, (threadgroup FINE*)fresh, thread_index);
            // Under way until the next step.
            if (step + 1 < chunks) fetch(next, in, (step + 1) * CHUNK, thread_index, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (simd == STATE_SIMDS && step < chunks) {
            threadgroup float* coefficients = (threadgroup float*)(fresh + KEYS_BYTES);
            prepare(own_decay, own_beta, (threadgroup const FINE*)fresh, coefficients, coefficients + COEFFICIENTS, lane);
        }
        if (lag == 0) threadgroup_barrier(mem_flags::mem_threadgroup);
        if (has_rows && step >= lag) {
            const uint chunk = step - lag, start = chunk * CHUNK;
            threadgroup const char* ready = bytes + chunk % BUFFERS * CHUNK_BYTES;
            threadgroup const float* coefficients = (threadgroup const float*)(ready + KEYS_BYTES);
            advance(s, (threadgroup const FINE*)ready, coefficients, coefficients + COEFFICIENTS, scratch, delta, area, v + start * channels,
                    channels, y + ulong(start) * values, values, min(CHUNK, p.rows - start), mine, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (has_rows) {
        device float* to = state + slot_next(slots, slot) * entry + place;
        UNROLL for (uint j = 0; j < MOST_TILES; ++j)
            if (j < TILES) {
                tile_put(s[j], scratch, 32);
                simdgroup_barrier(mem_flags::mem_threadgroup);
                for (uint i = 0; i < 16; ++i)
                    if (base + i < p.value_dim) to[i * p.key_dim + j * 32] = scratch[i * 32 + lane];
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
    }
}
