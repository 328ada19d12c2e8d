// The CPU kernels as one library with a C interface: products with packed weights, what a prompt needs between them, and
// the whole decode step.
//
// The work of a step at small batch is reading the weights once; with many vectors it is multiplying. Weights stay in their
// storage type (float32, bfloat16, or int8 with a scale a row). Activations are float32; what a product makes of them
// where the processor has dot products is in `rows.h`. A job is a list of phases, a phase a list of chunks that threads claim: a thread that the system has put aside
// holds up nobody unless it holds a chunk. Portable: GCC/Clang vector extensions, std::thread. Compiled by `build.py`.

#include "attention.h"
#include "best.h"
#include "decode_step.h"
#include "model.h"
#include "panels.h"
#include "prompt_rows.h"
#include "simd.h"
#include "vision_attention.h"
#include "vision_rows.h"
#include "workers.h"

namespace {
constexpr int CHUNK_ROWS = 8 * MAX_ROWS;  // vectors of a large product that a thread takes at a time
constexpr int PREPARED_ROWS = 4;          // that it prepares at a time

template <class F>
int lacks_memory(F&& f) {  // no exception may leave the library
    try {
        f();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
}

extern "C" {
Workers* visavis_workers_new(int threads, int num_layers) {  // null when the process can have no more memory or threads
    try {
        return new Workers(threads, Stepper::most_phases(num_layers));
    } catch (...) {
        return nullptr;
    }
}
void visavis_workers_free(Workers* w) { delete w; }

int visavis_panel() { return PANEL; }
void visavis_pack(void* out, const void* rows, int n, int k, int dtype) {
    if (dtype == F32) pack(static_cast<float*>(out), static_cast<const float*>(rows), n, k, dtype);
    else if (dtype == BF16) pack(static_cast<uint16_t*>(out), static_cast<const uint16_t*>(rows), n, k, dtype);
    else pack(static_cast<int8_t*>(out), static_cast<const int8_t*>(rows), n, k, dtype);
}
void visavis_rows(const Linear* l, const int64_t* ids, int count, float* out) {  // rows of the matrix, as float32
    for (int i = 0; i < count; i++) unpack_row(*l, ids[i], out + int64_t(i) * l->k);
}
int visavis_rounds(int dtype, int count) { return dtype == BF16 && takes_prepared(dtype, count); }  // x to bfloat16
void visavis_product(Workers* workers, const Linear* l, const float* x, int64_t ldx, int count, float* out, int64_t ldout, int add) {
    const int panels = num_panels(l->n), parts = (count + CHUNK_ROWS - 1) / CHUNK_ROWS;
    // Many vectors: groups of panels for a part of them at a time. Few: panels are shared evenly.
    const int width = parts > 1 ? GROUP_PANELS : std::max(1, std::min<int>(GROUP_PANELS, panels / (4 * workers->threads())));
    const int groups = (panels + width - 1) / width;
    const int64_t bytes = row_bytes(l->dtype, l->k);
    char* prepared = nullptr;
    int prepared_chunks = 0;
    if (takes_prepared(l->dtype, count)) {
        try {
            workers->prepared.resize(size_t(count) * bytes / sizeof(float));
            prepared = reinterpret_cast<char*>(workers->prepared.data());
            prepared_chunks = (count + PREPARED_ROWS - 1) / PREPARED_ROWS;
        } catch (const std::bad_alloc&) {  // then in float32, slower
        }
    }
    auto call = [&](int, int phase, int chunk) {
        if (phase == 0) {
            for (int row = chunk * PREPARED_ROWS; row < std::min(count, (chunk + 1) * PREPARED_ROWS); row++)
                prepare_row(l->dtype, x + row * ldx, l->k, prepared + row * bytes);
            return;
        }
        const int part = chunk / groups, begin = chunk % groups * width, row = part * CHUNK_ROWS;
        const Rows some{x + row * ldx, ldx, prepared ? prepared + row * bytes : nullptr};
        product(*l, begin, std::min(panels, begin + width), some, std::min(CHUNK_ROWS, count - row), add != 0, out + row * ldout, int(ldout));
    };
    workers->run(2, [&](int phase) { return phase ? groups * parts : prepared_chunks; }, call);
}

Stepper* visavis_decode_new(const Model* model, Workers* workers) {
    try {
        return new Stepper(*model, *workers);
    } catch (...) {
        return nullptr;
    }
}
void visavis_decode_free(Stepper* s) { delete s; }
int visavis_decode_step(Stepper* s, int batch, float* hidden, const float* cos, const float* sin, const int32_t* tables,
                         int table_stride, const int32_t* lengths, float* logits) {
    return lacks_memory([&] { s->step(batch, hidden, cos, sin, tables, table_stride, lengths, logits); });
}
int visavis_decode_attention(Stepper* s, int layer, int batch, const float* queries, int64_t stride, const int32_t* tables,
                             int table_stride, const int32_t* lengths, float* out) {
    return lacks_memory([&] { s->attend_stored(layer, batch, queries, stride, tables, table_stride, lengths, out); });
}
void visavis_store(Stepper* s, int layer, const float* heads, int64_t stride, int count, const int64_t* slots) {
    s->store_new(layer, heads, stride, count, slots);
}
int visavis_prompt_attention(Stepper* s, int layer, const float* queries, int64_t stride, int count, int context,
                             const int32_t* table, float* out) {
    return lacks_memory([&] { s->attend_prompt(layer, {queries, stride, count, context, table, out}); });
}
int visavis_prompt_before(Stepper* s, int layer, int count, float* hidden, const float* cos, const float* sin,
                          const int64_t* slots, float* heads) {
    return lacks_memory([&] { s->before_attention(layer, {count, hidden, cos, sin, slots, heads, nullptr}); });
}
int visavis_prompt_after(Stepper* s, int layer, int count, float* hidden, const float* mixed) {
    return lacks_memory([&] { s->after_attention(layer, {count, hidden, nullptr, nullptr, nullptr, nullptr, mixed}); });
}
int64_t visavis_prompt_bytes(const Stepper* s) { return int64_t(s->prompt_bytes()); }  // of buffers that grow with prompts
int visavis_prompt_rounds(int kv_dtype, int count) {  // queries and weights to bfloat16
    return kv_dtype == BF16 && NUMBERS<BF16> == 2 && count > FEW_TOKENS;
}
void visavis_rms_norm(Workers* workers, const float* x, int64_t stride, int count, int heads, int size, const float* weight,
                      float eps, float* out, int64_t out_stride) {  // x, out: (count, heads, size) at strides; may be the same
    each_row(*workers, count, heads * size, [&](int64_t row) {
        for (int at = 0; at < heads * size; at += size) rms_norm(x + row * stride + at, weight, eps, size, out + row * out_stride + at);
    });
}
void visavis_rotate(Workers* workers, float* x, int64_t stride, int count, int heads, int d, const float* cos, const float* sin) {
    each_row(*workers, count, heads * d, [&](int64_t row) { rotate_row(x + row * stride, cos + row * d, sin + row * d, heads, d); });
}
void visavis_silu_mul(Workers* workers, const float* gate_up, int count, int width, float* out) {
    each_row(*workers, count, width, [&](int64_t row) {
        const float* gate = gate_up + 2 * row * width;
        silu_mul(gate, gate + width, width, out + row * width);
    });
}
void visavis_best(Workers* workers, const float* logits, int count, int64_t n, int64_t* places, float* sums) {
    each_row(*workers, count, int(n), [&](int64_t row) { find_best(logits + row * n, n, places + row, sums + row); });
}
void visavis_layer_norm(Workers* workers, const float* x, int count, int size, const float* weight, const float* bias, float eps, float* out) {
    each_row(*workers, count, size, [&](int64_t row) { layer_norm(x + row * size, weight, bias, eps, size, out + row * size); });
}
void visavis_activate(Workers* workers, int kind, float* x, int64_t count) {
    constexpr int64_t some = 1 << 12;
    each_row(*workers, int((count + some - 1) / some), some, [&](int64_t row) {
        const int64_t n = std::min(some, count - row * some);
        if (kind == QUICK_GELU) activate<QUICK_GELU>(x + row * some, n);
        else activate<GELU_TANH>(x + row * some, n);
    });
}
VisionAttention* visavis_vision_new(Workers* workers, int heads, int head_dim) {
    try {
        return new VisionAttention(heads, head_dim, *workers);
    } catch (...) {
        return nullptr;
    }
}
void visavis_vision_free(VisionAttention* v) { delete v; }
int visavis_vision_attention(VisionAttention* v, const float* qkv, const int32_t* starts, int stretches, float* out) {
    return lacks_memory([&] { (*v)(qkv, starts, stretches, out); });
}
int visavis_sizes(int which) { return which == 0 ? sizeof(Model) : which == 1 ? sizeof(Layer) : sizeof(Linear); }
}
