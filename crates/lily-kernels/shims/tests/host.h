// After the kernels: back to plain C++. Included once per file, behind the last .metal.
#undef device
#undef constant
#undef threadgroup
#undef thread
#undef kernel
