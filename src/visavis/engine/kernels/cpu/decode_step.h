// A decode step of a Llama-like decoder: embedding rows in, logits out. A list of phases, five a layer. For steps with
// prompts: a layer's attention and what is around it by themselves.
#pragma once

#include "attention.h"
#include "model.h"
#include "panels.h"
#include "prompt_attention.h"
#include "prompt_layer.h"
#include "prompt_rows.h"
#include "workers.h"

// A chunk of so few tokens is attended as as many decodes: a block of queries costs the same for one as for all of them.
// The two cost alike at 8 to 16 tokens.
constexpr int FEW_TOKENS = 8;

class Stepper {
  public:
    Stepper(const Model& model, Workers& workers)
        : m(model), layers(model.layers, model.layers + model.num_layers), workers(workers),
          left(size_t(std::max(m.max_batch, FEW_TOKENS)) * m.kv_heads), prompt_attention(model, workers),
          prompt_layer(m, workers) {
        const int b = m.max_batch, d = m.head_dim, group = m.heads / m.kv_heads, threads = workers.threads();
        qkv.resize(size_t(b) * (m.heads + 2 * m.kv_heads) * d);
        attn.resize(size_t(b) * m.heads * d);
        act.resize(size_t(b) * m.intermediate);
        scratch = std::vector<Scratch>(threads);
        for (auto& s : scratch) {
            s.normed.resize(size_t(b) * m.hidden);
            s.scores.resize(size_t(group) * CHUNK);
            s.query.resize(size_t(group + 1) * d);
            s.up.resize(size_t(b) * chunk_panels(m.intermediate) * PANEL);
            s.prepared.resize(size_t(most_prepared_bytes()) / sizeof(float));
        }
    }

    static int most_phases(int num_layers) { return num_layers * PER_LAYER + 1; }

    // hidden: (batch, hidden) float32, overwritten. cos, sin: (batch, head_dim / 2). tables: (batch, table_stride).
    // lengths: tokens of each sequence including this one. logits: (batch, vocabulary) float32.
    void step(int batch, float* hidden, const float* cos, const float* sin, const int32_t* tables, int table_stride,
              const int32_t* lengths, float* logits) {
        job = {batch, hidden, cos, sin, tables, lengths, table_stride, logits, qkv.data(), heads_stride(), attn.data(), true};
        list_tasks();
        for (auto& s : scratch) s.normed_for = s.prepared_for = -1;
        auto chunks = [&](int phase) {
            if (phase == m.num_layers * PER_LAYER) return num_chunks(m.lm_head.n);
            const Layer& layer = layers[phase / PER_LAYER];
            switch (phase % PER_LAYER) {
                case QKV: return num_chunks(layer.qkv.n);
                case ATTENTION: return int(tasks.size());
                case OUTPUT: return num_chunks(layer.o.n);
                case GATE_UP: return num_chunks(m.intermediate);
                default: return num_chunks(layer.down.n);
            }
        };
        auto call = [this](int t, int phase, int chunk) { work(t, phase, chunk); };
        workers.run(m.num_layers * PER_LAYER + 1, chunks, call, Share::STRETCHES);
    }

    // The attention of one layer alone: queries (batch, …) rotated, `stride` apart; the cache has the new keys and values
    // already. out: (batch, heads · head_dim).
    void attend_stored(int layer, int batch, const float* queries, int64_t stride, const int32_t* tables, int table_stride,
                       const int32_t* lengths, float* out) {
        job = {batch, nullptr, nullptr, nullptr, tables, lengths, table_stride, nullptr, const_cast<float*>(queries), stride, out, false};
        list_tasks();
        auto call = [this, layer](int t, int, int chunk) { attention(layers[layer], chunk, scratch[t]); };
        workers.run(1, [&](int) { return int(tasks.size()); }, call);
    }

    // Keys and values of `count` tokens, heads (2 kv_heads, head_dim) at `stride`, into their slots of the cache.
    void store_new(int layer, const float* heads, int64_t stride, int count, const int64_t* slots) {
        each_row(workers, count, 2 * m.kv_heads * m.head_dim, [&](int64_t row) {
            const float* keys = heads + row * stride;
            store_token(m, layers[layer], slots[row], keys, keys + m.kv_heads * m.head_dim);
        });
    }

    void before_attention(int layer, const PromptTokens& tokens) { prompt_layer.before_attention(layers[layer], tokens); }
    void after_attention(int layer, const PromptTokens& tokens) { prompt_layer.after_attention(layers[layer], tokens); }

    size_t prompt_bytes() const { return prompt_layer.bytes() + workers.prepared.bytes(); }

