// Attention of many rows: what its two bodies (flash_tiles.h, flash_plain.h) share.
//
// The query heads of a KV head are folded into rows: row f of a sequence and KV head is head f % group of token f / group. A
// threadgroup takes 64 rows. Keys come in tiles of 32, from key 0 on, whatever rows there are, and a row's sums go over all tiles
// up to the last one that some row of its threadgroup sees: what it does not see adds nothing. So a row's bits depend neither on
// how a prompt was cut nor on the rows beside it.
#pragma once
#include "attention.h"

constant constexpr uint FLASH_ROWS = 64, FLASH_KEYS = 32, FLASH_THREADS = 256;

/// Where a threadgroup stands.
struct Flash {
    device const ACT* q;
    device const ACT* qg;
    device const uint* positions;
    device FINE* out;
    device const ACT* keys;
    device const ACT* values;
    device const uint* slots;
    uint slot;
    uint head;
    uint heads;
    /// Query heads of a KV head.
    uint group;
    uint width;
    /// Tokens of a sequence.
    uint rows;
    /// The first folded row.
    uint first;
    float scale;
};

/// The token of the launch that row `row` of the threadgroup belongs to. Behind the last row it stands again.
inline uint flash_token(thread const Flash& at, uint row) { return at.slot * at.rows + min((at.first + row) / at.group, at.rows - 1); }
/// How many keys it sees.
inline uint flash_seen(thread const Flash& at, uint row) { return at.positions[flash_token(at, row)] + 1; }
/// The number of its query head among those of all tokens.
inline ulong flash_head(thread const Flash& at, uint row) {
    return (ulong(flash_token(at, row)) * at.heads + at.head) * at.group + (at.first + row) % at.group;
}
/// Rows that are there.
inline uint flash_rows(thread const Flash& at) { return min(FLASH_ROWS, at.rows * at.group - at.first); }
/// Element i of a row that is finished.
inline void flash_put(thread const Flash& at, uint row, uint i, float value) {
    const ulong head = flash_head(at, row);
    at.out[head * at.width + i] = fine_of(value * sigmoid(float(at.qg[(2 * head + 1) * at.width + i])));
}
