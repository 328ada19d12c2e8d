// The largest of a row's logits.
#pragma once

#include "simd.h"

// Where the first of the largest of n numbers is, and the sum of all: not finite where one of them is not, and then the
// place means nothing.
inline void find_best(const float* x, int64_t n, int64_t* place, float* sum) {
    vfloat top = splat(-INFINITY), total = {};
    vint step = {}, best = {};  // of LANES numbers; the one in which a lane's largest came
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES, step += 1) {
        const vfloat y = load(x + i);
        const vint above = y > top;
        top = above ? y : top;
        best = above ? step : best;
        total += y;
    }
    float most = -INFINITY;
    *place = 0, *sum = hsum(total);
    for (int j = 0; i > 0 && j < LANES; j++) {
        const int64_t at = int64_t(best[j]) * LANES + j;
        if (top[j] > most || (top[j] == most && at < *place)) most = top[j], *place = at;
    }
    for (; i < n; i++) {
        if (x[i] > most) most = x[i], *place = i;
        *sum += x[i];
    }
}
