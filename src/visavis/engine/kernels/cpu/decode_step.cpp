// One decode step of a Llama-like decoder on a CPU: embedding rows in, logits out, in a single call.
//
// The work of a step at small batch is reading the weights once. So: every product walks rows of the (row-major) weight
// matrix with several rows in flight, weights stay in their storage type (float32, bfloat16, or int8 with a scale a
// row) and are widened in registers, activations and sums stay float32. Threads split rows; phases meet at spin barriers.
// Portable: GCC/Clang vector extensions, std::thread. Compiled by `build.py`, called by `decode_step.py`.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

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
typedef int8_t vbyte __attribute__((vector_size(LANES), aligned(1), may_alias));

enum DType : int32_t { F32 = 0, BF16 = 1, INT8 = 2 };

struct Linear {  // y = W x (+ bias); W is n rows of k
    const void* weight;
    const float* scale;  // a row, INT8 only
    const float* bias;   // or null
    int32_t n, k, dtype, pad;
};

struct Layer {
    Linear qkv, o, gate_up, down;
    const float *input_norm, *post_norm, *q_norm, *k_norm;  // q/k norms or null
    void *k_cache, *v_cache;
};

struct Model {
    const Layer* layers;
    Linear lm_head;
    const float* final_norm;
    int32_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, kv_dtype, block_size;
    int64_t block_stride, token_stride, head_stride;  // of the caches, in elements
    float eps, scale;
    int32_t threads, max_batch;
};

// ---- small pieces ---------------------------------------------------------------------------------------------------

inline vfloat splat(float x) { return vfloat{} + x; }

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

// exp to about 1 ulp (Cephes polynomial), clamped where float32 ends.
inline vfloat vexp(vfloat x) {
    const vfloat hi = splat(88.3762626647949f), lo = splat(-87.3365478515625f);
    x = x > hi ? hi : x;
    x = x < lo ? lo : x;
    vfloat n = x * 1.44269504088896341f + 0.5f;
    vint ni = __builtin_convertvector(n, vint);
    vfloat nf = __builtin_convertvector(ni, vfloat);
    vint less = nf > n;  // truncation went up for negatives: step back (mask is -1)
    ni += less;
    nf = __builtin_convertvector(ni, vfloat);
    x -= nf * 0.693359375f;
    x -= nf * -2.12194440e-4f;
    vfloat y = splat(1.9875691500E-4f);
    y = y * x + 1.3981999507E-3f;
    y = y * x + 8.3334519073E-3f;
    y = y * x + 4.1665795894E-2f;
    y = y * x + 1.6666665459E-1f;
    y = y * x + 5.0000001201E-1f;
    y = y * x * x + x + 1.0f;
    vint bits = (ni + 127) << 23;
    return y * reinterpret_cast<vfloat&>(bits);
}

// Place of element i of a vector that meets bfloat16 weights: each 2 × LANES hold their even elements, then their odd ones,
// since widening a register of bfloat16 pairs gives those two halves.
inline int deal(int i) { return (i & ~(2 * LANES - 1)) | (i & 1) * LANES | (i & (2 * LANES - 1)) >> 1; }

