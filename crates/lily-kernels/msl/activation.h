// ACT, the type of attention's activations and of caches, is given by whoever compiles: float, bfloat or half.
#pragma once
using namespace metal;
#ifndef ACT
#define ACT bfloat
#endif
/// FINE is the type of all other activations (Activation::fine): of the size of ACT, but half for bfloat, which keeps three bits less.
/// What lies beyond half's range ends at its largest number.
#ifdef ACT_IS_F32
#define FINE float
inline float fine_range(float v) { return v; }
#else
#define FINE half
inline float fine_range(float v) { return isnan(v) ? v : clamp(v, -65504.0f, 65504.0f); }
#endif
inline FINE fine_of(float v) { return FINE(fine_range(v)); }
/// Ends at the largest number where ACT is half.
#ifdef ACT_IS_F16
inline ACT act_of(float v) { return fine_of(v); }
#else
inline ACT act_of(float v) { return ACT(v); }
#endif
/// Four at an address that is a multiple of their size.
inline void fine_load4(thread float* v, device const FINE* p) {
    const vec<FINE, 4> a = *(device const vec<FINE, 4>*)p;
    v[0] = float(a.x);
    v[1] = float(a.y);
    v[2] = float(a.z);
    v[3] = float(a.w);
}
/// Stores four at an address that is a multiple of their size: fine_store4 to a buffer, fine_stage4 to threadgroup memory. The latter
/// is for weights: they are within range.
#if defined(__CUDACC__) && !defined(ACT_IS_F32)
inline void fine_stage4(FINE* p, float a, float b, float c, float d) {
    // Pairs convert in one instruction, and four travel as one word.
    const uint low = as_type<uint>(__floats2half2_rn(a, b)), high = as_type<uint>(__floats2half2_rn(c, d));
    *(ulong*)p = ulong(low) | ulong(high) << 32;
}
inline void fine_store4(FINE* p, float a, float b, float c, float d) {
    fine_stage4(p, fine_range(a), fine_range(b), fine_range(c), fine_range(d));
}
#else
inline void fine_stage4(threadgroup FINE* p, float a, float b, float c, float d) {
    *(threadgroup vec<FINE, 4>*)p = VEC(FINE, 4, FINE(a), FINE(b), FINE(c), FINE(d));
}
inline void fine_store4(device FINE* p, float a, float b, float c, float d) {
    *(device vec<FINE, 4>*)p = VEC(FINE, 4, fine_of(a), fine_of(b), fine_of(c), fine_of(d));
}
#endif
