// Unit q and k, their product, and the gates (delta/prep.rs): a simdgroup a key head with the value heads that use it.
#define WHOLE_SIMDGROUPS
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "plain.h"
#include "gates.h"
#include "fours.h"
using namespace metal;

FUNCTION_CONSTANT(bool, A_LOG_IS_F32, 0);
FUNCTION_CONSTANT(bool, DT_BIAS_IS_F32, 1);
// Heads and rows are whole fours.
FUNCTION_CONSTANT(bool, WHOLE, 2);

struct DeltaPrepParams { uint key_heads; uint value_heads; uint key_dim; uint channels; float eps; };

kernel void delta_prep(device const FINE* conv [[buffer(0)]],
                       device const FINE* a [[buffer(1)]],
                       device const FINE* b [[buffer(2)]],
                       device const bfloat* a_log [[buffer(3)]],
                       device const bfloat* dt_bias [[buffer(4)]],
                       device FINE* q [[buffer(5)]],
                       device FINE* k [[buffer(6)]],
                       device float* kappa [[buffer(7)]],
                       device float* decay [[buffer(8)]],
                       device float* beta [[buffer(9)]],
                       constant DeltaPrepParams& p [[buffer(10)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint simds [[simdgroups_per_threadgroup]]) {
    const uint head = group.x * simds + simd;
    if (head >= p.key_heads) return;
    const ulong row = group.y;
    device const FINE* q_raw = conv + row * p.channels + head * p.key_dim;
    device const FINE* k_raw = q_raw + p.key_heads * p.key_dim;
    float qq = 0.0f, kk = 0.0f;
    for (uint i = lane * 4; i < p.key_dim; i += 128) {
        const float4 x = float4(fine4(q_raw, i, p.key_dim, WHOLE)), y = float4(fine4(k_raw, i, p.key_dim, WHOLE));
        qq = fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, fma(x.x, x.x, qq))));
        kk = fma(y.w, y.w, fma(y.z, y.z, fma(y.y, y.y, fma(y.x, y.x, kk))));
    }
    const float q_scale = precise::rsqrt(simd_sum(qq) + p.eps) * precise::rsqrt(float(p.key_dim)), k_scale = precise::rsqrt(simd_sum(kk) + p.eps);
    device FINE* q_out = q + (row * p.key_heads + head) * p.key_dim;
    device FINE* k_out = k + (row * p.key_heads + head) * p.key_dim;
    float qk = 0.0f;
    for (uint i = lane * 4; i < p.key_dim; i += 128) {
        const float4 x = float4(fine4(q_raw, i, p.key_dim, WHOLE)) * q_scale, y = float4(fine4(k_raw, i, p.key_dim, WHOLE)) * k_scale;
        put4(q_out, i, p.key_dim, WHOLE, x);
        put4(k_out, i, p.key_dim, WHOLE, y);
        // Of the values as they are stored: the scan's recurrence is then exactly that of its q and k.
        const float4 u = float4(VEC(FINE, 4, x)), v = float4(VEC(FINE, 4, y));
        qk = fma(u.w, v.w, fma(u.z, v.z, fma(u.y, v.y, fma(u.x, v.x, qk))));
    }
    qk = simd_sum(qk);
    if (lane == 0) kappa[row * p.key_heads + head] = qk;
    const uint shared = p.value_heads / p.key_heads;
    for (uint i = lane; i < shared; i += 32) {
        const uint h = head * shared + i;
        const ulong gate = row * p.value_heads + h;
        const float rate = precise::exp(plain_value(a_log, A_LOG_IS_F32, h));
        decay[gate] = precise::exp(-rate * softplus(float(a[gate]) + plain_value(dt_bias, DT_BIAS_IS_F32, h)));
        beta[gate] = sigmoid(float(b[gate]));
    }
}