template <int ODD, int... I>
inline vfloat deal_half(vfloat a, vfloat b, std::integer_sequence<int, I...>) {
    return pick<(2 * I + ODD)...>(a, b);
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

// ---- matrix rows ----------------------------------------------------------------------------------------------------

template <int DT, int R, int M>
inline void dot_rows(const Linear& l, int row, const float* x, int ldx, float (&out)[R][M]) {
    vfloat sum[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = vfloat{};
    const int k = l.k;
    if constexpr (DT == F32) {
        const float* w = static_cast<const float*>(l.weight) + int64_t(row) * k;
        for (int i = 0; i < k; i += LANES) {
            vfloat wv[R];
            for (int r = 0; r < R; r++) {
                __builtin_prefetch(w + int64_t(r + R) * k + i, 0, 2);
                wv[r] = load(w + int64_t(r) * k + i);
            }
            for (int m = 0; m < M; m++) {
                vfloat xv = load(x + int64_t(m) * ldx + i);
                for (int r = 0; r < R; r++) sum[r][m] += wv[r] * xv;
            }
        }
    } else if constexpr (DT == BF16) {
        const uint16_t* w = static_cast<const uint16_t*>(l.weight) + int64_t(row) * k;
        for (int i = 0; i < k; i += 2 * LANES) {
            vfloat even[R], odd[R];
            for (int r = 0; r < R; r++) {
                __builtin_prefetch(w + int64_t(r + R) * k + i, 0, 2);
                vuint pair = *reinterpret_cast<const vuint*>(w + int64_t(r) * k + i);
                vuint a = pair << 16, b = pair & 0xffff0000u;
                even[r] = reinterpret_cast<vfloat&>(a);
                odd[r] = reinterpret_cast<vfloat&>(b);
            }
            for (int m = 0; m < M; m++) {
                vfloat xe = load(x + int64_t(m) * ldx + i), xo = load(x + int64_t(m) * ldx + i + LANES);
                for (int r = 0; r < R; r++) {
                    sum[r][m] += even[r] * xe;
                    sum[r][m] += odd[r] * xo;
                }
            }
        }
    } else {
        const int8_t* w = static_cast<const int8_t*>(l.weight) + int64_t(row) * k;
        for (int i = 0; i < k; i += LANES) {
            vfloat wv[R];
            for (int r = 0; r < R; r++) {
                if ((i & 63) == 0) __builtin_prefetch(w + int64_t(r + R) * k + i, 0, 2);
                wv[r] = widen_int8(w + int64_t(r) * k + i);
            }
            for (int m = 0; m < M; m++) {
                vfloat xv = load(x + int64_t(m) * ldx + i);
                for (int r = 0; r < R; r++) sum[r][m] += wv[r] * xv;
            }
        }
    }
    float total[(R * M + LANES - 1) / LANES * LANES];
    constexpr int ALL = R * M;
    if constexpr (ALL <= LANES) {
        store(total, sum_lanes<LANES, ALL>(&sum[0][0]));
    } else {
        constexpr int REST = ALL % LANES, FULL = ALL - REST;  // 4 × 3 sums in lanes of 8 leave 4
        for (int i = 0; i < FULL; i += LANES) store(total + i, sum_lanes<LANES, LANES>(&sum[0][0] + i));
        if constexpr (REST) store(total + FULL, sum_lanes<LANES, REST>(&sum[0][0] + FULL));
    }
    for (int r = 0; r < R; r++) {
        float s = DT == INT8 ? l.scale[row + r] : 1.0f, b = l.bias ? l.bias[row + r] : 0.0f;
        for (int m = 0; m < M; m++) out[r][m] = total[r * M + m] * s + b;
    }
}

// Calls put(row, m, value) for rows [begin, end) and every one of the `batch` vectors of x.
template <int DT, class Put>
void rows_typed(const Linear& l, int begin, int end, const float* x, int ldx, int batch, Put put) {
    auto tile = [&]<int R, int M>(int row, int m0) {
        float out[R][M];
        dot_rows<DT, R, M>(l, row, x + int64_t(m0) * ldx, ldx, out);
        for (int r = 0; r < R; r++)
            for (int m = 0; m < M; m++) put(row + r, m0 + m, out[r][m]);
    };
    int row = begin;
    for (; row + 4 <= end; row += 4) {
        int m = 0;
        for (; m + 4 <= batch; m += 4) tile.template operator()<4, 4>(row, m);
        if (batch - m == 3) tile.template operator()<4, 3>(row, m);
        else if (batch - m == 2) tile.template operator()<4, 2>(row, m);
        else if (batch - m == 1) tile.template operator()<4, 1>(row, m);
    }
    for (; row < end; row++)
        for (int m = 0; m < batch; m++) tile.template operator()<1, 1>(row, m);
}

template <class Put>
void rows(const Linear& l, int begin, int end, const float* x, int ldx, int batch, Put put) {
    if (l.dtype == F32) rows_typed<F32>(l, begin, end, x, ldx, batch, put);
    else if (l.dtype == BF16) rows_typed<BF16>(l, begin, end, x, ldx, batch, put);
    else rows_typed<INT8>(l, begin, end, x, ldx, batch, put);
}

void rms_norm(const float* x, const float* weight, float eps, int n, bool dealt, float* out) {
    vfloat sum = {};
    for (int i = 0; i < n; i += LANES) sum += load(x + i) * load(x + i);
    float inv = 1.0f / std::sqrt(hsum(sum) / n + eps);
    if (!dealt) {
        for (int i = 0; i < n; i += LANES) store(out + i, load(x + i) * inv * load(weight + i));
        return;
    }
    for (int i = 0; i < n; i += 2 * LANES) {
        vfloat a = load(x + i) * inv * load(weight + i), b = load(x + i + LANES) * inv * load(weight + i + LANES);
        store(out + i, deal_half<0>(a, b, std::make_integer_sequence<int, LANES>()));
        store(out + i + LANES, deal_half<1>(a, b, std::make_integer_sequence<int, LANES>()));
    }
}

// ---- attention over the paged cache ----------------------------------------------------------------------------------

constexpr int CHUNK = 256;  // positions a task reads; longer contexts are split and merged
constexpr int MAX_GROUP = 16;

template <int KV>
inline vfloat load_kv(const void* base, int64_t offset) {
    if constexpr (KV == F32) return load(static_cast<const float*>(base) + offset);
    else return widen_bf16(static_cast<const uint16_t*>(base) + offset);
}
template <int KV>
inline void store_kv(void* base, int64_t offset, float value) {
    if constexpr (KV == F32) static_cast<float*>(base)[offset] = value;
    else static_cast<uint16_t*>(base)[offset] = float_to_bf16(value);
}

struct Partial {  // one (sequence, kv head, chunk): unnormalised sum of values, running max and sum of weights a head
    float max[MAX_GROUP], sum[MAX_GROUP];
    float* acc;  // (group, head_dim)
};

// Half-rotation rope (GPT-NeoX order) of one head, after its optional RMSNorm. cos, sin: head_dim / 2 each.
inline void rope_head(float* x, const float* norm, float eps, const float* cos, const float* sin, int d) {
    if (norm) rms_norm(x, norm, eps, d, false, x);
    for (int i = 0; i < d / 2; i++) {
        float a = x[i], b = x[i + d / 2];
        x[i] = a * cos[i] - b * sin[i];
        x[i + d / 2] = b * cos[i] + a * sin[i];
    }
}

// Keys against the `group` query heads of one key head: scores of `n` positions whose keys begin at `at`. WIDTH is the
// head size in vectors where the compiler knows it, else 0. A vector of positions is summed at once.
template <int KV, int WIDTH>
void score(const Model& m, const void* k_cache, const float* q, const int64_t* at, int n, float* scores) {
    const int width = WIDTH ? WIDTH : m.head_dim / LANES, group = m.heads / m.kv_heads;
    for (int i = 0; i < n; i += LANES) {
        for (int g = 0; g < group; g++) {
            vfloat sums[LANES];
            for (int j = 0; j < LANES; j++) {
                int64_t place = at[std::min(i + j, n - 1)];
                vfloat sum = {};
                for (int v = 0; v < width; v++)
                    sum += load(q + (g * width + v) * LANES) * load_kv<KV>(k_cache, place + v * LANES);
                sums[j] = sum;
            }
            store(scores + g * CHUNK + i, sum_lanes<LANES, LANES>(sums) * m.scale);
        }
    }
}

// Weighted sum of values for HEADS query heads at once, whose sums stay in registers.
template <int KV, int WIDTH, int HEADS>
void mix(const void* v_cache, const int64_t* at, int n, const float* weights, float* out) {
    vfloat acc[HEADS][WIDTH] = {};
    for (int i = 0; i < n; i++) {
        for (int v = 0; v < WIDTH; v++) {
            vfloat value = load_kv<KV>(v_cache, at[i] + v * LANES);
            for (int h = 0; h < HEADS; h++) acc[h][v] += value * weights[h * CHUNK + i];
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int v = 0; v < WIDTH; v++) store(out + (h * WIDTH + v) * LANES, acc[h][v]);
}

template <int KV, int WIDTH>
void mix_all(const Model& m, const void* v_cache, const int64_t* at, int n, const float* weights, float* out) {
    const int d = m.head_dim, group = m.heads / m.kv_heads;
    int g = 0;
    if constexpr (WIDTH) {
        for (; g + 2 <= group; g += 2) mix<KV, WIDTH, 2>(v_cache, at, n, weights + g * CHUNK, out + g * d);
        for (; g < group; g++) mix<KV, WIDTH, 1>(v_cache, at, n, weights + g * CHUNK, out + g * d);
    } else {
        for (; g < group; g++)
            for (int v = 0; v < d; v += LANES) mix<KV, 1, 1>(static_cast<const char*>(v_cache) + v * (KV == F32 ? 4 : 2), at, n, weights + g * CHUNK, out + g * d + v);
    }
}

template <int KV, int WIDTH>
void attend(const Model& m, const Layer& layer, const float* q, int kv_head, const int32_t* table, int begin, int end,
            float* scores, Partial& out) {
    const int group = m.heads / m.kv_heads, n = end - begin;
    int64_t at[CHUNK];  // where each position's key (and value) begins
    for (int pos = begin; pos < end;) {
        int64_t block = table[pos / m.block_size] * m.block_stride + kv_head * m.head_stride;
        for (int offset = pos % m.block_size; offset < m.block_size && pos < end; offset++, pos++)
            at[pos - begin] = block + offset * m.token_stride;
    }
    score<KV, WIDTH>(m, layer.k_cache, q, at, n, scores);
    for (int g = 0; g < group; g++) {
        float* s = scores + g * CHUNK;
        float top = s[0];
        for (int i = 1; i < n; i++) top = std::max(top, s[i]);
        for (int i = n; i < (n + LANES - 1) / LANES * LANES; i++) s[i] = -INFINITY;
        vfloat total = {};
        for (int i = 0; i < n; i += LANES) {
            vfloat e = vexp(load(s + i) - top);
            if (i + LANES > n) for (int j = n - i; j < LANES; j++) e[j] = 0;
            store(s + i, e);
            total += e;
        }
        out.max[g] = top;
        out.sum[g] = hsum(total);
    }
    mix_all<KV, WIDTH>(m, layer.v_cache, at, n, scores, out.acc);
}

// The usual head sizes get code of their own.
template <int KV>
void attend(const Model& m, const Layer& layer, const float* q, int kv_head, const int32_t* table, int begin, int end,
            float* scores, Partial& out) {
    if (m.head_dim == 64) attend<KV, 64 / LANES>(m, layer, q, kv_head, table, begin, end, scores, out);
    else if (m.head_dim == 128) attend<KV, 128 / LANES>(m, layer, q, kv_head, table, begin, end, scores, out);
    else attend<KV, 0>(m, layer, q, kv_head, table, begin, end, scores, out);
}

// ---- threads --------------------------------------------------------------------------------------------------------

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    explicit Pool(int threads) : threads_(threads) {
        try {
            for (int t = 1; t < threads; t++) workers_.emplace_back([this, t] { work(t); });
        } catch (...) {  // the process may have no more threads: end the ones there are
            stop();
            throw;
        }
    }
    ~Pool() { stop(); }
    Pool(const Pool&) = delete;
    template <class F>
    void run(F&& f) {  // f(thread) on every thread; returns when all are done
        call_ = [](void* self, int t) { (*static_cast<F*>(self))(t); };
        arg_ = &f;
        { std::lock_guard<std::mutex> lock(mutex_); epoch_.fetch_add(1, std::memory_order_release); }
        wake_.notify_all();
        f(0);
        barrier();
    }
    void barrier() {
        unsigned phase = phase_.load(std::memory_order_relaxed);  // unsigned: it wraps within days
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
            if (spins < 2000) relax();
            else std::this_thread::yield();
        }
    }
    int threads() const { return threads_; }

  private:
    void stop() {
        { std::lock_guard<std::mutex> lock(mutex_); stop_ = true; epoch_.fetch_add(1); }
        wake_.notify_all();
        for (auto& w : workers_) w.join();
    }
    void work(int t) {
        int64_t seen = 0;
        for (;;) {
            for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen && spins < 4000; spins++) relax();
            if (epoch_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return epoch_.load() != seen; });
            }
            seen = epoch_.load();
            if (stop_) return;
            call_(arg_, t);
            barrier();
        }
    }
    int threads_;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int64_t> epoch_{0};
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> phase_{0};
    bool stop_ = false;
    void (*call_)(void*, int) = nullptr;
    void* arg_ = nullptr;
};

