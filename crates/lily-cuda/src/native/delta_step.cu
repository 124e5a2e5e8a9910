// DeltaStep of one token (delta/step.rs): a block a value head; a warp has eight rows of the state, four keys of each a lane.
constexpr bool GATED = FUNCTION_CONSTANT_0, CONV_IS_F32 = FUNCTION_CONSTANT_1, A_LOG_IS_F32 = FUNCTION_CONSTANT_2;
constexpr bool DT_BIAS_IS_F32 = FUNCTION_CONSTANT_3, NORM_IS_F32 = FUNCTION_CONSTANT_4;

struct DeltaStepParams { u32 key_heads, value_heads; float l2_eps, eps; };

extern "C" __global__ void __launch_bounds__(512)
delta_step_native__cuda(const FINE* raw, const FINE* z, const FINE* a, const FINE* b, const bf16* conv, const bf16* a_log, const bf16* dt_bias,
                        const bf16* norm, FINE* out, float* conv_state, float* state, const u32* slots, DeltaStepParams p) {
    __shared__ __align__(16) float shared[3][DIM]; // q, k, v; then y in v's place
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x, slot = blockIdx.y;
    const u32 sharers = p.value_heads / p.key_heads, key_head = head / sharers, keys = p.key_heads * DIM, values = p.value_heads * DIM;
    const u32 channels = 2 * keys + values;
    // States are older than the plan, whose first launch starts late: nothing has to be waited for.
    const uint4 entry = ((const uint4*)slots)[slot]; // read, write, pages, done
    const float* kept = conv_state + (u64)entry.x * (TAPS - 1) * channels;
    float* kept_next = conv_state + (u64)entry.y * (TAPS - 1) * channels;
    const u64 place = (u64)values * DIM, first = (u64)(head * DIM + warp * 8) * DIM + 4 * lane;
    const float* from = state + entry.x * place + first;
    float* next = state + entry.y * place + first;
    const bool done = entry.w != 0;
    float4 s[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) s[i] = *(const float4*)(from + i * DIM);
    const u32 part = thread / DIM, c = thread % DIM; // of q, k or v
    const u32 channel = part == 0 ? key_head * DIM + c : part == 1 ? keys + key_head * DIM + c : 2 * keys + head * DIM + c;
    float history[TAPS - 1];
    float4 taps;
    if (part < 3) {
        taps = taps_of(conv, CONV_IS_F32, channel);
#pragma unroll
        for (u32 j = 0; j < TAPS - 1; ++j) history[j] = kept[j * channels + channel];
    }
    const float rate = expf(plain_value(a_log, A_LOG_IS_F32, head)), bias = plain_value(dt_bias, DT_BIAS_IS_F32, head);
    const float weight = GATED && part == 0 ? plain_value(norm, NORM_IS_F32, c) : 0.0f;

    wait_for_the_one_before();
    if (done) {
        if (part == 0) out[(u64)slot * values + head * DIM + c] = fine_of(0.0f);
        return;
    }
    const float decay = expf(-rate * softplus(__half2float(a[slot * p.value_heads + head]) + bias));
    const float beta = sigmoid(__half2float(b[slot * p.value_heads + head]));
    const float gate = GATED && part == 0 ? silu(__half2float(z[(u64)slot * values + head * DIM + c])) * weight : 0.0f;
    if (part < 3) {
        const float x = __half2float(raw[(u64)slot * channels + channel]);
        const float sum = fmaf(taps.w, x, fmaf(taps.z, history[2], fmaf(taps.y, history[1], taps.x * history[0])));
        shared[part][c] = silu(sum);
        if (part == 2 || head % sharers == 0) {
            kept_next[channel] = history[1];
            kept_next[channels + channel] = history[2];
            kept_next[2 * channels + channel] = x;
        }
    }
    __syncthreads();
    const float4 q = *(const float4*)(shared[0] + 4 * lane), k = *(const float4*)(shared[1] + 4 * lane);
    auto dot = [](float4 x, float4 y) { return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, x.x * y.x))); };
    const float q_scale = rsqrtf(lane_sum<32>(dot(q, q)) + p.l2_eps) * rsqrtf((float)DIM);
    const float k_scale = rsqrtf(lane_sum<32>(dot(k, k)) + p.l2_eps);
    const float kappa = lane_sum<32>(dot(q, k)) * q_scale * k_scale;
    float sk[8], sq[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        sk[i] = dot(s[i], k);
        sq[i] = dot(s[i], q);
    }
    row_sums(sk, sq, lane);
    const u32 row = warp * 8 + lane / 4;
    const float delta = beta * fmaf(-decay, sk[0] * k_scale, shared[2][row]);
    const float y = fmaf(decay, sq[0] * q_scale, delta * kappa);
    const float step = delta * k_scale;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const float d = __shfl_sync(0xffffffffu, step, 4 * i);
        s[i].x = fmaf(decay, s[i].x, d * k.x);
        s[i].y = fmaf(decay, s[i].y, d * k.y);
        s[i].z = fmaf(decay, s[i].z, d * k.z);
        s[i].w = fmaf(decay, s[i].w, d * k.w);
        *(float4*)(next + i * DIM) = s[i];
    }
    __syncwarp();
    let_the_next_one_start();
    if (lane % 4 == 0) shared[2][row] = y; // the warp alone has read what stood there
    __syncthreads();
    if (part == 0) {
        const float mine = shared[2][c];
        if constexpr (GATED) {
            const float4 four = *(const float4*)(shared[2] + 4 * lane);
            const float scale = rsqrtf(lane_sum<32>(dot(four, four)) / (float)DIM + p.eps);
            out[(u64)slot * values + head * DIM + c] = fine_of(mine * scale * gate);
        } else {
            out[(u64)slot * values + head * DIM + c] = fine_of(mine);
        }
    }
}
