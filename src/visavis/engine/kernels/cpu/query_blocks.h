// A head's queries side by side against blocks of keys, with a running softmax (Milakov & Gimelshein, arXiv:1805.02867;
// Dao et al., arXiv:2205.14135).
//
// Queries lie across the lanes, keys and values are read one word at a time: both products are then those of
// `panels.h`, and softmax never crosses lanes. A word is a float32 number or, of a bfloat16 cache where the processor
// has dot products of them, two bfloat16 numbers: queries and weights are then rounded. Sums are float32.
#pragma once

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

class QueryBlocks {
  public:
    struct Running { vfloat max[TILE_VECTORS], sum[TILE_VECTORS]; };
    struct Scratch {  // of a thread; words of two numbers fill half of their rows
        Buffer query, mixed;  // a block of queries: (d, QUERIES)
        Buffer keys, values;  // (KEYS, d)
        Buffer scores;        // (KEYS, QUERIES), then the weights
        std::vector<Running> running;  // of each block
    };
    const int d;
    std::vector<Scratch> scratch;

    QueryBlocks(int head_dim, int blocks, int threads) : d(head_dim), scratch(threads) {
        for (auto& s : scratch) {
            s.query.resize(size_t(blocks) * d * QUERIES);
            s.mixed.resize(size_t(blocks) * d * QUERIES);
            s.keys.resize(size_t(KEYS) * d);
            s.values.resize(size_t(KEYS) * d);
            s.scores.resize(size_t(KEYS) * QUERIES);
            s.running.resize(blocks);
        }
    }

    // Block g of the thread: `count` queries, `stride` apart.
    template <int KV>
    void begin(Scratch& s, int g, const float* queries, int64_t stride, int count, float scale) {
        float* query = s.query.data() + g * d * QUERIES;
        std::memset(s.mixed.data() + g * d * QUERIES, 0, sizeof(float) * d * QUERIES);
        for (int v = 0; v < TILE_VECTORS; v++) s.running[g].max[v] = splat(-INFINITY), s.running[g].sum[v] = vfloat{};
        auto row = [&](int j) { return queries + std::min(j, count - 1) * stride; };  // lanes without a query repeat the last one
        for (int begin = 0; begin < QUERIES; begin += LANES)
            for (int i = 0; i < d; i += LANES) {
                vfloat square[LANES];
                for (int j = 0; j < LANES; j++) square[j] = load_some(row(begin + j) + i, d - i) * scale;
                transpose(square);
                for (int j = 0; j < std::min(LANES, d - i); j++) store(query + (i + j) * QUERIES + begin, square[j]);
            }
        to_words<KV>(query, d);
    }

    // Its outputs, `stride` apart.
    void end(Scratch& s, int g, float* out, int64_t stride, int count) {
        const Running& r = s.running[g];
        const float* mixed = s.mixed.data() + g * d * QUERIES;
        for (int begin = 0; begin < count; begin += LANES) {
            const vfloat inverse = 1.0f / r.sum[begin / LANES];
            for (int i = 0; i < d; i += LANES) {
                vfloat square[LANES] = {};
                for (int j = 0; j < std::min(LANES, d - i); j++) square[j] = load(mixed + (i + j) * QUERIES + begin) * inverse;
                transpose(square);
                for (int j = begin; j < std::min(count, begin + LANES); j++) store_some(out + j * stride + i, square[j - begin], d - i);
            }
        }
    }

    // Block g over a block of keys. `visible`: the last key that query 0 sees; query j sees j more, up to `count`.
    // A key that a query does not see has a weight of 0, and 0 · NaN is NaN: a broken value reaches the queries before it
    // in its block too, all of the same request.
    template <int KV>
    void block(Scratch& s, int g, int keys, int padded, int visible, int count) {
        constexpr int N = NUMBERS<KV>;
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
                top[v] = larger(y, top[v]);
                store(scores + (j + row) * QUERIES + v * LANES, y);
            });
        for (int v = 0; v < TILE_VECTORS; v++) {
            auto weight = [&](int j) __attribute__((always_inline)) {
                vfloat e = raised<KV>(load(scores + j * QUERIES + v * LANES), top[v]);
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

  private:
    // exp(x - top), as exactly as its word will hold it.
    template <int KV>
    static vfloat raised(vfloat x, vfloat top) {
#if defined(__AVX512BF16__)
        constexpr float log2e = 1.44269504088896341f;
        if constexpr (NUMBERS<KV> == 2) return vexp2_short(x * log2e - top * log2e);
#endif
        return vexp(x - top);
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
};