    void attend_prompt(int layer, const PromptChunk& c) {
        if (c.count > FEW_TOKENS) return prompt_attention(layers[layer], c);
        int32_t lengths[FEW_TOKENS];  // each token is a row of its own with the same table
        for (int i = 0; i < c.count; i++) lengths[i] = c.context + i + 1;
        attend_stored(layer, c.count, c.queries, c.stride, c.table, 0, lengths, c.out);
    }

  private:
    enum { QKV, ATTENTION, OUTPUT, GATE_UP, DOWN, PER_LAYER };
    struct Job {  // where the step at hand finds its things
        int batch;
        float* hidden;
        const float *cos, *sin;
        const int32_t *tables, *lengths;
        int table_stride;
        float *logits, *heads;
        int64_t heads_stride;
        float* mixed;
        bool is_new;  // the newest key and value are not rotated and not in the cache yet
    };
    struct Task { int sequence, kv_head, begin, end, first, count; };  // first, count: the partials of the same head
    struct Scratch {  // of a thread
        Buffer normed, scores, query, up, prepared;
        int normed_for = -1, prepared_for = -1;  // the phase whose input it has normalised, and prepared
    };

    const Model m;
    const std::vector<Layer> layers;
    Workers& workers;
    Job job{};
    Buffer qkv, attn, act, partial_acc;
    std::vector<Scratch> scratch;
    std::vector<Partial> partials;
    std::vector<Task> tasks;
    std::vector<std::atomic<int>> left;  // attention tasks of a head that are not done; the last one merges
    PromptAttention prompt_attention;
    PromptLayer prompt_layer;

    int64_t heads_stride() const { return int64_t(m.heads + 2 * m.kv_heads) * m.head_dim; }

    int64_t most_prepared_bytes() const {
        auto bytes = [&](const Linear& l) { return most_prepared(l.dtype, m.max_batch) * row_bytes(l.dtype, l.k); };
        int64_t most = bytes(m.lm_head);
        for (const Layer& layer : layers)
            for (const Linear* l : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) most = std::max(most, bytes(*l));
        return most;
    }

    // Panels that a thread takes at a time: several chunks a thread even the work out.
    int chunk_panels(int n) const { return std::max(1, num_panels(n) / (4 * workers.threads())); }
    int num_chunks(int n) const { return (num_panels(n) + chunk_panels(n) - 1) / chunk_panels(n); }

    void list_tasks() {
        const int group = m.heads / m.kv_heads;
        auto parts = [&](int b) { return (job.lengths[b] + CHUNK - 1) / CHUNK; };
        int longest = 0;
        for (int b = 0; b < job.batch; b++) longest = std::max(longest, job.lengths[b]);
        tasks.clear();
        for (int begin = 0; begin < longest; begin += CHUNK)  // rows that share keys read them one after the other
            for (int kv = 0; kv < m.kv_heads; kv++)
                for (int b = 0, first = 0; b < job.batch; first += m.kv_heads * parts(b++))
                    if (begin < job.lengths[b])
                        tasks.push_back({b, kv, begin, std::min(job.lengths[b], begin + CHUNK), first + kv * parts(b), parts(b)});
        for (int b = 0; b < job.batch; b++)
            for (int kv = 0; kv < m.kv_heads; kv++) left[size_t(b) * m.kv_heads + kv].store(parts(b), std::memory_order_relaxed);
        if (partials.size() < tasks.size()) partials.resize(tasks.size());
        partial_acc.resize(tasks.size() * group * m.head_dim);
        for (size_t i = 0; i < tasks.size(); i++) partials[i].acc = partial_acc.data() + i * group * m.head_dim;
    }

    void work(int t, int phase, int chunk) {
        Scratch& mine = scratch[t];
        float* x = mine.normed.data();
        auto norm = [&](const float* weight) {
            if (mine.normed_for == phase) return;
            mine.normed_for = phase;
            for (int b = 0; b < job.batch; b++)
                rms_norm(job.hidden + int64_t(b) * m.hidden, weight, m.eps, m.hidden, x + int64_t(b) * m.hidden);
        };
        if (phase == m.num_layers * PER_LAYER) {
            norm(m.final_norm);
            return share(mine, phase, m.lm_head, chunk, x, false, job.logits, m.lm_head.n);
        }
        const Layer& layer = layers[phase / PER_LAYER];
        switch (phase % PER_LAYER) {
            case QKV:
                norm(layer.input_norm);
                return share(mine, phase, layer.qkv, chunk, x, false, job.heads, layer.qkv.n);
            case ATTENTION:
                return attention(layer, chunk, mine);
            case OUTPUT:
                return share(mine, phase, layer.o, chunk, job.mixed, true, job.hidden, m.hidden);
            case GATE_UP:
                norm(layer.post_norm);
                return gated(layer, chunk, rows(mine, phase, layer.gate_up, x), mine.up.data());
            case DOWN:
                return share(mine, phase, layer.down, chunk, act.data(), true, job.hidden, m.hidden);
        }
    }

