// One decode step of one request, from its embedded token to the logits, as a single launch of one block a multiprocessor.
//
// Each product's rows are shared out among the blocks, so a block reads stretches of memory. Its producer thread streams
// them, in the order of the whole step and whatever the arithmetic is waiting for, into a ring in shared memory; its
// consumer warps multiply. So memory keeps busy while results travel from block to block.
//
// Results travel without barriers: a fence would wait for the copies in flight. A vector that all blocks read (hidden
// state, queries with keys and values, inner activations) is made of 32-bit words, a bf16 value above a 16-bit tag that
// tells which write of it this is; readers ask again until the tags are right. No block can overwrite what another
// still reads: to write, it must have read all words of a later vector, which every block writes after its own reading.
//
// Compiled at run time for one model, with these constants: H hidden, I inner, NH query heads, NK key heads, D values a
// head, V vocabulary, LAYERS, BLOCKS, BLOCK_SIZE tokens a KV block, CHUNK tokens of a block's share of the keys at most,
// SPLITS shares at most, STAGE bytes and STAGES of the ring, ROWS of a block's share at most, S_QKV S_OUT S_UP S_DOWN
// S_HEAD segments a row, QK_NORM.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS, GROUP = NH / NK, QKV = (NH + 2 * NK) * D, WIDTH = NH * D;
constexpr int WIDEST = I > WIDTH ? (I > H ? I : H) : (WIDTH > H ? WIDTH : H);
constexpr float LOG2E = 1.4426950408889634f;

struct Layer {
    const u16 *qkv, *qkv_bias, *output, *output_bias, *gate_up, *gate_up_bias, *down, *down_bias;
    const u16 *input_norm, *mlp_norm, *q_norm, *k_norm;
    u16* cache;  // (slots, 2 NK, D)
};

struct Step {
    const Layer* layers;
    const u16 *head, *norm;
    const u16* hidden;              // (H,): the embedded token
    u32 *state, *qkv, *inner;       // (H,), (QKV,), (I,) words
    float *parts, *peaks;           // (NH, SPLITS, D), (2, NH, SPLITS): unnormalised sums; maxima, denominators
    float* logits;                  // (V,)
    const int *context, *position, *seat, *tables;
    long long table_stride;
    const float *cosines, *sines;   // (positions, D / 2)
    u32* counters;                  // (LAYERS + 1, 32): the first counts steps, the others arrivals, never reset
    float eps;
};

