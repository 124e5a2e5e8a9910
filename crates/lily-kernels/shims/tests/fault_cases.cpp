// The faults of faults.metal as cases: whatever runs one must not end well.
#include "cases.h"

#include <metal_stdlib>
#include "faults.metal"
#include "faults_entries.inc"
#include "host.h"

namespace shims {

using Values = std::vector<double>;

void fault_cases(std::vector<Case>& out) {
    Values index;
    for (int i = 0; i < 64; ++i) index.push_back(i);
    // Reads and writes of 64 words; two groups where groups are the fault.
#define FAULT(name, groups, parameters) \
    out.push_back({#name, "", fault_##name##__entry, {groups}, {64}, {output(Type::u32, index), changed(Type::u32, {0}, {0})}, parameters, ""});
#define NUMBERS(name) \
    out.push_back({#name, "", fault_##name##__entry, {1}, {64}, {output(Type::f32, index), changed(Type::u32, {0}, {64})}, {}, ""});
    FAULT(divergent_barrier, 1, {}) FAULT(divergent_sum, 1, {}) FAULT(divergent_vote, 1, {}) FAULT(divergent_prefix, 1, {}) FAULT(divergent_quad, 1, {})
    FAULT(shuffle_range, 1, {}) FAULT(quad_range, 1, {}) FAULT(atomic_order, 1, {}) FAULT(bit_range, 1, {}) FAULT(threadgroup_size, 1, {}) FAULT(parameter_unsized, 1, {})
    NUMBERS(shuffle_from_returned) NUMBERS(unwritten) NUMBERS(fast_angle) NUMBERS(weak_exchange)
    FAULT(device_bounds, 1, {}) FAULT(array_bounds, 1, {}) FAULT(parameter_bounds, 1, {256}) FAULT(atomic_bounds, 1, {}) FAULT(alignment, 1, {}) FAULT(shift, 1, {})
    FAULT(missing_barrier, 1, {}) FAULT(missing_second_barrier, 1, {}) FAULT(wrong_flags, 1, {}) FAULT(groups_race, 2, {}) FAULT(plain_count, 1, {})
    FAULT(atomic_barrier, 1, {}) FAULT(atomic_publish, 2, {}) FAULT(simd_is_no_fence, 1, {})
#undef FAULT
#undef NUMBERS
}

}
