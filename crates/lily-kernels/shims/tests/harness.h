// Cases for the shims: a kernel, its launch, its buffers, and what each must hold afterwards. The same cases run here in
// the emulator and, written to a folder, on an NVIDIA GPU (run_cuda.py).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include "../emu/runtime.h"

namespace shims {

enum class Type { f32, f16, bf16, i32, u32, u16 };
inline const char* name(Type t) { return (const char*[]){"f32", "f16", "bf16", "i32", "u32", "u16"}[int(t)]; }
inline size_t bytes(Type t) { return t == Type::f32 || t == Type::i32 || t == Type::u32 ? 4 : 2; }

double load(Type t, const void* p, size_t i);
/// Rounded to nearest, ties to even; f16 overflows to infinity.
void store(Type t, void* p, size_t i, double v);

/// What a result is held against, per element:
///   exact: equal numbers (0 and -0 are), NaN for NaN
///   absolute: |got - want| <= tolerance
///   relative: |got - want| <= tolerance * |want|, plus the smallest normal number of the type
/// Infinities and NaN must match in all three.
enum class Check { none, exact, absolute, relative };
inline const char* name(Check c) { return (const char*[]){"none", "exact", "absolute", "relative"}[int(c)]; }

/// One [[buffer(n)]]: its first contents and, unless the check is `none` (then it must stay as it is), what it must hold.
struct Buffer {
    Type type = Type::u32;
    std::vector<uint8_t> init;
    Check check = Check::none;
    double tolerance = 0;
    std::vector<double> want;
};
Buffer input(Type t, const std::vector<double>& values);
template <class T> Buffer argument(const T& value) {
    Buffer b;
    b.init.resize(sizeof value);
    memcpy(b.init.data(), &value, sizeof value);
    return b;
}
/// An output, filled with 77 before the launch.
Buffer output(Type t, std::vector<double> want, Check check = Check::exact, double tolerance = 0);
/// A buffer that starts with `init` and ends with `want`.
Buffer changed(Type t, const std::vector<double>& init, std::vector<double> want);

struct Case {
    std::string name, kernel;
    void (*entry)(void*);
    emu::Dim3 grid, threads;
    std::vector<Buffer> buffers;            // [[buffer(0)]], [[buffer(1)]], ...
    std::vector<size_t> parameter_bytes;    // TG_PARAM(0), ...
    std::string only;                       // "emulator": not replayed on CUDA
};

/// What rounding to a type leaves of a number.
double rounded(Type t, double v);
/// Distance from |v| to the next number of the type.
double ulp(Type t, double v);

/// Runs a case; the complaint, empty when it holds.
std::string run(const Case& c);
/// Writes cases.json and cases.bin for run_cuda.py.
void write_cases(const std::vector<Case>& cases, const std::string& folder);

}
