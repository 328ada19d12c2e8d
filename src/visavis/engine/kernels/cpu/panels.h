// Weights in panels, and products with them.
//
// A panel holds PANEL rows of the matrix, column after column: element (j, i) of rows 32p … 32p + 31 lies at
// (p · k + i) · PANEL + place(j). So one column of a panel is one or two cache lines, a product of any number of vectors
// reads the weights as one stream, widens each once, and its sums never cross lanes. The last panel is padded with zeros.
// float32, bfloat16 and int8 differ in the widening alone; activations and sums are float32.
#pragma once

#include <algorithm>

#include "model.h"
#include "simd.h"

constexpr int PANEL = 32;
constexpr int MAX_ROWS = LANES == 16 ? 12 : 6;              // vectors a tile multiplies at once
constexpr int TILE_VECTORS = LANES == 4 ? 4 : 2;            // of a panel's column, that a tile takes
constexpr int TILE_WIDTH = TILE_VECTORS * LANES;            // outputs of a tile
constexpr int K_BLOCK = 2048;                               // columns after which many vectors begin anew: a panel stays in L2
constexpr int FETCH_AHEAD = 3072;                           // bytes; far enough that multiplying hides the memory behind it
constexpr int GROUP_PANELS = 4;                             // panels whose outputs are written side by side

inline int num_panels(int n) { return (n + PANEL - 1) / PANEL; }

// bfloat16 lies in pairs (j, j + LANES): a shift and a mask then widen two vectors in order.
inline int place(int j, int dtype) {
    if (dtype != BF16) return j;
    int r = j % (2 * LANES);
    return j - r + (r < LANES ? 2 * r : 2 * (r - LANES) + 1);
}

template <class T>
void pack(T* out, const T* rows, int n, int k, int dtype) {
    for (int p = 0; p < num_panels(n); p++)
        for (int j = 0; j < PANEL; j++) {
            T* to = out + int64_t(p) * k * PANEL + place(j, dtype);
            const int row = p * PANEL + j;
            if (row < n) for (int i = 0; i < k; i++) to[int64_t(i) * PANEL] = rows[int64_t(row) * k + i];
            else for (int i = 0; i < k; i++) to[int64_t(i) * PANEL] = T(0);
        }
}

inline void unpack_row(const Linear& l, int64_t row, float* out) {
    const int64_t at = row / PANEL * l.k * PANEL + place(int(row % PANEL), l.dtype);
    for (int i = 0; i < l.k; i++) {
        const int64_t e = at + int64_t(i) * PANEL;
        if (l.dtype == F32) out[i] = static_cast<const float*>(l.weight)[e];
        else if (l.dtype == BF16) out[i] = bf16_to_float(static_cast<const uint16_t*>(l.weight)[e]);
        else out[i] = float(static_cast<const int8_t*>(l.weight)[e]) * l.scale[row];
    }
}

template <int DT>
inline void widen(const char* w, vfloat (&out)[TILE_VECTORS]) {
    if constexpr (DT == F32) {
        for (int v = 0; v < TILE_VECTORS; v++) out[v] = load(reinterpret_cast<const float*>(w) + v * LANES);
    } else if constexpr (DT == BF16) {
        for (int v = 0; v < TILE_VECTORS; v += 2) {
            vuint pair = *reinterpret_cast<const vuint*>(w + v * LANES * 2);
            vuint low = pair << 16, high = pair & 0xffff0000u;
            out[v] = reinterpret_cast<vfloat&>(low);
            out[v + 1] = reinterpret_cast<vfloat&>(high);
        }
    } else {
        for (int v = 0; v < TILE_VECTORS; v++) out[v] = widen_int8(reinterpret_cast<const int8_t*>(w) + v * LANES);
    }
}

