// Plain tensors of the checkpoint: bfloat, or float where a function constant says so.
#pragma once
inline float plain_value(device const bfloat* p, bool is_f32, uint i) {
    return is_f32 ? ((device const float*)p)[i] : float(p[i]);
}
