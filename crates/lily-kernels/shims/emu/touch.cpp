#include "touch.h"
#ifdef RECORD_TOUCH
#include <vector>
namespace touch {
namespace {
struct Watched { uintptr_t start, bytes; std::vector<bool> read, written; };
std::vector<Watched> all;
bool active = false;
void note(uintptr_t at, size_t size, bool store) {
    if (!active) return;
    for (Watched& w : all) {
        if (at - w.start >= w.bytes) continue;
        std::vector<bool>& bits = store ? w.written : w.read;
        for (size_t i = at - w.start; i < at - w.start + size && i < w.bytes; ++i) bits[i] = true;
        return;
    }
}
uint64_t count(const std::vector<bool>& bits) {
    uint64_t n = 0;
    for (bool b : bits) n += b;
    return n;
}
}
void begin() { all.clear(); active = true; }
void end() { active = false; }
void watch(unsigned number, const void* start, size_t bytes) {
    if (all.size() <= number) all.resize(number + 1);
    all[number] = {uintptr_t(start), bytes, std::vector<bool>(bytes), std::vector<bool>(bytes)};
}
Bytes of(unsigned number) { return {count(all[number].read), count(all[number].written)}; }
}
extern "C" {
#define HOOKS(n) \
    void __sanitizer_cov_load##n(void* at) { touch::note(uintptr_t(at), n, false); } \
    void __sanitizer_cov_store##n(void* at) { touch::note(uintptr_t(at), n, true); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
}
#endif
