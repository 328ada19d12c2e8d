// Attention within stretches of patches (a picture, a frame, a window), every patch seeing all of its stretch.
#pragma once

#include "query_blocks.h"

class VisionAttention {
  public:
    VisionAttention(int heads, int head_dim, Workers& workers) : heads(heads), blocks(head_dim, BLOCKS, workers.threads()), workers(workers) {}

    // qkv: (n, 3, heads, d), rotated. Stretch i is rows starts[i] … starts[i + 1]. out: (n, heads · d).
    void operator()(const float* qkv, const int32_t* starts, int stretches, float* out) {
        std::vector<Task> tasks;
        for (int i = 0; i < stretches; i++)
            for (int first = starts[i]; first < starts[i + 1]; first += BLOCKS * QUERIES)
                tasks.push_back({first, std::min(starts[i + 1], first + BLOCKS * QUERIES), starts[i], starts[i + 1]});
        auto call = [&](int t, int, int index) { attend(blocks.scratch[t], qkv, tasks[index / heads], index % heads, out); };
        workers.run(1, [&](int) { return int(tasks.size()) * heads; }, call);
    }

  private:
    static constexpr int BLOCKS = 4;  // of queries that share a block of keys
    struct Task { int first, last, begin, end; };  // queries, and their stretch
    const int heads;
    QueryBlocks blocks;
    Workers& workers;

    void attend(QueryBlocks::Scratch& s, const float* qkv, const Task& task, int head, float* out) {
        const int d = blocks.d;
        const int64_t width = int64_t(heads) * d, row = 3 * width;
        const float *queries = qkv + head * d, *keys = queries + width, *values = keys + width;
        const int count = (task.last - task.first + QUERIES - 1) / QUERIES;
        auto lanes = [&](int g) { return std::min(QUERIES, task.last - task.first - g * QUERIES); };
        for (int g = 0; g < count; g++)
            blocks.begin<F32>(s, g, queries + (task.first + g * QUERIES) * row, row, lanes(g), 1 / std::sqrt(float(d)));
        for (int begin = task.begin; begin < task.end; begin += KEYS) {
            const int some = std::min(KEYS, task.end - begin), padded = (some + KEY_ROWS - 1) / KEY_ROWS * KEY_ROWS;
            for (int j = 0; j < some; j++) {
                std::memcpy(s.keys.data() + j * d, keys + (begin + j) * row, sizeof(float) * d);
                std::memcpy(s.values.data() + j * d, values + (begin + j) * row, sizeof(float) * d);
            }
            std::memset(s.keys.data() + some * d, 0, sizeof(float) * (padded - some) * d);
            for (int g = 0; g < count; g++) blocks.block<F32>(s, g, some, padded, some - 1, 1);  // all queries see all keys
        }
        for (int g = 0; g < count; g++) blocks.end(s, g, out + (task.first + g * QUERIES) * width + head * d, width, lanes(g));
    }
};
