// SwiGLU behind products with two matrices: by rows (gemv.h) and in tiles (gemm.h).
#pragma once
#include "activation.h"
#include "gates.h"

/// Stores SiLU(gate) * up.
struct SwigluOutput {
    device FINE* out;
    uint outputs;
    void store(uint r, uint o, float gate, float up) { out[ulong(r) * outputs + o] = fine_of(silu(gate) * up); }
};
