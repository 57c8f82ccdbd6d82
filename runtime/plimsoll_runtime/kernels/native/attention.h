// Attention of a whole step: which blocks of queries there are, and which chunks of their context each task computes.
//
// In: spans, queries, one layer's cache. Out: attended rows. A long context of few queries is shared out by chunks;
// whoever finishes the last chunk of a block adds the parts up, in order of the chunks, so that the result is the same
// as from one task.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "decoder.h"
#include "layer_operations.h"

namespace plimsoll {

class AttentionPlan {
  public:
    // For all layers that have this window. Refers to `decoder`, `step` and `operations` as long as it lives.
    AttentionPlan(const Decoder& decoder, const DecoderStep& step, const LayerOperations& operations, int64_t window,
                  int num_threads);

    int64_t window() const { return window_; }

    // `queries`: rows of [heads + 2 * kv_heads][head_dim]; `output`: rows of [heads][head_dim].
    void run(const float* queries, int64_t layer, float* output, Pool& pool);

  private:
    struct Block {
        int64_t span;
        int64_t token;  // first of the block, counted in the span
        int num_tokens;
        int64_t kv_head;
        int64_t first_chunk;
        int64_t num_chunks;
        int64_t num_tasks;
        int64_t first_partial;  // in floats, where more than one task works on the block
    };
    struct Task {  // some chunks of one block, or of the blocks of all key/value heads of the same tokens
        int64_t block;
        int64_t num_blocks;
        int64_t first_chunk;
        int64_t stop_chunk;
    };

    void add_blocks(int64_t span);
    void add_tasks(int num_threads);
    void share(int64_t first_block, int64_t num_pieces);
    void run_task(const Task& task, const float* queries, int64_t layer, float* output);
    void attend_alone(const Block& block, AttendBlock attend, float* output);
    void attend_part(const Task& task, const float* queries, int64_t layer, float* output);
    void merge_parts(const Block& block, float* output);
    AttendBlock describe(const Block& block, const float* queries, int64_t layer) const;
    void finish(const Block& block, const Partial* totals, float* output) const;

    const Decoder& decoder_;
    const DecoderStep& step_;
    const LayerOperations& operations_;
    int64_t window_;
    int group_;
    std::vector<Block> blocks_;
    std::vector<Task> tasks_;
    int64_t num_partials_ = 0;
    std::vector<float> partial_values_;
    std::vector<Partial> partial_sums_;
    std::unique_ptr<std::atomic<int64_t>[]> num_left_;
};

}  // namespace plimsoll
