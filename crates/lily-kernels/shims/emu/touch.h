// Which bytes of its buffers a launch touches. Units compiled with -fsanitize-coverage=func,trace-loads,trace-stores report each
// access; touch.cpp, compiled with -DRECORD_TOUCH, keeps them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace touch {

struct Bytes { uint64_t read, written; };
#ifdef RECORD_TOUCH
constexpr bool RECORDS = true;
/// Forgets all buffers.
void begin();
/// Records accesses of this memory as those of buffer `number`.
void watch(unsigned number, const void* start, size_t bytes);
/// Stops recording.
void end();
/// Bytes read and written, each counted once.
Bytes of(unsigned number);
#else
constexpr bool RECORDS = false;
inline void begin() {}
inline void watch(unsigned, const void*, size_t) {}
inline void end() {}
inline Bytes of(unsigned) { return {0, 0}; }
#endif

}
