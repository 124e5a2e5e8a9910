// Four neighbours of a row at once. `whole`: the row is as wide as a multiple of four and aligned to match; otherwise one after the
// other, zeros from `end` on.
#pragma once
using namespace metal;
using Act4 = vec<ACT, 4>;
inline Act4 act4(device const ACT* p, uint at, uint end, bool whole) {
    if (whole) return *(device const Act4*)(p + at);
    const ACT zero = ACT(0.0f);
    return VEC(ACT, 4, at < end ? p[at] : zero, at + 1 < end ? p[at + 1] : zero, at + 2 < end ? p[at + 2] : zero, at + 3 < end ? p[at + 3] : zero);
}
inline float4 floats4(device const float* p, uint at, uint end, bool whole) {
    if (whole) return *(device const float4*)(p + at);
    return float4(at < end ? p[at] : 0.0f, at + 1 < end ? p[at + 1] : 0.0f, at + 2 < end ? p[at + 2] : 0.0f, at + 3 < end ? p[at + 3] : 0.0f);
}
inline void put4(device ACT* p, uint at, uint end, bool whole, float4 v) {
    if (whole) { *(device Act4*)(p + at) = VEC(ACT, 4, v); return; }
    if (at < end) p[at] = ACT(v.x);
    if (at + 1 < end) p[at + 1] = ACT(v.y);
    if (at + 2 < end) p[at + 2] = ACT(v.z);
    if (at + 3 < end) p[at + 3] = ACT(v.w);
}
inline void put_floats4(device float* p, uint at, uint end, bool whole, float4 v) {
    if (whole) { *(device float4*)(p + at) = v; return; }
    if (at < end) p[at] = v.x;
    if (at + 1 < end) p[at + 1] = v.y;
    if (at + 2 < end) p[at + 2] = v.z;
    if (at + 3 < end) p[at + 3] = v.w;
}
