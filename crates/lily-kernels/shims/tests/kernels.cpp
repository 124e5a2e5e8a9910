// Runs the cases of the kernels' texts in the emulator, over units that the crate's example `kernel_cases` writes.
//
//   kernels FOLDER [SEED]    every case of FOLDER/cases.txt for which a kernel is linked; SEED shuffles the threads of each
//                            threadgroup
//
// A program that holds all units must run every case: `kernels FOLDER SEED all` fails where a kernel is missing.
//
// cases.txt, one case:
//   case NUMBER NAME / kernel TEXT ACTIVATION / constants N WORD... / grid X Y Z / threads X Y Z / memory N BYTES...
//   buffer OFFSET BYTES CHECK STORE WANT ERROR COUNT TOUCH READ WRITTEN     one for each [[buffer(n)]], in order
//   end
// Offsets point into cases.bin. CHECK is same, any, or near: COUNT doubles at WANT, each with its bound at ERROR; where the wanted
// value is NaN, the element stays as it was. TOUCH says what the launch touches of the buffer when the build records it: exactly
// READ and WRITTEN bytes, at most so many, or none (not recorded).
#include "kernels.h"
#include "touch.h"
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

struct Buffer {
    size_t init = 0, bytes = 0, want = 0, error = 0, count = 0;
    std::string check, store, touch;
    uint64_t read = 0, written = 0;
};
struct Case {
    std::string name, kernel, act;
    std::vector<unsigned> constants;
    emu::Dim3 grid, threads;
    std::vector<size_t> memory;
    std::vector<Buffer> buffers;
};

static double load(const std::string& store, const unsigned char* p, size_t i) {
    auto at = [&]<class T>(T) { T v; memcpy(&v, p + i * sizeof v, sizeof v); return v; };
    if (store == "f32") return at(float());
    if (store == "bf16") return double(float(at(__bf16())));
    if (store == "f16") return double(at(_Float16()));
    if (store == "u32") return at(uint32_t());
    return p[i];
}
static size_t size_of(const std::string& store) { return store == "f32" || store == "u32" ? 4 : store == "u8" ? 1 : 2; }

/// Guard bytes on both sides, which plain builds check; with ASan the block ends where the buffer does.
#ifdef EMU_ASAN
static constexpr size_t GUARD = 0;
#else
static constexpr size_t GUARD = 256;
#endif

