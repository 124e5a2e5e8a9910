constexpr unsigned BITS = FUNCTION_CONSTANT_0;
