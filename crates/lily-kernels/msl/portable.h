// What plain Metal cannot say the same way on every target of a kernel. The shims define the same names in their <metal_stdlib>.
#pragma once
#ifdef __METAL_VERSION__
  // A product and a sum become one fma only where a kernel says fma: one meaning on every target, and the same bits in every
  // specialization of a kernel. Together with fast math off.
  #pragma STDC FP_CONTRACT OFF
  // Storage shared by a threadgroup: `n` elements called `name`. Only in the outermost scope of a kernel.
  #define TG_ARRAY(T, name, n) threadgroup T name[n]
  // Behind a kernel's `threadgroup T* name` parameter: memory whose size the launch gives. In place of the attribute,
  // which the shims' keyword macros would tear apart.
  #define TG_PARAM(index) [[threadgroup(index)]]
  // A constant fixed when the pipeline is made. Never the size of an array: Metal does not know it while it compiles.
  #define FUNCTION_CONSTANT(T, name, index) constant T name [[function_constant(index)]]
  // In front of a loop with a constant trip count.
  #define UNROLL _Pragma("clang loop unroll(full)")
  // A vector of a type parameter: VEC(T, 4, a, b) is vec<T, 4>(a, b), which the emulator cannot parse.
  #define VEC(T, n, ...) metal::vec<T, n>(__VA_ARGS__)
#endif
