// Attention of one new token of a request over its paged cache, a chunk of positions at a time (split keys).
#pragma once

#include <algorithm>

#include "model.h"
#include "simd.h"

constexpr int CHUNK = 256;  // positions a task reads; longer contexts are split and merged
constexpr int MAX_GROUP = 16;

template <int KV>
inline vfloat load_kv(const void* base, int64_t offset) {
    if constexpr (KV == F32) return load(static_cast<const float*>(base) + offset);
    else return widen_bf16(static_cast<const uint16_t*>(base) + offset);
}

// Where a token's key (or value) of one head lies in a layer's cache.
inline int64_t address(const Model& m, int64_t slot, int kv_head) { return slot * m.token_stride + kv_head * m.head_stride; }
inline void addresses(const Model& m, const int32_t* table, int begin, int end, int kv_head, int64_t* at) {  // of positions
    for (int pos = begin; pos < end;) {
        const int64_t block = table[pos / m.block_size] * m.block_stride + kv_head * m.head_stride;
        for (int offset = pos % m.block_size; offset < m.block_size && pos < end; offset++, pos++)
            at[pos - begin] = block + offset * m.token_stride;
    }
}
inline void write_head(const Model& m, void* cache, int64_t at, const float* x) {
    if (m.kv_dtype == F32) std::memcpy(static_cast<float*>(cache) + at, x, sizeof(float) * m.head_dim);
    else for (int i = 0; i < m.head_dim; i++) static_cast<uint16_t*>(cache)[at + i] = float_to_bf16(x[i]);
}

inline void store_token(const Model& m, const Layer& layer, int64_t slot, const float* keys, const float* values) {
    for (int h = 0; h < m.kv_heads; h++) {
        const int64_t at = address(m, slot, h);
        write_head(m, layer.k_cache, at, keys + h * m.head_dim);
        write_head(m, layer.v_cache, at, values + h * m.head_dim);
    }
}

// The keys (or values) of one position, asked for before they are needed: they lie apart, so nothing guesses them.
template <int KV, int WIDTH>
inline void fetch(const void* base, int64_t offset, int d) {
    constexpr int BYTES = KV == F32 ? 4 : 2;
    const char* p = static_cast<const char*>(base) + offset * BYTES;
    for (int i = 0; i < (WIDTH ? WIDTH * LANES : d) * BYTES; i += 64) __builtin_prefetch(p + i);
}

struct Partial {  // one (sequence, kv head, chunk): unnormalised sum of values, running max and sum of weights a head
    float max[MAX_GROUP], sum[MAX_GROUP];
    float* acc;  // (group, head_dim)
};

// Half-rotation rope (GPT-NeoX order) of one head, after its optional RMSNorm. cos, sin: head_dim / 2 each.
inline void rope_head(float* x, const float* norm, float eps, const float* cos, const float* sin, int d) {
    if (norm) rms_norm(x, norm, eps, d, x);
    for (int i = 0; i < d / 2; i++) {
        float a = x[i], b = x[i + d / 2];
        x[i] = a * cos[i] - b * sin[i];
        x[i + d / 2] = b * cos[i] + a * sin[i];
    }
}

// Keys against HEADS query heads: scores of `n` positions whose keys begin at `at`. WIDTH is the head size in vectors
// where the compiler knows it, else 0. A vector of positions is summed at once; their values are on their way meanwhile.
template <int KV, int WIDTH, int HEADS>
void score(const Model& m, const Layer& layer, const float* q, const int64_t* at, int n, float* scores) {
    const int width = WIDTH ? WIDTH : m.head_dim / LANES;
    for (int i = 0; i < n; i += LANES) {
        vfloat sums[HEADS][LANES];
        for (int j = 0; j < LANES; j++) {
            const int64_t place = at[std::min(i + j, n - 1)];
            fetch<KV, WIDTH>(layer.k_cache, at[std::min(i + LANES + j, n - 1)], m.head_dim);
            fetch<KV, WIDTH>(layer.v_cache, place, m.head_dim);
            vfloat sum[HEADS] = {};
            for (int v = 0; v < width; v++) {
                const vfloat key = load_kv<KV>(layer.k_cache, place + v * LANES);
                for (int h = 0; h < HEADS; h++) sum[h] += load(q + (h * width + v) * LANES) * key;
            }
            for (int h = 0; h < HEADS; h++) sums[h][j] = sum[h];
        }
        for (int h = 0; h < HEADS; h++) store(scores + h * CHUNK + i, sum_lanes<LANES, LANES>(sums[h]) * m.scale);
    }
}

