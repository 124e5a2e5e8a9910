// Filters and the draw: a threadgroup of 512 threads a row (select/select_token.rs).
//
// The order of rank is by falling key, then by rising id: by falling `rank_of`. What top_k and top_p keep is a leading part of
// it and therefore described by the rank of its last token, the cut. A slice whose largest score is below a bound holds nothing above it; most searches
// read only the few slices that remain.
#define WHOLE_SIMDGROUPS
#include <metal_stdlib>
#include "portable.h"
#include "request.h"
#include "select.h"
#include "select_block.h"
#include "philox.h"
#include "slots.h"
using namespace metal;

/// Rows of scores begin at whole vectors.
FUNCTION_CONSTANT(bool, VECTORS, 0);

struct SelectTokenParams { uint vocab; uint slices; uint slice_len; };

constant constexpr uint THREADS = 512;
constant constexpr uint LIST = 1024;
constant constexpr uint NONE_LEFT = 0xffffffffu;
constant constexpr uint NOT_FINITE = 0xfffffffeu;
/// Below this exponent a weight is 0 as a float.
constant constexpr float NO_WEIGHT = -104.0f;

inline ulong rank_of(uint key, uint id) { return ulong(key) << 32 | ulong(~id); }
inline uint rank_key(ulong rank) { return uint(rank >> 32); }

/// What a token counts for in a sum: 1, its weight, or 1 if it has one key.
constant constexpr uint BY_COUNT = 0;
constant constexpr uint BY_WEIGHT = 1;
constant constexpr uint BY_KEY = 2;
struct Measure { uint kind; uint key; float log_min_p; ulong cut; };

struct Row {
    device const float* scores;
    uint vocab, slices, slice_len;
    float largest, temperature;
};

inline float measured(thread const Row& row, thread const Measure& m, float score, uint id) {
    const uint key = score_key(score);
    if (rank_of(key, id) < m.cut) return 0.0f;
    if (m.kind != BY_WEIGHT) return m.kind == BY_COUNT || key == m.key ? 1.0f : 0.0f;
    const float exponent = score_exponent(score, row.largest, row.temperature);
    return exponent >= m.log_min_p ? precise::exp(exponent) : 0.0f;
}
/// Four scores of a row from `id` on; -inf behind the row's end.
inline float4 four_scores(thread const Row& row, uint id) {
    if (VECTORS) return *(device const float4*)(row.scores + id);
    const uint n = row.vocab - id;
    device const float* s = row.scores + id;
    return float4(s[0], n > 1 ? s[1] : no_score(), n > 2 ? s[2] : no_score(), n > 3 ? s[3] : no_score());
}
inline uint slice_end(thread const Row& row, uint slice) { return min((slice + 1) * row.slice_len, row.vocab); }

