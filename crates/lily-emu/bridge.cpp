// What Rust calls of the emulator, without C++ in the signatures.
#include "runtime.h"
#include "touch.h"

extern "C" {

/// 0 keeps the threads of each group in order, anything else shuffles them.
void lily_emu_seed(unsigned seed) { emu::schedule_seed = seed; }

/// `count` threadgroups of a grid, from `first` on.
void lily_emu_dispatch(void (*entry)(void*), const unsigned* grid, const unsigned* threads, void* const* buffers,
                       const size_t* parameter_bytes, unsigned parameters, size_t first, size_t count) {
    emu::dispatch({grid[0], grid[1], grid[2]}, {threads[0], threads[1], threads[2]}, entry, const_cast<void**>(buffers),
                  parameter_bytes, parameters, first, count);
}

#ifdef RECORD_TOUCH
void lily_emu_touch_begin() { touch::begin(); }
void lily_emu_touch_watch(unsigned number, const void* start, size_t bytes) { touch::watch(number, start, bytes); }
void lily_emu_touch_end() { touch::end(); }
void lily_emu_touched(unsigned number, uint64_t* read, uint64_t* written) {
    const touch::Bytes bytes = touch::of(number);
    *read = bytes.read;
    *written = bytes.written;
}
#endif

}
