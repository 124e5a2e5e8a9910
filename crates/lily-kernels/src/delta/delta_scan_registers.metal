// The recurrence of Gated DeltaNet, the state in registers from the first token to the last (delta/scan.rs).
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "slots.h"
using namespace metal;
#include "delta_rows.h"

FUNCTION_CONSTANT(uint, STEPS, 0);
FUNCTION_CONSTANT(bool, WHOLE, 1);

struct DeltaScanRegistersParams { uint rows; uint key_heads; uint value_heads; uint key_dim; uint value_dim; };

// What a lane needs of a token: its part of q and k, the row's v, the head's gates.
struct Token { Fine4 q[MOST_STEPS]; Fine4 k[MOST_STEPS]; float kappa; float decay; float beta; float v; };

inline void load_token(thread Token& x, device const FINE* q, device const FINE* k, uint key_dim, uint part) {
    UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
        if (i < STEPS) {
            x.q[i] = fine4(q, 4 * (part + 4 * i), key_dim, WHOLE);
            x.k[i] = fine4(k, 4 * (part + 4 * i), key_dim, WHOLE);
        }
}

kernel void delta_scan_registers(device const FINE* q [[buffer(0)]],
                                 device const FINE* k [[buffer(1)]],
                                 device const float* kappa [[buffer(2)]],
                                 device const float* decay [[buffer(3)]],
                                 device const float* beta [[buffer(4)]],
                                 device const FINE* conv [[buffer(5)]],
                                 device FINE* y [[buffer(6)]],
                                 device float* state [[buffer(7)]],
                                 device const uint* slots [[buffer(8)]],
                                 constant DeltaScanRegistersParams& p [[buffer(9)]],
                                 uint3 group [[threadgroup_position_in_grid]],
                                 uint lane [[thread_index_in_simdgroup]],
                                 uint simd [[simdgroup_index_in_threadgroup]],
                                 uint simds [[simdgroups_per_threadgroup]]) {
    const uint head = group.y, slot = group.z, part = lane % 4, wanted = (group.x * simds + simd) * 8 + lane / 4;
    // Lanes behind the last row of a head compute with its inputs and zeros for a state, and write nothing.
    const bool mine = wanted < p.value_dim;
    const uint row = min(wanted, p.value_dim - 1);
    const uint key_head = head / (p.value_heads / p.key_heads), values = p.value_heads * p.value_dim;
    const ulong keys = p.key_heads * p.key_dim, channels = 2 * keys + values, first = ulong(slot) * p.rows;
    y += first * values + head * p.value_dim + row;
    if (slot_done(slots, slot)) {
        if (mine && part == 0)
            for (uint t = 0; t < p.rows; ++t) y[ulong(t) * values] = fine_of(0.0f);
        return;
    }
    q += first * keys + key_head * p.key_dim;
    k += first * keys + key_head * p.key_dim;
    kappa += first * p.key_heads + key_head;
    decay += first * p.value_heads + head;
    beta += first * p.value_heads + head;
    conv += first * channels + 2 * keys + head * p.value_dim + row;
    const ulong entry = ulong(values) * p.key_dim, place = ulong(head * p.value_dim + row) * p.key_dim;

    float4 s[MOST_STEPS];
    UNROLL for (uint i = 0; i < MOST_STEPS; ++i) s[i] = float4(0.0f);
    if (mine) load_row(s, state + slot_state(slots, slot) * entry + place, p.key_dim, part, STEPS, WHOLE);
    Token next;
    load_token(next, q, k, p.key_dim, part);
    next.kappa = kappa[0];
    next.decay = decay[0];
    next.beta = beta[0];
    next.v = float(conv[0]);
    for (uint t = 0; t < p.rows; ++t) {
        const Token x = next;
        // The next token is on its way while this one is computed: nothing else hides the latency of a lone simdgroup.
        if (t + 1 < p.rows) {
            const ulong u = t + 1;
            load_token(next, q + u * keys, k + u * keys, p.key_dim, part);
            next.kappa = kappa[u * p.key_heads];
            next.decay = decay[u * p.value_heads];
            next.beta = beta[u * p.value_heads];
            next.v = float(conv[u * channels]);
        }
        float4 sk = float4(0.0f), sq = float4(0.0f);
        UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
            if (i < STEPS) {
                sk = fma(s[i], float4(x.k[i]), sk);
                sq = fma(s[i], float4(x.q[i]), sq);
            }
        const float recalled = row_sum(sum4(sk)), asked = row_sum(sum4(sq));
        const float delta = x.beta * fma(-x.decay, recalled, x.v);
        if (mine && part == 0) y[ulong(t) * values] = fine_of(fma(x.decay, asked, delta * x.kappa));
        const float4 g = float4(x.decay), d = float4(delta);
        UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
            if (i < STEPS) s[i] = fma(g, s[i], d * float4(x.k[i]));
    }
    if (mine) store_row(s, state + slot_next(slots, slot) * entry + place, p.key_dim, part, STEPS, WHOLE);
}
