// Where a product goes (msl/output.h): OUT names the text's constant for it.
struct PartOutput {
    void* out;
    u32 rows, outputs, width0, width1, width2;
    /// Where output o of row r is.
    __device__ u64 place(u32 r, u32 o) const {
        u32 start = 0, width = width0;
        if (o >= width0) {
            start = width0; width = width1;
            if (o >= start + width) {
                start += width; width = width2;
                if (o >= start + width) { start += width; width = outputs - start; }
            }
        }
        return (u64)rows * start + (u64)r * width + (o - start);
    }
    /// What is there, where it is added to.
    __device__ float before(u32 r, u32 o) const { return OUT == 2 ? ((const float*)out)[place(r, o)] : 0.0f; }
    __device__ void store(u32 r, u32 o, float v) const { store(r, o, v, before(r, o)); }
    __device__ void store(u32 r, u32 o, float v, float before) const {
        const u64 at = place(r, o);
        if constexpr (OUT == 0) ((ACT*)out)[at] = act_of(v);
        else if constexpr (OUT == 3) ((FINE*)out)[at] = fine_of(v);
        else if constexpr (OUT == 1) ((float*)out)[at] = v;
        else ((float*)out)[at] = before + v;
    }
};
