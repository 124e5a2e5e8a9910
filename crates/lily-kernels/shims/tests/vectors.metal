// Vectors: constructors, swizzles, operators, comparison, conversion, functions lane by lane, wide loads.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;

constant float WEIGHTS[4] = {0.5f, 1.5f, -2.0f, 4.0f};

// Four results a line, sixteen lines, of a and b (one thread an element).
kernel void vectors_f32(device const float4* a [[buffer(0)]], device const float4* b [[buffer(1)]], device float4* y [[buffer(2)]],
                        uint i [[thread_position_in_grid]]) {
    const float4 p = a[i], q = b[i];
    device float4* out = y + i * 16;
    out[0] = p + q * 2.0f;
    out[1] = float4(p.xy, q.zw) - 1.0f;
    out[2] = float4(p.xyz, q.x);
    out[3] = float4(q.w, p.yz, 7.0f);
    out[4] = float4(dot(p, q), dot(p.xyz, q.xyz), length(p), length_squared(p.xy));
    out[5] = select(p, q, p < q);
    out[6] = float4(all(p <= p) ? 1.0f : 0.0f, any(p > q) ? 1.0f : 0.0f, all(p > q) ? 1.0f : 0.0f, any(p != p) ? 1.0f : 0.0f);
    out[7] = fma(p, q, float4(0.5f));
    out[8] = max(min(p, q), float4(-1.0f));
    out[9] = float4(p.xy * q.zw - 1.0f, float2(p.x) / 2.0f);
    float4 changed = p;
    changed.xy = q.zw;
    changed.w += 1.0f;
    changed[2] = q[1];
    out[10] = changed;
    float3 three = float3(p.x, p.y, p.z);
    three *= float3(2.0f, 3.0f, 4.0f);
    out[11] = float4(three, float(sizeof(float3)));
    out[12] = abs(floor(p)) + sqrt(abs(q));
    float4 looked = float4(0.0f);
    for (uint k = 0; k < 4; ++k) looked[k] = WEIGHTS[(i + k) % 4];
    out[13] = looked;
    out[14] = -p / float4(2.0f, 4.0f, 8.0f, 16.0f);
    out[15] = VEC(float, 4, half4(p)) + float4(bfloat4(q));
}
kernel void vectors_i32(device const int4* a [[buffer(0)]], device const int4* b [[buffer(1)]], device int4* y [[buffer(2)]],
                        uint i [[thread_position_in_grid]]) {
    const int4 p = a[i], q = b[i];
    device int4* out = y + i * 8;
    out[0] = (p & q) | (p ^ 5);
    out[1] = (p >> 3) + (q << 2);
    out[2] = min(p, q) - max(p, q);
    out[3] = clamp(p, int4(-9), int4(9));
    out[4] = abs(p) % 7 + ~q;
    out[5] = popcount(p) + clz(q) * 100;
    out[6] = select(p, q, p == q) + ctz(p);
    out[7] = int4(uint4(short4(p)) >> 4u);
}
// Packed storage: a uint4 as 16 bytes, as nibbles, as halves, as bfloats.
kernel void packed(device const uint4* x [[buffer(0)]], device float4* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    const uint4 v = x[i];
    const uchar4 bytes = as_type<uchar4>(v.x);
    const char4 signed_bytes = as_type<char4>(v.y);
    const ushort2 shorts = as_type<ushort2>(v.z);
    const half2 halves = as_type<half2>(v.w);
    const bfloat2 brains = as_type<bfloat2>(v.w);
    device float4* out = y + i * 5;
    out[0] = float4(bytes);
    out[1] = float4(signed_bytes);
    out[2] = float4(float2(shorts), float2(halves));
    out[3] = float4(float2(brains), float(as_type<ushort>(half(1.5f))), float(sizeof(half3)));
    out[4] = float4(uint4(v.x) >> uint4(0u, 4u, 8u, 12u) & 15u);
}
kernel void vectors_f16(device const half4* a [[buffer(0)]], device const half4* b [[buffer(1)]], device half4* y [[buffer(2)]],
                        uint i [[thread_position_in_grid]]) {
    const half4 p = a[i], q = b[i];
    device half4* out = y + i * 4;
    out[0] = p * q;
    out[1] = max(p, q) + half4(half2(half(1.0f), half(2.0f)), half2(float2(p.xy)));
    out[2] = fma(p, q, half4(half(0.25f)));
    out[3] = half4(dot(p, q), half(float(p.x)), q.w, half(3.0f));
}
