// Weights in panels, and products with them.
//
// A panel holds PANEL rows of the matrix, column after column, so that one column of a panel is a cache line or two, a
// product of any number of vectors reads the weights as one stream, and its sums never cross lanes. Of bfloat16 (and of
// int8 where there are dot products of it) two columns lie together, the numbers of a row side by side: a shift and a mask
// widen them, and a dot product takes both at once. The last panel is padded with zeros.
// Sums are float32, of int8's dot products int32; `rows.h` says what the vectors are.
#pragma once

#include <algorithm>

#include "model.h"
#include "rows.h"
#include "simd.h"

constexpr int PANEL = 32;
constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;              // vectors a tile multiplies at once
constexpr int TILE_VECTORS = LANES == 4 ? 4 : 2;            // of a panel's column, that a tile takes
constexpr int TILE_WIDTH = TILE_VECTORS * LANES;            // outputs of a tile
constexpr int K_BLOCK = 2048;                               // columns after which many vectors begin anew: a panel stays in L2
constexpr int FETCH_AHEAD = 8192;  // bytes; far enough that multiplying hides the memory behind it
constexpr int GROUP_PANELS = 4;                             // panels whose outputs are written side by side

inline int num_panels(int n) { return (n + PANEL - 1) / PANEL; }
constexpr bool in_pairs(int dtype) { return dtype == BF16 || (dtype == INT8 && FIXED_ROWS); }

// Where row `row`, column i of a matrix of k columns lies. The last of an odd number of columns stands alone.
inline int64_t place(int64_t row, int i, int k, int dtype) {
    const int64_t panel = row / PANEL * k, j = row % PANEL;
    if (in_pairs(dtype) && (i | 1) < k) return (panel + (i & ~1)) * PANEL + 2 * j + (i & 1);
    return (panel + i) * PANEL + j;
}

template <class T>
void pack(T* out, const T* rows, int n, int k, int dtype) {
    for (int64_t row = 0; row < int64_t(num_panels(n)) * PANEL; row++)
        for (int i = 0; i < k; i++) out[place(row, i, k, dtype)] = row < n ? rows[row * k + i] : T(0);
}

inline void unpack_row(const Linear& l, int64_t row, float* out) {
    for (int i = 0; i < l.k; i++) {
        const int64_t e = place(row, i, l.k, l.dtype);
        if (l.dtype == F32) out[i] = static_cast<const float*>(l.weight)[e];
        else if (l.dtype == BF16) out[i] = bf16_to_float(static_cast<const uint16_t*>(l.weight)[e]);
        else out[i] = float(static_cast<const int8_t*>(l.weight)[e]) * l.scale[row];
    }
}

constexpr std::integral_constant<int, 0> ZERO;
constexpr std::integral_constant<int, 1> ONE;

// The weights of a tile: its first column, and where its outputs go.
struct Tile {
    const char* w;       // of the panel, at the first column
    int part;            // the tile's first output in the panel
    int from, columns;   // of the matrix, and of x
    const float *scale, *bias;
    int width;           // TILE_WIDTH, less at the end of the matrix
    bool add;
    float* out;
    int ldout;
    const char* next;    // dot products: what to ask memory for at the tile's first two columns …
    int next_stride;     // … and how much further on at each two after them
};

template <int M, class F>
inline __attribute__((always_inline)) void put(const Tile& t, bool add, const float* bias, F&& y) {  // y(m, v): a vector of outputs
    unrolled<M>([&](auto m) __attribute__((always_inline)) {
        float* to = t.out + m * int64_t(t.ldout);
        vfloat sum[TILE_VECTORS];
        unrolled<TILE_VECTORS>([&](auto v) __attribute__((always_inline)) { sum[v] = bias ? y(m, v) + load(bias + v * LANES) : y(m, v); });
        if (t.width == TILE_WIDTH) {
            for (int v = 0; v < TILE_VECTORS; v++) store(to + v * LANES, add ? load(to + v * LANES) + sum[v] : sum[v]);
        } else {
            for (int j = 0; j < t.width; j++) to[j] = (add ? to[j] : 0.0f) + sum[j / LANES][j % LANES];
        }
    });
}

template <int BYTES>
inline void fetch_ahead(const char* w) {
    for (int b = 0; b < BYTES; b += 64) __builtin_prefetch(w + FETCH_AHEAD + b);
}