// Cache-line aligned memory: a 64-byte load that crosses a line costs two.
class Buffer {
  public:
    void resize(size_t n) {
        if (n <= size_) return;
        std::free(data_);
        size_ = n;
        data_ = static_cast<float*>(std::aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64));
        if (!data_) std::abort();
        std::memset(data_, 0, n * sizeof(float));
    }
    Buffer() = default;
    Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    ~Buffer() { std::free(data_); }
    float* data() { return data_; }

  private:
    float* data_ = nullptr;
    size_t size_ = 0;
};

struct Range { int begin, end; };
inline Range share(int n, int t, int threads) {  // whole groups of 4 rows, so that tiles stay full
    int groups = (n + 3) / 4;
    return {std::min(n, groups * t / threads * 4), std::min(n, groups * (t + 1) / threads * 4)};
}

}  // namespace

struct Stepper {
    Model m;
    std::vector<Layer> layers;
    Pool pool;
    Buffer qkv, attn, act, partial_acc;
    std::vector<Buffer> normed, scores, query, column;
    std::vector<Partial> partials;
    std::atomic<int> next{0};

    explicit Stepper(const Model& model)
        : m(model), layers(model.layers, model.layers + model.num_layers), pool(model.threads) {
        m.layers = layers.data();
        int b = m.max_batch, d = m.head_dim;
        qkv.resize(size_t(b) * (m.heads + 2 * m.kv_heads) * d);
        attn.resize(size_t(b) * m.heads * d);
        act.resize(size_t(b) * m.intermediate);
        normed.resize(m.threads);
        scores.resize(m.threads);
        query.resize(m.threads);
        column.resize(m.threads);
        for (int t = 0; t < m.threads; t++) {
            normed[t].resize(size_t(b) * m.hidden);
            scores[t].resize(size_t(m.heads / m.kv_heads) * CHUNK);
            query[t].resize(size_t(m.heads / m.kv_heads) * d);
            column[t].resize(size_t(2) * b * (m.intermediate / m.threads + 4 + LANES));
        }
    }

