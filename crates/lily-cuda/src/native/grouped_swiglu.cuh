constexpr unsigned BITS = FUNCTION_CONSTANT_0;
#define SWIGLU 1
