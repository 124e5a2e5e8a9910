// The table of sequences that a launch runs: four words each, then their page tables (lily-kernels, SLOT_WORDS).
#pragma once
/// The place of a sequence's recurrent state in the pools that a launch reads.
inline uint slot_state(device const uint* slots, uint slot) { return slots[slot * 4]; }
/// The place that a launch writes.
inline uint slot_next(device const uint* slots, uint slot) { return slots[slot * 4 + 1]; }
/// The page that holds the token at `position`: pages of 64 tokens, [kv_heads, 64, head_dim] each, in a pool a layer.
inline uint slot_page(device const uint* slots, uint slot, uint position) { return slots[slots[slot * 4 + 2] + position / 64]; }
/// A sequence that is done keeps its state.
inline bool slot_done(device const uint* slots, uint slot) { return slots[slot * 4 + 3] != 0; }