// As `Tile` says, for two columns that lie together.
inline __attribute__((always_inline)) void fetch_next(const char* next, int stride, int pair) {
    __builtin_prefetch(next + int64_t(pair) * stride);
    if (stride > 64) __builtin_prefetch(next + int64_t(pair) * stride + 64);
}

template <int DT>
inline vfloat widen(const char* w) {
    if constexpr (DT == F32) return load(reinterpret_cast<const float*>(w));
    else if constexpr (DT == BF16) return widen_bf16(reinterpret_cast<const uint16_t*>(w));
    else return widen_int8(reinterpret_cast<const int8_t*>(w));
}

template <int DT, int ODD>
inline vfloat widen_of_pair(const char* w) {  // the first or the second column of two
    if constexpr (DT == BF16) {
        const vuint both = *reinterpret_cast<const vuint*>(w), one = ODD ? both & 0xffff0000u : both << 16;
        return reinterpret_cast<const vfloat&>(one);
    } else {
#if defined(__AVX512F__)
        const __m512i both = _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
        __m512 one = _mm512_cvtepi32_ps(_mm512_srai_epi32(ODD ? both : _mm512_slli_epi32(both, 24), ODD ? 8 : 24));
        return reinterpret_cast<vfloat&>(one);
#endif
    }
}

// M vectors in float32.
template <int DT, int M>
inline void tile(const Tile& t, const float* x, int64_t ldx) {
    constexpr int BYTES = bytes_of(DT), STEP = PANEL * BYTES, U = M == 1 ? 4 : M <= 3 ? 2 : 1;  // few vectors need more sums in flight
    constexpr int PAIRS = std::max(1, U / 2);
    vfloat sum[U][M][TILE_VECTORS] = {};
    for (int m = 0; m < M; m++)  // the output's lines are on their way while the sums are made
        for (int j = 0; j < TILE_WIDTH; j += 16) __builtin_prefetch(t.out + int64_t(m) * t.ldout + j, 1);
    auto column = [&](int i, int u) {
        const char* w = t.w + int64_t(i) * STEP + t.part * BYTES;
        if (STEP >= 64 || i % 2 == 0) fetch_ahead<TILE_WIDTH * BYTES>(w);  // once a cache line
        vfloat wide[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) wide[v] = widen<DT>(w + v * LANES * BYTES);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < TILE_VECTORS; v++) sum[u][m][v] += wide[v] * x[m * ldx + i];
    };
    auto pair = [&](int i, int u) {
        const char* w = t.w + int64_t(i) * STEP + 2 * t.part * BYTES;
        fetch_ahead<2 * TILE_WIDTH * BYTES>(w);
        unrolled<2>([&](auto odd) __attribute__((always_inline)) {  // one column after the other: registers are few
            vfloat wide[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; v++) wide[v] = widen_of_pair<DT, odd>(w + 2 * v * LANES * BYTES);
            for (int m = 0; m < M; m++)
                for (int v = 0; v < TILE_VECTORS; v++) sum[(u + odd) % U][m][v] += wide[v] * x[m * ldx + i + odd];
        });
    };
    int i = 0;
    if constexpr (in_pairs(DT)) {
        for (; i + 2 * PAIRS <= t.columns; i += 2 * PAIRS)
            for (int u = 0; u < PAIRS; u++) pair(i + 2 * u, 2 * u);
        for (; i + 2 <= t.columns; i += 2) pair(i, 0);
    } else {
        for (; i + U <= t.columns; i += U)
            for (int u = 0; u < U; u++) column(i + u, u);
    }
    for (; i < t.columns; i++) column(i, 0);
    put<M>(t, t.add, t.bias, [&](auto m, auto v) __attribute__((always_inline)) {
        vfloat y = sum[0][m][v];
        for (int u = 1; u < U; u++) y += sum[u][m][v];
        return DT == INT8 ? y * load(t.scale + v * LANES) : y;
    });
}

#if defined(__AVX512F__)
// Two columns of a prepared row, in every lane. Held in a register: a load in each product would be one too many.
inline __m512i both_columns(const void* x) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
    __m512i all = _mm512_set1_epi32(pair);
    asm("" : "+v"(all));
    return all;
}
#endif