/// The sum of each slice's measures. A simdgroup a slice.
inline void sum_slices(thread const Row& row, thread const Measure& m, thread const Block& b,
                       threadgroup const uint* slice_keys, threadgroup float* masses) {
    for (uint s = b.simd; s < row.slices; s += BLOCK_SIMDS) {
        const uint key = slice_keys[s];
        const bool any = key > BANNED && key >= (m.kind == BY_KEY ? m.key : rank_key(m.cut))
            && (m.kind != BY_WEIGHT || score_exponent(key_score(key), row.largest, row.temperature) >= m.log_min_p);
        float sum = 0.0f;
        if (any) {
            const uint end = slice_end(row, s);
            for (uint id = s * row.slice_len + 4 * b.lane; id < end; id += 128) {
                const float4 v = four_scores(row, id);
                sum += measured(row, m, v.x, id) + measured(row, m, v.y, id + 1)
                    + measured(row, m, v.z, id + 2) + measured(row, m, v.w, id + 3);
            }
        }
        sum = simd_sum(sum);
        if (b.lane == 0) masses[s] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// The first value above 0 with which the sum exceeds the threshold, or the last one that changes the sum if none does; NOWHERE
/// if no value is above 0. Leaves what is left of the threshold before that value.
inline uint place_of(thread float& threshold, float2 v, thread const Block& b, threadgroup uint* words, threadgroup float* parts) {
    const float2 sums = block_sums(v, b, parts);
    const float total = block_total(v, sums, b, words);
    // Rounding can leave the threshold at the total; the token meant is then one of weight, not the last one of all.
    if (total > 0.0f) threshold = fmin(threshold, as_type<float>(as_type<uint>(total) - 1));
    const uint index = block_first(v.x > 0.0f && sums.x > threshold, v.y > 0.0f && sums.y > threshold, b, words);
    if (index == NOWHERE) return NOWHERE;
    if (index / 2 == b.thread_index) parts[0] = fmax(threshold - (index % 2 ? sums.x : sums.x - v.x), 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threshold = parts[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return index;
}

/// The token at which the sum of measures by rising id exceeds the threshold; `masses` holds the slices' sums.
inline uint pick(thread const Row& row, thread const Measure& m, float threshold, thread const Block& b,
                 threadgroup const float* masses, threadgroup uint* words, threadgroup float* parts) {
    const uint first = 2 * b.thread_index;
    float2 v = float2(first < row.slices ? masses[first] : 0.0f, first + 1 < row.slices ? masses[first + 1] : 0.0f);
    const uint slice = place_of(threshold, v, b, words, parts);
    if (slice == NOWHERE) return NOWHERE;
    const uint id = slice * row.slice_len + first, end = slice_end(row, slice);
    v = float2(id < end ? measured(row, m, row.scores[id], id) : 0.0f, id + 1 < end ? measured(row, m, row.scores[id + 1], id + 1) : 0.0f);
    const uint token = place_of(threshold, v, b, words, parts);
    return token == NOWHERE ? NOWHERE : slice * row.slice_len + token;
}

/// Lists the kept tokens with keys in [low, high), in any order, and returns their number; more than LIST if there are more.
inline uint collect(thread const Row& row, ulong cut, uint low, uint high, thread const Block& b,
                    threadgroup const uint* slice_keys, threadgroup ulong* list, threadgroup atomic_uint* listed) {
    if (b.thread_index == 0) atomic_store_explicit(listed, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const ulong least = max(cut, ulong(low) << 32), most = ulong(high) << 32;
    for (uint s = b.simd; s < row.slices; s += BLOCK_SIMDS) {
        if (slice_keys[s] < low) continue;
        if (atomic_load_explicit(listed, memory_order_relaxed) > LIST) break;
        const uint end = slice_end(row, s);
        for (uint id = s * row.slice_len + 4 * b.lane; id < end; id += 128) {
            const float4 four = four_scores(row, id);
            for (uint j = 0; j < 4; ++j) {
                const float score = j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w;
                const ulong rank = rank_of(score_key(score), id + j);
                if (rank < least || rank >= most) continue;
                const uint at = atomic_fetch_add_explicit(listed, 1u, memory_order_relaxed);
                if (at < LIST) list[at] = rank;
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n = atomic_load_explicit(listed, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return n;
}

/// Sorts a list: each of its ranks, two a thread, counts those before it.
inline void sort_list(uint n, thread const Block& b, threadgroup const ulong* list, threadgroup ulong* sorted) {
    const uint i = b.thread_index;
    const ulong first = i < n ? list[i] : 0, second = i + THREADS < n ? list[i + THREADS] : 0;
    uint before_first = 0, before_second = 0;
    for (uint j = 0; j < n; ++j) {
        const ulong other = list[j];
        before_first += uint(other > first);
        before_second += uint(other > second);
    }
    if (i < n) sorted[before_first] = first;
    if (i + THREADS < n) sorted[before_second] = second;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// Where the cut lies: at a key in [low, high), with so much of the measure at higher keys. `reached` is false if the measure
/// of all tokens from `low` on stays below the target.
struct Search { uint low; uint high; float above; bool reached; };

/// An eighth of the interval: the one in which the measure reaches the target. The first rounds divide the scores, which are
/// spread evenly enough; if that does not end the search, the keys are divided, which does.
inline void narrow(thread const Row& row, thread const Measure& m, thread Search& in, float target, uint round, thread const Block& b,
                     threadgroup const uint* slice_keys, threadgroup float* parts) {
    const uint width = in.high - in.low;
    const float least = key_score(in.low), most = key_score(in.high - 1);
    uint border[8];
    border[0] = in.low;
    UNROLL
    for (uint j = 1; j < 8; ++j) {
        const float part = float(j) * 0.125f;
        const uint key = round < 6 ? score_key(fma(most, part, least * (1.0f - part))) : in.low + (width >> 3) * j + ((width & 7) * j >> 3);
        border[j] = min(max(key, border[j - 1]), in.high - 1);
    }
    float sums[8] = {};
    for (uint s = b.simd; s < row.slices; s += BLOCK_SIMDS) {
        if (slice_keys[s] < in.low) continue;
        const uint end = slice_end(row, s);
        for (uint id = s * row.slice_len + 4 * b.lane; id < end; id += 128) {
            const float4 four = four_scores(row, id);
            for (uint i = 0; i < 4; ++i) {
                const float score = i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
                const uint key = score_key(score);
                if (key < in.low || key >= in.high) continue;
                const float value = measured(row, m, score, id + i);
                UNROLL
                for (uint j = 0; j < 8; ++j) sums[j] += key >= border[j] ? value : 0.0f;
            }
        }
    }
    UNROLL
    for (uint j = 0; j < 8; ++j) {
        const float sum = simd_sum(sums[j]);
        if (b.lane == 0) parts[8 * b.simd + j] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float above = in.above;
    in.reached = false;
    UNROLL
    for (uint i = 0; i < 8; ++i) {
        const uint j = 7 - i;
        const float sum = above + simd_sum(b.lane < BLOCK_SIMDS ? parts[8 * b.lane + j] : 0.0f);
        if (in.reached) continue;
        in.reached = sum >= target;
        if (in.reached || j == 0) in.low = border[j];
        else { in.high = border[j]; in.above = sum; }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// The lowest key that matters: of scores with a weight, and with the share of the largest that min_p asks for. Some steps lower,
/// for what rounding does to the bound.
inline uint floor_key(thread const Row& row, float log_min_p) {
    const float exponent = fmax(NO_WEIGHT, fma(log_min_p, 1.0001f, -0.01f));
    const float score = fma(row.temperature, exponent, row.largest);
    return score >= -LARGEST_FLOAT ? max(score_key(score) - 1, BANNED + 1) : BANNED + 1;
}

/// The next step's inputs, by one thread of the row.
inline void finish(uint row, uint result, device const uint* positions, device const uint* tokens, device uint* next_slots,
                   device uint* next_tokens, device uint* next_positions, device uint* chosen, bool ends) {
    const bool taken = result < NOT_FINITE;
    const uint token = tokens[row], position = positions[row];
    chosen[row] = result;
    next_tokens[row] = taken ? result : token;
    next_positions[row] = position + uint(taken);
    next_slots[row * 4 + 3] = uint(!taken || ends);
}

kernel void select_token(device const uint* maxima [[buffer(0)]],
                         device const float* sums [[buffer(1)]],
                         device const float* scores [[buffer(2)]],
                         device const uint* positions [[buffer(3)]],
                         device const uint* tokens [[buffer(4)]],
                         device const uint* slots_now [[buffer(5)]],
                         device uint* requests [[buffer(6)]],
                         device uint* counts [[buffer(7)]],
                         device uint* next_slots [[buffer(8)]],
                         device uint* next_tokens [[buffer(9)]],
                         device uint* next_positions [[buffer(10)]],
                         device uint* chosen [[buffer(11)]],
                         constant SelectTokenParams& p [[buffer(12)]],
                         uint index [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint, slice_keys, 1024);
    TG_ARRAY(float, masses, 1024);
    TG_ARRAY(ulong, list, LIST);
    TG_ARRAY(ulong, sorted, LIST);
    TG_ARRAY(float, parts, 8 * BLOCK_SIMDS);
    TG_ARRAY(uint, words, BLOCK_SIMDS);
    TG_ARRAY(atomic_uint, listed, 1);
    const Block b = {thread_index, lane, simd};
    device uint* q = requests + index * REQUEST_WORDS;
    if (slot_done(slots_now, index)) {
        if (thread_index == 0) finish(index, NONE_LEFT, positions, tokens, next_slots, next_tokens, next_positions, chosen, true);
        return;
    }

    // The best token of all slices.
    uint best_key = 0, best_id = NOWHERE, fault = 0;
    const ulong first_slice = ulong(index) * p.slices;
    for (uint s = thread_index; s < p.slices; s += THREADS) {
        const uint key = maxima[2 * (first_slice + s)], id = maxima[2 * (first_slice + s) + 1];
        slice_keys[s] = key;
        fault |= uint(sums[first_slice + s] < 0.0f);
        if (key > best_key) { best_key = key; best_id = id; }
    }
    const uint own_key = best_key;
    best_key = block_max(best_key, b, words);
    best_id = block_min(own_key == best_key ? best_id : NOWHERE, b, words);
    fault = block_max(fault, b, words);

    uint result = best_id;
    if (fault) result = NOT_FINITE;
    else if (best_key <= BANNED) result = NONE_LEFT;
    else if (!request_greedy(q)) {
        const Row row = {scores + ulong(index) * p.vocab, p.vocab, p.slices, p.slice_len,
                         key_score(best_key), as_type<float>(q[REQUEST_TEMPERATURE])};
        const float top_p = as_type<float>(q[REQUEST_TOP_P]), log_min_p = as_type<float>(q[REQUEST_LOG_MIN_P]);
        const uint top_k = q[REQUEST_TOP_K];
        const bool by_rank = top_k > 0 && top_k < min(q[REQUEST_VOCABULARY], p.vocab);
        bool by_share = top_p < 1.0f;
        const bool filtered = by_rank || by_share || log_min_p > no_score();
        const uint first = 2 * thread_index;
        for (uint s = thread_index; s < p.slices; s += THREADS)
            masses[s] = slice_keys[s] > BANNED ? sums[first_slice + s] * score_weight(key_score(slice_keys[s]), row.largest, row.temperature) : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);

        ulong cut = 0;
        for (uint stage = 0; stage < 2; ++stage) {
            const bool counting = stage == 0;
            if (!(counting ? by_rank : by_share)) continue;
            const Measure m = {counting ? BY_COUNT : BY_WEIGHT, 0, no_score(), cut};
            float target = float(top_k);
            if (!counting) {
                if (by_rank) sum_slices(row, m, b, slice_keys, masses);
                const float2 v = float2(first < p.slices ? masses[first] : 0.0f, first + 1 < p.slices ? masses[first + 1] : 0.0f);
                const float2 upto = block_sums(v, b, parts);
                target = top_p * block_total(v, upto, b, words);
            }
            Search in = {max(floor_key(row, counting && by_share ? no_score() : log_min_p), rank_key(cut)), best_key + 1, 0.0f, true};

            // The slices' best are tokens: if some of them reach the target, the cut is not below the last of those.
            for (uint s = thread_index; s < p.slices; s += THREADS) list[s] = rank_of(slice_keys[s], s);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            sort_list(p.slices, b, list, sorted);
            const uint unsure = max(BANNED, rank_key(cut));
            float2 v = float2(0.0f, 0.0f);
            if (first < p.slices && rank_key(sorted[first]) > unsure)
                v.x = counting ? 1.0f : score_weight(key_score(rank_key(sorted[first])), row.largest, row.temperature);
            if (first + 1 < p.slices && rank_key(sorted[first + 1]) > unsure)
                v.y = counting ? 1.0f : score_weight(key_score(rank_key(sorted[first + 1])), row.largest, row.temperature);
            float2 upto = block_sums(v, b, parts);
            const float safe = counting ? target : target * 1.00001f;
            const uint bound = block_first(upto.x >= safe && v.x > 0.0f, upto.y >= safe && v.y > 0.0f, b, words);
            if (bound != NOWHERE) in.low = max(in.low, rank_key(sorted[bound]));

            ulong found = 0;
            for (uint round = 0;; ++round) {
                const uint n = collect(row, cut, in.low, in.high, b, slice_keys, list, listed);
                if (n <= LIST) {
                    sort_list(n, b, list, sorted);
                    v = float2(0.0f, 0.0f);
                    if (first < n) v.x = counting ? 1.0f : score_weight(key_score(rank_key(sorted[first])), row.largest, row.temperature);
                    if (first + 1 < n) v.y = counting ? 1.0f : score_weight(key_score(rank_key(sorted[first + 1])), row.largest, row.temperature);
                    upto = block_sums(v, b, parts);
                    uint last = block_first(in.above + upto.x >= target, in.above + upto.y >= target, b, words);
                    if (last < n && counting && by_share && in.above == 0.0f) {
                        // The list has all that top_k keeps: top_p is decided with it.
                        v = float2(0.0f, 0.0f);
                        if (first <= last) v.x = score_weight(key_score(rank_key(sorted[first])), row.largest, row.temperature);
                        if (first + 1 <= last) v.y = score_weight(key_score(rank_key(sorted[first + 1])), row.largest, row.temperature);
                        upto = block_sums(v, b, parts);
                        const float share = top_p * block_total(v, upto, b, words);
                        last = min(last, block_first(upto.x >= share, upto.y >= share, b, words));
                        by_share = false;
                    }
                    found = last < n ? sorted[last] : rank_of(in.low, NOWHERE);
                    break;
                }
                if (in.high - in.low == 1) {
                    // More equal scores than a list holds.
                    const Measure equal = {BY_KEY, in.low, no_score(), cut};
                    sum_slices(row, equal, b, slice_keys, masses);
                    const float each = counting ? 1.0f : score_weight(key_score(in.low), row.largest, row.temperature);
                    const float number = fmax(ceil((target - in.above) / each), 1.0f);
                    found = rank_of(in.low, pick(row, equal, number - 0.5f, b, masses, words, parts));
                    break;
                }
                narrow(row, m, in, target, round, b, slice_keys, parts);
                found = rank_of(in.low, NOWHERE);
                if (!in.reached) break;
            }
            cut = max(cut, found);
        }

        const Measure m = {BY_WEIGHT, 0, log_min_p, cut};
        if (filtered) sum_slices(row, m, b, slice_keys, masses);
        const float2 v = float2(first < p.slices ? masses[first] : 0.0f, first + 1 < p.slices ? masses[first + 1] : 0.0f);
        const float2 upto = block_sums(v, b, parts);
        const float total = block_total(v, upto, b, words);
        // 53 random bits as two floats.
        const uint2 bits = philox(uint2(q[REQUEST_SEED], q[REQUEST_SEED + 1]), q[REQUEST_STEP]);
        const float high = float(bits.x >> 8) * 5.9604644775390625e-8f;
        const float low = float((bits.x & 0xffu) << 21 | bits.y >> 11) * 1.1102230246251565e-16f;
        result = pick(row, m, fma(high, total, low * total), b, masses, words, parts);
        // Only if the total has no number.
        if (result == NOWHERE) result = best_id;
    }

    if (thread_index == 0) {
        bool ends = false;
        for (uint i = 0; i < min(q[REQUEST_ENDS], REQUEST_WORDS - REQUEST_END); ++i) ends = ends || q[REQUEST_END + i] == result;
        if (result < NOT_FINITE) {
            q[REQUEST_STEP] += 1;
            if (q[REQUEST_FLAGS] & HAS_COUNTS) counts[ulong(q[REQUEST_ENTRY]) * p.vocab + result] += 1;
        }
        finish(index, result, positions, tokens, next_slots, next_tokens, next_positions, chosen, ends);
    }
}
