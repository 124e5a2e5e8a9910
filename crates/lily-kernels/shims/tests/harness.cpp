#include "harness.h"

#include <cfloat>
#include <memory>

namespace shims {

double load(Type t, const void* p, size_t i) {
    auto at = [&]<class T>(T) { T v; memcpy(&v, (const char*)p + i * sizeof v, sizeof v); return v; };
    switch (t) {
    case Type::f32: return at(float());
    case Type::f16: return double(at(_Float16()));
    case Type::bf16: return double(float(at(__bf16())));
    case Type::i32: return at(int32_t());
    case Type::u32: return at(uint32_t());
    case Type::u16: return at(uint16_t());
    }
    return 0;
}

/// bfloat rounded once: through float a double would round twice.
static uint16_t bfloat_bits(double v) {
    if (std::isnan(v)) return 0x7fc0;
    float f = float(v);
    if (std::isinf(f)) return std::signbit(v) ? 0xff80 : 0x7f80;
    // Round to odd keeps what the second rounding must know.
    if (double(f) != v) {
        if (std::abs(double(f)) > std::abs(v)) f = std::nextafterf(f, 0.0f);
        uint32_t odd;
        memcpy(&odd, &f, 4);
        odd |= 1;
        memcpy(&f, &odd, 4);
    }
    uint32_t u;
    memcpy(&u, &f, 4);
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void store(Type t, void* p, size_t i, double v) {
    auto put = [&](auto x) { memcpy((char*)p + i * sizeof x, &x, sizeof x); };
    switch (t) {
    case Type::f32: put(float(v)); break;
    case Type::f16: put(_Float16(v)); break;
    case Type::bf16: put(bfloat_bits(v)); break;
    case Type::i32: put(int32_t(v)); break;
    case Type::u32: put(uint32_t(v)); break;
    case Type::u16: put(uint16_t(v)); break;
    }
}

double rounded(Type t, double v) {
    uint64_t word = 0;
    store(t, &word, 0, v);
    return load(t, &word, 0);
}

double ulp(Type t, double v) {
    const int digits = t == Type::f32 ? 24 : t == Type::f16 ? 11 : 8, lowest = t == Type::f16 ? -13 : -125;
    int e;
    std::frexp(v, &e);
    return std::ldexp(1.0, std::max(e, lowest) - digits);
}

static std::vector<uint8_t> stored(Type t, const std::vector<double>& values) {
    std::vector<uint8_t> out(values.size() * bytes(t));
    for (size_t i = 0; i < values.size(); ++i) store(t, out.data(), i, values[i]);
    return out;
}

Buffer input(Type t, const std::vector<double>& values) { return {t, stored(t, values), Check::none, 0, {}}; }

Buffer changed(Type t, const std::vector<double>& init, std::vector<double> want) { return {t, stored(t, init), Check::exact, 0, std::move(want)}; }

Buffer output(Type t, std::vector<double> want, Check check, double tolerance) {
    Buffer b{t, stored(t, std::vector<double>(want.size(), 77.0)), check, tolerance, std::move(want)};
    return b;
}

static double smallest(Type t) { return t == Type::f16 ? 0x1p-14 : FLT_MIN; }

static bool holds(const Buffer& b, double got, double want) {
    if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
    if (b.check == Check::exact || std::isinf(want) || std::isinf(got)) return got == want;
    const double room = b.check == Check::absolute ? b.tolerance : b.tolerance * std::abs(want) + smallest(b.type);
    return std::abs(got - want) <= room;
}

std::string run(const Case& c) {
    // Exact-size blocks, so that ASan's red zones begin at the last byte.
    std::vector<std::unique_ptr<void, void (*)(void*)>> blocks;
    std::vector<void*> addresses;
    for (const Buffer& b : c.buffers) {
        blocks.emplace_back(malloc(b.init.size()), free);
        memcpy(blocks.back().get(), b.init.data(), b.init.size());
        addresses.push_back(blocks.back().get());
    }
    emu::dispatch(c.grid, c.threads, c.entry, addresses.data(), c.parameter_bytes.data(), unsigned(c.parameter_bytes.size()));
    char line[256];
    for (size_t n = 0; n < c.buffers.size(); ++n) {
        const Buffer& b = c.buffers[n];
        if (b.check == Check::none) {
            if (memcmp(addresses[n], b.init.data(), b.init.size())) return "buffer " + std::to_string(n) + " is an input and was written";
            continue;
        }
        for (size_t i = 0; i < b.want.size(); ++i) {
            const double got = load(b.type, addresses[n], i);
            if (holds(b, got, b.want[i])) continue;
            snprintf(line, sizeof line, "buffer %zu [%zu]: got %.9g, want %.9g (%s %.3g)", n, i, got, b.want[i], name(b.check), b.tolerance);
            return line;
        }
    }
    return "";
}

void write_cases(const std::vector<Case>& cases, const std::string& folder) {
    FILE* json = fopen((folder + "/cases.json").c_str(), "w");
    FILE* bin = fopen((folder + "/cases.bin").c_str(), "wb");
    if (!json || !bin) { fprintf(stderr, "cannot write cases to %s\n", folder.c_str()); exit(2); }
    fprintf(json, "[\n");
    bool first = true;
    for (const Case& c : cases) {
        if (!c.only.empty()) continue;
        fprintf(json, "%s{\"name\": \"%s\", \"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"threads\": [%u, %u, %u], \"parameter_bytes\": [", first ? "" : ",\n",
                c.name.c_str(), c.kernel.c_str(), c.grid.x, c.grid.y, c.grid.z, c.threads.x, c.threads.y, c.threads.z);
        for (size_t i = 0; i < c.parameter_bytes.size(); ++i) fprintf(json, "%s%zu", i ? ", " : "", c.parameter_bytes[i]);
        fprintf(json, "], \"buffers\": [");
        for (size_t i = 0; i < c.buffers.size(); ++i) {
            const Buffer& b = c.buffers[i];
            const long init = ftell(bin);
            fwrite(b.init.data(), 1, b.init.size(), bin);
            while (ftell(bin) % 8) fputc(0, bin);
            const long want = ftell(bin);
            fwrite(b.want.data(), sizeof(double), b.want.size(), bin);
            fprintf(json, "%s{\"type\": \"%s\", \"init\": %ld, \"bytes\": %zu, \"check\": \"%s\", \"tolerance\": %.17g, \"want\": %ld, \"count\": %zu, \"tiny\": %.17g}",
                    i ? ", " : "", name(b.type), init, b.init.size(), name(b.check), b.tolerance, want, b.want.size(), smallest(b.type));
        }
        fprintf(json, "]}");
        first = false;
    }
    fprintf(json, "\n]\n");
    fclose(json);
    fclose(bin);
}

}