// ---- words of the machine ----------------------------------------------------------------------------------------

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float wide(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 narrow(float x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ __forceinline__ float rounded(float x) { return wide(narrow(x)); }
__device__ __forceinline__ u32 pair(float a, float b) {
    u32 y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a)); return y;
}
__device__ __forceinline__ float exp2_(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Past the first cache, which may hold older values.
__device__ __forceinline__ uint4 far16(const void* p) {
    uint4 v; asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory"); return v;
}
__device__ __forceinline__ u32 far4(const void* p) { u32 v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
__device__ __forceinline__ float far_float(const float* p) { return __uint_as_float(far4(p)); }

__device__ __forceinline__ void send(u32* to, float value, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"((u32)narrow(value) << 16 | tag) : "memory");
}
__device__ __forceinline__ bool arrived(uint4 v, u32 tag) {
    return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 0xffffu) == 0;
}
__device__ __forceinline__ float received(const u32* from, u32 tag) {
    u32 v;
    do v = far4(from); while (((v ^ tag) & 0xffffu) != 0);
    return high(v);
}
// Four words a thread and turn, all asked for before the first is looked at.
template <int TURNS>
__device__ __forceinline__ void receive(uint4 (&v)[TURNS], const u32* from, int first, int count, u32 tag) {
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        if (first + t * CONSUMERS < count) v[t] = far16(from + 4 * (first + t * CONSUMERS));
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        if (first + t * CONSUMERS < count)
            while (!arrived(v[t], tag)) v[t] = far16(from + 4 * (first + t * CONSUMERS));
}

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void bar_init(u64* bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_arrive(u64* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void bar_expect(u64* bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(u64* bar, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(shared_address(bar)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, u32 bytes, u64* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

__device__ __forceinline__ float sum_of_warp(float x) {
    for (int mask = 16; mask; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}
__device__ __forceinline__ float max_of_warp(float x) {
    for (int mask = 16; mask; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}

// ---- a block's share ---------------------------------------------------------------------------------------------

__device__ __forceinline__ int first_row(int rows) { return (int)((long long)rows * blockIdx.x / BLOCKS); }
__device__ __forceinline__ int end_row(int rows) { return (int)((long long)rows * (blockIdx.x + 1) / BLOCKS); }

struct Ring {
    char* slots;
    u64 *full, *empty;
};

// A product's dimensions. One copy of the code for all of them: what runs once a layer finds no instructions in the
// caches beyond a few ten kilobytes.
struct Shape {
    int rows, width, segments;
    bool paired;
};
constexpr Shape QKV_SHAPE{QKV, H, S_QKV, false}, OUT_SHAPE{H, WIDTH, S_OUT, false}, UP_SHAPE{I, H, S_UP, true},
    DOWN_SHAPE{H, I, S_DOWN, false}, HEAD_SHAPE{V, H, S_HEAD, false};

// A stage holds a unit (a segment of a row) for each warp; of paired rows (gates, ups) four units of either.
__device__ __noinline__ u32 stream(const u16* weight, Shape s, Ring ring, u32 stage) {
    const int unit_size = s.width / s.segments, each = s.paired ? WARPS / 2 : WARPS;
    const int units = (end_row(s.rows) - first_row(s.rows)) * s.segments;
    const u16* mine = weight + (long long)first_row(s.rows) * s.width;
#pragma unroll 1
    for (int unit = 0; unit < units; unit += each, stage++) {
        const u32 bytes = min(each, units - unit) * unit_size * 2, at = stage % STAGES;
        char* slot = ring.slots + at * STAGE;
        bar_wait(ring.empty + at, (stage / STAGES & 1) ^ 1);
        bar_expect(ring.full + at, s.paired ? 2 * bytes : bytes);
        bulk_copy(slot, mine + (long long)unit * unit_size, bytes, ring.full + at);
        if (s.paired) bulk_copy(slot + each * unit_size * 2, mine + (long long)s.rows * s.width + (long long)unit * unit_size, bytes, ring.full + at);
    }
    return stage;
}

// Every warp's sums of its units with x (shared memory, bf16) into sums[unit]; ups behind ROWS · segments.
__device__ __noinline__ u32 multiply(const u16* x, float* sums, Shape s, Ring ring, u32 stage) {
    const int unit_size = s.width / s.segments, each = s.paired ? WARPS / 2 : WARPS, pieces = unit_size / 8;
    const int units = (end_row(s.rows) - first_row(s.rows)) * s.segments, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int own = s.paired ? warp % (WARPS / 2) : warp;
    float* mine = s.paired && warp >= WARPS / 2 ? sums + ROWS * s.segments : sums;
#pragma unroll 1
    for (int first = 0; first < units; first += each, stage++) {
        const int unit = first + own;
        const u32 at = stage % STAGES;
        bar_wait(ring.full + at, stage / STAGES & 1);
        if (unit < units) {
            const uint4* w = (const uint4*)(ring.slots + at * STAGE + warp * unit_size * 2);
            const uint4* v = (const uint4*)(x + (unit & (s.segments - 1)) * unit_size);
            float a = 0, b = 0, c = 0, d = 0;
#pragma unroll 3
            for (int i = lane; i < pieces; i += 32) {
                const uint4 p = w[i], q = v[i];
                a += low(p.x) * low(q.x); b += high(p.x) * high(q.x);
                c += low(p.y) * low(q.y); d += high(p.y) * high(q.y);
                a += low(p.z) * low(q.z); b += high(p.z) * high(q.z);
                c += low(p.w) * low(q.w); d += high(p.w) * high(q.w);
            }
            const float sum = sum_of_warp((a + b) + (c + d));
            if (lane == 0) mine[unit] = sum;
        }
        __syncwarp();
        if (lane == 0) bar_arrive(ring.empty + at);
    }
    consumers_meet();
    return stage;
}

template <int SEGMENTS>
__device__ __forceinline__ float row_sum(const float* sums, int row) {
    float y = 0;
#pragma unroll 1
    for (int i = 0; i < SEGMENTS; i++) y += sums[row * SEGMENTS + i];
    return y;
}

// ---- all blocks together -----------------------------------------------------------------------------------------

struct Grid {
    u32 *counters, steps, target;  // steps before this one, and arrivals after it; both wrap
    int number;
    __device__ void arrive() {
        number++;
        consumers_meet();
        if (threadIdx.x == 0) asm volatile("fence.acq_rel.gpu;\nred.release.gpu.global.add.u32 [%0], 1;" ::"l"(counters + 32 * number) : "memory");
    }
    __device__ void wait() {
        if (threadIdx.x == 0) {
            u32 seen;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counters + 32 * number) : "memory");
            while ((int)(seen - target) < 0);
        }
        consumers_meet();
    }
};

// x / rms(x), rounded, times the gain, rounded, as the reference rounds; 4 values a thread and turn.
__device__ __noinline__ void normalise(const u32* state, u32 tag, const u16* gain, u16* x, float eps, float* scratch) {
    constexpr int TURNS = (H / 4 + CONSUMERS - 1) / CONSUMERS;
    uint2 gains[TURNS];
    uint4 v[TURNS];
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        if (threadIdx.x + t * CONSUMERS < H / 4) gains[t] = ((const uint2*)gain)[threadIdx.x + t * CONSUMERS];
    receive(v, state, threadIdx.x, H / 4, tag);
    float squares = 0;
#pragma unroll
    for (int t = 0; t < TURNS; t++)
        if (threadIdx.x + t * CONSUMERS < H / 4)
            squares += high(v[t].x) * high(v[t].x) + high(v[t].y) * high(v[t].y) + high(v[t].z) * high(v[t].z) + high(v[t].w) * high(v[t].w);
    squares = sum_of_warp(squares);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = squares;
    consumers_meet();
    float total = 0;
    for (int w = 0; w < WARPS; w++) total += scratch[w];
    const float scale = rsqrtf(total / H + eps);
#pragma unroll
    for (int t = 0; t < TURNS; t++) {
        const int i = threadIdx.x + t * CONSUMERS;
        if (i < H / 4)
            ((uint2*)x)[i] = make_uint2(
                pair(rounded(high(v[t].x) * scale) * low(gains[t].x), rounded(high(v[t].y) * scale) * high(gains[t].x)),
                pair(rounded(high(v[t].z) * scale) * low(gains[t].y), rounded(high(v[t].w) * scale) * high(gains[t].y)));
    }
    consumers_meet();
}

// ---- attention ---------------------------------------------------------------------------------------------------

// The share of this block: a key head and a stretch of tokens, the newest one included.
struct Share {
    int context, head, split, splits, begin, end;
    const int* table;
    __device__ Share(const Step& s) {
        context = *s.context;
        const int tokens = context + 1, length = max(64, (tokens + SPLITS * 8 - 1) / (SPLITS * 8) * 8);
        splits = (tokens + length - 1) / length;  // 0 without a request
        head = blockIdx.x % NK;
        split = blockIdx.x / NK;
        begin = split * length;
        end = min(begin + length, tokens);
        table = s.tables + (long long)*s.seat * s.table_stride;
    }
    __device__ bool here() const { return split < splits; }
    __device__ long long slot(int token) const { return (long long)table[token / BLOCK_SIZE] * BLOCK_SIZE + token % BLOCK_SIZE; }
    __device__ const u16* key(const u16* cache, int token) const { return cache + (slot(token) * 2 * NK + head) * D; }
};

// One head of queries or keys: normalised, turned, rounded; a warp's work. A lane has values i, i + 32 … of each half.
__device__ void turn_head(const u32* from, u32 tag, const u16* gain, float eps, const float* c, const float* s, float* to, u16* near, u16* store, float scale) {
    constexpr int EACH = D / 64;
    const int lane = threadIdx.x % 32;
    float a[EACH], b[EACH], squares = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        a[i] = received(from + lane + 32 * i, tag);
        b[i] = received(from + D / 2 + lane + 32 * i, tag);
        squares += a[i] * a[i] + b[i] * b[i];
    }
    if (gain) {
        const float r = rsqrtf(sum_of_warp(squares) / D + eps);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            a[i] = rounded(rounded(a[i] * r) * wide(gain[lane + 32 * i]));
            b[i] = rounded(rounded(b[i] * r) * wide(gain[D / 2 + lane + 32 * i]));
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int j = lane + 32 * i;
        const float x = a[i] * c[i] - b[i] * s[i], y = b[i] * c[i] + a[i] * s[i];
        if (to) { to[j] = rounded(x) * scale; to[D / 2 + j] = rounded(y) * scale; }
        if (store) { near[j] = store[j] = narrow(x); near[D / 2 + j] = store[D / 2 + j] = narrow(y); }
    }
}

// Keys and values of older tokens do not wait for this step, so the first 64 tokens of a share are read beforehand.
struct Attention {
    static constexpr int PIECES = D / 64, PAIRS = D / 2, SHARES = CONSUMERS / PAIRS, AHEAD = 64, EACH = AHEAD / SHARES;
    const Share& s;
    uint4 k[2][PIECES];
    u32 v[EACH];
    float c[PIECES], sn[PIECES];
    const u16* cache;

    __device__ void load_keys(uint4 (&to)[PIECES], int first) {
        const int token = first + threadIdx.x / 8;
        if (token >= s.end - s.begin) return;
        const u16* key = s.key(cache, s.begin + token) + 8 * (threadIdx.x % 8);
#pragma unroll
        for (int i = 0; i < PIECES; i++) to[i] = *(const uint4*)(key + 64 * i);
    }
    __device__ void load_value(u32& to, int token) {
        if (token < s.end - s.begin) to = *(const u32*)(s.key(cache, s.begin + token) + NK * D + 2 * (threadIdx.x % PAIRS));
    }
    __device__ Attention(const Step& step, const Share& share, const u16* cache) : s(share), cache(cache) {
        if (!s.here()) return;
        load_keys(k[0], 0);
        load_keys(k[1], AHEAD / 2);
#pragma unroll
        for (int j = 0; j < EACH; j++) load_value(v[j], threadIdx.x / PAIRS + j * SHARES);
        const long long at = (long long)*step.position * (D / 2) + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < PIECES; i++) { c[i] = step.cosines[at + 32 * i]; sn[i] = step.sines[at + 32 * i]; }
    }

    // Eight lanes a token, 8 values of every 64 each.
    __device__ void score(const uint4 (&old)[PIECES], int first, const float* queries, const u16* fresh, float* scores) {
        const int part = threadIdx.x % 8, token = first + threadIdx.x / 8, tokens = s.end - s.begin;
        uint4 key[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            key[i] = s.begin + token == s.context ? *(const uint4*)(fresh + 64 * i + 8 * part) : old[i];
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float dot = 0;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const float4 *q = (const float4*)(queries + g * D + 64 * i + 8 * part), x = q[0], y = q[1];
                dot += low(key[i].x) * x.x + high(key[i].x) * x.y + low(key[i].y) * x.z + high(key[i].y) * x.w;
                dot += low(key[i].z) * y.x + high(key[i].z) * y.y + low(key[i].w) * y.z + high(key[i].w) * y.w;
            }
            for (int mask = 4; mask; mask >>= 1) dot += __shfl_xor_sync(~0u, dot, mask);
            if (part == g % 8 && token < tokens) scores[token * 8 + g] = dot;
        }
    }

    // fresh: the newest token's key and value; sums: (SHARES, GROUP, D).
    __device__ void operator()(const Step& step, const Layer& layer, u32 tag, float* queries, u16* fresh, float* scores, float* sums) {
        if (!s.here()) return;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tokens = s.end - s.begin;
        const bool newest = s.split == s.splits - 1;  // its stretch ends with the new token
        u16* slot = layer.cache + (s.slot(s.context) * 2 * NK + s.head) * D;
#pragma unroll 1
        for (int task = warp; task < GROUP + 2; task += WARPS) {
            if (task < GROUP || (task == GROUP && newest)) {
                const bool query = task < GROUP;
                turn_head(step.qkv + (query ? s.head * GROUP + task : NH + s.head) * D, tag,
                          QK_NORM ? query ? layer.q_norm : layer.k_norm : nullptr, step.eps, c, sn,
                          query ? queries + task * D : nullptr, fresh, query ? nullptr : slot, rsqrtf((float)D) * LOG2E);
            } else if (task > GROUP && newest) {
#pragma unroll 1
                for (int i = lane; i < D; i += 32)
                    fresh[D + i] = slot[NK * D + i] = narrow(received(step.qkv + (NH + NK + s.head) * D + i, tag));
            }
        }
        consumers_meet();
#pragma unroll 1
        for (int base = 0; base < tokens; base += AHEAD / 2) {
            score(k[0], base, queries, fresh, scores);
#pragma unroll
            for (int i = 0; i < PIECES; i++) k[0][i] = k[1][i];
            load_keys(k[1], base + AHEAD);
        }
        consumers_meet();
#pragma unroll 1
        for (int g = warp; g < GROUP; g += WARPS) {
            float top = -1e30f, total = 0;
#pragma unroll 1
            for (int t = lane; t < tokens; t += 32) top = fmaxf(top, scores[t * 8 + g]);
            top = max_of_warp(top);
#pragma unroll 1
            for (int t = lane; t < tokens; t += 32) {
                const float p = exp2_(scores[t * 8 + g] - top);
                scores[t * 8 + g] = p;
                total += p;
            }
            total = sum_of_warp(total);
            if (lane == 0) {
                const int at = (s.head * GROUP + g) * SPLITS + s.split;
                step.peaks[at] = top;
                step.peaks[NH * SPLITS + at] = total;
            }
        }
        consumers_meet();
        // A thread sums two neighbouring values over every so-many-th token.
        const int at = threadIdx.x % PAIRS, share = threadIdx.x / PAIRS;
        float acc[GROUP][2] = {};
#pragma unroll 1
        for (int base = 0; base < tokens; base += AHEAD) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const int t = base + share + j * SHARES;
                if (t < tokens) {
                    const u32 both = s.begin + t == s.context ? *(const u32*)(fresh + D + 2 * at) : v[j];
#pragma unroll
                    for (int g = 0; g < GROUP; g++) {
                        acc[g][0] += scores[t * 8 + g] * low(both);
                        acc[g][1] += scores[t * 8 + g] * high(both);
                    }
                }
                load_value(v[j], t + AHEAD);
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) ((float2*)sums)[(share * GROUP + g) * PAIRS + at] = make_float2(acc[g][0], acc[g][1]);
        consumers_meet();
#pragma unroll 1
        for (int i = threadIdx.x; i < GROUP * D; i += CONSUMERS) {
            float y = 0;
#pragma unroll
            for (int j = 0; j < SHARES; j++) y += sums[j * GROUP * D + i];
            step.parts[((s.head * GROUP + i / D) * SPLITS + s.split) * D + i % D] = y;
        }
    }
};

// The shares joined, all heads, into x.
__device__ void join(const Step& step, int splits, u16* x) {
#pragma unroll 1
    for (int i = threadIdx.x; i < WIDTH / 8; i += CONSUMERS) {
        const int head = i * 8 / D, d = i * 8 % D;
        float top = -1e30f, total = 0, y[8] = {};
#pragma unroll 1
        for (int base = 0; base < splits; base += 4) {
            float peak[4], sum[4];
            uint4 v[4][2];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (base + j < splits) {
                    const int at = head * SPLITS + base + j;
                    peak[j] = far_float(step.peaks + at);
                    sum[j] = far_float(step.peaks + NH * SPLITS + at);
                    v[j][0] = far16(step.parts + (long long)at * D + d);
                    v[j][1] = far16(step.parts + (long long)at * D + d + 4);
                } else {
                    peak[j] = -1e30f; sum[j] = 0;
                    v[j][0] = v[j][1] = make_uint4(0, 0, 0, 0);
                }
            }
            float peaks = top;
#pragma unroll
            for (int j = 0; j < 4; j++) peaks = fmaxf(peaks, peak[j]);
            const float keep = exp2_(top - peaks);
            total *= keep;
            for (int k = 0; k < 8; k++) y[k] *= keep;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float f = exp2_(peak[j] - peaks);
                total += f * sum[j];
                const u32 w[8] = {v[j][0].x, v[j][0].y, v[j][0].z, v[j][0].w, v[j][1].x, v[j][1].y, v[j][1].z, v[j][1].w};
                for (int k = 0; k < 8; k++) y[k] += f * __uint_as_float(w[k]);
            }
            top = peaks;
        }
        const float r = total > 0 ? 1 / total : 0;
        ((uint4*)x)[i] = make_uint4(pair(y[0] * r, y[1] * r), pair(y[2] * r, y[3] * r), pair(y[4] * r, y[5] * r), pair(y[6] * r, y[7] * r));
    }
    consumers_meet();
}

