// The kernels that a program holds, by name and type of their activations.
#pragma once
#include "runtime.h"
#include <cstring>
#include <type_traits>

namespace emu {

struct Kernel {
    const char *name, *act;
    void (*entry)(void* buffers);
    /// Sets the function constants, before a dispatch.
    void (*set)(const unsigned* values);
    unsigned buffers, constants;
};
inline Kernel*& kernels() { static Kernel* all = new Kernel[1024]; return all; }
inline unsigned& kernel_count() { static unsigned count = 0; return count; }
struct Register { Register(Kernel k) { kernels()[kernel_count()++] = k; } };
inline const Kernel* find(const char* name, const char* act) {
    for (unsigned i = 0; i < kernel_count(); ++i)
        if (!strcmp(kernels()[i].name, name) && !strcmp(kernels()[i].act, act)) return &kernels()[i];
    return nullptr;
}
template <class T> inline T constant_of(unsigned word) {
    if constexpr (std::is_same_v<T, float>) { float f; memcpy(&f, &word, 4); return f; }
    else return T(word);
}

}
