// Causal attention of a chunk of a prompt over its paged cache, in blocks of keys with a running softmax (Milakov &
// Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135).
//
// Queries lie across the lanes, keys and values are read one word at a time: both products are then those of
// `panels.h`, and softmax never crosses lanes. A word is a float32 number or, of a bfloat16 cache where the processor
// has dot products of them, two bfloat16 numbers: queries and weights are then rounded. Keys and values become words a
// block at a time, for all the query heads that share them. Sums are float32.
#pragma once

#include "attention.h"
#include "panels.h"
#include "workers.h"

constexpr int QUERIES = TILE_WIDTH;  // of a head, side by side
constexpr int KEYS = 64;             // of a block
constexpr int KEY_ROWS = LANES == 16 ? 8 : 4;  // rows of a tile; divides KEYS and head sizes
template <int KV>
constexpr int NUMBERS = KV == BF16 && QUERIES >= DOT_ROWS ? 2 : 1;  // of a word

template <int KV>
inline vfloat words(vfloat first, vfloat second) {  // a word a lane: both numbers, or the first
#if defined(__AVX512BF16__)
    if constexpr (KV == BF16) {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i order = _mm512_or_si512(_mm512_slli_epi32(lanes, 16), _mm512_add_epi32(lanes, _mm512_set1_epi32(16 << 16)));
        return (vfloat)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    }
#endif
    return first;
}

template <int KV>
inline __attribute__((always_inline)) vfloat add_products(vfloat sum, vfloat a, vfloat b) {  // of words
#if defined(__AVX512BF16__)
    if constexpr (KV == BF16) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
    return sum + a * b;
}

// sum[m][v] += w[i · ldw + v] · x[m · row + i · column] over i < k, all of them words, then f(m, v, sum).
template <int KV, int M, class F>
inline void multiply(const float* w, int ldw, const float* x, int row, int column, int k, F&& f) {
    vfloat sum[M][TILE_VECTORS] = {};
    for (int i = 0; i < k; i++, w += ldw, x += column) {
        vfloat wide[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) wide[v] = load(w + v * LANES);
        unrolled<M>([&](int m) __attribute__((always_inline)) {
#if defined(__AVX512F__)
            const vfloat one = (vfloat)both_columns(x + m * row);
#else
            const vfloat one = splat(x[m * row]);
#endif
            unrolled<TILE_VECTORS>([&](int v) __attribute__((always_inline)) { sum[m][v] = add_products<KV>(sum[m][v], wide[v], one); });
        });
    }
    unrolled<M>([&](int m) __attribute__((always_inline)) {
        unrolled<TILE_VECTORS>([&](int v) __attribute__((always_inline)) { f(m, v, sum[m][v]); });
    });
}

struct PromptChunk {
    const float* queries;  // (count, …) rotated, `stride` apart, the heads of each side by side
    int64_t stride;
    int count, context;    // tokens, and those before them; the cache holds the keys and values of both
    const int32_t* table;
    float* out;            // (count, heads · head_dim)
};

class PromptAttention {
  public:
    PromptAttention(const Model& model, Workers& workers) : m(model), workers(workers), scratch(workers.threads()) {
        const int group = m.heads / m.kv_heads, d = m.head_dim;
        for (auto& s : scratch) {
            s.query.resize(size_t(group) * d * QUERIES);
            s.mixed.resize(size_t(group) * d * QUERIES);
            s.keys.resize(size_t(KEYS) * d);
            s.values.resize(size_t(KEYS) * d);
            s.scores.resize(size_t(KEYS) * QUERIES);
        }
    }

    void operator()(const Layer& layer, const PromptChunk& chunk) {
        const int blocks = (chunk.count + QUERIES - 1) / QUERIES, group = m.heads / m.kv_heads;
        // A task takes all query heads of a key head, or some where there would be fewer tasks than threads.
        const int wanted = (workers.threads() + blocks * m.kv_heads - 1) / (blocks * m.kv_heads);
        const int heads = std::max(1, group / wanted), parts = (group + heads - 1) / heads, a_block = m.kv_heads * parts;
        auto call = [&](int t, int, int index) {  // the last queries see most keys: first, so that threads end together
            const int first = (blocks - 1 - index / a_block) * QUERIES, head = index % parts * heads;
            const Task task{first, std::min(QUERIES, chunk.count - first), index % a_block / parts, head, std::min(heads, group - head)};
            if (m.kv_dtype == F32) attend<F32>(scratch[t], layer, chunk, task);
            else attend<BF16>(scratch[t], layer, chunk, task);
        };
        workers.run(1, [&](int) { return blocks * a_block; }, call);
    }

  private:
    struct Task { int first, count, kv_head, head, heads; };  // queries; `heads` of the key head's query heads from `head` on
    struct Running { vfloat max[TILE_VECTORS], sum[TILE_VECTORS]; };
    struct Scratch {  // of a thread
        Buffer query, mixed;  // a head: (d, QUERIES); words of two numbers fill half of this, of keys, values and weights
        Buffer keys, values;  // (KEYS, d)
        Buffer scores;        // (KEYS, QUERIES), then the weights
        Running running[MAX_GROUP];
    };
    const Model m;
    Workers& workers;
    std::vector<Scratch> scratch;

