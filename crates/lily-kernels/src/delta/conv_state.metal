// The rows that the next launch's convolution needs (delta/conv.rs): a thread a channel.
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "slots.h"
using namespace metal;

struct ConvStateParams { uint rows; uint channels; uint taps; };

kernel void conv_state(device const FINE* raw [[buffer(0)]],
                       device float* state [[buffer(1)]],
                       device const uint* slots [[buffer(2)]],
                       constant ConvStateParams& p [[buffer(3)]],
                       uint3 at [[thread_position_in_grid]]) {
    const uint c = at.x, slot = at.y, before = p.taps - 1;
    if (c >= p.channels || slot_done(slots, slot)) return;
    device const float* old = state + ulong(slot_state(slots, slot)) * before * p.channels;
    device float* next = state + ulong(slot_next(slots, slot)) * before * p.channels;
    device const FINE* rows = raw + ulong(slot) * p.rows * p.channels;
    // Ascending: where both places are one, row `from` is read before it is written.
    for (uint j = 0; j < before; ++j) {
        const uint from = j + p.rows;
        next[j * p.channels + c] = from < before ? old[from * p.channels + c] : float(rows[ulong(from - before) * p.channels + c]);
    }
}
