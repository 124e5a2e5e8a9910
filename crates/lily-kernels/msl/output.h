// Where a product goes: stored as activations or as f32, or added to f32; outputs in parts, each part stored apart
// (lily-kernels, `Output` and `Parts`).
#pragma once
using namespace metal;
#include "activation.h"

constant constexpr uint OUTPUT_ACT = 0, OUTPUT_F32 = 1, OUTPUT_ADD = 2, OUTPUT_FINE = 3;

///   PartOutput to = {out, OUT, rows, outputs, width0, width1, width2};    // outputs of all parts; widths of the first three
struct PartOutput {
    device ACT* out;
    uint kind, rows, outputs, width0, width1, width2;
    /// The sum of row r and output o.
    void store(uint r, uint o, float v) {
        uint start = 0, width = width0;
        if (o >= width0) {
            start = width0; width = width1;
            if (o >= start + width) {
                start += width; width = width2;
                if (o >= start + width) { start += width; width = outputs - start; }
            }
        }
        const ulong at = ulong(rows) * start + ulong(r) * width + (o - start);
        if (kind == OUTPUT_ACT) out[at] = act_of(v);
        else if (kind == OUTPUT_FINE) ((device FINE*)out)[at] = fine_of(v);
        else if (kind == OUTPUT_F32) ((device float*)out)[at] = v;
        else ((device float*)out)[at] += v;
    }
};
