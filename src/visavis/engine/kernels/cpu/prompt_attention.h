// Causal attention of a chunk of a prompt over its paged cache.
#pragma once

#include "attention.h"
#include "query_blocks.h"
#include "workers.h"

struct PromptChunk {
    const float* queries;  // (count, …) rotated, `stride` apart, the heads of each side by side
    int64_t stride;
    int count, context;    // tokens, and those before them; the cache holds the keys and values of both
    const int32_t* table;
    float* out;            // (count, heads · head_dim)
};

class PromptAttention {
  public:
    PromptAttention(const Model& model, Workers& workers)
        : m(model), blocks(model.head_dim, model.heads / model.kv_heads, workers.threads()), workers(workers) {}

    void operator()(const Layer& layer, const PromptChunk& chunk) {
        const int num_blocks = (chunk.count + QUERIES - 1) / QUERIES, group = m.heads / m.kv_heads;
        // A task takes all query heads of a key head, or some where there would be fewer tasks than threads.
        const int wanted = (workers.threads() + num_blocks * m.kv_heads - 1) / (num_blocks * m.kv_heads);
        const int heads = std::max(1, group / wanted), parts = (group + heads - 1) / heads, a_block = m.kv_heads * parts;
        auto call = [&](int t, int, int index) {  // the last queries see most keys: first, so that threads end together
            const int first = (num_blocks - 1 - index / a_block) * QUERIES, head = index % parts * heads;
            const Task task{first, std::min(QUERIES, chunk.count - first), index % a_block / parts, head, std::min(heads, group - head)};
            if (m.kv_dtype == F32) attend<F32>(blocks.scratch[t], layer, chunk, task);
            else attend<BF16>(blocks.scratch[t], layer, chunk, task);
        };
        workers.run(1, [&](int) { return num_blocks * a_block; }, call);
    }

  private:
    struct Task { int first, count, kv_head, head, heads; };  // queries; `heads` of the key head's query heads from `head` on
    const Model m;
    QueryBlocks blocks;
    Workers& workers;

    template <int KV>
    static void copy_key(const void* cache, int64_t at, int d, float* to) {
        for (int i = 0; i < d; i += LANES) {
            if constexpr (NUMBERS<KV> == 2) std::memcpy(to + i / 2, static_cast<const uint16_t*>(cache) + at + i, 2 * LANES);
            else store(to + i, load_kv<KV>(cache, at + i));
        }
    }

    // LANES numbers of a value, beside each the same of the next one (-1: none) where words hold two.
    template <int KV>
    static vfloat value_words(const void* cache, int64_t at, int64_t next) {
        const vfloat first = load_kv<KV>(cache, at);
        if constexpr (NUMBERS<KV> == 1) return first;
        const vfloat second = next < 0 ? vfloat{} : load_kv<KV>(cache, next);
        const vuint both = reinterpret_cast<const vuint&>(first) >> 16 | reinterpret_cast<const vuint&>(second);
        return reinterpret_cast<const vfloat&>(both);
    }

    template <int KV>
    void attend(QueryBlocks::Scratch& s, const Layer& layer, const PromptChunk& chunk, const Task& task) {
        constexpr int N = NUMBERS<KV>;
        const int d = m.head_dim, first = task.first, count = task.count, seen = chunk.context + first, total = seen + count;
        const int head = task.kv_head * (m.heads / m.kv_heads) + task.head;
        const float* queries = chunk.queries + first * chunk.stride + head * d;
        for (int g = 0; g < task.heads; g++) blocks.begin<KV>(s, g, queries + g * d, chunk.stride, count, m.scale);
        for (int begin = 0; begin < total; begin += KEYS) {
            const int keys = std::min(KEYS, total - begin), padded = (keys + KEY_ROWS - 1) / KEY_ROWS * KEY_ROWS;
            int64_t at[KEYS];
            addresses(m, chunk.table, begin, begin + keys, task.kv_head, at);
            for (int j = 0; j < keys; j++) copy_key<KV>(layer.k_cache, at[j], d, s.keys.data() + j * d / N);
            std::memset(s.keys.data() + keys * d / N, 0, sizeof(float) * (padded - keys) * d / N);
            for (int j = 0; j < keys; j += N)  // an odd number of keys: 0 beside the last, for 0 · NaN is NaN
                for (int i = 0; i < d; i += LANES)
                    store(s.values.data() + j / N * d + i, value_words<KV>(layer.v_cache, at[j] + i, j + 1 < keys ? at[j + 1] + i : -1));
            for (int g = 0; g < task.heads; g++) blocks.block<KV>(s, g, keys, padded, seen - begin, count);
        }
        const int64_t width = int64_t(m.heads) * d;
        for (int g = 0; g < task.heads; g++) blocks.end(s, g, chunk.out + first * width + (head + g) * d, width, count);
    }
};