// M vectors against `width` outputs (TILE_WIDTH, less at the end of the matrix) of a panel, columns 0 … k of w and x.
template <int DT, int M>
inline void tile(const char* w, int k, const float* x, int ldx, const float* scale, const float* bias, int width, bool add,
                 float* out, int ldout) {
    constexpr int STEP = PANEL * bytes_of(DT), U = M == 1 ? 4 : M <= 3 ? 2 : 1;  // few vectors need more sums in flight
    vfloat sum[U][M][TILE_VECTORS] = {};
    for (int m = 0; m < M; m++)  // the output's lines are on their way while the sums are made
        for (int j = 0; j < TILE_WIDTH; j += 16) __builtin_prefetch(out + int64_t(m) * ldout + j, 1);
    auto column = [&](int i, int u) {
        if (STEP >= 64 || i % 2 == 0)  // once a cache line
            for (int b = 0; b < TILE_WIDTH * bytes_of(DT); b += 64) __builtin_prefetch(w + int64_t(i) * STEP + FETCH_AHEAD + b);
        vfloat wide[TILE_VECTORS];
        widen<DT>(w + int64_t(i) * STEP, wide);
        for (int m = 0; m < M; m++)
            for (int v = 0; v < TILE_VECTORS; v++) sum[u][m][v] += wide[v] * x[int64_t(m) * ldx + i];
    };
    int i = 0;
    for (; i + U <= k; i += U)
        for (int u = 0; u < U; u++) column(i + u, u);
    for (; i < k; i++) column(i, 0);
    for (int m = 0; m < M; m++) {
        float* to = out + int64_t(m) * ldout;
        vfloat y[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) {
            y[v] = sum[0][m][v];
            for (int u = 1; u < U; u++) y[v] += sum[u][m][v];
            if (DT == INT8) y[v] *= load(scale + v * LANES);
            if (bias) y[v] += load(bias + v * LANES);
        }
        if (width == TILE_WIDTH) {
            for (int v = 0; v < TILE_VECTORS; v++) store(to + v * LANES, add ? load(to + v * LANES) + y[v] : y[v]);
        } else {
            for (int j = 0; j < width; j++) to[j] = (add ? to[j] : 0.0f) + y[j / LANES][j % LANES];
        }
    }
}

template <int DT>
void tiles(const Linear& l, int panel, int from, int columns, const float* x, int ldx, int count, bool add, float* out, int ldout) {
    for (int part = 0; part < PANEL; part += TILE_WIDTH) {
        const int row = panel * PANEL + part, width = std::min(TILE_WIDTH, l.n - row);
        if (width <= 0) return;
        const char* w = static_cast<const char*>(l.weight) + ((int64_t(panel) * l.k + from) * PANEL + part) * bytes_of(DT);
        const float *scale = l.scale ? l.scale + row : nullptr, *bias = l.bias && from == 0 ? l.bias + row : nullptr;
        int m = 0;
        auto take = [&]<int M>() {
            tile<DT, M>(w, columns, x + int64_t(m) * ldx + from, ldx, scale, bias, width, add || from, out + int64_t(m) * ldout + row, ldout);
            m += M;
        };
        if constexpr (MAX_ROWS == 12) {
            while (count - m >= 12) take.template operator()<12>();
            if (count - m >= 8) take.template operator()<8>();
        }
        while (count - m >= 6) take.template operator()<6>();
        switch (count - m) {
            case 5: take.template operator()<4>(); [[fallthrough]];
            case 1: take.template operator()<1>(); break;
            case 4: take.template operator()<4>(); break;
            case 3: take.template operator()<3>(); break;
            case 2: take.template operator()<2>(); break;
        }
    }
}

// out (count, ldout) (+)= x (count, ldx) · Wᵀ for panels [begin, end). `scale` and `bias` are padded to whole panels.
inline void product(const Linear& l, int begin, int end, const float* x, int ldx, int count, bool add, float* out, int ldout) {
    const int k_block = count > MAX_ROWS ? K_BLOCK : l.k;
    for (int from = 0; from < l.k; from += k_block) {
        const int columns = std::min(k_block, l.k - from);
        for (int group = begin; group < end; group += GROUP_PANELS)
            for (int m = 0; m < count; m += MAX_ROWS)
                for (int p = group; p < std::min(end, group + GROUP_PANELS); p++) {
                    const float* xm = x + int64_t(m) * ldx;
                    float* to = out + int64_t(m) * ldout;
                    const int rows = std::min(MAX_ROWS, count - m);
                    if (l.dtype == F32) tiles<F32>(l, p, from, columns, xm, ldx, rows, add, to, ldout);
                    else if (l.dtype == BF16) tiles<BF16>(l, p, from, columns, xm, ldx, rows, add, to, ldout);
                    else tiles<INT8>(l, p, from, columns, xm, ldx, rows, add, to, ldout);
                }
    }
}
