// A request's row of words (lily-kernels, select::Request).
#pragma once
constant constexpr uint REQUEST_WORDS = 32;
constant constexpr uint REQUEST_TEMPERATURE = 0;
constant constexpr uint REQUEST_TOP_P = 1;
constant constexpr uint REQUEST_LOG_MIN_P = 2;
constant constexpr uint REQUEST_TOP_K = 3;
constant constexpr uint REQUEST_REPETITION = 4;
constant constexpr uint REQUEST_RECIPROCAL = 5;
constant constexpr uint REQUEST_PRESENCE = 6;
constant constexpr uint REQUEST_FREQUENCY = 7;
constant constexpr uint REQUEST_SEED = 8;
constant constexpr uint REQUEST_STEP = 10;
constant constexpr uint REQUEST_VOCABULARY = 11;
constant constexpr uint REQUEST_ENTRY = 12;
constant constexpr uint REQUEST_FLAGS = 13;
constant constexpr uint REQUEST_ENDS = 14;
constant constexpr uint REQUEST_END = 16;
constant constexpr uint HAS_COUNTS = 1;
constant constexpr uint HAS_BIAS = 2;
constant constexpr uint HAS_MASK = 4;
constant constexpr uint SEEN_IN_PROMPT = 0x80000000u;
/// By bits: a device may take a temperature below the normal numbers for 0.
inline bool request_greedy(device const uint* q) { return (q[REQUEST_TEMPERATURE] & 0x7fffffffu) == 0; }
