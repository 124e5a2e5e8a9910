// References of examples.metal: whole kernels against double.
#include "cases.h"

#include <metal_stdlib>
#include "examples.metal"
#include "examples_entries.inc"
#include "host.h"

namespace shims {
namespace {

using Values = std::vector<double>;
std::mt19937 rng(1);
Values uniform(Type t, size_t n, double low, double high) {
    Values v(n);
    for (double& x : v) x = rounded(t, std::uniform_real_distribution<double>(low, high)(rng));
    return v;
}

template <class T> void gemv(std::vector<Case>& out, Type t, const char* kernel_name, void (*entry)(void*), uint n, uint k) {
    Values words(size_t(n) * k / 8), want;
    for (double& w : words) w = uint32_t(rng());
    const Values s = uniform(t, n * k / 64, 0.001, 0.02), b = uniform(t, n * k / 64, -0.1, 0.1), x = uniform(t, k, -1, 1);
    double scale = 0;
    for (uint r = 0; r < n; ++r) {
        double sum = 0;
        for (uint c = 0; c < k; ++c) {
            const size_t group = r * (k / 64) + c / 64;
            sum += (double(uint32_t(words[r * (k / 8) + c / 8]) >> 4 * (c % 8) & 15) * s[group] + b[group]) * x[c];
        }
        want.push_back(sum);
        scale = std::max(scale, std::abs(sum));
    }
    const uint rows = 8;   // two simdgroups of ROWS_PER_SIMD
    out.push_back({std::string(kernel_name) + " " + std::to_string(n) + "x" + std::to_string(k), kernel_name, entry, {(n + rows - 1) / rows}, {64},
                   {input(Type::u32, words), input(t, s), input(t, b), input(t, x), output(t, want, Check::absolute, ulp(t, scale)), argument(GemvArgs{n, k})}, {}, ""});
}

void norm(std::vector<Case>& out, uint rows, uint width) {
    const Values x = uniform(Type::f16, rows * width, -2, 2), w = uniform(Type::f16, width, 0.5, 1.5), r = uniform(Type::f16, rows * width, -1, 1);
    Values want;
    for (uint i = 0; i < rows; ++i) {
        double sum = 0;
        for (uint c = 0; c < width; ++c) sum += x[i * width + c] * x[i * width + c];
        for (uint c = 0; c < width; ++c) want.push_back(x[i * width + c] / std::sqrt(sum / width + 1e-5) * w[c] + r[i * width + c]);
    }
    out.push_back({"rms_norm_f16 " + std::to_string(rows) + "x" + std::to_string(width), "rms_norm_f16", rms_norm_f16__entry, {rows}, {128},
                   {input(Type::f16, x), input(Type::f16, w), input(Type::f16, r), output(Type::f16, want, Check::absolute, ulp(Type::f16, 4)), argument(NormArgs{width, 1e-5f})}, {}, ""});
}

void gemm(std::vector<Case>& out, uint m, uint n, uint k) {
    const Values a = uniform(Type::f16, m * k, -1, 1), b = uniform(Type::f16, n * k, -1, 1);
    Values want;
    for (uint i = 0; i < m; ++i) for (uint j = 0; j < n; ++j) {
        double s = 0;
        for (uint q = 0; q < k; ++q) s += a[i * k + q] * b[j * k + q];
        want.push_back(s);
    }
    out.push_back({"gemm_nt_f16 " + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k), "gemm_nt_f16", gemm_nt_f16__entry, {n / 32, m / 32}, {128},
                   {input(Type::f16, a), input(Type::f16, b), output(Type::f32, want, Check::absolute, 4 * k * 0x1p-24), argument(GemmArgs{m, n, k})}, {}, ""});
}

}

void example_cases(std::vector<Case>& out, bool full) {
    ROWS_PER_SIMD = 4;
    HAS_RESIDUAL = true;
    gemv<half>(out, Type::f16, "gemv_q4_f16", gemv_q4_f16__entry, 29, 512);
    gemv<bfloat>(out, Type::bf16, "gemv_q4_bf16", gemv_q4_bf16__entry, 24, 256);
    norm(out, 3, 500);
    gemm(out, 32, 64, 64);
    if (full) gemv<bfloat>(out, Type::bf16, "gemv_q4_bf16", gemv_q4_bf16__entry, 509, 1024);
}

}
