// The test's parts: each adds its cases. Standard headers come before <metal_stdlib>, whose keywords are macros.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include "harness.h"

namespace shims {

void math_cases(std::vector<Case>& out);
void vector_cases(std::vector<Case>& out);
void lane_cases(std::vector<Case>& out);
void atomic_cases(std::vector<Case>& out);
void example_cases(std::vector<Case>& out, bool full);
void tile_cases(std::vector<Case>& out, bool full);
void tile_mpp_cases(std::vector<Case>& out, bool full);
/// Wrong on purpose; each fault is a case whose run must not pass.
void fault_cases(std::vector<Case>& out);
void tile_fault_cases(std::vector<Case>& out);
void tile_mpp_fault_cases(std::vector<Case>& out);

}
