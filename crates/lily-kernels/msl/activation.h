// ACT, the type of activations, is given by whoever compiles: float, bfloat or half.
#pragma once
using namespace metal;
#ifndef ACT
#define ACT bfloat
#endif
/// Four activations at an address that is a multiple of their size.
inline void act_load4(thread float* v, device const ACT* p) {
    const vec<ACT, 4> a = *(device const vec<ACT, 4>*)p;
    v[0] = float(a.x);
    v[1] = float(a.y);
    v[2] = float(a.z);
    v[3] = float(a.w);
}