// ---- the step ----------------------------------------------------------------------------------------------------

__device__ void produce(const Step& step, Ring ring) {
    u32 stage = 0;
#pragma unroll 1
    for (int l = 0; l < LAYERS; l++) {
        const Layer& layer = step.layers[l];
        const u16 *output = layer.output, *gate_up = layer.gate_up, *down = layer.down;
        stage = stream(layer.qkv, QKV_SHAPE, ring, stage);
        stage = stream(output, OUT_SHAPE, ring, stage);
        stage = stream(gate_up, UP_SHAPE, ring, stage);
        stage = stream(down, DOWN_SHAPE, ring, stage);
    }
    stream(step.head, HEAD_SHAPE, ring, stage);
}

__device__ __forceinline__ float bias_of(const u16* bias, int row) { return bias ? wide(bias[row]) : 0.f; }

__device__ void consume(const Step& step, Ring ring, u16* x, float* sums, float* queries, u16* fresh, float* scratch) {
    const u32 steps = *(volatile u32*)step.counters;
    Grid grid{step.counters, steps, (steps + 1) * BLOCKS, 0};
    const Share share(step);
    const int t = threadIdx.x;
    const int hidden_row = first_row(H) + t, qkv_row = first_row(QKV) + t;
    const bool has_hidden = hidden_row < end_row(H), has_qkv = qkv_row < end_row(QKV);
    float residual = has_hidden ? wide(step.hidden[hidden_row]) : 0.f;  // this block's rows of the hidden state
    u32 sent = steps * (4 * LAYERS + 1) + 1, stage = 0;  // vectors so far, the low half is the tag
#define TAG (sent & 0xffffu)
    if (has_hidden) send(step.state + hidden_row, residual, TAG);
#pragma unroll 1
    for (int l = 0; l < LAYERS; l++) {
        const Layer& layer = step.layers[l];
        const float qkv_bias = has_qkv ? bias_of(layer.qkv_bias, qkv_row) : 0.f;
        const float output_bias = has_hidden ? bias_of(layer.output_bias, hidden_row) : 0.f;
        const float down_bias = has_hidden ? bias_of(layer.down_bias, hidden_row) : 0.f;
        normalise(step.state, TAG, layer.input_norm, x, step.eps, scratch);
        stage = multiply(x, sums, QKV_SHAPE, ring, stage);
        sent++;
        if (has_qkv) send(step.qkv + qkv_row, row_sum<S_QKV>(sums, t) + qkv_bias, TAG);

        {
            Attention attention(step, share, layer.cache);
            consumers_meet();  // sums were read
            attention(step, layer, TAG, queries, fresh, sums, (float*)x);
        }
        grid.arrive();
        grid.wait();
        if (l == 0 && blockIdx.x == 0 && t == 0) *(volatile u32*)step.counters = steps + 1;  // all have read it
        join(step, share.splits, x);
        stage = multiply(x, sums, OUT_SHAPE, ring, stage);
        sent++;
        if (has_hidden) {
            residual = rounded(row_sum<S_OUT>(sums, t) + output_bias + residual);
            send(step.state + hidden_row, residual, TAG);
        }

        normalise(step.state, TAG, layer.mlp_norm, x, step.eps, scratch);
        stage = multiply(x, sums, UP_SHAPE, ring, stage);
        sent++;
#pragma unroll 1
        for (int row = t; row < end_row(I) - first_row(I); row += CONSUMERS) {
            const float g = row_sum<S_UP>(sums, row) + bias_of(layer.gate_up_bias, first_row(I) + row);
            const float u = row_sum<S_UP>(sums + ROWS * S_UP, row) + bias_of(layer.gate_up_bias, layer.gate_up_bias ? I + first_row(I) + row : 0);
            send(step.inner + first_row(I) + row, g / (1 + __expf(-g)) * u, TAG);
        }

#pragma unroll 1
        for (int first = t; first < I / 4; first += 3 * CONSUMERS) {
            uint4 v[3];
            receive(v, step.inner, first, I / 4, TAG);
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (first + j * CONSUMERS < I / 4)
                    ((uint2*)x)[first + j * CONSUMERS] = make_uint2(v[j].x >> 16 | (v[j].y & 0xffff0000u), v[j].z >> 16 | (v[j].w & 0xffff0000u));
        }
        consumers_meet();
        stage = multiply(x, sums, DOWN_SHAPE, ring, stage);
        sent++;
        if (has_hidden) {
            residual = rounded(row_sum<S_DOWN>(sums, t) + down_bias + residual);
            send(step.state + hidden_row, residual, TAG);
        }
    }
    normalise(step.state, TAG, step.norm, x, step.eps, scratch);
    stage = multiply(x, sums, HEAD_SHAPE, ring, stage);
#pragma unroll 1
    for (int row = t; row < end_row(V) - first_row(V); row += CONSUMERS) step.logits[first_row(V) + row] = row_sum<S_HEAD>(sums, row);
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1) whole_step(const __grid_constant__ Step step) {
    extern __shared__ __align__(128) char memory[];
    u64* full = (u64*)(memory + STAGES * STAGE);
    u64* empty = full + STAGES;
    float* scratch = (float*)(empty + STAGES);
    float* queries = scratch + 32;
    u16* fresh = (u16*)(queries + GROUP * D);
    u16* x = fresh + 2 * D;
    float* sums = (float*)(x + X_VALUES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) { bar_init(full + i, 1); bar_init(empty + i, WARPS); }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    const Ring ring{memory, full, empty};
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) produce(step, ring);
    } else {
        consume(step, ring, x, sums, queries, fresh, scratch);
    }
}