/// The complaint, empty when the case holds.
static std::string run(const Case& c, const std::vector<char>& blob) {
    const emu::Kernel* k = emu::find(c.kernel.c_str(), c.act.c_str());
    if (!k) return "no kernel " + c.kernel + " " + c.act + " is linked";
    if (k->buffers != c.buffers.size() || k->constants != c.constants.size()) return "the case does not fit the kernel's text";
    std::vector<std::unique_ptr<void, void (*)(void*)>> blocks;
    std::vector<void*> addresses;
    for (const Buffer& b : c.buffers) {
        // 256 bytes, as Metal and CUDA align buffers.
        auto* block = (unsigned char*)aligned_alloc(256, (b.bytes + 2 * GUARD + 255) / 256 * 256 + 256);
#ifdef EMU_ASAN
        free(block);
        block = (unsigned char*)malloc(b.bytes);
#else
        memset(block, 0xa5, b.bytes + 2 * GUARD);
#endif
        blocks.emplace_back(block, free);
        memcpy(block + GUARD, blob.data() + b.init, b.bytes);
        addresses.push_back(block + GUARD);
    }
    touch::begin();
    for (size_t n = 0; n < c.buffers.size(); ++n) touch::watch(unsigned(n), addresses[n], c.buffers[n].bytes);
    k->set(c.constants.data());
    emu::dispatch(c.grid, c.threads, k->entry, addresses.data(), c.memory.data(), unsigned(c.memory.size()));
    touch::end();
    char line[256];
    for (size_t n = 0; n < c.buffers.size(); ++n) {
        const Buffer& b = c.buffers[n];
        auto* p = (const unsigned char*)addresses[n];
        for (size_t i = 0; i < GUARD; ++i)
            if (p[-1 - ptrdiff_t(i)] != 0xa5 || p[b.bytes + i] != 0xa5) return "buffer " + std::to_string(n) + ": written outside";
        const char* before = blob.data() + b.init;
        if (b.check == "same" && memcmp(p, before, b.bytes)) return "buffer " + std::to_string(n) + " is an input and was written";
        if (b.check == "near") {
            auto* want = (const double*)(blob.data() + b.want);
            auto* error = (const double*)(blob.data() + b.error);
            const size_t size = size_of(b.store);
            if (b.count * size != b.bytes) return "buffer " + std::to_string(n) + ": as many values as elements are wanted";
            for (size_t i = 0; i < b.count; ++i) {
                if (std::isnan(want[i])) {
                    if (!memcmp(p + i * size, before + i * size, size)) continue;
                    snprintf(line, sizeof line, "buffer %zu [%zu] was to stay as it was", n, i);
                    return line;
                }
                const double got = load(b.store, p, i);
                if (std::abs(got - want[i]) <= error[i] || got == want[i]) continue;
                snprintf(line, sizeof line, "buffer %zu [%zu]: got %.9g, want %.9g within %.3g", n, i, got, want[i], error[i]);
                return line;
            }
        }
        if (touch::RECORDS && b.touch != "none") {
            const touch::Bytes t = touch::of(unsigned(n));
            const bool fits = b.touch == "exact" ? t.read == b.read && t.written == b.written : t.read <= b.read && t.written <= b.written;
            if (!fits) {
                snprintf(line, sizeof line, "buffer %zu of %zu bytes: %s %lu read and %lu written declared, %lu and %lu touched", n, b.bytes,
                         b.touch.c_str(), (unsigned long)b.read, (unsigned long)b.written, (unsigned long)t.read, (unsigned long)t.written);
                return line;
            }
        }
    }
    return "";
}

int main(int argc, char** argv) {
    if (argc < 2) { fprintf(stderr, "usage: kernels FOLDER [SEED]\n"); return 2; }
    const std::string folder = argv[1];
    if (argc > 2) emu::schedule_seed = unsigned(atoi(argv[2]));
    const bool all = argc > 3;
    std::ifstream bin(folder + "/cases.bin", std::ios::binary), index(folder + "/cases.txt");
    const std::vector<char> blob{std::istreambuf_iterator<char>(bin), {}};
    std::string line;
    Case c;
    unsigned passed = 0, failed = 0;
    while (std::getline(index, line)) {
        std::istringstream in(line);
        std::string word;
        in >> word;
        size_t n = 0;
        if (word == "case") { c = {}; in >> n >> c.name; }
        else if (word == "kernel") in >> c.kernel >> c.act;
        else if (word == "constants") { in >> n; c.constants.resize(n); for (auto& v : c.constants) in >> v; }
        else if (word == "grid") in >> c.grid.x >> c.grid.y >> c.grid.z;
        else if (word == "threads") in >> c.threads.x >> c.threads.y >> c.threads.z;
        else if (word == "memory") { in >> n; c.memory.resize(n); for (auto& v : c.memory) in >> v; }
        else if (word == "buffer") {
            Buffer b;
            in >> b.init >> b.bytes >> b.check >> b.store >> b.want >> b.error >> b.count >> b.touch >> b.read >> b.written;
            c.buffers.push_back(b);
        } else if (word == "end") {
            if (!all && !emu::find(c.kernel.c_str(), c.act.c_str())) continue;
            // Before the run: a fault that ends the process names its case.
            std::cout << c.act << ' ' << c.name << std::flush;
            const std::string wrong = run(c, blob);
            std::cout << (wrong.empty() ? " ok" : " FAIL " + wrong) << std::endl;
            ++(wrong.empty() ? passed : failed);
        } else { fprintf(stderr, "cases.txt: %s\n", line.c_str()); return 2; }
        if (in.fail()) { fprintf(stderr, "cases.txt: %s\n", line.c_str()); return 2; }
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed || !passed;
}
