// References of math.metal, in double; accuracies are those that Metal's specification promises without fast math.
#include "cases.h"

#include <random>

#include <metal_stdlib>
#include "math.metal"
#include "math_entries.inc"
#include "host.h"

namespace shims {
namespace {

using F = std::function<double(double, double, double)>;
/// Where a function is tried: see `values`.
enum class Over { reals, small, positive, angles, quick_angles, unit, tanh_range, pairs, powers, any_pair };
/// `ulps` of float, `half_ulps` of half; with `absolute` above zero that many units instead.
struct Reference { const char* name; F f; Over over; double ulps, half_ulps, absolute; };

double ties_even(double x) { return std::nearbyint(x); }
double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

const std::vector<Reference> REFERENCES = {
    {"exp", [](double a, double, double) { return std::exp(a); }, Over::small, 4, 1, 0},
    {"exp2", [](double a, double, double) { return std::exp2(a); }, Over::small, 4, 1, 0},
    {"exp10", [](double a, double, double) { return std::pow(10.0, a); }, Over::small, 4, 1, 0},
    {"log", [](double a, double, double) { return std::log(a); }, Over::positive, 4, 1, 0},
    {"log2", [](double a, double, double) { return std::log2(a); }, Over::positive, 4, 1, 0},
    {"log10", [](double a, double, double) { return std::log10(a); }, Over::positive, 4, 1, 0},
    {"sin", [](double a, double, double) { return std::sin(a); }, Over::angles, 4, 1, 0},
    {"cos", [](double a, double, double) { return std::cos(a); }, Over::angles, 4, 1, 0},
    {"tan", [](double a, double, double) { return std::tan(a); }, Over::angles, 6, 1, 0},
    {"asin", [](double a, double, double) { return std::asin(a); }, Over::unit, 5, 1, 0},
    {"acos", [](double a, double, double) { return std::acos(a); }, Over::unit, 5, 1, 0},
    {"atan", [](double a, double, double) { return std::atan(a); }, Over::reals, 5, 1, 0},
    {"sinh", [](double a, double, double) { return std::sinh(a); }, Over::small, 4, 1, 0},
    {"cosh", [](double a, double, double) { return std::cosh(a); }, Over::small, 4, 1, 0},
    {"tanh", [](double a, double, double) { return std::tanh(a); }, Over::tanh_range, 5, 1, 0},
    {"sqrt", [](double a, double, double) { return std::sqrt(a); }, Over::positive, 0.5, 1, 0},
    {"rsqrt", [](double a, double, double) { return 1 / std::sqrt(a); }, Over::positive, 2, 1, 0},
    {"floor", [](double a, double, double) { return std::floor(a); }, Over::reals, 0, 0, 0},
    {"ceil", [](double a, double, double) { return std::ceil(a); }, Over::reals, 0, 0, 0},
    {"trunc", [](double a, double, double) { return std::trunc(a); }, Over::reals, 0, 0, 0},
    {"rint", [](double a, double, double) { return ties_even(a); }, Over::reals, 0, 0, 0},
    {"round", [](double a, double, double) { return std::round(a); }, Over::reals, 0, 0, 0},
    {"fract", [](double a, double, double) { return a - std::floor(a); }, Over::unit, 0.5, 0.5, 0},
    {"fabs", [](double a, double, double) { return std::abs(a); }, Over::any_pair, 0, 0, 0},
    {"abs", [](double a, double, double) { return std::abs(a); }, Over::any_pair, 0, 0, 0},
    {"sign", [](double a, double, double) { return std::isnan(a) ? 0 : sign_of(a); }, Over::any_pair, 0, 0, 0},
    {"saturate", [](double a, double, double) { return std::fmin(std::fmax(a, 0.0), 1.0); }, Over::reals, 0, 0, 0},
    {"pow", [](double a, double b, double) { return std::pow(a, b); }, Over::powers, 16, 1, 0},
    {"powr", [](double a, double b, double) { return std::pow(a, b); }, Over::powers, 16, 1, 0},
    {"atan2", [](double a, double b, double) { return std::atan2(a, b); }, Over::pairs, 6, 1, 0},
    {"fmod", [](double a, double b, double) { return std::fmod(a, b); }, Over::pairs, 0, 0, 0},
    {"copysign", [](double a, double b, double) { return std::copysign(a, b); }, Over::pairs, 0, 0, 0},
    {"fmin", [](double a, double b, double) { return std::fmin(a, b); }, Over::any_pair, 0, 0, 0},
    {"fmax", [](double a, double b, double) { return std::fmax(a, b); }, Over::any_pair, 0, 0, 0},
    {"min", [](double a, double b, double) { return std::fmin(a, b); }, Over::any_pair, 0, 0, 0},
    {"max", [](double a, double b, double) { return std::fmax(a, b); }, Over::any_pair, 0, 0, 0},
    {"step", [](double a, double b, double) { return b < a ? 0.0 : 1.0; }, Over::pairs, 0, 0, 0},
    {"fma", [](double a, double b, double c) { return std::fma(a, b, c); }, Over::pairs, 0.5, 0.5, 0},
    {"clamp", [](double a, double, double) { return std::fmin(std::fmax(a, -1.5), 2.25); }, Over::pairs, 0, 0, 0},
    {"mix", [](double a, double b, double c) { return a + (b - a) * c; }, Over::pairs, 0, 0, 6},
    {"ldexp", [](double a, double, double) { return std::ldexp(a, 3); }, Over::reals, 0, 0, 0},
    {"select", [](double a, double b, double c) { return c > 0 ? b : a; }, Over::any_pair, 0, 0, 0},
};
/// Of fast:: Metal promises little; these bounds are what the emulator and CUDA's quick forms both keep on small arguments.
const std::vector<Reference> FAST = {
    {"exp", nullptr, Over::tanh_range, 24, 0, 0}, {"exp2", nullptr, Over::tanh_range, 8, 0, 0}, {"exp10", nullptr, Over::tanh_range, 64, 0, 0},
    {"log", nullptr, Over::positive, 0, 0, 2e-5}, {"log2", nullptr, Over::positive, 0, 0, 2e-5}, {"log10", nullptr, Over::positive, 0, 0, 2e-5},
    {"sin", nullptr, Over::quick_angles, 0, 0, 2e-6}, {"cos", nullptr, Over::quick_angles, 0, 0, 2e-6}, {"tan", nullptr, Over::unit, 0, 0, 2e-5},
    {"tanh", nullptr, Over::tanh_range, 0, 0, 2e-3}, {"sqrt", nullptr, Over::positive, 4, 0, 0}, {"rsqrt", nullptr, Over::positive, 4, 0, 0},
    {"pow", nullptr, Over::powers, 512, 0, 0}, {"powr", nullptr, Over::powers, 512, 0, 0},
    {"fmin", nullptr, Over::pairs, 0, 0, 0}, {"fmax", nullptr, Over::pairs, 0, 0, 0}, {"min", nullptr, Over::pairs, 0, 0, 0},
    {"max", nullptr, Over::pairs, 0, 0, 0}, {"clamp", nullptr, Over::pairs, 0, 0, 0},
};

const double INF = INFINITY;
using Values = std::vector<double>;

/// First, second, third arguments of a range: its edges first, then random ones.
std::array<Values, 3> values(Over over, bool half_type) {
    std::mt19937 rng(7);
    auto uniform = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(rng); };
    Values a, b, c;
    double low = -1, high = 1;
    switch (over) {
    case Over::reals: a = {0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, 1000.5, -1001.5, 65504, -65504}; low = -3000; high = 3000; break;
    case Over::small: a = {0.0, 1, -1, 5, -5, -9, 4.5, INF, -INF, NAN, half_type ? 20.0 : 200.0, half_type ? -30.0 : -300.0}; low = half_type ? -4 : -30; high = half_type ? 4 : 30; break;
    case Over::positive: a = {1, 0.99999994, 1.0000001, 0.0, INF, NAN, 2, 4, 10, 1000, 0.001, 65504, -1}; low = 0.0001; high = 5000; break;
    case Over::angles:
        a = {0.0, 1e-3, 3.14159265, -3.14159265, 1.57079633, 6.2831855, 100, 1e4, half_type ? 65504 : 2.6e5, half_type ? -60000 : -2.6e5, half_type ? 333 : 262143.9, INF, NAN};
        low = half_type ? -60000 : -2.6e5; high = -low; break;
    case Over::quick_angles: a = {0.0, 1e-3, 3.1, -3.1, 1.57}; low = -3.14; high = 3.14; break;
    case Over::unit: a = {0.0, 1, -1, 0.5, -0.5, 1e-3, 0.99}; break;
    case Over::tanh_range: a = {0.0, 1e-3, -1e-3, 8, -8, 4, -4}; low = -8; high = 8; break;
    case Over::pairs: a = {1, -1, 3.5, -3.5, 7, 100}; b = {2, 2, -1.25, -1.25, 7, 3}; c = {0.5, 0.25, 1, 2, -3, 0}; low = -50; high = 50; break;
    case Over::powers: a = {1, 2, 4, 9, 0.5, 10}; b = {0.0, 10, 0.5, -0.5, 3, half_type ? 2.0 : 9.0}; low = 0.25; high = half_type ? 8 : 20; break;
    case Over::any_pair: a = {NAN, 1, NAN, INF, -INF, 1, -2, 5}; b = {1, NAN, NAN, 2, 2, INF, -INF, 5}; c = {1, -1, 1, -1, 1, -1, 1, -1}; low = -50; high = 50; break;
    }
    const size_t random = over == Over::angles ? 400 : 83;
    const Type t = half_type ? Type::f16 : Type::f32;
    while (b.size() < a.size()) b.push_back(1);
    while (c.size() < a.size()) c.push_back(1);
    for (size_t i = 0; i < random; ++i) {
        a.push_back(uniform(low, high));
        b.push_back(over == Over::powers ? uniform(-3, 3) : uniform(-50, 50));
        c.push_back(uniform(-2, 2));
    }
    for (Values* v : {&a, &b, &c}) for (double& x : *v) x = rounded(t, x);
    return {a, b, c};
}

bool takes_two(const char* n) { return !strcmp(n, "atan2") || !strcmp(n, "fmod"); }

Case math_case(const std::string& name, uint op, const Reference& r, const F& f, bool half_type) {
    auto [a, b, c] = values(r.over, half_type);
    const Type t = half_type ? Type::f16 : Type::f32;
    if (takes_two(r.name)) for (double& x : b) if (x == 0) x = 1;
    // fast:: promises nothing on edges: no infinity, no NaN, no zero under a logarithm.
    if (name.find("fast") != std::string::npos) for (size_t i = 0; i < a.size(); ++i) if (!std::isfinite(a[i]) || (r.over == Over::positive && a[i] <= 0)) a[i] = 1;
    Values want;
    for (size_t i = 0; i < a.size(); ++i) want.push_back(f(a[i], b[i], c[i]));
    const double ulps = half_type ? r.half_ulps : r.ulps, digits = half_type ? 0x1p-10 : 0x1p-23;
    Buffer y;
    if (r.absolute) y = output(t, want, Check::absolute, r.absolute > 1 ? r.absolute * 100 * digits : r.absolute);
    else if (ulps == 0 || ulps == 0.5) { for (double& w : want) w = rounded(t, w); y = output(t, want); }
    else {
        // A result beyond the type is its infinity.
        for (double& w : want) if (std::isinf(rounded(t, w))) w = rounded(t, w);
        y = output(t, want, Check::relative, ulps * digits);
    }
    const uint count = uint(a.size());
    return {name, half_type ? "math_f16" : "math_f32", half_type ? math_f16__entry : math_f32__entry, {(count + 63) / 64}, {64},
            {input(t, a), input(t, b), input(t, c), y, argument(MathArgs{op, count})}, {}, ""};
}

void real_cases(std::vector<Case>& out) {
    uint op = 0;
    auto reference = [](const std::vector<Reference>& list, const std::string& n) -> const Reference* {
        for (const Reference& r : list) if (n == r.name) return &r;
        return nullptr;
    };
    std::vector<std::string> names;
#define NAMED(label, expression) names.push_back(#label);
    MATH_OPS(NAMED) const size_t both = names.size(); FLOAT_OPS(NAMED)
#undef NAMED
    for (const std::string& n : names) {
        const bool fast = n.starts_with("fast_"), precise = n.starts_with("precise_");
        const std::string plain = fast ? n.substr(5) : precise ? n.substr(8) : n;
        const Reference *exact = reference(REFERENCES, plain), *bound = fast ? reference(FAST, plain) : exact;
        if (!exact || !bound) { fprintf(stderr, "no reference for %s\n", n.c_str()); exit(2); }
        out.push_back(math_case("f32 " + n, op, *bound, exact->f, false));
        if (op < both) out.push_back(math_case("f16 " + n, op, *exact, exact->f, true));
        ++op;
    }
}

// ---- integers ------------------------------------------------------------------------------------
template <class T> double integer_reference(const std::string& n, T a, T b, T c) {
    constexpr int width = sizeof(T) * 8;
    auto bit = [](T x, int i) { return uint64_t(x) >> i & 1; };
    auto cut = [&](int offset, int count) {
        int64_t v = 0;
        for (int i = 0; i < count; ++i) v |= int64_t(bit(a, offset + i)) << i;
        if (std::is_signed_v<T> && count && v >> (count - 1) & 1) v -= int64_t(1) << count;
        return double(T(v));
    };
    uint64_t r = 0;
    int n0 = 0;
    if (n == "int_popcount") { for (int i = 0; i < width; ++i) n0 += int(bit(a, i)); return n0; }
    if (n == "int_clz") { while (n0 < width && !bit(a, width - 1 - n0)) ++n0; return n0; }
    if (n == "int_ctz") { while (n0 < width && !bit(a, n0)) ++n0; return n0; }
    if (n == "int_reverse_bits") { for (int i = 0; i < width; ++i) r |= bit(a, i) << (width - 1 - i); return double(T(r)); }
    if (n == "int_rotate") { for (int i = 0; i < width; ++i) r |= bit(a, i) << ((i + int(uint64_t(b) & (width - 1))) % width); return double(T(r)); }
    if (n == "int_mulhi") return double(T((std::is_signed_v<T> ? int64_t(a) * int64_t(b) : int64_t(uint64_t(a) * uint64_t(b))) >> width));
    if (n == "int_min") return double(std::min(a, b));
    if (n == "int_max") return double(std::max(a, b));
    if (n == "int_clamp") return double(std::min(std::max(a, T(3)), T(1000)));
    if (n == "int_absdiff") return double(T(a > b ? int64_t(a) - int64_t(b) : int64_t(b) - int64_t(a)));
    if (n == "int_extract_bits") return cut(5, 7);
    if (n == "int_extract_all") return cut(0, width);
    if (n == "int_extract_none") return 0;
    if (n == "int_insert_bits") { for (int i = 0; i < width; ++i) r |= (i >= 5 && i < 12 ? bit(b, i - 5) : bit(a, i)) << i; return double(T(r)); }
    if (n == "int_select") return double(c > 0 ? b : a);
    fprintf(stderr, "no reference for %s\n", n.c_str());
    exit(2);
}

template <class T> void integer_cases(std::vector<Case>& out, Type t, const char* kernel_name, void (*entry)(void*)) {
    std::mt19937 rng(11);
    std::vector<T> a = {T(0), T(1), T(-1), T(2), T(0x8000), T(0x80000000u), T(0x7fffffff), T(12345), T(1 << 5), T(-7)}, b = a, c;
    std::reverse(b.begin(), b.end());
    for (int i = 0; i < 90; ++i) { a.push_back(T(rng() >> rng() % 32)); b.push_back(T(rng() >> rng() % 32)); }
    for (size_t i = 0; i < a.size(); ++i) c.push_back(T(i % 3 == 0 ? 0 : i));
    uint op = OP_int_popcount;
    auto as_double = [](const std::vector<T>& v) { return Values(v.begin(), v.end()); };
#define NAMED(label, expression) { \
        Values want; \
        for (size_t i = 0; i < a.size(); ++i) want.push_back(integer_reference<T>(#label, a[i], b[i], c[i])); \
        out.push_back({std::string(shims::name(t)) + " " #label, kernel_name, entry, {2}, {64}, \
                       {input(t, as_double(a)), input(t, as_double(b)), input(t, as_double(c)), output(t, want), argument(MathArgs{op++, uint(a.size())})}, {}, ""}); }
    INTEGER_OPS(NAMED)
#undef NAMED
}

// ---- rounding, conversion, classes -----------------------------------------------------------------
void arithmetic_cases(std::vector<Case>& out, Type t) {
    // One unit above 1, half of it, and neighbours: ties in both directions; sums that lose all of b; overflow; infinities.
    const double e = t == Type::f16 ? 0x1p-10 : 0x1p-7, big = t == Type::f16 ? 65504 : 3.3895313892515355e38;
    Values a = {1, 1 + e, 1 + 2 * e, 1, 1 + e, 2 / e, big, big, -big, 0.0, INF, INF, NAN, 3, -5, 0.1};
    Values b = {e / 2, e / 2, e / 2, e * 0.75, -e / 2, 1, big, e, -big, -0.0, 1, -INF, 1, 7, 3, 0.3};
    std::mt19937 rng(5);
    for (int i = 0; i < 84; ++i) {
        a.push_back(std::uniform_real_distribution<double>(-9, 9)(rng));
        b.push_back(std::ldexp(std::uniform_real_distribution<double>(0.5, 1)(rng), int(rng() % 12) - 6));
    }
    Values want;
    for (size_t i = 0; i < a.size(); ++i) {
        const double x = a[i] = rounded(t, a[i]), z = b[i] = rounded(t, b[i]), sum = rounded(t, x + z);
        for (double v : {x + z, x - z, x * z, x / z, sum - x}) want.push_back(rounded(t, v));
    }
    const bool is_half = t == Type::f16;
    out.push_back({std::string(name(t)) + " arithmetic rounds each step", is_half ? "arithmetic_f16" : "arithmetic_bf16",
                   is_half ? arithmetic_f16__entry : arithmetic_bf16__entry, {2}, {64},
                   {input(t, a), input(t, b), output(t, want), argument(MathArgs{0, uint(a.size())})}, {}, ""});
}

void conversion_cases(std::vector<Case>& out) {
    // Ties of half (11 bits) and bfloat (8), both sides of them, overflow, small ones of half, infinities.
    Values x = {0.0, -0.0, 1, -1.99, 2049, 2051, 2050.0002, 65504, 65519.996, 65520, 1e6, -1e9, 257, 259, 258.00003, 3.3961775e38, 1e-7, 6e-8, 2.98e-8,
                5.9604645e-8, 0.333333343, INF, -INF, NAN, 2147483520, 7.99999952, -0.5};
    for (double& v : x) v = rounded(Type::f32, v);
    Values h, b, n, u, bits, classes, angles, trig;
    auto pattern = [](Type t, double v) { uint32_t w = 0; store(t, &w, 0, v); return w; };
    for (double v : x) {
        const double hv = rounded(Type::f16, v), bv = rounded(Type::bf16, v);
        h.push_back(hv);
        b.push_back(bv);
        const bool fits = v > -2e9 && v < 2e9;
        n.push_back(fits ? std::trunc(v) : 0);
        u.push_back(fits && v > 0 ? std::trunc(v) : 0);
        bits.push_back(double(pattern(Type::f32, v) ^ pattern(Type::f16, v) ^ pattern(Type::bf16, v) << 16));
        auto kinds = [](double k) { return uint(std::isnan(k)) | uint(std::isinf(k)) << 1 | uint(std::isfinite(k)) << 2 | uint(std::signbit(k) && !std::isnan(k)) << 3; };
        classes.push_back(double(kinds(v) | kinds(hv) << 4 | uint(bv < 0) << 8 | uint(bv == 0) << 9));
    }
    const uint count = uint(x.size());
    Values no_nan = x;   // the bits of a NaN are nobody's promise
    for (size_t i = 0; i < x.size(); ++i) if (std::isnan(x[i])) { no_nan[i] = 1; h[i] = b[i] = n[i] = u[i] = 1; bits[i] = double(pattern(Type::f32, 1) ^ pattern(Type::f16, 1) ^ pattern(Type::bf16, 1) << 16); }
    out.push_back({"conversions of float", "conversions", conversions__entry, {1}, {32},
                   {input(Type::f32, no_nan), output(Type::f16, h), output(Type::bf16, b), output(Type::i32, n), output(Type::u32, u), output(Type::u32, bits),
                    argument(MathArgs{0, count})}, {}, ""});
    out.push_back({"classes of float, half, bfloat", "classes", classes__entry, {1}, {32}, {input(Type::f32, x), output(Type::u32, classes), argument(MathArgs{0, count})}, {}, ""});
    for (int i = 0; i < 300; ++i) angles.push_back(rounded(Type::f32, (i % 2 ? -1.0 : 1.0) * 2.6e5 * i / 299));
    for (double v : angles) { trig.push_back(std::sin(v)); trig.push_back(std::cos(v)); }
    out.push_back({"precise::sincos up to 2.6e5 rad", "sine_cosine", sine_cosine__entry, {5}, {64},
                   {input(Type::f32, angles), output(Type::f32, trig, Check::relative, 4 * 0x1p-23), argument(MathArgs{0, uint(angles.size())})}, {}, ""});
}

}

void math_cases(std::vector<Case>& out) {
    real_cases(out);
    integer_cases<int>(out, Type::i32, "integer_i32", integer_i32__entry);
    integer_cases<unsigned>(out, Type::u32, "integer_u32", integer_u32__entry);
    integer_cases<unsigned short>(out, Type::u16, "integer_u16", integer_u16__entry);
    arithmetic_cases(out, Type::f16);
    arithmetic_cases(out, Type::bf16);
    conversion_cases(out);
}

}