    template <int KV>
    void attend(Scratch& s, const Layer& layer, const PromptChunk& chunk, const Task& task) {
        constexpr int N = NUMBERS<KV>;
        const int d = m.head_dim, first = task.first, count = task.count, seen = chunk.context + first, total = seen + count;
        const int head = task.kv_head * (m.heads / m.kv_heads) + task.head;
        float *query = s.query.data(), *mixed = s.mixed.data();
        std::memset(mixed, 0, sizeof(float) * task.heads * d * QUERIES);
        for (int g = 0; g < task.heads; g++) {
            for (int v = 0; v < TILE_VECTORS; v++) s.running[g].max[v] = splat(-INFINITY), s.running[g].sum[v] = vfloat{};
            for (int j = 0; j < QUERIES; j++) {  // lanes without a query repeat the last one
                const float* from = chunk.queries + (first + std::min(j, count - 1)) * chunk.stride + (head + g) * d;
                for (int i = 0; i < d; i++) query[(g * d + i) * QUERIES + j] = from[i] * m.scale;
            }
            to_words<KV>(query + g * d * QUERIES, d);
        }
        for (int begin = 0; begin < total; begin += KEYS) {
            const int keys = std::min(KEYS, total - begin), padded = (keys + KEY_ROWS - 1) / KEY_ROWS * KEY_ROWS;
            int64_t at[KEYS];
            addresses(m, chunk.table, begin, begin + keys, task.kv_head, at);
            for (int j = 0; j < keys; j++)
                for (int i = 0; i < d; i += LANES) {
                    float* to = s.keys.data() + (j * d + i) / N;
                    if constexpr (N == 2) std::memcpy(to, static_cast<const uint16_t*>(layer.k_cache) + at[j] + i, 2 * LANES);
                    else store(to, load_kv<KV>(layer.k_cache, at[j] + i));
                }
            std::memset(s.keys.data() + keys * d / N, 0, sizeof(float) * (padded - keys) * d / N);
            for (int j = 0; j < keys; j += N)
                for (int i = 0; i < d; i += LANES) {  // an odd number of keys: 0 beside the last, for 0 · NaN is NaN
                    const vfloat next = j + 1 < keys ? load_kv<KV>(layer.v_cache, at[j + 1] + i) : vfloat{};
                    store(s.values.data() + j / N * d + i, words<KV>(load_kv<KV>(layer.v_cache, at[j] + i), next));
                }
            for (int g = 0; g < task.heads; g++) block<KV>(s, g, keys, padded, seen - begin, count);
        }
        for (int g = 0; g < task.heads; g++) {
            const Running& r = s.running[g];
            for (int j = 0; j < count; j++) {
                const float inverse = 1.0f / r.sum[j / LANES][j % LANES];
                float* to = chunk.out + (int64_t(first + j) * m.heads + head + g) * d;
                for (int i = 0; i < d; i++) to[i] = mixed[(g * d + i) * QUERIES + j] * inverse;
            }
        }
    }

    // (n, QUERIES) numbers, those of two rows in a word.
    template <int KV>
    static void to_words(float* x, int n) {
        if constexpr (NUMBERS<KV> == 2)
            for (int i = 0; i < n; i += 2)
                for (int j = 0; j < QUERIES; j += LANES) {
                    const float* from = x + i * QUERIES + j;
                    store(x + i / 2 * QUERIES + j, words<KV>(load(from), load(from + QUERIES)));
                }
    }

    // One head's queries over a block of keys. `visible`: the block's keys before query 0, its own key; query j sees j more.
    // A key that a query does not see has a weight of 0, and 0 · NaN is NaN: a broken value reaches the queries before it
    // in its block too, all of the same request.
    template <int KV>
    void block(Scratch& s, int g, int keys, int padded, int visible, int count) {
        constexpr int N = NUMBERS<KV>;
        const int d = m.head_dim;
        Running& r = s.running[g];
        float *scores = s.scores.data(), *mixed = s.mixed.data() + g * d * QUERIES;
        const float* query = s.query.data() + g * d * QUERIES;
        const vfloat ones = words<KV>(splat(1.0f), splat(1.0f));
        vfloat top[TILE_VECTORS], fade[TILE_VECTORS];
        vint limit[TILE_VECTORS];  // the last key that a lane sees
        for (int v = 0; v < TILE_VECTORS; v++) {
            top[v] = r.max[v];
            for (int j = 0; j < LANES; j++) limit[v][j] = visible + std::min(v * LANES + j, count - 1);
        }
        for (int j = 0; j < padded; j += KEY_ROWS)
            multiply<KV, KEY_ROWS>(query, QUERIES, s.keys.data() + j * d / N, d / N, 1, d / N, [&](int row, int v, vfloat y) {
                if (j + row > visible) {
                    const vint seen = limit[v] >= int32_t(j + row);
                    y = seen ? y : splat(-INFINITY);
                }
                top[v] = y > top[v] ? y : top[v];
                store(scores + (j + row) * QUERIES + v * LANES, y);
            });
        for (int v = 0; v < TILE_VECTORS; v++) {
            auto weight = [&](int j) __attribute__((always_inline)) {
                vfloat e = vexp(load(scores + j * QUERIES + v * LANES) - top[v]);
                if (j > visible) {
                    const vint seen = limit[v] >= int32_t(j);
                    e = seen ? e : vfloat{};
                }
                return e;
            };
            vfloat sum = {};
            for (int j = 0; j < keys; j += N) {
                const vfloat e = words<KV>(weight(j), N == 2 ? weight(j + 1) : vfloat{});
                store(scores + j / N * QUERIES + v * LANES, e);
                sum = add_products<KV>(sum, e, ones);
            }
            fade[v] = vexp(r.max[v] - top[v]);
            r.sum[v] = r.sum[v] * fade[v] + sum;
            r.max[v] = top[v];
        }
        for (int i = 0; i < d; i += KEY_ROWS)
            multiply<KV, KEY_ROWS>(scores, QUERIES, s.values.data() + i, 1, d, (keys + N - 1) / N, [&](int row, int v, vfloat y) {
                float* at = mixed + (i + row) * QUERIES + v * LANES;
                store(at, load(at) * fade[v] + y);
            });
    }
};
