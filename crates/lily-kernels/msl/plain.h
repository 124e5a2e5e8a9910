// Plain tensors of the checkpoint: bfloat, or float where a function constant says so.
#pragma once
using namespace metal;
inline float plain_value(device const bfloat* p, bool is_f32, uint i) {
    return is_f32 ? ((device const float*)p)[i] : float(p[i]);
}
/// Values i to i + 3; i is a multiple of 4.
inline void plain_load4(thread float* v, device const bfloat* p, bool is_f32, uint i) {
    if (is_f32) {
        const float4 a = *(device const float4*)((device const float*)p + i);
        v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
    } else {
        const bfloat4 a = *(device const bfloat4*)(p + i);
        v[0] = float(a.x); v[1] = float(a.y); v[2] = float(a.z); v[3] = float(a.w);
    }
}
