// Four neighbours of a row at once. `whole`: the row is as wide as a multiple of four and aligned to match; otherwise one after the
// other, zeros from `end` on.
#pragma once
using namespace metal;
using Fine4 = vec<FINE, 4>;
inline Fine4 fine4(device const FINE* p, uint at, uint end, bool whole) {
    if (whole) return *(device const Fine4*)(p + at);
    const FINE zero = FINE(0.0f);
    return VEC(FINE, 4, at < end ? p[at] : zero, at + 1 < end ? p[at + 1] : zero, at + 2 < end ? p[at + 2] : zero, at + 3 < end ? p[at + 3] : zero);
}
inline float4 floats4(device const float* p, uint at, uint end, bool whole) {
    if (whole) return *(device const float4*)(p + at);
    return float4(at < end ? p[at] : 0.0f, at + 1 < end ? p[at + 1] : 0.0f, at + 2 < end ? p[at + 2] : 0.0f, at + 3 < end ? p[at + 3] : 0.0f);
}
inline void put4(device FINE* p, uint at, uint end, bool whole, float4 v) {
    if (whole) { *(device Fine4*)(p + at) = VEC(FINE, 4, fine_of(v.x), fine_of(v.y), fine_of(v.z), fine_of(v.w)); return; }
    if (at < end) p[at] = fine_of(v.x);
    if (at + 1 < end) p[at + 1] = fine_of(v.y);
    if (at + 2 < end) p[at + 2] = fine_of(v.z);
    if (at + 3 < end) p[at + 3] = fine_of(v.w);
}
inline void put_floats4(device float* p, uint at, uint end, bool whole, float4 v) {
    if (whole) { *(device float4*)(p + at) = v; return; }
    if (at < end) p[at] = v.x;
    if (at + 1 < end) p[at + 1] = v.y;
    if (at + 2 < end) p[at + 2] = v.z;
    if (at + 3 < end) p[at + 3] = v.w;
}
