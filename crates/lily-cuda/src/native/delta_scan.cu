// DeltaStream, second half: the recurrence of a piece of a prompt, token after token, from the state that the piece before it has left. A
// block has 32 rows of a value head's state, a warp eight of them; eight lanes share two rows, sixteen keys of each a lane. Tokens come into
// threadgroup memory TILE at a time, the next ones on their way.
constexpr u32 TILE = 16, ROWS_OF_BLOCK = 32;

struct DeltaStreamParams { u32 rows, start, count, key_heads, value_heads; float l2_eps; };

struct Tile {
    float q[TILE][DIM], k[TILE][DIM], v[TILE][ROWS_OF_BLOCK];
    float4 gates[TILE];
};

extern "C" __global__ void __launch_bounds__(128)
delta_scan_native__cuda(const FINE* raw, const FINE* a, const FINE* b, const bf16* conv, const bf16* a_log, const bf16* dt_bias, FINE* y,
                        float* conv_state, float* state, const u32* slots, DeltaStreamParams p, const float* scratch) {
    __shared__ __align__(16) Tile tiles[2];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.y, first = blockIdx.x * ROWS_OF_BLOCK;
    const u32 sharers = p.value_heads / p.key_heads, keys = p.key_heads * DIM, values = p.value_heads * DIM, key_head = head / sharers;
    const float* q_in = scratch + key_head * DIM;
    const float* k_in = scratch + (u64)p.count * keys + key_head * DIM;
    const float* v_in = scratch + 2 * (u64)p.count * keys + head * DIM + first;
    const float4* gates_in = (const float4*)(scratch + 2 * (u64)p.count * keys + (u64)p.count * values) + head;
    const uint4 entry = ((const uint4*)slots)[0];
    const u32 e = lane % 8, pair = lane / 8; // eights of keys, pairs of rows
    const u32 row = first + warp * 8 + 2 * pair;
    const u64 place = (u64)values * DIM, at = (u64)(head * DIM + row) * DIM + 4 * e;
    // Keys 4 e + 32 j: neighbours read neighbours. The state is older than the plan, or the piece's before: its first half has waited for that
    // and does not let this one start before it ends (delta_prep.cu).
    float4 s[2][4];
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j) s[i][j] = *(const float4*)(state + (p.start == 0 ? entry.x : entry.y) * place + at + i * DIM + 32 * j);
    wait_for_the_one_before();
    if (entry.w != 0) {
        for (u32 i = thread; i < p.count * ROWS_OF_BLOCK; i += 128) y[(u64)(p.start + i / ROWS_OF_BLOCK) * values + head * DIM + first + i % ROWS_OF_BLOCK] = fine_of(0.0f);
        return;
    }
    auto fetch = [&](u32 start, Tile& tile) {
        const u32 count = min(TILE, p.count - start);
#pragma unroll
        for (u32 i = thread; i < TILE * 32; i += 128) {
            const u32 t = i / 32, c = i % 32 * 4;
            if (t < count) {
                copy16(&tile.q[t][c], q_in + (u64)(start + t) * keys + c);
                copy16(&tile.k[t][c], k_in + (u64)(start + t) * keys + c);
            }
        }
        if (thread / 8 < count) copy16(&tile.v[thread / 8][thread % 8 * 4], v_in + (u64)(start + thread / 8) * values + thread % 8 * 4);
        if (thread < count) copy16(&tile.gates[thread], gates_in + (u64)(start + thread) * p.value_heads);
        asm volatile("cp.async.commit_group;");
    };
    fetch(0, tiles[0]);
    for (u32 start = 0, turn = 0; start < p.count; start += TILE, turn ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads(); // this tile is there, and everybody is through with the other one
        if (start + TILE < p.count) fetch(start + TILE, tiles[turn ^ 1]);
        const Tile& tile = tiles[turn];
        const u32 count = min(TILE, p.count - start);
#pragma unroll 2
        for (u32 t = 0; t < count; ++t) {
            float4 k[4], q[4];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) k[j] = *(const float4*)&tile.k[t][4 * e + 32 * j];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) q[j] = *(const float4*)&tile.q[t][4 * e + 32 * j];
            const float4 gate = tile.gates[t]; // kappa, decay, beta
            const float2 v = *(const float2*)&tile.v[t][warp * 8 + 2 * pair];
            float sk[2], sq[2];
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                float ka = 0.0f, kb = 0.0f, qa = 0.0f, qb = 0.0f;
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    ka = fmaf(s[i][j].x, k[j].x, ka);
                    kb = fmaf(s[i][j].y, k[j].y, kb);
                    ka = fmaf(s[i][j].z, k[j].z, ka);
                    kb = fmaf(s[i][j].w, k[j].w, kb);
                    qa = fmaf(s[i][j].x, q[j].x, qa);
                    qb = fmaf(s[i][j].y, q[j].y, qb);
                    qa = fmaf(s[i][j].z, q[j].z, qa);
                    qb = fmaf(s[i][j].w, q[j].w, qb);
                }
                sk[i] = ka + kb;
                sq[i] = qa + qb;
            }
#pragma unroll
            for (u32 step = 4; step > 0; step /= 2)
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    sk[i] += __shfl_xor_sync(0xffffffffu, sk[i], step);
                    sq[i] += __shfl_xor_sync(0xffffffffu, sq[i], step);
                }
            const float d[2] = {gate.z * fmaf(-gate.y, sk[0], v.x), gate.z * fmaf(-gate.y, sk[1], v.y)};
#pragma unroll
            for (u32 i = 0; i < 2; ++i)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    s[i][j].x = fmaf(gate.y, s[i][j].x, d[i] * k[j].x);
                    s[i][j].y = fmaf(gate.y, s[i][j].y, d[i] * k[j].y);
                    s[i][j].z = fmaf(gate.y, s[i][j].z, d[i] * k[j].z);
                    s[i][j].w = fmaf(gate.y, s[i][j].w, d[i] * k[j].w);
                }
            if (e == 0)
                *(half2*)(y + (u64)(p.start + start + t) * values + head * DIM + row) =
                    __halves2half2(fine_of(fmaf(gate.y, sq[0], d[0] * gate.x)), fine_of(fmaf(gate.y, sq[1], d[1] * gate.x)));
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j) *(float4*)(state + entry.y * place + at + i * DIM + 32 * j) = s[i][j];
}
