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
/// Stores four activations at an address that is a multiple of their size: act_store4 to a buffer, act_stage4 to threadgroup memory.
#if defined(__CUDACC__) && !defined(ACT_IS_F32)
inline void act_store4(ACT* p, float a, float b, float c, float d) {
    // Pairs convert in one instruction, and four travel as one word.
#ifdef ACT_IS_F16
    const uint low = as_type<uint>(__floats2half2_rn(a, b)), high = as_type<uint>(__floats2half2_rn(c, d));
#else
    const uint low = as_type<uint>(__floats2bfloat162_rn(a, b)), high = as_type<uint>(__floats2bfloat162_rn(c, d));
#endif
    *(ulong*)p = ulong(low) | ulong(high) << 32;
}
inline void act_stage4(ACT* p, float a, float b, float c, float d) { act_store4(p, a, b, c, d); }
#else
inline void act_store4(device ACT* p, float a, float b, float c, float d) {
    *(device vec<ACT, 4>*)p = VEC(ACT, 4, ACT(a), ACT(b), ACT(c), ACT(d));
}
inline void act_stage4(threadgroup ACT* p, float a, float b, float c, float d) {
    *(threadgroup vec<ACT, 4>*)p = VEC(ACT, 4, ACT(a), ACT(b), ACT(c), ACT(d));
}
#endif
