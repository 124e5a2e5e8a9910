// References of tile.metal. Compiled once for each body of the tile interface that Metal has: with TILE_MPP, tensor operations.
#include "cases.h"

#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
#ifdef TILE_MPP
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#define BODY(name) tile_mpp_##name
#define FAULT "tile_mpp_barrier"
#else
#define BODY(name) tile_##name
#define FAULT "tile_barrier"
#endif
// The two bodies define the same names.
namespace BODY(body) {
#include "tile.metal"
#include "tile_entries.inc"
#include "host.h"
}

namespace shims {

using Values = std::vector<double>;

static void product(std::vector<Case>& out, uint m, uint n, uint k) {
    std::mt19937 rng(2);
    auto uniform = [&](size_t count, double low, double high) {
        Values v(count);
        for (double& x : v) x = rounded(Type::bf16, std::uniform_real_distribution<double>(low, high)(rng));
        return v;
    };
    Values words(size_t(n) * k / 8), weights(size_t(n) * k), want;
    for (double& w : words) w = uint32_t(rng());
    const Values a = uniform(m * k, -1, 1), s = uniform(n * k / 64, 0.01, 0.1), b = uniform(n * k / 64, -0.8, 0.1);
    for (size_t i = 0; i < weights.size(); ++i) {
        const float q = float(uint32_t(words[i / 8]) >> 4 * (i % 8) & 15);
        weights[i] = rounded(Type::bf16, double(std::fma(q, float(s[i / 64]), float(b[i / 64]))));   // exact in float: 4 and 8 bits
    }
    for (uint i = 0; i < m; ++i) for (uint j = 0; j < n; ++j) {
        double sum = 0;
        for (uint q = 0; q < k; ++q) sum += a[i * k + q] * weights[j * k + q];
        want.push_back(sum);
    }
#ifdef TILE_MPP
    const std::string label = "tile product by tensor operations ", only = "emulator";
#else
    const std::string label = "tile product ", only = "";
#endif
    // Half a unit of bf16 in one weight (values up to 2) may differ where q * s + b is contracted or not.
    out.push_back({label + std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k), "gemm_q4_bf16", BODY(body)::gemm_q4_bf16__entry, {n / 32, m / 32}, {64},
                   {input(Type::bf16, a), input(Type::u32, words), input(Type::bf16, s), input(Type::bf16, b),
                    output(Type::f32, want, Check::absolute, k * 0x1p-20 + 0x1p-8), argument(BODY(body)::GemmQ4Args{m, n, k})}, {}, only});
}

void BODY(cases)(std::vector<Case>& out, bool full) {
    product(out, 32, 64, 128);
    if (full) product(out, 64, 128, 256);
}

void BODY(fault_cases)(std::vector<Case>& out) {
    out.push_back({FAULT, "", BODY(body)::fault_tile_barrier__entry, {1}, {64}, {input(Type::bf16, Values(512, 1.0)), output(Type::f32, Values(1024, 16.0))}, {}, ""});
}

}