    void share(Scratch& mine, int phase, const Linear& l, int chunk, const float* x, bool add, float* out, int ldout) {
        const int begin = chunk * chunk_panels(l.n), end = std::min(num_panels(l.n), begin + chunk_panels(l.n));
        product(l, begin, end, rows(mine, phase, l, x), job.batch, add, out, ldout);
    }

    // x (batch, l.k) as the product takes it: each thread prepares it for itself, once a phase.
    Rows rows(Scratch& mine, int phase, const Linear& l, const float* x) {
        if (!takes_prepared(l.dtype, job.batch)) return {x, l.k};
        char* prepared = reinterpret_cast<char*>(mine.prepared.data());
        const int64_t bytes = row_bytes(l.dtype, l.k);
        if (mine.prepared_for != phase)
            for (int b = 0; b < job.batch; b++) prepare_row(l.dtype, x + int64_t(b) * l.k, l.k, prepared + b * bytes);
        mine.prepared_for = phase;
        return {x, l.k, prepared};
    }

    // Gate and up of some columns, then silu(gate) · up. `intermediate` is whole panels.
    void gated(const Layer& layer, int chunk, const Rows& x, float* up) {
        const int size = m.intermediate, panels = size / PANEL;
        const int begin = chunk * chunk_panels(size), end = std::min(panels, begin + chunk_panels(size));
        const int first = begin * PANEL, columns = (end - begin) * PANEL;
        product(layer.gate_up, begin, end, x, job.batch, false, act.data(), size);
        // As if `up` were the whole width: the product writes at the rows' own places.
        product(layer.gate_up, panels + begin, panels + end, x, job.batch, false, up - (size + first), columns);
        for (int b = 0; b < job.batch; b++) {
            float* gate = act.data() + int64_t(b) * size + first;
            silu_mul(gate, up + int64_t(b) * columns, columns, gate);
        }
    }

    // One head's share of the positions of one request; the last of a head to end puts the shares together.
    void attention(const Layer& layer, int index, Scratch& mine) {
        const Task& task = tasks[index];
        const int d = m.head_dim, group = m.heads / m.kv_heads, b = task.sequence, kv = task.kv_head;
        const float* heads = job.heads + b * job.heads_stride;
        const int32_t* table = job.tables + int64_t(b) * job.table_stride;
        float *q = mine.query.data(), *k = q + group * d;
        std::memcpy(q, heads + kv * group * d, sizeof(float) * group * d);
        if (job.is_new) {
            const float *c = job.cos + int64_t(b) * d / 2, *s = job.sin + int64_t(b) * d / 2;
            for (int g = 0; g < group; g++) rope_head(q + g * d, layer.q_norm, m.eps, c, s, d);
            if (task.end == job.lengths[b]) {  // this task holds the new position: write it first
                const float* v = heads + (m.heads + m.kv_heads + kv) * d;
                std::memcpy(k, heads + (m.heads + kv) * d, sizeof(float) * d);
                rope_head(k, layer.k_norm, m.eps, c, s, d);
                int64_t at;
                addresses(m, table, task.end - 1, task.end, kv, &at);
                write_head(m, layer.k_cache, at, k);
                write_head(m, layer.v_cache, at, v);
            }
        }
        Partial& partial = partials[task.first + task.begin / CHUNK];
        if (m.kv_dtype == F32) attend<F32>(m, layer, q, kv, table, task.begin, task.end, mine.scores.data(), partial);
        else attend<BF16>(m, layer, q, kv, table, task.begin, task.end, mine.scores.data(), partial);
        auto& rest = left[size_t(b) * m.kv_heads + kv];
        if (rest.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
        rest.store(task.count, std::memory_order_relaxed);  // for the next layer
        for (int g = 0; g < group; g++) merge(task, g);
    }

    void merge(const Task& task, int g) {
        const int d = m.head_dim, h = task.kv_head * (m.heads / m.kv_heads) + g;
        const Partial* p = partials.data() + task.first;
        float top = p[0].max[g], total = 0, *out = job.mixed + (int64_t(task.sequence) * m.heads + h) * d;
        for (int c = 1; c < task.count; c++) top = std::max(top, p[c].max[g]);
        for (int i = 0; i < d; i += LANES) store(out + i, vfloat{});
        for (int c = 0; c < task.count; c++) {
            const float w = std::exp(p[c].max[g] - top), *acc = p[c].acc + g * d;
            total += w * p[c].sum[g];
            for (int i = 0; i < d; i += LANES) store(out + i, load(out + i) + load(acc + i) * w);
        }
        const float inv = 1.0f / total;
        for (int i = 0; i < d; i += LANES) store(out + i, load(out + i) * inv);
    }
};
