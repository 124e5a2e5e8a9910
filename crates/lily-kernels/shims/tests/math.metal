// Every function of one value or several, chosen by a number: the lists below are shared with the host, which holds the
// references in the same order. y[i] = op(a[i], b[i], c[i]), one thread an element.
#include <metal_stdlib>
#include "portable.h"
#include "ops.h"
using namespace metal;

struct MathArgs { uint op; uint count; };

#define CASE(name, expression) case OP_##name: return expression;
template <typename T> inline T math_both(uint op, T a, T b, T c) {
    switch (op) { MATH_OPS(CASE) }
    return T(0.0f);
}
inline float math_float(uint op, float a, float b, float c) {
    switch (op) { FLOAT_OPS(CASE) }
    return math_both<float>(op, a, b, c);
}
template <typename T> inline T integer_op(uint op, T a, T b, T c) {
    switch (op) { INTEGER_OPS(CASE) }
    return T(0);
}
#undef CASE

kernel void math_f32(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]], device const float* c [[buffer(2)]],
                     device float* y [[buffer(3)]], constant MathArgs& args [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = math_float(args.op, a[i], b[i], c[i]);
}
kernel void math_f16(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]], device const half* c [[buffer(2)]],
                     device half* y [[buffer(3)]], constant MathArgs& args [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = math_both<half>(args.op, a[i], b[i], c[i]);
}
kernel void integer_i32(device const int* a [[buffer(0)]], device const int* b [[buffer(1)]], device const int* c [[buffer(2)]],
                        device int* y [[buffer(3)]], constant MathArgs& args [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = integer_op<int>(args.op, a[i], b[i], c[i]);
}
kernel void integer_u32(device const uint* a [[buffer(0)]], device const uint* b [[buffer(1)]], device const uint* c [[buffer(2)]],
                        device uint* y [[buffer(3)]], constant MathArgs& args [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = integer_op<uint>(args.op, a[i], b[i], c[i]);
}
kernel void integer_u16(device const ushort* a [[buffer(0)]], device const ushort* b [[buffer(1)]], device const ushort* c [[buffer(2)]],
                        device ushort* y [[buffer(3)]], constant MathArgs& args [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) y[i] = integer_op<ushort>(args.op, a[i], b[i], c[i]);
}

// ---- rounding: each step of a half or bfloat expression is rounded to its type -------------------------------------
// Five results a thread: a + b, a - b, a * b, a / b, (a + b) - a.
template <typename T> inline void arithmetic(device const T* a, device const T* b, device T* y, uint i) {
    const T x = a[i], z = b[i];
    y[i * 5] = x + z;
    y[i * 5 + 1] = x - z;
    y[i * 5 + 2] = x * z;
    y[i * 5 + 3] = x / z;
    y[i * 5 + 4] = (x + z) - x;
}
kernel void arithmetic_f16(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]], device half* y [[buffer(2)]],
                           constant MathArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) arithmetic<half>(a, b, y, i);
}
kernel void arithmetic_bf16(device const bfloat* a [[buffer(0)]], device const bfloat* b [[buffer(1)]], device bfloat* y [[buffer(2)]],
                            constant MathArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    if (i < args.count) arithmetic<bfloat>(a, b, y, i);
}

// Conversions of float: to half, to bfloat, to int, to uint (negative values as 0 in the input), to half and back by bits.
kernel void conversions(device const float* x [[buffer(0)]], device half* h [[buffer(1)]], device bfloat* b [[buffer(2)]],
                        device int* n [[buffer(3)]], device uint* u [[buffer(4)]], device uint* bits [[buffer(5)]],
                        constant MathArgs& args [[buffer(6)]], uint i [[thread_position_in_grid]]) {
    if (i >= args.count) return;
    h[i] = half(x[i]);
    b[i] = bfloat(x[i]);
    const bool fits = x[i] > -2.0e9f && x[i] < 2.0e9f;   // false for NaN
    n[i] = fits ? int(x[i]) : 0;
    u[i] = fits && x[i] > 0.0f ? uint(x[i]) : 0u;
    bits[i] = as_type<uint>(x[i]) ^ uint(as_type<ushort>(h[i])) ^ uint(as_type<ushort>(b[i])) << 16;
}
// 1 where the answer is true: isnan, isinf, isfinite, signbit, then half's; a < b, a == b of bfloat.
kernel void classes(device const float* x [[buffer(0)]], device uint* y [[buffer(1)]],
                    constant MathArgs& args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i >= args.count) return;
    const half h = half(x[i]);
    const bfloat b = bfloat(x[i]), zero = bfloat(0.0f);
    y[i] = uint(isnan(x[i])) | uint(isinf(x[i])) << 1 | uint(isfinite(x[i])) << 2 | uint(signbit(x[i])) << 3
        | uint(isnan(h)) << 4 | uint(isinf(h)) << 5 | uint(isfinite(h)) << 6 | uint(signbit(h)) << 7
        | uint(b < zero) << 8 | uint(b == zero) << 9;
}
// Both results of sincos, the exact and the quick one, one after the other.
kernel void sine_cosine(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                        constant MathArgs& args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i >= args.count) return;
    float cosine;
    y[i * 2] = precise::sincos(x[i], cosine);
    y[i * 2 + 1] = cosine;
}