// M vectors in bfloat16.
template <int M>
inline void tile_of_bf16(const Tile& t, const char* x, int64_t ldx) {
#if defined(__AVX512BF16__)
    constexpr int STEP = PANEL * 4, U = M <= 4 ? 2 : 1;  // a step: two columns
    __m512 sum[U][M][TILE_VECTORS] = {};
    const char* const next = t.next;
    const int next_stride = t.next_stride;
    x += 2 * t.from;
    auto add = [&](int i, auto u, const __m512i (&w)[TILE_VECTORS]) __attribute__((always_inline)) {
        unrolled<M>([&](auto m) __attribute__((always_inline)) {
            const __m512i both = both_columns(x + m * ldx + 4 * i);
            unrolled<TILE_VECTORS>([&](auto v) __attribute__((always_inline)) {
                sum[u][m][v] = _mm512_dpbf16_ps(sum[u][m][v], (__m512bh)w[v], (__m512bh)both);
            });
        });
    };
    auto pair = [&](int i, auto u) __attribute__((always_inline)) {
        const char* w = t.w + int64_t(i) * STEP;
        fetch_next(next, next_stride, i);
        add(i, u, {_mm512_loadu_si512(w), _mm512_loadu_si512(w + 64)});
    };
    int i = 0;
    const int pairs = t.columns / 2;
    for (; i + U <= pairs; i += U) unrolled<U>([&](auto u) __attribute__((always_inline)) { pair(i + u, u); });
    for (; i < pairs; i++) pair(i, ZERO);
    if (t.columns % 2) {
        const char* w = t.w + int64_t(i) * STEP;
        auto alone = [&](int v) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w) + v)); };
        add(i, ZERO, {alone(0), alone(1)});
    }
    put<M>(t, t.add, t.bias, [&](auto m, auto v) __attribute__((always_inline)) {
        __m512 y = U == 1 ? sum[0][m][v] : sum[0][m][v] + sum[U - 1][m][v];
        return reinterpret_cast<vfloat&>(y);
    });
#endif
}

// M vectors in fixed point, at most STEP_BLOCK columns: their high and low parts are as two vectors.
template <int M>
inline void tile_of_int8(const Tile& t, const char* x, int64_t ldx, int k) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    constexpr int STEP = PANEL * 2, U = M <= 2 ? 2 : 1;
    __m512i sum[U][2 * M][TILE_VECTORS] = {};
    const char *const steps = x, *const next = t.next;
    const int next_stride = t.next_stride;
    x += 4 * t.from;
    auto add = [&](int i, auto u, const __m512i (&w)[TILE_VECTORS]) __attribute__((always_inline)) {
        unrolled<2 * M>([&](auto m) __attribute__((always_inline)) {
            const __m512i both = both_columns(x + m / 2 * ldx + 8 * i + 4 * (m % 2));
            unrolled<TILE_VECTORS>([&](auto v) __attribute__((always_inline)) {
                __m512i y = sum[u][m][v];
                asm("vpdpwssd %2, %1, %0" : "+v"(y) : "v"(w[v]), "v"(both));  // GCC 12 copies the intrinsic's sum
                sum[u][m][v] = y;
            });
        });
    };
    auto pair = [&](int i, auto u) __attribute__((always_inline)) {
        const char* w = t.w + int64_t(i) * STEP;
        fetch_next(next, next_stride, i);
        auto wide = [&](int v) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w) + v)); };
        add(i, u, {wide(0), wide(1)});
    };
    int i = 0;
    const int pairs = t.columns / 2;
    for (; i + U <= pairs; i += U) unrolled<U>([&](auto u) __attribute__((always_inline)) { pair(i + u, u); });
    for (; i < pairs; i++) pair(i, ZERO);
    if (t.columns % 2) {
        const char* w = t.w + int64_t(i) * STEP;
        auto alone = [&](int v) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w) + v)); };
        add(i, ZERO, {alone(0), alone(1)});
    }
    put<M>(t, t.add, t.bias, [&](auto m, auto v) __attribute__((always_inline)) {
        auto whole = [&](auto part) __attribute__((always_inline)) {
            const __m512i y = U == 1 ? sum[0][2 * m + part][v] : _mm512_add_epi32(sum[0][2 * m + part][v], sum[U - 1][2 * m + part][v]);
            return _mm512_cvtepi32_ps(y);
        };
        const float step = steps_of(steps + m * ldx, k)[t.from / STEP_BLOCK];
        __m512 y = (whole(ZERO) + whole(ONE) * (1.0f / (1 << LOW_BITS))) * step;
        return reinterpret_cast<vfloat&>(y) * load(t.scale + v * LANES);
    });
#endif
}

inline const char* panel_at(const Linear& l, int panel) {
    return static_cast<const char*>(l.weight) + int64_t(panel) * l.k * PANEL * bytes_of(l.dtype);
}

