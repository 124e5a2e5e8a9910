// References of vectors.metal, lane by lane.
#include "cases.h"

#include <metal_stdlib>
#include "vectors.metal"
#include "vectors_entries.inc"
#include "host.h"

namespace shims {
namespace {

using Values = std::vector<double>;
using Four = std::array<double, 4>;

void add(Values& out, Type t, Four v) { for (double x : v) out.push_back(rounded(t, x)); }
template <class F> Four each(F f) { return {double(f(0)), double(f(1)), double(f(2)), double(f(3))}; }

void floats(std::vector<Case>& out) {
    std::mt19937 rng(3);
    Values a, b, want;
    for (int i = 0; i < 32 * 4; ++i) { a.push_back((int(rng() % 81) - 40) / 8.0); b.push_back((int(rng() % 81) - 40) / 8.0); }
    for (int i = 0; i < 4; ++i) { a[i] = b[i]; a[4 + i] = b[4 + i] + 1; }   // all equal; all greater
    const double weights[] = {0.5, 1.5, -2, 4};
    for (int i = 0; i < 32; ++i) {
        const double *p = &a[i * 4], *q = &b[i * 4];
        auto four = [&](Four v) { add(want, Type::f32, v); };
        auto dot = [](const double* x, const double* y, int n) { double s = 0; for (int k = 0; k < n; ++k) s += x[k] * y[k]; return s; };
        four(each([&](int k) { return p[k] + q[k] * 2; }));
        four({p[0] - 1, p[1] - 1, q[2] - 1, q[3] - 1});
        four({p[0], p[1], p[2], q[0]});
        four({q[3], p[1], p[2], 7});
        four({dot(p, q, 4), dot(p, q, 3), std::sqrt(dot(p, p, 4)), dot(p, p, 2)});
        four(each([&](int k) { return p[k] < q[k] ? q[k] : p[k]; }));
        bool some = false, every = true;
        for (int k = 0; k < 4; ++k) { some |= p[k] > q[k]; every &= p[k] > q[k]; }
        four({1, double(some), double(every), 0});
        four(each([&](int k) { return p[k] * q[k] + 0.5; }));
        four(each([&](int k) { return std::max(std::min(p[k], q[k]), -1.0); }));
        four({p[0] * q[2] - 1, p[1] * q[3] - 1, p[0] / 2, p[0] / 2});
        four({q[2], q[3], q[1], p[3] + 1});
        four({p[0] * 2, p[1] * 3, p[2] * 4, 16});
        four(each([&](int k) { return std::abs(std::floor(p[k])) + double(std::sqrt(float(std::abs(q[k])))); }));
        four(each([&](int k) { return weights[(i + k) % 4]; }));
        four(each([&](int k) { return -p[k] / (2 << k); }));
        four(each([&](int k) { return p[k] + q[k]; }));
    }
    // Inputs are eighths: only the square roots round.
    out.push_back({"float4 and its parts", "vectors_f32", vectors_f32__entry, {1}, {32}, {input(Type::f32, a), input(Type::f32, b), output(Type::f32, want, Check::relative, 2 * 0x1p-23)}, {}, ""});
}

void integers(std::vector<Case>& out) {
    std::mt19937 rng(4);
    Values a, b, want;
    for (int i = 0; i < 32 * 4; ++i) { a.push_back(int(rng() % 4001) - 2000); b.push_back(i % 5 ? int(rng() % 4001) - 2000 : a[i]); }
    for (int i = 0; i < 32; ++i) {
        int p[4], q[4];
        for (int k = 0; k < 4; ++k) { p[k] = int(a[i * 4 + k]); q[k] = int(b[i * 4 + k]); }
        auto four = [&](Four v) { add(want, Type::i32, v); };
        four(each([&](int k) { return (p[k] & q[k]) | (p[k] ^ 5); }));
        four(each([&](int k) { return (p[k] >> 3) + q[k] * 4; }));
        four(each([&](int k) { return std::min(p[k], q[k]) - std::max(p[k], q[k]); }));
        four(each([&](int k) { return std::min(std::max(p[k], -9), 9); }));
        four(each([&](int k) { return std::abs(p[k]) % 7 + ~q[k]; }));
        four(each([&](int k) { return __builtin_popcount(p[k]) + (q[k] ? __builtin_clz(q[k]) : 32) * 100; }));
        four(each([&](int k) { return (p[k] == q[k] ? q[k] : p[k]) + (p[k] ? __builtin_ctz(p[k]) : 32); }));
        four(each([&](int k) { return double(int(uint32_t(int32_t(int16_t(p[k]))) >> 4)); }));
    }
    // Shifting a negative number left is defined in Metal; the last line's uint is read as int.
    out.push_back({"int4", "vectors_i32", vectors_i32__entry, {1}, {32}, {input(Type::i32, a), input(Type::i32, b), output(Type::i32, want)}, {}, ""});
}

void packed_words(std::vector<Case>& out) {
    std::mt19937 rng(6);
    Values x, want;
    for (int i = 0; i < 32; ++i) {
        // .w holds two normal halves that are normal bfloats too.
        const uint32_t w[4] = {uint32_t(rng()), uint32_t(rng()), uint32_t(rng()), uint32_t(0x3c00 + rng() % 0x700) | uint32_t(0xbc00 + rng() % 0x700) << 16};
        for (uint32_t v : w) x.push_back(v);
        auto four = [&](Four v) { add(want, Type::f32, v); };
        four(each([&](int k) { return double(w[0] >> 8 * k & 255); }));
        four(each([&](int k) { return double(int8_t(w[1] >> 8 * k)); }));
        four({double(w[2] & 0xffff), double(w[2] >> 16), load(Type::f16, &w[3], 0), load(Type::f16, &w[3], 1)});
        four({load(Type::bf16, &w[3], 0), load(Type::bf16, &w[3], 1), double(0x3e00), 8});
        four(each([&](int k) { return double(w[0] >> 4 * k & 15); }));
    }
    out.push_back({"packed words", "packed", packed__entry, {1}, {32}, {input(Type::u32, x), output(Type::f32, want)}, {}, ""});
}

void halves(std::vector<Case>& out) {
    std::mt19937 rng(8);
    Values a, b, want;
    for (int i = 0; i < 32 * 4; ++i) { a.push_back((int(rng() % 33) - 16) / 4.0); b.push_back((int(rng() % 33) - 16) / 4.0); }
    for (int i = 0; i < 32; ++i) {
        const double *p = &a[i * 4], *q = &b[i * 4];
        auto four = [&](Four v) { add(want, Type::f16, v); };
        four(each([&](int k) { return p[k] * q[k]; }));
        const double more[] = {1, 2, p[0], p[1]};
        four(each([&](int k) { return std::max(p[k], q[k]) + more[k]; }));
        four(each([&](int k) { return p[k] * q[k] + 0.25; }));
        four({p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3], p[0], q[3], 3});
    }
    out.push_back({"half4", "vectors_f16", vectors_f16__entry, {1}, {32}, {input(Type::f16, a), input(Type::f16, b), output(Type::f16, want)}, {}, ""});
}

}

void vector_cases(std::vector<Case>& out) {
    floats(out);
    integers(out);
    packed_words(out);
    halves(out);
}

}
