// The recurrence of Gated DeltaNet, the state in device memory from token to token (delta/scan.rs): what the scan in registers is
// measured against, and the way for key heads of any width.
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "slots.h"
using namespace metal;
#include "delta_rows.h"

FUNCTION_CONSTANT(bool, WHOLE, 0);

struct DeltaScanMemoryParams { uint rows; uint key_heads; uint value_heads; uint key_dim; uint value_dim; };

kernel void delta_scan_memory(device const FINE* q [[buffer(0)]],
                              device const FINE* k [[buffer(1)]],
                              device const float* kappa [[buffer(2)]],
                              device const float* decay [[buffer(3)]],
                              device const float* beta [[buffer(4)]],
                              device const FINE* conv [[buffer(5)]],
                              device FINE* y [[buffer(6)]],
                              device float* state [[buffer(7)]],
                              device const uint* slots [[buffer(8)]],
                              constant DeltaScanMemoryParams& p [[buffer(9)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint lane [[thread_index_in_simdgroup]],
                              uint simd [[simdgroup_index_in_threadgroup]],
                              uint simds [[simdgroups_per_threadgroup]]) {
    const uint head = group.y, slot = group.z, part = lane % 4, wanted = (group.x * simds + simd) * 8 + lane / 4;
    const bool mine = wanted < p.value_dim;
    const uint row = min(wanted, p.value_dim - 1);
    const uint key_head = head / (p.value_heads / p.key_heads), values = p.value_heads * p.value_dim;
    const ulong keys = p.key_heads * p.key_dim, channels = 2 * keys + values;
    const ulong entry = ulong(values) * p.key_dim, place = ulong(head * p.value_dim + row) * p.key_dim;
    device const float* from = state + slot_state(slots, slot) * entry + place;
    device float* to = state + slot_next(slots, slot) * entry + place;
    const bool done = slot_done(slots, slot);
    for (uint t = 0; t < p.rows; ++t) {
        const ulong n = ulong(slot) * p.rows + t;
        device FINE* out = y + n * values + head * p.value_dim + row;
        if (done) {
            if (mine && part == 0) *out = fine_of(0.0f);
            continue;
        }
        device const FINE* q_row = q + n * keys + key_head * p.key_dim;
        device const FINE* k_row = k + n * keys + key_head * p.key_dim;
        // A lane meets only what it wrote itself: no barrier between tokens. Lanes behind the last row touch no state.
        float4 sk = float4(0.0f), sq = float4(0.0f);
        for (uint i = 4 * part; mine && i < p.key_dim; i += 16) {
            const float4 s = floats4(from, i, p.key_dim, WHOLE);
            sk = fma(s, float4(fine4(k_row, i, p.key_dim, WHOLE)), sk);
            sq = fma(s, float4(fine4(q_row, i, p.key_dim, WHOLE)), sq);
        }
        const float recalled = row_sum(sum4(sk)), asked = row_sum(sum4(sq)), g = decay[n * p.value_heads + head];
        const float v = float(conv[n * channels + 2 * keys + head * p.value_dim + row]);
        const float delta = beta[n * p.value_heads + head] * fma(-g, recalled, v);
        if (mine && part == 0) *out = fine_of(fma(g, asked, delta * kappa[n * p.key_heads + key_head]));
        for (uint i = 4 * part; mine && i < p.key_dim; i += 16) {
            const float4 s = floats4(from, i, p.key_dim, WHOLE);
            put_floats4(to, i, p.key_dim, WHOLE, fma(float4(g), s, float4(delta) * float4(fine4(k_row, i, p.key_dim, WHOLE))));
        }
        from = to;
    }
}