// How far ahead to ask memory for weights. Vectors in one part read a panel once: a little. In several they read a group
// of panels as many times, most of them from the cache: the next group meanwhile, each part its share of it.
struct Ahead {
    int64_t bytes;
    int part, parts;
};

// `count` vectors, at most MAX_ROWS, from `rows` on, against some columns of a panel.
template <int DT>
void tiles(const Linear& l, int panel, int from, int columns, const Rows& rows, int first, int count, bool add, float* out, int ldout, const Ahead& ahead) {
    const int64_t bytes = row_bytes(DT, l.k);
    const char* prepared = rows.prepared + first * bytes;
    for (int part = 0; part < PANEL; part += TILE_WIDTH) {
        const int row = panel * PANEL + part, width = std::min(TILE_WIDTH, l.n - row);
        if (width <= 0) return;
        const char* w = panel_at(l, panel) + int64_t(from) * PANEL * bytes_of(DT);
        const float *scale = l.scale ? l.scale + row : nullptr, *bias = l.bias && from == 0 ? l.bias + row : nullptr;
        constexpr int PAIR = 2 * PANEL * bytes_of(DT);
        const char* next = w + ahead.bytes + int64_t(columns) * PAIR / 2 * ahead.part / ahead.parts;
        Tile t{w, part, from, columns, scale, bias, width, add || from, nullptr, ldout, next, (PAIR + ahead.parts - 1) / ahead.parts};
        auto at = [&](int m) -> const Tile& {
            t.out = out + int64_t(first + m) * ldout + row;
            return t;
        };
        if (DT == INT8 && rows.prepared) {
            for (int begin = from; begin < from + columns; begin += STEP_BLOCK) {
                t.w = w + int64_t(begin - from) * PANEL, t.from = begin, t.columns = std::min(STEP_BLOCK, from + columns - begin);
                t.next = next + int64_t(begin - from) * PANEL;
                t.bias = begin ? nullptr : bias, t.add = add || begin;
                in_tiles<3, 2, 1>(count, [&]<int M>(int m) { tile_of_int8<M>(at(m), prepared + m * bytes, bytes, l.k); });
            }
        } else if (DT == BF16 && rows.prepared) {
            in_tiles<12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1>(count, [&]<int M>(int m) { tile_of_bf16<M>(at(m), prepared + m * bytes, bytes); });
        } else {
            auto take = [&]<int M>(int m) { tile<DT, M>(at(m), rows.x + (first + m) * rows.ld + from, rows.ld); };
            if constexpr (MAX_ROWS == 12) in_tiles<12, 8, 6, 4, 3, 2, 1>(count, take);
            else in_tiles<6, 4, 3, 2, 1>(count, take);
        }
    }
}

// out (count, ldout) (+)= rows · Wᵀ for panels [begin, end). `scale` and `bias` are padded to whole panels.
inline void product(const Linear& l, int begin, int end, const Rows& rows, int count, bool add, float* out, int ldout) {
    const bool even = rows.prepared;  // those have tiles of any number of vectors
    const int k_block = count > MAX_ROWS ? K_BLOCK : l.k, parts = (count + MAX_ROWS - 1) / MAX_ROWS;
    const int groups = (end - begin + GROUP_PANELS - 1) / GROUP_PANELS;
    for (int from = 0; from < l.k; from += k_block) {
        const int columns = std::min(k_block, l.k - from);
        for (int g = 0; g < groups; g++) {
            const int group = begin + (end - begin) * g / groups, last = begin + (end - begin) * (g + 1) / groups;
            const int64_t group_bytes = panel_at(l, last) - panel_at(l, group);
            for (int part = 0; part < parts; part++) {
                const int first = even ? count * part / parts : part * MAX_ROWS;
                const int some = (even ? count * (part + 1) / parts : std::min(count, first + MAX_ROWS)) - first;
                for (int p = group; p < last; p++) {
                    const Ahead ahead{parts == 1 ? FETCH_AHEAD : group_bytes, part, parts};
                    if (l.dtype == F32) tiles<F32>(l, p, from, columns, rows, first, some, add, out, ldout, ahead);
                    else if (l.dtype == BF16) tiles<BF16>(l, p, from, columns, rows, first, some, add, out, ldout, ahead);
                    else tiles<INT8>(l, p, from, columns, rows, first, some, add, out, ldout, ahead);
                }
            }
        }
    }
}
