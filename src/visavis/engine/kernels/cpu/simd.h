// Vectors of floats in the compiler's own vector types, whatever their width here; bfloat16 and int8 widened into them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;  // floats in a register
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float vfloat __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t vuint __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vint __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

enum DType : int32_t { F32 = 0, BF16 = 1, INT8 = 2 };
constexpr int bytes_of(int dtype) { return dtype == F32 ? 4 : dtype == BF16 ? 2 : 1; }

// f(0) … f(N - 1): sums stay in registers only where no loop counts them.
template <int N, class F>
inline __attribute__((always_inline)) void unrolled(F&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, I>()), ...);
    }(std::make_integer_sequence<int, N>());
}

// Calls f.operator()<M>(first) for tiles of some of SIZES vectors, the largest first, until `count` are done.
template <int... SIZES, class F>
inline void in_tiles(int count, F&& f) {
    int m = 0;
    auto take = [&]<int M>() {
        while (count - m >= M) f.template operator()<M>(m), m += M;
    };
    (take.template operator()<SIZES>(), ...);
}

inline vfloat splat(float x) { return x - vfloat{}; }  // "+" would cost an addition: -0 + 0 is 0

template <int... I>
inline vfloat pick(vfloat a, vfloat b) {  // lanes I of a and b side by side
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, I...);
#else  // GCC 11 and older, as in Ubuntu 22.04
    return __builtin_shuffle(a, b, vint{I...});
#endif
}

// Sums of several vectors at once: at each level two vectors whose groups of W lanes belong together become one with
// groups of W / 2. After log2(LANES) levels lane i holds the sum of vector i.
template <int W, int OFF>
constexpr int half_of(int i) {
    int from = i / (LANES / 2), j = i % (LANES / 2);
    return from * LANES + j / (W / 2) * W + OFF * (W / 2) + j % (W / 2);
}
template <int W, int... I>
inline vfloat fold(vfloat a, vfloat b, std::integer_sequence<int, I...>) {
    return pick<half_of<W, 0>(I)...>(a, b) + pick<half_of<W, 1>(I)...>(a, b);
}
template <int W, int N>
inline vfloat sum_lanes(const vfloat* v) {  // N vectors, groups of W lanes
    if constexpr (W == 1) {
        return v[0];
    } else if constexpr (N == 1) {
        vfloat one = fold<W>(v[0], v[0], std::make_integer_sequence<int, LANES>());
        return sum_lanes<W / 2, 1>(&one);
    } else {
        vfloat half[(N + 1) / 2];
        for (int i = 0; i < N / 2; i++) half[i] = fold<W>(v[2 * i], v[2 * i + 1], std::make_integer_sequence<int, LANES>());
        if constexpr (N % 2) half[N / 2] = fold<W>(v[N - 1], v[N - 1], std::make_integer_sequence<int, LANES>());
        return sum_lanes<W / 2, (N + 1) / 2>(half);
    }
}
inline float hsum(vfloat v) { return sum_lanes<LANES, 1>(&v)[0]; }
inline vfloat load(const float* p) { return *reinterpret_cast<const vfloat*>(p); }
inline void store(float* p, vfloat v) { *reinterpret_cast<vfloat*>(p) = v; }
inline vfloat load_some(const float* p, int n) {  // the first n, where they are fewer than LANES, and zeros
    if (n >= LANES) return load(p);
    vfloat v = {};
    std::memcpy(&v, p, n * sizeof(float));
    return v;
}
inline void store_some(float* p, vfloat v, int n) {
    if (n >= LANES) store(p, v);
    else std::memcpy(p, &v, n * sizeof(float));
}

inline float bf16_to_float(uint16_t b) {
    uint32_t u = uint32_t(b) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
inline uint16_t float_to_bf16(float f) {  // round to nearest even
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return uint16_t((u >> 16) | 0x40);
    return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline vfloat larger(vfloat a, vfloat b) {  // b where one of them is NaN
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}
inline vfloat smaller(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

// exp to about 1 ulp (Cephes polynomial), clamped where float32 ends.
inline vfloat vexp(vfloat x) {
    x = larger(splat(-87.3365478515625f), smaller(splat(88.3762626647949f), x));
#if defined(__AVX512F__)
    const vfloat nf = _mm512_roundscale_ps(x * 1.44269504088896341f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vfloat n = x * 1.44269504088896341f + 0.5f;
    vint ni = __builtin_convertvector(n, vint);
    vfloat nf = __builtin_convertvector(ni, vfloat);
    vint less = nf > n;  // truncation went up for negatives: step back (mask is -1)
    ni += less;
    nf = __builtin_convertvector(ni, vfloat);
#endif
    x -= nf * 0.693359375f;
    x -= nf * -2.12194440e-4f;
    vfloat y = splat(1.9875691500E-4f);
    y = y * x + 1.3981999507E-3f;
    y = y * x + 8.3334519073E-3f;
    y = y * x + 4.1665795894E-2f;
    y = y * x + 1.6666665459E-1f;
    y = y * x + 5.0000001201E-1f;
    y = y * x * x + x + 1.0f;
#if defined(__AVX512F__)
    return _mm512_scalef_ps(y, nf);
#else
    vint bits = (ni + 127) << 23;
    return y * reinterpret_cast<vfloat&>(bits);
#endif
}

#if defined(__AVX512BF16__)
// 2^x for x up to 0, off by no more than 2^-17 of it, for what is rounded to bfloat16 then; below 2^-126 that.
inline vfloat vexp2_short(vfloat x) {
    x = larger(splat(-126.0f), x);
    const vfloat nf = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    x -= nf;
    vfloat y = splat(9.65671e-3f);
    y = y * x + 5.583828e-2f;
    y = y * x + 2.402253e-1f;
    y = y * x + 6.9313673e-1f;
    return _mm512_scalef_ps(y * x + 1.0f, nf);
}
#endif

// rows[i][j] ↔ rows[j][i]: at each level two halves of W lanes of every pair of rows W apart change places.
template <int W, int ODD, int... I>
inline vfloat half_swapped(vfloat a, vfloat b, std::integer_sequence<int, I...>) {
    return pick<(ODD ? (I & W ? LANES + I : I + W) : (I & W ? LANES + I - W : I))...>(a, b);
}
template <int W = LANES / 2>
inline __attribute__((always_inline)) void transpose(vfloat (&rows)[LANES]) {
    constexpr auto lanes = std::make_integer_sequence<int, LANES>();
    for (int i = 0; i < LANES; i++) {
        if (i & W) continue;
        const vfloat a = rows[i], b = rows[i + W];
        rows[i] = half_swapped<W, 0>(a, b, lanes);
        rows[i + W] = half_swapped<W, 1>(a, b, lanes);
    }
    if constexpr (W > 1) transpose<W / 2>(rows);
}

// Widening loads. GCC (to 12 at least) scalarises __builtin_convertvector from narrow integers, hence the intrinsics.
inline vfloat widen_int8(const int8_t* p) {
#if defined(__AVX512F__)
    __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    return reinterpret_cast<vfloat&>(v);
#else
    vfloat v;
    for (int i = 0; i < LANES; i++) v[i] = float(p[i]);
    return v;
#endif
}
inline vfloat widen_bf16(const uint16_t* p) {
#if defined(__AVX512F__)
    __m512i v = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
    return reinterpret_cast<vfloat&>(v);
#else
    vuint v;
    for (int i = 0; i < LANES; i++) v[i] = uint32_t(p[i]) << 16;
    return reinterpret_cast<vfloat&>(v);
#endif
}
