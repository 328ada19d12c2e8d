// What a prompt needs between its products, a token at a time: norm, rotation, gate.
#pragma once

#include <algorithm>

#include "model.h"
#include "workers.h"

// call(row) for each of `count` rows of `size` numbers, by as many threads as they are worth.
template <class F>
inline void each_row(Workers& workers, int count, int size, F&& f) {
    const int64_t chunk = std::max<int64_t>(1, (1 << 14) / std::max(1, size));
    if (count <= chunk) {  // done before another thread is awake
        for (int row = 0; row < count; row++) f(row);
        return;
    }
    auto call = [&](int, int, int c) {
        for (int64_t row = c * chunk; row < std::min<int64_t>(count, (c + 1) * chunk); row++) f(row);
    };
    workers.run(1, [&](int) { return int((count + chunk - 1) / chunk); }, call);
}

// heads (n, count · d at a stride): x · cos + (x rolled by half) · sin, with cos and signed sin (n, d).
inline void rotate_row(float* x, const float* cos, const float* sin, int heads, int d) {
    const int half = d / 2;
    for (int h = 0; h < heads; h++, x += d)
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = a * cos[i] + b * sin[i];
            x[i + half] = b * cos[i + half] + a * sin[i + half];
        }
}

inline void silu_mul(const float* gate, const float* up, int n, float* out) {  // silu(gate) · up; n is whole vectors
    for (int i = 0; i < n; i += LANES) {
        const vfloat g = load(gate + i);
        store(out + i, g / (1.0f + vexp(-g)) * load(up + i));
    }
}
