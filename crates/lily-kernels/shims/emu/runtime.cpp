#include "runtime.h"
#include <cstdarg>
#include <algorithm>
#include <random>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>
namespace emu {
constinit thread_local Group* G = nullptr; constinit thread_local Fiber* F = nullptr;
unsigned schedule_seed = 0;
static constexpr size_t STACK = 128 << 10;
static thread_local Fiber host;
extern "C" void emu_swap(void** save, void* to);
asm(".text\n.globl emu_swap\n.type emu_swap,@function\nemu_swap:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nretq\n"
    ".section .note.GNU-stack,\"\",@progbits\n.text\n");
void fatal(const char* fmt, ...) {
    va_list ap; va_start(ap, fmt); fprintf(stderr, "emu: "); vfprintf(stderr, fmt, ap); fprintf(stderr, "\n");
    va_end(ap); fflush(stderr); _exit(3);
}
EMU_RAW static void jump(Fiber* to, bool dying) {
    Fiber* from = F; F = to;
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 1 /* no synchronisation */);
#endif
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(dying ? nullptr : &from->fake, to->stack, STACK);
#endif
    emu_swap(&from->sp, to->sp);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}
EMU_RAW static Fiber* next_live() {
    for (unsigned i = 0; i < G->n; ++i) {
        G->cur = G->cur + 1 == G->n ? 0 : G->cur + 1;
        Fiber* f = &G->f[G->order[G->cur]];
        if (!f->done) return f;
    }
    return &host;
}
EMU_RAW static void switch_next() {
    Fiber* to = next_live();
    if (to != F) jump(to, false);
}
EMU_RAW void arrive(Rendezvous& r, Site site, const char* op) {
    if (r.arrived && (r.site.line != site.line || r.op != op))
        fatal("divergent %s: thread %u is at %s:%d, others wait in %s at line %d", op, F->tid, site.file, site.line, r.op, r.site.line);
    if (&r == &G->rv && G->live < G->n) fatal("%s at %s:%d: %u threads have returned and will never reach it", op, site.file, site.line, G->n - G->live);
    r.site = site; r.op = op; uint64_t g = r.gen;
    if (++r.arrived == r.live) { r.arrived = 0; ++r.gen; G->idle = 0; return; }
    F->wait = op; F->wsite = site;
    while (r.gen == g) {
        if (++G->idle > 8 * G->n + 64) {
            for (unsigned i = 0; i < G->n; i++) if (!G->f[i].done && (i == 0 || G->f[i].wsite.line != G->f[i-1].wsite.line))
                fprintf(stderr, "emu:   thread %u.. waits in %s at line %d\n", i, G->f[i].wait, G->f[i].wsite.line);
            fatal("deadlock: not every thread reached the same %s", op);
        }
        switch_next();
    }
}
EMU_RAW void barrier(Rendezvous& r, bool orders_memory, Site site, const char* op) {
    // One of two in turn: a thread that has gone on to the next barrier must not seem to have waited for those still in this one.
    [[maybe_unused]] void* order = &r.order[r.gen & 1];
#ifdef EMU_TSAN
    if (orders_memory) __tsan_release(order);
#endif
    arrive(r, site, op);
#ifdef EMU_TSAN
    if (orders_memory) __tsan_acquire(order);
#endif
    (void)orders_memory;
}
EMU_RAW void fence() {
#ifdef EMU_TSAN
    static char all_fences;
    __tsan_acquire(&all_fences); __tsan_release(&all_fences);
#endif
}
EMU_RAW bool spurious_failure() {
    static thread_local unsigned calls = 0;
    return ++calls % 7 == 3;
}
EMU_RAW static void* tg_memory(size_t bytes) {
    G->array_bytes += bytes;
    if (G->array_bytes > 32768) fatal("threadgroup memory %zu bytes, Apple GPUs have 32768", G->array_bytes);
    void* p = malloc(bytes); memset(p, 0xff, bytes);  // NaN poison
    return p;
}
EMU_RAW void* tg_parameter(unsigned index) {
    if (index >= MAX_PARAMETERS || !G->parameters[index]) fatal("TG_PARAM(%u): the dispatch gives it no size", index);
#ifdef EMU_TSAN
    __tsan_acquire(&G->parameters[index]);
#endif
    return G->parameters[index];
}
EMU_RAW void* tg_array(unsigned id, size_t bytes) {
    if (id >= MAX_ARRAYS) fatal("more than %u TG_ARRAYs in one file: raise MAX_ARRAYS", MAX_ARRAYS);
    if (!G->arrays[id]) {
        G->arrays[id] = tg_memory(bytes);
#ifdef EMU_TSAN
        __tsan_release(&G->arrays[id]);
#endif
    }
#ifdef EMU_TSAN
    __tsan_acquire(&G->arrays[id]);
#endif
    return G->arrays[id];
}
EMU_RAW static void finish() {
    Fiber* me = F; me->done = true; --G->live; G->idle = 0;
    for (Rendezvous* r : {&me->simd->rv, &G->rv}) {
        --r->live;
        if (r == &G->rv && r->arrived) fatal("thread %u returned while others wait at threadgroup_barrier line %d", me->tid, r->site.line);
        if (r->live && r->arrived == r->live) { r->arrived = 0; ++r->gen; }
    }
#ifdef EMU_TSAN
    __tsan_release(&host);
#endif
    jump(next_live(), true);
    abort();
}
EMU_RAW static void fiber_main() {
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
#ifdef EMU_TSAN
    __tsan_acquire(G);
#endif
    G->entry(G->user);
    finish();
}
/// The fibers of a host thread, whose stacks go when it ends.
struct Fibers : std::vector<Fiber> {
    ~Fibers() { for (Fiber& f : *this) munmap(f.stack, STACK); }
};
EMU_RAW void dispatch(Dim3 grid, Dim3 tgs, void (*entry)(void*), void* user, const size_t* parameter_bytes, unsigned parameters,
                      size_t first, size_t count) {
    static thread_local Fibers pool;
    const unsigned n = tgs.x * tgs.y * tgs.z;
    if (n > 1024) fatal("threadgroup of %u threads, Apple GPUs run at most 1024", n);
    if (parameters > MAX_PARAMETERS) fatal("%u threadgroup parameters, at most %u", parameters, MAX_PARAMETERS);
    for (unsigned i = 0; i < parameters; i++)
        if (parameter_bytes[i] % 16) fatal("TG_PARAM(%u) of %zu bytes: Metal wants a multiple of 16", i, parameter_bytes[i]);
#ifdef EMU_TSAN
    const unsigned window = 4;      // this many neighbouring threadgroups are unordered for TSan
#else
    const unsigned window = 1;
#endif
    while (pool.size() < n * window) {
        Fiber f; f.stack = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#ifdef EMU_TSAN
        f.tsan = __tsan_create_fiber(0);
#endif
        pool.push_back(f);
    }
#ifdef EMU_TSAN
    host.tsan = __tsan_get_current_fiber();
#endif
    static thread_local Group g; G = &g; F = &host; host.done = true;
    std::vector<unsigned> order(n); for (unsigned i = 0; i < n; i++) order[i] = i;
    std::mt19937 rng(schedule_seed); std::vector<void*> dead;
    const size_t all = size_t(grid.x) * grid.y * grid.z, end = first + std::min(count, all - std::min(first, all));
    for (size_t index = first; index < end; index++) {
        const unsigned x = index % grid.x, y = index / grid.x % grid.y, z = index / grid.x / grid.y;
        if (schedule_seed) std::shuffle(order.begin(), order.end(), rng);
        g.f = pool.data() + (index % window) * n; g.n = g.live = n; g.order = order.data(); g.cur = n - 1; g.idle = 0;
        g.tg = {x, y, z}; g.grid = grid; g.tgs = tgs; g.entry = entry; g.user = user; g.array_bytes = 0;
        g.rv = Rendezvous{}; g.rv.live = n; memset(g.arrays, 0, sizeof g.arrays); memset(g.parameters, 0, sizeof g.parameters);
        for (unsigned i = 0; i < parameters; i++) g.parameters[i] = tg_memory(parameter_bytes[i]);
#ifdef EMU_TSAN
        for (unsigned i = 0; i < parameters; i++) __tsan_release(&g.parameters[i]);
#endif
        for (unsigned s = 0; s < (n + 31) / 32; s++) { g.simd[s].rv = Rendezvous{}; g.simd[s].rv.live = std::min(32u, n - s * 32); }
        for (unsigned i = 0; i < n; i++) {
            Fiber& f = g.f[i]; f.tid = i; f.lane = i & 31; f.simd = &g.simd[i / 32]; f.done = false; f.fake = nullptr; f.wsite.line = 0;
            // Not all at the same place of a page, or the tops of all stacks would share a few lines of the cache.
            void** sp = (void**)(f.stack + STACK - i % 64 * 320); *--sp = nullptr; *--sp = (void*)fiber_main; for (int k = 0; k < 6; k++) *--sp = nullptr;
            f.sp = sp;
        }
#ifdef EMU_TSAN
        if (index == first) __tsan_release(&g);
#endif
        jump(next_live(), false);
#ifdef EMU_TSAN
        if (index + 1 == end) __tsan_acquire(&host);
#endif
        for (void* p : g.arrays) if (p) dead.push_back(p);
        for (void* p : g.parameters) if (p) dead.push_back(p);
#ifndef EMU_TSAN
        for (void* p : dead) free(p);
        dead.clear();
#endif
    }
    for (void* p : dead) free(p);   // TSan: only once every thread of the dispatch is joined
}
}
