// References of simdgroups.metal: what 32 lanes give each other, for whole, partial and thinned simdgroups.
#include "cases.h"

#include <metal_stdlib>
#include "simdgroups.metal"
#include "simdgroups_entries.inc"
#include "host.h"

namespace shims {
namespace {

using Values = std::vector<double>;
const uint ALL = 0xffffffffu;

/// One simdgroup's results; `in[l]` tells whether lane l takes part. Values are wrapped to the type by `wrap`.
template <class Wrap> double lane_reference(const std::string& n, const Values& v, const Values& w, const std::vector<bool>& in, int lane, Wrap wrap) {
    auto fold = [&](int from, int to, double start, auto op) { double s = start; for (int i = from; i < to; ++i) if (in[i]) s = wrap(op(s, v[i])); return s; };
    auto add = [](double a, double b) { return a + b; };
    auto times = [](double a, double b) { return a * b; };
    auto low = [](double a, double b) { return std::min(a, b); };
    auto high = [](double a, double b) { return std::max(a, b); };
    auto bits = [&](auto op) { return [&, op](double a, double b) { return wrap(double(op(int64_t(a), int64_t(b)))); }; };
    auto both = bits([](int64_t a, int64_t b) { return a & b; });
    auto either = bits([](int64_t a, int64_t b) { return a | b; });
    auto differ = bits([](int64_t a, int64_t b) { return a ^ b; });
    const int quad = lane & ~3, first = int(std::find(in.begin(), in.end(), true) - in.begin());
    auto own_or = [&](int other, bool there) { return v[there ? other : lane]; };
    if (n == "sum") return fold(0, 32, 0, add);
    if (n == "product") return fold(0, 32, 1, times);
    if (n == "min_") return fold(0, 32, INFINITY, low);
    if (n == "max_") return fold(0, 32, -INFINITY, high);
    if (n == "inclusive_sum") return fold(0, lane + 1, 0, add);
    if (n == "exclusive_sum") return fold(0, lane, 0, add);
    if (n == "inclusive_product") return fold(0, lane + 1, 1, times);
    if (n == "exclusive_product") return fold(0, lane, 1, times);
    if (n == "broadcast") return v[3];
    if (n == "broadcast_first") return v[first];
    if (n == "quad_sum_") return fold(quad, quad + 4, 0, add);
    if (n == "quad_product_") return fold(quad, quad + 4, 1, times);
    if (n == "quad_min_") return fold(quad, quad + 4, INFINITY, low);
    if (n == "quad_max_") return fold(quad, quad + 4, -INFINITY, high);
    if (n == "and_") return fold(0, 32, wrap(-1.0), both);
    if (n == "or_") return fold(0, 32, 0, either);
    if (n == "xor_") return fold(0, 32, 0, differ);
    if (n == "quad_and_") return fold(quad, quad + 4, wrap(-1.0), both);
    if (n == "quad_or_") return fold(quad, quad + 4, 0, either);
    if (n == "quad_xor_all") return fold(quad, quad + 4, 0, differ);
    if (n == "shuffle") return v[lane * 7 % 32];
    if (n == "shuffle_xor") return v[lane ^ 21];
    if (n == "shuffle_up") return own_or(lane - 5, lane >= 5);
    if (n == "shuffle_down") return own_or(lane + 5, lane + 5 < 32);
    if (n == "shuffle_up_none") return v[lane];
    if (n == "rotate_up") return v[(lane + 32 - 9) % 32];
    if (n == "rotate_down") return v[(lane + 9) % 32];
    if (n == "fill_up") return lane < 6 ? w[32 - 6 + lane] : v[lane - 6];
    if (n == "fill_down") return lane + 6 > 31 ? w[lane + 6 - 32] : v[lane + 6];
    if (n == "quad_shuffle_") return v[quad + 3 - lane % 4];
    if (n == "quad_xor_") return v[lane ^ 2];
    if (n == "quad_broadcast_") return v[quad + 1];
    if (n == "quad_up") return lane % 4 >= 1 ? v[lane - 1] : v[lane];
    if (n == "quad_down") return lane % 4 < 2 ? v[lane + 2] : v[lane];
    fprintf(stderr, "no reference for %s\n", n.c_str());
    exit(2);
}

struct Kind { Type type; int width; const char* kernel; void (*entry)(void*); };

double wrap_to(Type t, double v) {
    if (std::isinf(v)) return v;
    switch (t) {
    case Type::i32: return double(int32_t(int64_t(v)));
    case Type::u16: return double(uint16_t(int64_t(v)));
    default: return v;
    }
}

/// Small whole numbers, and 2 and 1/2 so that lanes any power of two apart cancel: sums and products are exact in every
/// order, so the order need not be known, and no part of a product overflows a half.
double exact_value(const std::string& op, Type t, int i) {
    const bool product = op.find("product") != std::string::npos;
    if (t == Type::i32 || t == Type::u16) {
        const int v = product ? i % 5 - 2 + (i % 5 == 2) : (i * 7919) % 201 - 100;
        return t == Type::u16 ? double(uint16_t(v)) : v;
    }
    return product ? std::ldexp(i % 3 ? 1.0 : -1.0, __builtin_popcount(uint(i)) % 2 ? 1 : -1) : double((i * 37) % 29 - 14) / 4;
}

void lane_case(std::vector<Case>& out, const Kind& k, const std::string& op_name, uint op, uint keep, uint threads) {
    Values x, fill, want;
    for (uint i = 0; i < threads * k.width; ++i) {
        x.push_back(exact_value(op_name, k.type, int(i / k.width + 64 * (i % k.width))));
        fill.push_back(exact_value(op_name, k.type, int(i / k.width) + 17));
    }
    for (uint i = 0; i < threads; ++i) for (int part = 0; part < k.width; ++part) {
        if (!(keep >> i % 32 & 1)) { want.push_back(77); continue; }
        Values v(32), w(32);
        std::vector<bool> in(32);
        for (uint l = 0; l < 32; ++l) {
            const uint at = i / 32 * 32 + l;
            in[l] = at < threads && keep >> l & 1;
            if (at < threads) { v[l] = x[at * k.width + part]; w[l] = fill[at * k.width + part]; }
        }
        want.push_back(lane_reference(op_name, v, w, in, int(i % 32), [&](double r) { return wrap_to(k.type, r); }));
    }
    const std::string who = keep == ALL && threads % 32 == 0 ? "" : keep == ALL ? ", last simdgroup partial" : ", lanes returned";
    out.push_back({std::string(name(k.type)) + (k.width > 1 ? "x4 " : " ") + op_name + who, k.kernel, k.entry, {1}, {threads},
                   {input(k.type, x), input(k.type, fill), output(k.type, want), argument(LaneArgs{op, keep})}, {}, ""});
}

void vote_case(std::vector<Case>& out, const char* label, uint yes, uint keep, uint threads) {
    Values x, want;
    for (uint i = 0; i < threads; ++i) x.push_back(yes >> i % 32 & 1);
    for (uint i = 0; i < threads; ++i) {
        const uint lane = i % 32, there = threads - (i - lane) >= 32 ? ALL : (1u << (threads - (i - lane))) - 1, in = keep & there, ballot = yes & in, quad = 15u << (lane & 28);
        if (!(keep >> lane & 1)) { want.insert(want.end(), 8, 77); continue; }
        for (uint v : {ballot, in, uint(ballot == in), uint(ballot != 0), uint(uint(__builtin_ctz(in)) == lane),
                       uint((ballot & quad) == (in & quad)), uint((ballot & quad) != 0), 1u}) want.push_back(v);
    }
    out.push_back({std::string("votes, ") + label, "votes", votes__entry, {1}, {threads}, {input(Type::u32, x), output(Type::u32, want), argument(LaneArgs{0, keep})}, {}, ""});
}

void attribute_case(std::vector<Case>& out, emu::Dim3 grid, emu::Dim3 size) {
    Values want;
    const uint ax = grid.x * size.x, ay = grid.y * size.y, az = grid.z * size.z, count = size.x * size.y * size.z;
    for (uint z = 0; z < az; ++z) for (uint y = 0; y < ay; ++y) for (uint x = 0; x < ax; ++x) {
        const uint gx = x / size.x, gy = y / size.y, gz = z / size.z, index = x % size.x + size.x * (y % size.y + size.y * (z % size.z));
        for (uint v : {x, y, z, gx + grid.x * (gy + grid.y * gz), index, index, index % 32, index / 32, (count + 31) / 32, 32u, index % 4, index / 4,
                       x + y * 1000, size.x * 100 + size.y * 10 + size.z, grid.x * 100 + grid.y * 10 + grid.z}) want.push_back(v);
    }
    out.push_back({"thread attributes", "attributes", attributes__entry, grid, size, {output(Type::u32, want)}, {}, ""});
}

}

void lane_cases(std::vector<Case>& out) {
    const Kind kinds[] = {{Type::i32, 1, "lanes_i32", lanes_i32__entry}, {Type::u16, 1, "lanes_u16", lanes_u16__entry}, {Type::f32, 1, "lanes_f32", lanes_f32__entry},
                          {Type::f16, 1, "lanes_f16", lanes_f16__entry}, {Type::f32, 4, "lanes_f32x4", lanes_f32x4__entry}};
    for (const Kind& k : kinds) {
        uint op = OP_sum;
        // Lanes 1, 6 and 8 to 11 (a whole quad) return; lane 3 stays, since broadcast reads it. Of 48 threads the last simdgroup has 16.
#define NAMED(label, expression) \
        lane_case(out, k, #label, op, ALL, 64); lane_case(out, k, #label, op, 0xfffff0bdu, 64); lane_case(out, k, #label, op, ALL, 48); ++op;
        LANE_OPS(NAMED)
#undef NAMED
#define NAMED(label, expression) lane_case(out, k, #label, op, ALL, 64); ++op;
        SHUFFLE_OPS(NAMED)
#undef NAMED
#define NAMED(label, expression) \
        if (k.type == Type::i32 || k.type == Type::u16) { lane_case(out, k, #label, op, ALL, 64); lane_case(out, k, #label, op, 0xfffff0bdu, 64); lane_case(out, k, #label, op, ALL, 48); } ++op;
        BIT_OPS(NAMED)
#undef NAMED
    }
    vote_case(out, "mixed", 0xdeadbeefu, ALL, 64);
    vote_case(out, "none", 0, ALL, 64);
    vote_case(out, "all", ALL, ALL, 64);
    vote_case(out, "lanes returned", 0xf00ff00fu, 0xff0ffff6u, 64);
    vote_case(out, "all that remain", 0xff0ffff6u, 0xff0ffff6u, 64);
    vote_case(out, "last simdgroup partial", 0x0000ff7fu, ALL, 48);
    Values handed;
    for (uint i = 0; i < 64; ++i) handed.push_back((i / 32 * 32 + (i % 32 + 1) % 32) * 3);
    out.push_back({"simdgroup_barrier hands over", "simdgroup_handoff", simdgroup_handoff__entry, {1}, {64}, {output(Type::u32, handed)}, {}, ""});
    attribute_case(out, {3, 2, 2}, {5, 4, 2});
    attribute_case(out, {2}, {96});
}

}
