// DeltaStream, first half (delta/stream.rs): the convolution of `count` tokens of a prompt of `rows`, from `start` on, q and k of length 1,
// gates; a warp a token of a head. What it makes stands in scratch memory: q (over the root of 128) and k, f32 [count, key_heads, 128] each; v,
// f32 [count, value_heads, 128]; then kappa, decay and beta, f32 [count, value_heads, 4].
constexpr bool CONV_IS_F32 = FUNCTION_CONSTANT_0, A_LOG_IS_F32 = FUNCTION_CONSTANT_1, DT_BIAS_IS_F32 = FUNCTION_CONSTANT_2;
constexpr u32 WARPS = 8;

struct DeltaStreamParams { u32 rows, start, count, key_heads, value_heads; float l2_eps; };

extern "C" __global__ void __launch_bounds__(256)
delta_prep_native__cuda(const FINE* raw, const FINE* a, const FINE* b, const bf16* conv, const bf16* a_log, const bf16* dt_bias, FINE* y,
                        float* conv_state, float* state, const u32* slots, DeltaStreamParams p, float* scratch) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, key_head = blockIdx.y;
    const u32 sharers = p.value_heads / p.key_heads, keys = p.key_heads * DIM, values = p.value_heads * DIM, channels = 2 * keys + values;
    const uint4 entry = ((const uint4*)slots)[0];
    const float* kept = conv_state + (u64)entry.x * (TAPS - 1) * channels;
    float* kept_next = conv_state + (u64)entry.y * (TAPS - 1) * channels;
    wait_for_the_one_before(); // and never lets the next one start before its end: delta_scan.cu
    const u32 place = blockIdx.x * WARPS + warp, t = p.start + place, end = p.start + p.count;
    if (t >= (end == p.rows ? p.rows + TAPS - 1 : end) || entry.w != 0) return;
    // Input of a channel, row 0 the oldest that is kept.
    auto input = [&](u32 row, u32 channel) {
        if (row < TAPS - 1) return *(const float4*)(kept + (u64)row * channels + channel);
        const uint2 four = *(const uint2*)(raw + (u64)(row - (TAPS - 1)) * channels + channel);
        const float2 low = __half22float2(halves_of(four.x)), high = __half22float2(halves_of(four.y));
        return make_float4(low.x, low.y, high.x, high.y);
    };
    // The last rows of the input are what the next piece keeps.
    if (t >= p.rows) {
        const u32 j = t - p.rows;
        auto keep = [&](u32 channel) { *(float4*)(kept_next + (u64)j * channels + channel) = input(t, channel); };
        keep(key_head * DIM + 4 * lane);
        keep(keys + key_head * DIM + 4 * lane);
        for (u32 i = 0; i < sharers; ++i) keep(2 * keys + (key_head * sharers + i) * DIM + 4 * lane);
        return;
    }
    auto convolved = [&](u32 channel) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), x[TAPS], w[4];
#pragma unroll
        for (u32 j = 0; j < TAPS; ++j) x[j] = input(t + j, channel);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) w[i] = taps_of(conv, CONV_IS_F32, channel + i);
#pragma unroll
        for (u32 j = 0; j < TAPS; ++j) {
            sum.x = fmaf(((const float*)&w[0])[j], x[j].x, sum.x);
            sum.y = fmaf(((const float*)&w[1])[j], x[j].y, sum.y);
            sum.z = fmaf(((const float*)&w[2])[j], x[j].z, sum.z);
            sum.w = fmaf(((const float*)&w[3])[j], x[j].w, sum.w);
        }
        return make_float4(silu(sum.x), silu(sum.y), silu(sum.z), silu(sum.w));
    };
    auto dot = [](float4 x, float4 y) { return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x))); };
    auto times = [](float4 x, float s) { return make_float4(x.x * s, x.y * s, x.z * s, x.w * s); };
    const float4 q = convolved(key_head * DIM + 4 * lane), k = convolved(keys + key_head * DIM + 4 * lane);
    const float q_scale = rsqrtf(lane_sum<32>(dot(q, q)) + p.l2_eps) * rsqrtf((float)DIM);
    const float k_scale = rsqrtf(lane_sum<32>(dot(k, k)) + p.l2_eps);
    const float kappa = lane_sum<32>(dot(q, k)) * q_scale * k_scale;
    float* q_out = scratch;
    float* k_out = q_out + (u64)p.count * keys;
    float* v_out = k_out + (u64)p.count * keys;
    float* gates = v_out + (u64)p.count * values;
    *(float4*)(q_out + (u64)place * keys + key_head * DIM + 4 * lane) = times(q, q_scale);
    *(float4*)(k_out + (u64)place * keys + key_head * DIM + 4 * lane) = times(k, k_scale);
    for (u32 i = 0; i < sharers; ++i) {
        const u32 head = key_head * sharers + i;
        *(float4*)(v_out + (u64)place * values + head * DIM + 4 * lane) = convolved(2 * keys + head * DIM + 4 * lane);
    }
    if (lane < sharers) {
        const u32 head = key_head * sharers + lane;
        const float rate = expf(plain_value(a_log, A_LOG_IS_F32, head)), bias = plain_value(dt_bias, DT_BIAS_IS_F32, head);
        const u64 at = (u64)t * p.value_heads + head;
        const float decay = expf(-rate * softplus(__half2float(a[at]) + bias)), beta = sigmoid(__half2float(b[at]));
        ((float4*)gates)[(u64)place * p.value_heads + head] = make_float4(kappa, decay, beta, 0.0f);
    }
}
