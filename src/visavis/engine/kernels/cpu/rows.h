// The vectors of a product, and what the processor's dot-product instructions take instead of float32.
//
// bfloat16 weights (AVX512-BF16), from DOT_ROWS vectors on: x rounded to bfloat16, which is what a product in bfloat16 is
// everywhere else; fewer vectors wait for memory, not for arithmetic, and keep all their bits.
// int8 weights (AVX512-VNNI), up to FIXED_ROWS vectors: x in fixed point, x = (high + low / 2^15) · step, two int16 and a
// step for every STEP_BLOCK columns. No number is off by more than 2^-29 of its block's largest, and sums are exact.
#pragma once

#include <algorithm>

#include "simd.h"

#if defined(__AVX512BF16__)
constexpr int DOT_ROWS = 4;
#else
constexpr int DOT_ROWS = INT32_MAX;
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int FIXED_ROWS = 3;
#else
constexpr int FIXED_ROWS = 0;
#endif
constexpr int STEP_BLOCK = 1024;  // as many products of 2^14 and 127 as fit int32
constexpr int LOW_BITS = 15;

struct Rows {
    const float* x;
    int64_t ld;
    const char* prepared = nullptr;  // as `prepare` makes them, row_bytes apart; or null
};

inline bool takes_prepared(int dtype, int count) { return dtype == BF16 ? count >= DOT_ROWS : dtype == INT8 && count <= FIXED_ROWS; }

inline int most_prepared(int dtype, int count) {  // rows that products of up to `count` vectors need at once
    if (dtype == INT8) return std::min(count, FIXED_ROWS);
    return takes_prepared(dtype, count) ? count : 0;
}

inline int pairs_of(int k) { return (k + 1) / 2; }
inline int64_t row_bytes(int dtype, int k) {  // of a prepared row: whole cache lines
    const int64_t pairs = pairs_of(k) * 4, steps = (k + STEP_BLOCK - 1) / STEP_BLOCK * sizeof(float);
    return ((dtype == BF16 ? pairs : 2 * pairs + steps) + 63) / 64 * 64;
}

// Of int8: two columns' high parts, then their low parts, and behind all of them the steps.
inline float* steps_of(char* row, int k) { return reinterpret_cast<float*>(row + int64_t(pairs_of(k)) * 8); }
inline const float* steps_of(const char* row, int k) { return steps_of(const_cast<char*>(row), k); }

inline void round_row(const float* x, int k, uint16_t* out) {
    int i = 0;
#if defined(__AVX512BF16__)
    for (; i + LANES <= k; i += LANES) {
        const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
        std::memcpy(out + i, &half, sizeof half);
    }
#endif
    for (; i < k; i++) out[i] = float_to_bf16(x[i]);
    if (k % 2) out[k] = 0;
}

inline void fix_block(const float* x, int k, int16_t* out, float* step) {
    uint32_t top = 0;
    for (int i = 0; i < k; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        top = std::max(top, bits & 0x7fffffffu);
    }
    const bool finite = top < 0x7f800000u;
    const int exponent = std::max(int(top >> 23) - 127, -113);  // the largest becomes 2^13 … 2^14
    const float up = finite ? std::ldexp(1.0f, 13 - exponent) : 0.0f;
    *step = finite ? std::ldexp(1.0f, exponent - 13) : NAN;
    int i = 0;
#if defined(__AVX512F__)
    for (; i + LANES <= k; i += LANES) {
        const __m512 y = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(up));
        const __m512i whole = _mm512_cvtps_epi32(y);
        const __m512 rest = _mm512_sub_ps(y, _mm512_cvtepi32_ps(whole));
        const __m256i high = _mm512_cvtepi32_epi16(whole);
        const __m256i low = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(1 << LOW_BITS))));
        const __m512i a = _mm512_cvtepu32_epi64(high), b = _mm512_slli_epi64(_mm512_cvtepu32_epi64(low), 32);
        _mm512_storeu_si512(out + 2 * i, _mm512_or_si512(a, b));
    }
#endif
    for (; i < k; i++) {
        const float y = finite ? x[i] * up : 0.0f, whole = std::nearbyint(y);
        int16_t* to = out + i / 2 * 4 + i % 2;
        to[0] = int16_t(whole);
        to[2] = int16_t(std::nearbyint((y - whole) * (1 << LOW_BITS)));
    }
}

// x (k) → a prepared row. What is not finite makes a row of int8's products NaN.
inline void prepare_row(int dtype, const float* x, int k, char* out) {
    if (dtype == BF16) return round_row(x, k, reinterpret_cast<uint16_t*>(out));
    auto* pairs = reinterpret_cast<int16_t*>(out);
    if (k % 2) std::memset(pairs + k / 2 * 4, 0, 8);
    for (int i = 0; i < k; i += STEP_BLOCK) fix_block(x + i, std::min(STEP_BLOCK, k - i), pairs + 2 * i, steps_of(out, k) + i / STEP_BLOCK);
}