    // hidden: (batch, hidden) float32, overwritten. cos, sin: (batch, head_dim / 2). tables: (batch, table_stride).
    // lengths: tokens of each sequence including this one. logits: (batch, vocabulary) float32.
    void step(int batch, float* hidden, const float* cos, const float* sin, const int32_t* tables, int table_stride,
              const int32_t* lengths, float* logits) {
        const int d = m.head_dim, group = m.heads / m.kv_heads, width = (m.heads + 2 * m.kv_heads) * d;
        int longest = 0;
        for (int b = 0; b < batch; b++) longest = std::max(longest, lengths[b]);
        const int chunks = (longest + CHUNK - 1) / CHUNK, tasks = batch * m.kv_heads * chunks;
        if (int(partials.size()) < tasks) partials.resize(tasks);
        partial_acc.resize(size_t(tasks) * group * d);
        for (int i = 0; i < tasks; i++) partials[i].acc = partial_acc.data() + size_t(i) * group * d;
        next.store(0);

        pool.run([&](int t) {
            const int T = pool.threads();
            float* x = normed[t].data();
            auto norm_all = [&](const float* weight, const Linear& l) {
                for (int b = 0; b < batch; b++)
                    rms_norm(hidden + int64_t(b) * m.hidden, weight, m.eps, m.hidden, l.dtype == BF16, x + int64_t(b) * m.hidden);
            };
            for (int li = 0; li < m.num_layers; li++) {
                const Layer& layer = layers[li];
                norm_all(layer.input_norm, layer.qkv);
                Range r = share(layer.qkv.n, t, T);
                rows(layer.qkv, r.begin, r.end, x, m.hidden, batch,
                     [&](int row, int b, float y) { qkv.data()[int64_t(b) * width + row] = y; });
                pool.barrier();

                for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
                    int chunk = task % chunks, kv = task / chunks % m.kv_heads, b = task / chunks / m.kv_heads;
                    int begin = chunk * CHUNK, end = std::min(lengths[b], begin + CHUNK);
                    partials[task].sum[0] = 0;
                    if (begin >= end) continue;
                    const float *c = cos + int64_t(b) * d / 2, *s = sin + int64_t(b) * d / 2;
                    const int32_t* table = tables + int64_t(b) * table_stride;
                    float* q = query[t].data();
                    std::memcpy(q, qkv.data() + int64_t(b) * width + kv * group * d, sizeof(float) * group * d);
                    for (int g = 0; g < group; g++) rope_head(q + g * d, layer.q_norm, m.eps, c, s, d);
                    if (end == lengths[b]) {  // this task holds the new position: write it first
                        float* k = qkv.data() + int64_t(b) * width + (m.heads + kv) * d;
                        const float* v = k + m.kv_heads * d;
                        rope_head(k, layer.k_norm, m.eps, c, s, d);
                        int pos = lengths[b] - 1;
                        int64_t at = table[pos / m.block_size] * m.block_stride + (pos % m.block_size) * m.token_stride + kv * m.head_stride;
                        for (int i = 0; i < d; i++) {
                            if (m.kv_dtype == F32) store_kv<F32>(layer.k_cache, at + i, k[i]), store_kv<F32>(layer.v_cache, at + i, v[i]);
                            else store_kv<BF16>(layer.k_cache, at + i, k[i]), store_kv<BF16>(layer.v_cache, at + i, v[i]);
                        }
                    }
                    if (m.kv_dtype == F32) attend<F32>(m, layer, q, kv, table, begin, end, scores[t].data(), partials[task]);
                    else attend<BF16>(m, layer, q, kv, table, begin, end, scores[t].data(), partials[task]);
                }
                pool.barrier();
                if (t == 0) next.store(0, std::memory_order_relaxed);
                // Merging is cheap and each thread needs all of it: heads are split, then one more meeting.
                for (int bh = t; bh < batch * m.heads; bh += T) {
                    int b = bh / m.heads, h = bh % m.heads, kv = h / group, g = h % group;
                    const Partial* p = partials.data() + (int64_t(b) * m.kv_heads + kv) * chunks;
                    float top = -INFINITY, total = 0;
                    for (int c = 0; c < chunks; c++) if (p[c].sum[0] > 0) top = std::max(top, p[c].max[g]);
                    float* out = attn.data() + int64_t(b) * m.heads * d + h * d;
                    float mixed[512] = {};
                    for (int c = 0; c < chunks; c++) {
                        if (p[c].sum[0] <= 0) continue;
                        float w = std::exp(p[c].max[g] - top);
                        total += w * p[c].sum[g];
                        for (int i = 0; i < d; i++) mixed[i] += w * p[c].acc[g * d + i];
                    }
                    bool dealt = layer.o.dtype == BF16;
                    float inv = 1.0f / total;
                    for (int i = 0; i < d; i++) {
                        int j = h * d + i;
                        out[(dealt ? deal(j) : j) - h * d] = mixed[i] * inv;
                    }
                }
                pool.barrier();

                r = share(layer.o.n, t, T);
                rows(layer.o, r.begin, r.end, attn.data(), m.heads * d, batch,
                     [&](int row, int b, float y) { hidden[int64_t(b) * m.hidden + row] += y; });
                pool.barrier();

                norm_all(layer.post_norm, layer.gate_up);
                // A thread makes gate and up of its own columns, then joins them a vector at a time.
                r = share(m.intermediate, t, T);
                const int mine = r.end - r.begin, stride = (mine + LANES - 1) / LANES * LANES;
                float *gate = column[t].data(), *up = gate + int64_t(batch) * stride;
                rows(layer.gate_up, r.begin, r.end, x, m.hidden, batch,
                     [&](int row, int b, float y) { gate[b * stride + row - r.begin] = y; });
                rows(layer.gate_up, m.intermediate + r.begin, m.intermediate + r.end, x, m.hidden, batch,
                     [&](int row, int b, float y) { up[b * stride + row - m.intermediate - r.begin] = y; });
                for (int b = 0; b < batch; b++) {
                    for (int i = 0; i < mine; i += LANES) {
                        vfloat g = load(gate + b * stride + i);
                        store(gate + b * stride + i, g / (1.0f + vexp(-g)) * load(up + b * stride + i));
                    }
                    float* out = act.data() + int64_t(b) * m.intermediate;
                    if (layer.down.dtype == BF16)
                        for (int i = 0; i < mine; i++) out[deal(r.begin + i)] = gate[b * stride + i];
                    else std::memcpy(out + r.begin, gate + b * stride, sizeof(float) * mine);
                }
                pool.barrier();

                r = share(layer.down.n, t, T);
                rows(layer.down, r.begin, r.end, act.data(), m.intermediate, batch,
                     [&](int row, int b, float y) { hidden[int64_t(b) * m.hidden + row] += y; });
                pool.barrier();
            }
            norm_all(m.final_norm, m.lm_head);
            Range r = share(m.lm_head.n, t, T);
            rows(m.lm_head, r.begin, r.end, x, m.hidden, batch,
                 [&](int row, int b, float y) { logits[int64_t(b) * m.lm_head.n + row] = y; });
        });
    }
};

extern "C" {
Stepper* visavis_decode_new(const Model* model) {  // null when the process can have no more memory or threads
    try {
        return new Stepper(*model);
    } catch (...) {
        return nullptr;
    }
}
void visavis_decode_free(Stepper* s) { delete s; }
void visavis_decode_step(Stepper* s, int batch, float* hidden, const float* cos, const float* sin, const int32_t* tables,
                  int table_stride, const int32_t* lengths, float* logits) {
    s->step(batch, hidden, cos, sin, tables, table_stride, lengths, logits);
}
int visavis_decode_model_size() { return int(sizeof(Model)); }
int visavis_decode_layer_size() { return int(sizeof(Layer)); }
}