// Weighted sum of values for HEADS query heads at once, whose sums stay in registers.
template <int KV, int WIDTH, int HEADS>
void mix(const void* v_cache, const int64_t* at, int n, const float* weights, float* out) {
    vfloat acc[HEADS][WIDTH] = {};
    for (int i = 0; i < n; i++)
        for (int v = 0; v < WIDTH; v++) {
            vfloat value = load_kv<KV>(v_cache, at[i] + v * LANES);
            for (int h = 0; h < HEADS; h++) acc[h][v] += value * weights[h * CHUNK + i];
        }
    for (int h = 0; h < HEADS; h++)
        for (int v = 0; v < WIDTH; v++) store(out + (h * WIDTH + v) * LANES, acc[h][v]);
}

template <int KV, int WIDTH>
void mix_all(const Model& m, const void* v_cache, const int64_t* at, int n, const float* weights, float* out) {
    const int d = m.head_dim, group = m.heads / m.kv_heads;
    if constexpr (WIDTH) {
        auto some = [&]<int HEADS>(int g) { mix<KV, WIDTH, HEADS>(v_cache, at, n, weights + g * CHUNK, out + g * d); };
        if constexpr (LANES == 16 && WIDTH <= 4) in_tiles<4, 3, 2, 1>(group, some);
        else in_tiles<2, 1>(group, some);
    } else {
        for (int g = 0; g < group; g++)
            for (int v = 0; v < d; v += LANES) {
                const char* values = static_cast<const char*>(v_cache) + v * (KV == F32 ? 4 : 2);
                mix<KV, 1, 1>(values, at, n, weights + g * CHUNK, out + g * d + v);
            }
    }
}

// Scores of n positions → their weights, up to whole vectors: exp(score - max), and the sum of them.
inline void soften(float* s, int n, float* max, float* sum) {
    for (int i = n; i < (n + LANES - 1) / LANES * LANES; i++) s[i] = -INFINITY;
    vfloat top = load(s), total = {};
    for (int i = LANES; i < n; i += LANES) top = load(s + i) > top ? load(s + i) : top;
    float most = top[0];
    for (int j = 1; j < LANES; j++) most = std::max(most, top[j]);
    for (int i = 0; i < n; i += LANES) {
        vfloat e = vexp(load(s + i) - most);
        if (i + LANES > n) for (int j = n - i; j < LANES; j++) e[j] = 0;
        store(s + i, e);
        total += e;
    }
    *max = most;
    *sum = hsum(total);
}

template <int KV, int WIDTH>
void attend(const Model& m, const Layer& layer, const float* q, int kv_head, const int32_t* table, int begin, int end,
            float* scores, Partial& out) {
    const int group = m.heads / m.kv_heads, n = end - begin;
    int64_t at[CHUNK];
    addresses(m, table, begin, end, kv_head, at);
    in_tiles<4, 3, 2, 1>(group, [&]<int HEADS>(int g) {
        score<KV, WIDTH, HEADS>(m, layer, q + g * m.head_dim, at, n, scores + g * CHUNK);
    });
    for (int g = 0; g < group; g++) soften(scores + g * CHUNK, n, &out.max[g], &out.sum[g]);
    mix_all<KV, WIDTH>(m, layer.v_cache, at, n, scores, out.acc);
}

// The usual head sizes get code of their own.
template <int KV>
void attend(const Model& m, const Layer& layer, const float* q, int kv_head, const int32_t* table, int begin, int end,
            float* scores, Partial& out) {
    if (m.head_dim == 64) attend<KV, 64 / LANES>(m, layer, q, kv_head, table, begin, end, scores, out);
    else if (m.head_dim == 128) attend<KV, 128 / LANES>(m, layer, q, kv_head, table, begin, end, scores, out);
    else attend<KV, 0>(m, layer, q, kv_head, table, begin, end, scores, out);
}
