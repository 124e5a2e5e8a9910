// The emulator: every GPU thread is a fiber of one host thread; barriers and simd operations are the switch points.
// x86-64 only (the swap of stacks in runtime.cpp).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMU_TSAN 1
extern "C" { void* __tsan_create_fiber(unsigned); void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber(); void __tsan_acquire(void*); void __tsan_release(void*); }
#endif
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
extern "C" { void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*); }
#endif
#endif
// On what carries values between lanes: TSan must not take the exchange itself for a race between threads.
#define EMU_RAW __attribute__((disable_sanitizer_instrumentation))

namespace emu {

struct Dim3 { unsigned x = 1, y = 1, z = 1; };
/// Where a kernel called an operation: the default argument of each, so it is the caller's line.
struct Site { const char* file; int line; };
#define EMU_HERE ::emu::Site site = ::emu::Site{__builtin_FILE(), __builtin_LINE()}

/// A meeting of all live threads of a simdgroup or a threadgroup.
struct Rendezvous { unsigned live = 0, arrived = 0; uint64_t gen = 0; Site site{}; const char* op = ""; char order[2] = {}; };
/// Two rows of slots, used in turn: a lane may deposit for the next operation while others still read this one's.
struct Simd { Rendezvous rv; uint32_t mask[2] = {}; alignas(64) unsigned char slot[2][32][64]; };
struct Fiber {
    void* sp = nullptr; char* stack = nullptr; void* tsan = nullptr; void* fake = nullptr;
    unsigned tid = 0, lane = 0;
    uint32_t active = 0;   // the lanes that took part in this thread's last simd operation
    Simd* simd = nullptr;
    bool done = true;
    const char* wait = ""; Site wsite{};
};
constexpr unsigned MAX_ARRAYS = 256, MAX_PARAMETERS = 8;
/// The threadgroup that runs.
struct Group {
    Fiber* f = nullptr; unsigned n = 0, live = 0, cur = 0; unsigned* order = nullptr;
    Rendezvous rv; Simd simd[32];
    void* arrays[MAX_ARRAYS];            // TG_ARRAYs
    void* parameters[MAX_PARAMETERS];    // TG_PARAM(n) parameters
    size_t array_bytes = 0;
    Dim3 tg, grid, tgs; void (*entry)(void*) = nullptr; void* user = nullptr; unsigned idle = 0;
};
extern constinit thread_local Group* G;
extern constinit thread_local Fiber* F;
/// Order of the threads of a group: 0 is ascending, anything else seeds a shuffle, anew for each group.
extern unsigned schedule_seed;

/// Prints "emu: ..." and ends the process with status 3.
[[noreturn]] void fatal(const char* format, ...);
void arrive(Rendezvous& r, Site site, const char* op);
void barrier(Rendezvous& r, bool orders_memory, Site site, const char* op);
void fence();
bool spurious_failure();
void* tg_array(unsigned id, size_t bytes);
void* tg_parameter(unsigned index);
/// Runs `entry` once a thread, of `count` threadgroups from `first` on (x goes first, then y): host threads may share a grid.
/// `parameter_bytes[i]` is the size of the kernel's TG_PARAM(i) memory.
void dispatch(Dim3 grid, Dim3 tgs, void (*entry)(void*), void* user, const size_t* parameter_bytes = nullptr, unsigned parameters = 0,
              size_t first = 0, size_t count = SIZE_MAX);

/// All live lanes deposit `v`; returns the 32 values, of which those in F->active are this operation's.
template <class T> EMU_RAW inline const T (&exchange(T v, Site site, const char* op))[32] {
    static_assert(sizeof(T) <= 64);
    Simd& s = *F->simd;
    const unsigned g = s.rv.gen & 1;
    if (!s.rv.arrived) s.mask[g] = 0;
    s.mask[g] |= 1u << F->lane;
    T* row = reinterpret_cast<T*>(s.slot[g]);
    row[F->lane] = v;
    arrive(s.rv, site, op);
    F->active = s.mask[g];
    return *reinterpret_cast<const T(*)[32]>(row);
}

}
