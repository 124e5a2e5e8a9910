// The functions under test: X(name, expression in a, b, c). Shared by the kernels and by the host's table of references.
#pragma once
// float and half
#define MATH_OPS(X) \
    X(exp, exp(a)) X(exp2, exp2(a)) X(exp10, exp10(a)) X(log, log(a)) X(log2, log2(a)) X(log10, log10(a)) \
    X(sin, sin(a)) X(cos, cos(a)) X(tan, tan(a)) X(asin, asin(a)) X(acos, acos(a)) X(atan, atan(a)) \
    X(sinh, sinh(a)) X(cosh, cosh(a)) X(tanh, tanh(a)) X(sqrt, sqrt(a)) X(rsqrt, rsqrt(a)) \
    X(floor, floor(a)) X(ceil, ceil(a)) X(trunc, trunc(a)) X(rint, rint(a)) X(round, round(a)) X(fract, fract(a)) \
    X(fabs, fabs(a)) X(abs, abs(a)) X(sign, sign(a)) X(saturate, saturate(a)) \
    X(pow, pow(a, b)) X(powr, powr(a, b)) X(atan2, atan2(a, b)) X(fmod, fmod(a, b)) X(copysign, copysign(a, b)) \
    X(fmin, fmin(a, b)) X(fmax, fmax(a, b)) X(min, min(a, b)) X(max, max(a, b)) X(step, step(a, b)) \
    X(fma, fma(a, b, c)) X(clamp, clamp(a, T(-1.5f), T(2.25f))) X(mix, mix(a, b, c)) X(ldexp, ldexp(a, 3)) X(select, select(a, b, c > T(0.0f)))
// float alone
#define FLOAT_OPS(X) \
    X(precise_exp, precise::exp(a)) X(precise_exp2, precise::exp2(a)) X(precise_exp10, precise::exp10(a)) X(precise_log, precise::log(a)) \
    X(precise_log2, precise::log2(a)) X(precise_log10, precise::log10(a)) X(precise_sin, precise::sin(a)) X(precise_cos, precise::cos(a)) \
    X(precise_tan, precise::tan(a)) X(precise_tanh, precise::tanh(a)) X(precise_sqrt, precise::sqrt(a)) X(precise_rsqrt, precise::rsqrt(a)) \
    X(precise_pow, precise::pow(a, b)) X(precise_powr, precise::powr(a, b)) X(precise_fmin, precise::fmin(a, b)) X(precise_fmax, precise::fmax(a, b)) \
    X(precise_min, precise::min(a, b)) X(precise_max, precise::max(a, b)) X(precise_clamp, precise::clamp(a, -1.5f, 2.25f)) \
    X(fast_exp, fast::exp(a)) X(fast_exp2, fast::exp2(a)) X(fast_exp10, fast::exp10(a)) X(fast_log, fast::log(a)) X(fast_log2, fast::log2(a)) \
    X(fast_log10, fast::log10(a)) X(fast_sin, fast::sin(a)) X(fast_cos, fast::cos(a)) X(fast_tan, fast::tan(a)) X(fast_tanh, fast::tanh(a)) \
    X(fast_sqrt, fast::sqrt(a)) X(fast_rsqrt, fast::rsqrt(a)) X(fast_pow, fast::pow(a, b)) X(fast_powr, fast::powr(a, b)) \
    X(fast_fmin, fast::fmin(a, b)) X(fast_fmax, fast::fmax(a, b)) X(fast_min, fast::min(a, b)) X(fast_max, fast::max(a, b)) \
    X(fast_clamp, fast::clamp(a, -1.5f, 2.25f))
// int, uint and ushort
#define INTEGER_OPS(X) \
    X(int_popcount, popcount(a)) X(int_clz, clz(a)) X(int_ctz, ctz(a)) X(int_reverse_bits, reverse_bits(a)) X(int_rotate, rotate(a, b)) \
    X(int_mulhi, mulhi(a, b)) X(int_min, T(min(a, b))) X(int_max, T(max(a, b))) X(int_clamp, clamp(a, T(3), T(1000))) \
    X(int_absdiff, T(absdiff(a, b))) X(int_extract_bits, extract_bits(a, 5u, 7u)) X(int_insert_bits, insert_bits(a, b, 5u, 7u)) \
    X(int_extract_all, extract_bits(a, 0u, uint(sizeof(T) * 8))) X(int_extract_none, extract_bits(a, 3u, 0u)) X(int_select, select(a, b, c > T(0)))
// a simdgroup, values of any exchangeable type; `lane` is the thread's own
#define LANE_OPS(X) \
    X(sum, simd_sum(v)) X(product, simd_product(v)) X(min_, simd_min(v)) X(max_, simd_max(v)) \
    X(inclusive_sum, simd_prefix_inclusive_sum(v)) X(exclusive_sum, simd_prefix_exclusive_sum(v)) \
    X(inclusive_product, simd_prefix_inclusive_product(v)) X(exclusive_product, simd_prefix_exclusive_product(v)) \
    X(broadcast, simd_broadcast(v, 3)) X(broadcast_first, simd_broadcast_first(v)) \
    X(quad_sum_, quad_sum(v)) X(quad_product_, quad_product(v)) X(quad_min_, quad_min(v)) X(quad_max_, quad_max(v))
// these read lanes that must be there: whole simdgroups only
#define SHUFFLE_OPS(X) \
    X(shuffle, simd_shuffle(v, ushort(lane * 7 % 32))) X(shuffle_xor, simd_shuffle_xor(v, 21)) \
    X(shuffle_up, simd_shuffle_up(v, 5)) X(shuffle_down, simd_shuffle_down(v, 5)) X(shuffle_up_none, simd_shuffle_up(v, 0)) \
    X(rotate_up, simd_shuffle_rotate_up(v, 9)) X(rotate_down, simd_shuffle_rotate_down(v, 9)) \
    X(fill_up, simd_shuffle_and_fill_up(v, w, 6)) X(fill_down, simd_shuffle_and_fill_down(v, w, 6)) \
    X(quad_shuffle_, quad_shuffle(v, ushort(3 - lane % 4))) X(quad_xor_, quad_shuffle_xor(v, 2)) X(quad_broadcast_, quad_broadcast(v, 1)) \
    X(quad_up, quad_shuffle_up(v, 1)) X(quad_down, quad_shuffle_down(v, 2))
#define BIT_OPS(X) \
    X(and_, simd_and(v)) X(or_, simd_or(v)) X(xor_, simd_xor(v)) X(quad_and_, quad_and(v)) X(quad_or_, quad_or(v)) X(quad_xor_all, quad_xor(v))

#define NAMED(name, expression) OP_##name,
enum Op { MATH_OPS(NAMED) FLOAT_OPS(NAMED) INTEGER_OPS(NAMED) LANE_OPS(NAMED) SHUFFLE_OPS(NAMED) BIT_OPS(NAMED) OP_COUNT };
#undef NAMED
