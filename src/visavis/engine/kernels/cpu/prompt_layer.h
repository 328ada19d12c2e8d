// What a layer does to the tokens of a prompt before its attention and after it, some tokens at a time: what one
// operation leaves for the next stays in the cache of the core that does both.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"
#include "model.h"
#include "panels.h"
#include "prompt_rows.h"
#include "workers.h"

constexpr int BLOCK_ROWS = 8 * MAX_ROWS;  // tokens that a thread takes through a layer, at most

struct PromptTokens {
    int count;
    float* hidden;            // (count, hidden)
    const float *cos, *sin;   // (count, head_dim), sin signed
    const int64_t* slots;     // of the cache
    float* heads;             // (count, heads + 2 kv_heads, head_dim): queries, keys, values
    const float* mixed;       // (count, heads · head_dim): what attention made of them
};

class PromptLayer {
  public:
    PromptLayer(const Model& model, Workers& workers) : m(model), workers(workers), scratch(workers.threads()) {}

    // Queries, keys and values, rotated; the latter two into the cache.
    void before_attention(const Layer& layer, const PromptTokens& tokens) {
        each_block(layer, tokens.count, [&](Scratch& s, int first, int count) {
            const int width = (m.heads + 2 * m.kv_heads) * m.head_dim;
            float* heads = tokens.heads + int64_t(first) * width;
            const Rows rows = normed(s, layer.qkv, layer.input_norm, tokens.hidden + int64_t(first) * m.hidden, count);
            product(layer.qkv, 0, num_panels(layer.qkv.n), rows, count, false, heads, width);
            for (int i = 0; i < count; i++) finish_heads(layer, tokens, first + i, heads + int64_t(i) * width);
        });
    }

    // Output, gate, up and down, added to `hidden`.
    void after_attention(const Layer& layer, const PromptTokens& tokens) {
        each_block(layer, tokens.count, [&](Scratch& s, int first, int count) {
            const int width = m.heads * m.head_dim;
            float* x = tokens.hidden + int64_t(first) * m.hidden;
            const Rows mixed = prepared(s.prepared, layer.o, tokens.mixed + int64_t(first) * width, count);
            product(layer.o, 0, num_panels(layer.o.n), mixed, count, true, x, m.hidden);
            const Rows rows = normed(s, layer.gate_up, layer.post_norm, x, count);
            product(layer.down, 0, num_panels(layer.down.n), gated(s, layer, rows, count), count, true, x, m.hidden);
        });
    }

    size_t bytes() const {  // that it keeps from its largest call on
        size_t sum = 0;
        for (const Scratch& s : scratch)
            for (const Buffer* b : {&s.normed, &s.prepared, &s.gate, &s.up, &s.act, &s.prepared_act}) sum += b->bytes();
        return sum;
    }

  private:
    struct Scratch {  // of a thread, for a block of tokens
        Buffer normed, prepared, gate, up, act, prepared_act;
    };
    const Model m;
    Workers& workers;
    std::vector<Scratch> scratch;

    // call(scratch, first, count) for blocks of tokens, as many of them for each thread.
    template <class F>
    void each_block(const Layer& layer, int count, F&& f) {
        const int rounds = (count + BLOCK_ROWS * workers.threads() - 1) / (BLOCK_ROWS * workers.threads());
        const int parts = rounds * workers.threads(), rows = (count + parts - 1) / parts;
        for (Scratch& s : scratch) resize(s, layer, rows);
        auto call = [&](int t, int, int block) { f(scratch[t], block * rows, std::min(rows, count - block * rows)); };
        workers.run(1, [&](int) { return (count + rows - 1) / rows; }, call);
    }

    // As many tokens' products do, also the last block's, which may be of fewer.
    static bool takes_prepared(const Linear& l) { return ::takes_prepared(l.dtype, BLOCK_ROWS); }

    void resize(Scratch& s, const Layer& layer, int rows) {
        auto bytes = [&](const Linear& l) { return takes_prepared(l) ? size_t(row_bytes(l.dtype, l.k)) : 0; };
        s.normed.resize(size_t(rows) * m.hidden);
        s.prepared.resize(rows * std::max({bytes(layer.qkv), bytes(layer.o), bytes(layer.gate_up)}) / sizeof(float));
        s.gate.resize(size_t(rows) * GROUP_PANELS * PANEL);
        s.up.resize(size_t(rows) * GROUP_PANELS * PANEL);
        if (bytes(layer.down)) s.prepared_act.resize(rows * bytes(layer.down) / sizeof(float));
        else s.act.resize(size_t(rows) * m.intermediate);
    }

    // x (count, l.k) as the product takes it.
    Rows prepared(Buffer& buffer, const Linear& l, const float* x, int count) {
        if (!takes_prepared(l)) return {x, l.k};
        char* to = reinterpret_cast<char*>(buffer.data());
        const int64_t bytes = row_bytes(l.dtype, l.k);
        for (int i = 0; i < count; i++) prepare_row(l.dtype, x + int64_t(i) * l.k, l.k, to + i * bytes);
        return {x, l.k, to};
    }

    Rows normed(Scratch& s, const Linear& l, const float* norm, const float* x, int count) {
        float* to = s.normed.data();
        for (int i = 0; i < count; i++) rms_norm(x + int64_t(i) * l.k, norm, m.eps, l.k, to + int64_t(i) * l.k);
        return prepared(s.prepared, l, to, count);
    }

    void finish_heads(const Layer& layer, const PromptTokens& tokens, int token, float* heads) {
        const int d = m.head_dim;
        float *keys = heads + m.heads * d, *values = keys + m.kv_heads * d;
        if (layer.q_norm)
            for (int h = 0; h < m.heads; h++) rms_norm(heads + h * d, layer.q_norm, m.eps, d, heads + h * d);
        if (layer.k_norm)
            for (int h = 0; h < m.kv_heads; h++) rms_norm(keys + h * d, layer.k_norm, m.eps, d, keys + h * d);
        rotate_row(heads, tokens.cos + int64_t(token) * d, tokens.sin + int64_t(token) * d, m.heads + m.kv_heads, d);
        store_token(m, layer, tokens.slots[token], keys, values);
    }

    // silu(gate) · up, as the next product takes it; a group of panels at a time.
    Rows gated(Scratch& s, const Layer& layer, const Rows& x, int count) {
        const int panels = m.intermediate / PANEL;
        const int64_t bytes = row_bytes(layer.down.dtype, m.intermediate);
        const bool rounds = takes_prepared(layer.down);  // bfloat16: column by column
        char* to = reinterpret_cast<char*>(s.prepared_act.data());
        for (int begin = 0; begin < panels; begin += GROUP_PANELS) {
            const int end = std::min(panels, begin + GROUP_PANELS);
            const int first = begin * PANEL, columns = (end - begin) * PANEL;
            // As if the buffers were the whole width: the product writes at the rows' own places.
            float *gates = s.gate.data() - first, *ups = s.up.data() - (m.intermediate + first);
            product(layer.gate_up, begin, end, x, count, false, gates, columns);
            product(layer.gate_up, panels + begin, panels + end, x, count, false, ups, columns);
            for (int i = 0; i < count; i++) {
                float* gate = s.gate.data() + int64_t(i) * columns;
                float* act = rounds ? gate : s.act.data() + int64_t(i) * m.intermediate + first;
                silu_mul(gate, s.up.data() + int64_t(i) * columns, columns, act);
                if (rounds) round_row(act, columns, reinterpret_cast<uint16_t*>(to + i * bytes) + first);
            }
        }
        return {s.act.data(), m.intermediate, rounds ? to : nullptr};
    }
};
