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
    const int64_t heads = decoder_.num_kv_heads, num_groups = static_cast<int64_t>(blocks_.size()) / heads;
    const int64_t wanted = (TASKS_PER_THREAD * num_threads + num_groups - 1) / std::max<int64_t>(1, num_groups);
    for (int64_t group = num_groups - 1; group >= 0; group--) {  // later tokens see more: the longest tasks come first
        const int64_t first_block = group * heads, num_chunks = blocks_[first_block].num_chunks;
        if (num_threads > 1 && std::min(wanted, num_chunks) > 1) {
            share(first_block, std::min(wanted, num_chunks));
            continue;
        }
        for (int64_t index = first_block; index < first_block + heads; index++)
            tasks_.push_back({index, 1, blocks_[index].first_chunk, blocks_[index].first_chunk + num_chunks});
    }
    partial_sums_.resize(num_partials_);
    partial_values_.resize(num_partials_ * decoder_.head_dim);
    for (int64_t i = 0; i < num_partials_; i++) partial_sums_[i].values = &partial_values_[i * decoder_.head_dim];
}

// Pieces of the context for several threads. All heads of a piece belong to one task, since they lie side by side in
// its pages: each thread reads one stretch of memory from its start to its end.
void AttentionPlan::share(int64_t first_block, int64_t num_pieces) {
    const int64_t heads = decoder_.num_kv_heads;
    const Block shape = blocks_[first_block];
    const int64_t size = (shape.num_chunks + num_pieces - 1) / num_pieces;
    for (int64_t chunk = 0; chunk < shape.num_chunks; chunk += size)
        tasks_.push_back({first_block, heads, shape.first_chunk + chunk,
                          shape.first_chunk + std::min(chunk + size, shape.num_chunks)});
    for (int64_t index = first_block; index < first_block + heads; index++) {
        blocks_[index].num_tasks = (shape.num_chunks + size - 1) / size;
        blocks_[index].first_partial = num_partials_;
        num_partials_ += shape.num_chunks * shape.num_tokens * group_;
    }
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
    if (block.num_tasks == 1) {
        attend_alone(block, describe(block, queries, layer), output);
    } else {
        attend_part(task, queries, layer, output);
    }
}

AttendBlock AttentionPlan::describe(const Block& block, const float* queries, int64_t layer) const {
    const DecoderSpan& span = step_.spans[block.span];
    const int64_t head_dim = decoder_.head_dim;
    const int64_t stride = (decoder_.num_heads + 2 * decoder_.num_kv_heads) * head_dim;
    const int64_t head_bytes = head_page_bytes(head_dim);
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
    attend.keys = static_cast<const char*>(step_.keys[layer]) + block.kv_head * head_bytes;
    attend.values = static_cast<const char*>(step_.values[layer]) + block.kv_head * head_bytes;
    attend.page_stride = decoder_.num_kv_heads * head_bytes;
    attend.next_keys = attend.keys;
    attend.next_chunk = 0;
    return attend;
}

void AttentionPlan::attend_alone(const Block& block, AttendBlock attend, float* output) {
    alignas(64) float total_values[MAX_BLOCK_QUERIES * MAX_HEAD_DIM], next_values[MAX_BLOCK_QUERIES * MAX_HEAD_DIM];
    Partial totals[MAX_BLOCK_QUERIES], nexts[MAX_BLOCK_QUERIES];
    const int num_queries = block.num_tokens * group_, head_dim = attend.head_dim;
    for (int query = 0; query < num_queries; query++) {
        totals[query] = {-INFINITY, 0, total_values + query * head_dim};
        nexts[query] = {-INFINITY, 0, next_values + query * head_dim};
    }
    attend.next_chunk = block.first_chunk + 1;
    operations_.attend_chunk(attend, block.first_chunk, totals);
    for (int64_t chunk = 1; chunk < block.num_chunks; chunk++) {
        attend.next_chunk = block.first_chunk + chunk + 1;
        operations_.attend_chunk(attend, block.first_chunk + chunk, nexts);
        for (int query = 0; query < num_queries; query++) operations_.merge(totals[query], nexts[query], head_dim);
    }
    finish(block, totals, output);
}

void AttentionPlan::attend_part(const Task& task, const float* queries, int64_t layer, float* output) {
    const int64_t stop_block = task.block + task.num_blocks;
    for (int64_t chunk = task.first_chunk; chunk < task.stop_chunk; chunk++)
        for (int64_t index = task.block; index < stop_block; index++) {
            const Block& block = blocks_[index];
            const bool is_last_head = index + 1 == stop_block;
            AttendBlock attend = describe(block, queries, layer);
            attend.next_keys = describe(blocks_[is_last_head ? task.block : index + 1], queries, layer).keys;
            attend.next_chunk = is_last_head ? chunk + 1 : chunk;
            Partial* partials = &partial_sums_[block.first_partial];
            operations_.attend_chunk(attend, chunk,
                                     partials + (chunk - block.first_chunk) * block.num_tokens * group_);
        }
    for (int64_t index = task.block; index < stop_block; index++)
        if (num_left_[index].fetch_sub(1) == 1) merge_parts(blocks_[index], output);
}

void AttentionPlan::merge_parts(const Block& block, float* output) {
    const int num_queries = block.num_tokens * group_;
    Partial* partials = &partial_sums_[block.first_partial];
    for (int64_t chunk = 1; chunk < block.num_chunks; chunk++)
        for (int query = 0; query < num_queries; query++)
            operations_.merge(partials[query], partials[chunk * num_queries + query],
                              static_cast<int>(decoder_.head_dim));
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
