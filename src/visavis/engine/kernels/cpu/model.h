// What the Python side hands over: `library.py` has the same structures.
#pragma once

#include <cstdint>

#include "simd.h"

struct Linear {  // y = W x (+ bias); W is n rows of k, packed as panels.h says
    const void* weight;
    const float* scale;  // a row, INT8 only
    const float* bias;   // or null
    int32_t n, k, dtype, pad;
};

struct Layer {
    Linear qkv, o, gate_up, down;
    const float *input_norm, *post_norm, *q_norm, *k_norm;  // q/k norms or null
    void *k_cache, *v_cache;
};

struct Model {
    const Layer* layers;
    Linear lm_head;
    const float* final_norm;
    int32_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, kv_dtype, block_size;
    int64_t block_stride, token_stride, head_stride;  // of the caches, in elements
    float eps, scale;
    int32_t max_batch, pad;
};

inline void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
    vfloat sum = {};
    for (int i = 0; i < n; i += LANES) sum += load(x + i) * load(x + i);
    float inv = 1.0f / std::sqrt(hsum(sum) / n + eps);
    for (int i = 0; i < n; i += LANES) store(out + i, load(x + i) * inv * load(weight + i));
}
