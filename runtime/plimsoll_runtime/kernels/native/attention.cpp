// See attention.h.

#include "attention.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {

namespace {

constexpr int TASKS_PER_THREAD = 4;  // enough that threads which started late or were interrupted are made up for

}  // namespace

AttentionPlan::AttentionPlan(const Decoder& decoder, const DecoderStep& step, const LayerOperations& operations,
                             int64_t window, int num_threads)
    : decoder_(decoder),
      step_(step),
      operations_(operations),
      window_(window),
      group_(static_cast<int>(decoder.num_heads / decoder.num_kv_heads)) {
    for (int64_t span = 0; span < step.num_spans; span++) add_blocks(span);
    add_tasks(num_threads);
    num_left_.reset(new std::atomic<int64_t>[blocks_.size()]);
}

void AttentionPlan::add_blocks(int64_t index) {
    const DecoderSpan& span = step_.spans[index];
    const int64_t most_tokens = std::max(1, MAX_BLOCK_QUERIES / group_);
    for (int64_t token = 0; token < span.num_tokens; token += most_tokens) {
        const int64_t num_tokens = std::min(most_tokens, span.num_tokens - token);
        const int64_t position = span.context_tokens + token, last = position + num_tokens - 1;
        const int64_t first = window_ == 0 ? 0 : std::max<int64_t>(0, position - window_ + 1);
        const int64_t first_chunk = first / CHUNK_TOKENS, num_chunks = last / CHUNK_TOKENS + 1 - first_chunk;
        for (int64_t kv_head = 0; kv_head < decoder_.num_kv_heads; kv_head++)
            blocks_.push_back({index, token, static_cast<int>(num_tokens), kv_head, first_chunk, num_chunks, 1, 0});
    }
}

void AttentionPlan::add_tasks(int num_threads) {
    const int64_t num_blocks = static_cast<int64_t>(blocks_.size());
    const int64_t wanted = (TASKS_PER_THREAD * num_threads + num_blocks - 1) / std::max<int64_t>(1, num_blocks);
    int64_t num_partials = 0;
    for (int64_t index = num_blocks - 1; index >= 0; index--) {  // later tokens see more: the longest tasks come first
        Block& block = blocks_[index];
        const int64_t pieces = num_threads == 1 ? 1 : std::min(wanted, block.num_chunks);
        const int64_t size = (block.num_chunks + pieces - 1) / pieces;
        block.num_tasks = 0;
        for (int64_t chunk = 0; chunk < block.num_chunks; chunk += size, block.num_tasks++)
            tasks_.push_back({index, block.first_chunk + chunk,
                              block.first_chunk + std::min(chunk + size, block.num_chunks)});
        if (block.num_tasks > 1) {
            block.first_partial = num_partials;
            num_partials += block.num_chunks * block.num_tokens * group_;
        }
    }
    partial_sums_.resize(num_partials);
    partial_values_.resize(num_partials * decoder_.head_dim);
    for (int64_t i = 0; i < num_partials; i++) partial_sums_[i].values = &partial_values_[i * decoder_.head_dim];
}

void AttentionPlan::run(const float* queries, int64_t layer, float* output, Pool& pool) {
    for (size_t i = 0; i < blocks_.size(); i++) num_left_[i].store(blocks_[i].num_tasks, std::memory_order_relaxed);
    for (size_t start = 0; start < tasks_.size(); start += Pool::MAX_TASKS) {
        auto task = [&](int index) { run_task(tasks_[start + static_cast<size_t>(index)], queries, layer, output); };
        pool.run(static_cast<int>(std::min<size_t>(Pool::MAX_TASKS, tasks_.size() - start)), task);
    }
}

void AttentionPlan::run_task(const Task& task, const float* queries, int64_t layer, float* output) {
    const Block& block = blocks_[task.block];
    const AttendBlock attend = describe(block, queries, layer);
    if (block.num_tasks == 1) {
        attend_alone(block, attend, output);
    } else {
        attend_part(task, attend, output);
    }
}

AttendBlock AttentionPlan::describe(const Block& block, const float* queries, int64_t layer) const {
    const DecoderSpan& span = step_.spans[block.span];
    const int64_t head_dim = decoder_.head_dim;
    const int64_t stride = (decoder_.num_heads + 2 * decoder_.num_kv_heads) * head_dim;
    const int64_t head_offset = block.kv_head * head_dim * PAGE_TOKENS * (decoder_.is_half != 0 ? 2 : 4);
    AttendBlock attend;
    attend.query = queries + (span.start_row + block.token) * stride + block.kv_head * group_ * head_dim;
    attend.query_stride = stride;
    attend.num_tokens = block.num_tokens;
    attend.num_heads = group_;
    attend.head_dim = static_cast<int>(head_dim);
    attend.first_position = span.context_tokens + block.token;
    attend.window = window_;
    attend.scale = static_cast<float>(decoder_.attention_scale);
    attend.pages = span.pages;
    attend.keys = static_cast<const char*>(step_.keys[layer]) + head_offset;
    attend.values = static_cast<const char*>(step_.values[layer]) + head_offset;
    attend.page_stride = decoder_.num_kv_heads * head_dim * PAGE_TOKENS;
    attend.is_half = decoder_.is_half != 0;
    return attend;
}

void AttentionPlan::attend_alone(const Block& block, const AttendBlock& attend, float* output) {
    alignas(64) float total_values[MAX_BLOCK_QUERIES * MAX_HEAD_DIM], next_values[MAX_BLOCK_QUERIES * MAX_HEAD_DIM];
    Partial totals[MAX_BLOCK_QUERIES], nexts[MAX_BLOCK_QUERIES];
    const int num_queries = block.num_tokens * group_, head_dim = attend.head_dim;
    for (int query = 0; query < num_queries; query++) {
        totals[query] = {-INFINITY, 0, total_values + query * head_dim};
        nexts[query] = {-INFINITY, 0, next_values + query * head_dim};
    }
    operations_.attend_chunk(attend, block.first_chunk, totals);
    for (int64_t chunk = 1; chunk < block.num_chunks; chunk++) {
        operations_.attend_chunk(attend, block.first_chunk + chunk, nexts);
        for (int query = 0; query < num_queries; query++) operations_.merge(totals[query], nexts[query], head_dim);
    }
    finish(block, totals, output);
}

void AttentionPlan::attend_part(const Task& task, const AttendBlock& attend, float* output) {
    const Block& block = blocks_[task.block];
    const int num_queries = block.num_tokens * group_;
    Partial* partials = &partial_sums_[block.first_partial];
    for (int64_t chunk = task.first_chunk; chunk < task.stop_chunk; chunk++)
        operations_.attend_chunk(attend, chunk, partials + (chunk - block.first_chunk) * num_queries);
    if (num_left_[task.block].fetch_sub(1) > 1) return;
    for (int64_t chunk = 1; chunk < block.num_chunks; chunk++)
        for (int query = 0; query < num_queries; query++)
            operations_.merge(partials[query], partials[chunk * num_queries + query], attend.head_dim);
    finish(block, partials, output);
}

void AttentionPlan::finish(const Block& block, const Partial* totals, float* output) const {
    const int64_t row = step_.spans[block.span].start_row + block.token;
    for (int token = 0; token < block.num_tokens; token++)
        for (int head = 0; head < group_; head++)
            operations_.finish(totals[token * group_ + head], static_cast<int>(decoder_.head_dim),
                               output + ((row + token) * decoder_.num_heads + block.kv_head * group_ + head) *
                                            decoder_.head_dim);
}

}  // namespace plimsoll
