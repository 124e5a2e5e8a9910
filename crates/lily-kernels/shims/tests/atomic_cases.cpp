// References of atomics.metal. What depends on the order of threads is not compared.
#include "cases.h"

#include <metal_stdlib>
#include "atomics.metal"
#include "atomics_entries.inc"
#include "host.h"

namespace shims {

using Values = std::vector<double>;

void atomic_cases(std::vector<Case>& out) {
    std::mt19937 rng(9);
    const uint threads = 96, groups = 4;
    std::vector<int> x;
    for (uint i = 0; i < 380; ++i) x.push_back(int(rng()) >> rng() % 24);
    uint32_t s[7] = {5, 5, 0xffffffff, 0, 7, 0, 0}, u[7] = {5, 5, 0xffffffff, 0, 7, 0xffffffff, 0};
    const Values s0 = {5, 5, -1, 0, 7, 0, 0}, u0(u, u + 7);
    for (int v : x) {
        for (uint32_t* w : {s, u}) {
            w[0] += uint32_t(v); w[1] -= uint32_t(v); w[2] &= uint32_t(v) | 0x1f00; w[3] |= uint32_t(v) & 0x0ff0; w[4] ^= uint32_t(v);
        }
        s[5] = uint32_t(std::min(int(s[5]), v)); s[6] = uint32_t(std::max(int(s[6]), v));
        u[5] = std::min(u[5], uint32_t(v)); u[6] = std::max(u[6], uint32_t(v));
    }
    Values signed_want;
    for (uint32_t w : s) signed_want.push_back(int(w));
    out.push_back({"atomic functions", "atomic_functions", atomic_functions__entry, {groups}, {threads},
                   {input(Type::i32, Values(x.begin(), x.end())), changed(Type::i32, s0, signed_want), changed(Type::u32, u0, Values(u, u + 7)), argument(AtomicArgs{uint(x.size())})}, {}, ""});

    const uint all = groups * threads;
    out.push_back({"tickets, load, store, exchange", "tickets", tickets__entry, {groups}, {threads},
                   {changed(Type::u32, {0}, {double(all)}), changed(Type::u32, Values(all, 0.0), Values(all, 1.0)), changed(Type::u32, {0}, {42})}, {}, ""});

    uint32_t y = 2;
    for (uint i = 0; i < all; ++i) y = y * 3 + 1;
    out.push_back({"compare-and-exchange loop", "exchange_loop", exchange_loop__entry, {groups}, {threads}, {changed(Type::u32, {2}, {double(y)})}, {}, ""});

    for (uint count : {1u, 31u, 500u}) {
        Values keys, sorted, counts(16, 0.0), starts(16, 0.0);
        for (uint i = 0; i < count; ++i) keys.push_back(rng() % 5 ? rng() % 16 : 3);   // key 3 is crowded, others may be empty
        for (double k : keys) ++counts[size_t(k)];
        for (int k = 1; k < 16; ++k) starts[k] = starts[k - 1] + counts[k - 1];
        sorted = keys;
        std::sort(sorted.begin(), sorted.end());
        out.push_back({"counting sort of " + std::to_string(count), "histogram_sort", histogram_sort__entry, {1}, {128},
                       {input(Type::u32, keys), output(Type::u32, counts), output(Type::u32, starts), output(Type::u32, sorted), argument(AtomicArgs{count})}, {}, ""});
    }

    Values parts, partial(8, 0.0);
    double total = 0;
    for (uint i = 0; i < 8 * 32; ++i) { parts.push_back(rng() % 1000); partial[i / 32] += parts[i]; total += parts[i]; }
    out.push_back({"the last threadgroup sums", "last_group_sums", last_group_sums__entry, {8}, {32},
                   {input(Type::u32, parts), output(Type::u32, partial), changed(Type::u32, {0}, {8}), output(Type::u32, {total})}, {}, ""});

    Values values, reversed;
    for (uint i = 0; i < 3 * 48; ++i) values.push_back(double(i) / 2);
    for (uint i = 0; i < 3 * 48; ++i) reversed.push_back(values[i / 48 * 48 + 47 - i % 48] + 48);
    out.push_back({"threadgroup parameters", "threadgroup_parameters", threadgroup_parameters__entry, {3}, {48}, {input(Type::f32, values), output(Type::f32, reversed)}, {48 * 4, 16}, ""});
}

}
