constexpr unsigned OUT = FUNCTION_CONSTANT_1;
