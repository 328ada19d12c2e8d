// What a vision tower needs between its products: norms with a mean, and activations, in place.
#pragma once

#include "model.h"

enum Activation : int32_t { QUICK_GELU = 0, GELU_TANH = 1 };

inline void layer_norm(const float* x, const float* weight, const float* bias, float eps, int n, float* out) {  // n is whole vectors
    vfloat sum = {};
    for (int i = 0; i < n; i += LANES) sum += load(x + i);
    const float mean = hsum(sum) / n;
    vfloat squares = {};
    for (int i = 0; i < n; i += LANES) {
        const vfloat y = load(x + i) - mean;
        squares += y * y;
    }
    const float inverse = 1.0f / std::sqrt(hsum(squares) / n + eps);
    for (int i = 0; i < n; i += LANES) store(out + i, (load(x + i) - mean) * inverse * load(weight + i) + load(bias + i));
}

inline vfloat sigmoid(vfloat x) { return 1.0f / (1.0f + vexp(-x)); }

template <int KIND>
inline vfloat activated(vfloat x) {
    if constexpr (KIND == QUICK_GELU) return x * sigmoid(1.702f * x);
    else return x * sigmoid(2 * 0.7978845608028654f * (x + 0.044715f * x * x * x));  // (1 + tanh(y)) / 2 is sigmoid(2 y)
}

template <int KIND>
inline void activate(float* x, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, activated<KIND>(load(x + i)));
    if (i == n) return;
    float rest[LANES] = {};
    std::memcpy(rest, x + i, sizeof(float) * (n - i));
    store(rest, activated<KIND>(load(rest)));
    std::memcpy(x + i, rest, sizeof(float) * (n - i));
}
