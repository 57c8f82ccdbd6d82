#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "attention.h"
#include "layer_operations.h"

namespace plimsoll {

namespace {

constexpr int64_t ROWS_PER_TASK = 4;  // of small operations: a few microseconds

class Forward {
public:
    Forward(Compute& compute, const Decoder& decoder, const DecoderStep& step)
        : compute_(compute), decoder_(decoder), step_(step), operations_(layer_operations_of(compute.instructions)) {
        const int64_t heads = decoder.num_heads, kv_heads = decoder.num_kv_heads, head_dim = decoder.head_dim;
        const int64_t widest = std::max(heads * head_dim, decoder.feed_forward_size);
        queries_ = floats((heads + 2 * kv_heads) * head_dim);
        normed_ = floats(decoder.hidden_size);
        inner_ = floats(widest);
        gates_ = floats(2 * decoder.feed_forward_size);
        addend_ = floats(decoder.hidden_size);
        rotation_ = floats(head_dim);
        cache_rows_ = allocate(sizeof(int64_t) * static_cast<size_t>(step.num_rows));
        find_cache_rows();
    }

    void run() {
        for (int64_t index = 0; index < decoder_.num_layers; index++) {
            const DecoderLayer& layer = decoder_.layers[index];
            if (index == 0 || !has_same_rotation(layer, decoder_.layers[index - 1])) fill_rotation(layer);
            attend(index, layer);
            feed_forward(layer);
        }
        for_rows([&](int64_t row) { norm(hidden(row), decoder_.norm, hidden(row)); });
    }

private:
    Bytes floats(int64_t per_row) { return allocate(sizeof(float) * static_cast<size_t>(per_row * step_.num_rows)); }
    static float* at(const Bytes& rows, int64_t row, int64_t size) {
        return reinterpret_cast<float*>(rows.get()) + row * size;
    }
    float* hidden(int64_t row) const { return step_.hidden + row * decoder_.hidden_size; }

    template <typename Function>
    void for_rows(const Function& function) {
        auto task = [&](int index) {
            const int64_t start = index * ROWS_PER_TASK, stop = std::min(start + ROWS_PER_TASK, step_.num_rows);
            for (int64_t row = start; row < stop; row++) function(row);
        };
        compute_.pool.run(static_cast<int>((step_.num_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK), task);
    }

    void norm(const float* input, const float* weight, float* output) const {
        operations_.rms_norm(input, weight, static_cast<float>(decoder_.norm_epsilon),
                             static_cast<int>(decoder_.hidden_size), output);
    }

    void project(const Product& product, const Bytes& input, const Bytes& output) {
        int64_t stride = 0, start = 0;
        for (const Matrix* part : product.parts) stride += part == nullptr ? 0 : part->num_rows;
        for (const Matrix* part : product.parts) {
            if (part == nullptr) continue;
            multiply(compute_, *part, at(input, 0, 0), step_.num_rows, at(output, 0, 0) + start, stride);
            start += part->num_rows;
        }
    }

    void attend(int64_t index, const DecoderLayer& layer) {
        const int64_t width = (decoder_.num_heads + 2 * decoder_.num_kv_heads) * decoder_.head_dim;
        const int64_t size = decoder_.hidden_size;
        for_rows([&](int64_t row) { norm(hidden(row), layer.attention_norm, at(normed_, row, size)); });
        project(layer.query_key_value, normed_, queries_);
        for_rows([&](int64_t row) { turn(index, layer, row, at(queries_, row, width)); });
        plan_of(layer.window).run(at(queries_, 0, 0), index, at(inner_, 0, 0), compute_.pool);
        project(layer.attention_output, inner_, addend_);
        add_and_norm(layer.post_attention_norm, layer.feed_forward_norm);
    }

    // After attend(), `normed_` holds the input of the feed-forward network.
    void feed_forward(const DecoderLayer& layer) {
        const int64_t size = decoder_.feed_forward_size;
        const auto activate = decoder_.is_gelu != 0 ? operations_.gelu_multiply : operations_.silu_multiply;
        project(layer.gate_up, normed_, gates_);
        for_rows([&](int64_t row) {
            const float* gate = at(gates_, row, 2 * size);
            activate(gate, gate + size, static_cast<int>(size), at(inner_, row, size));
        });
        project(layer.down, inner_, addend_);
        add_and_norm(layer.post_feed_forward_norm, nullptr);
    }

    void add_and_norm(const float* addend_norm, const float* next_norm) {
        const int64_t size = decoder_.hidden_size;
        for_rows([&](int64_t row) {
            float* addend = at(addend_, row, size);
            if (addend_norm != nullptr) norm(addend, addend_norm, addend);
            operations_.add(hidden(row), addend, static_cast<int>(size));
            if (next_norm != nullptr) norm(hidden(row), next_norm, at(normed_, row, size));
        });
    }

    void turn(int64_t index, const DecoderLayer& layer, int64_t row, float* queries) {
        const int64_t cache_row = reinterpret_cast<const int64_t*>(cache_rows_.get())[row];
        const int64_t page_bytes = decoder_.num_kv_heads * head_page_bytes(decoder_.head_dim);
        const int64_t page_start = cache_row / PAGE_TOKENS * page_bytes;
        const float* cosines = at(rotation_, row, decoder_.head_dim);
        RowTurn turn;
        turn.row = queries;
        turn.bias = layer.query_key_value_bias;
        turn.head_norms = layer.query_key_norm;
        turn.cosines = cosines;
        turn.sines = cosines + decoder_.head_dim / 2;
        turn.num_heads = static_cast<int>(decoder_.num_heads);
        turn.num_kv_heads = static_cast<int>(decoder_.num_kv_heads);
        turn.head_dim = static_cast<int>(decoder_.head_dim);
        turn.epsilon = static_cast<float>(decoder_.norm_epsilon);
        turn.keys = static_cast<char*>(step_.keys[index]) + page_start;
        turn.values = static_cast<char*>(step_.values[index]) + page_start;
        turn.place = static_cast<int>(cache_row % PAGE_TOKENS);
        operations_.turn_row(turn);
    }

    AttentionPlan& plan_of(int64_t window) {
        for (AttentionPlan& plan : plans_)
            if (plan.window() == window) return plan;
        return plans_.emplace_back(decoder_, step_, operations_, window, compute_.pool.num_threads());
    }

    static bool has_same_rotation(const DecoderLayer& one, const DecoderLayer& other) {
        return one.frequencies == other.frequencies && one.rotation_factor == other.rotation_factor;
    }

    // Cosines, then sines, of each row's position: angles in float32, as the specification has them.
    void fill_rotation(const DecoderLayer& layer) {
        const int64_t half_dim = decoder_.head_dim / 2;
        const float factor = static_cast<float>(layer.rotation_factor);
        for (int64_t index = 0; index < step_.num_spans; index++) {
            const DecoderSpan& span = step_.spans[index];
            for (int64_t token = 0; token < span.num_tokens; token++) {
                float* to = at(rotation_, span.start_row + token, decoder_.head_dim);
                for (int64_t i = 0; i < half_dim; i++) {
                    const float angle = static_cast<float>(span.context_tokens + token) * layer.frequencies[i];
                    to[i] = std::cos(angle) * factor;
                    to[half_dim + i] = std::sin(angle) * factor;
                }
            }
        }
    }

    void find_cache_rows() {
        int64_t* rows = reinterpret_cast<int64_t*>(cache_rows_.get());
        for (int64_t index = 0; index < step_.num_spans; index++) {
            const DecoderSpan& span = step_.spans[index];
            for (int64_t token = 0; token < span.num_tokens; token++) {
                const int64_t position = span.context_tokens + token;
                const int64_t page = span.pages[position / PAGE_TOKENS];
                rows[span.start_row + token] = page * PAGE_TOKENS + position % PAGE_TOKENS;
            }
        }
    }

    Compute& compute_;
    const Decoder& decoder_;
    const DecoderStep& step_;
    const LayerOperations& operations_;
    std::deque<AttentionPlan> plans_;
    Bytes queries_;  // queries, keys, values of every row
    Bytes normed_;
    Bytes inner_;  // attended heads, then activated gates
    Bytes gates_;
    Bytes addend_;
    Bytes rotation_;
    Bytes cache_rows_;
};

}  // namespace

void forward(Compute& compute, const Decoder& decoder, const DecoderStep& step) {
    Forward(compute, decoder, step).run();
}

void attend(Compute& compute, const Decoder& decoder, const DecoderStep& step, int64_t layer, const float* queries,
            float* output) {
    const LayerOperations& operations = layer_operations_of(compute.instructions);
    AttentionPlan plan(decoder, step, operations, decoder.layers[layer].window, compute.pool.num_threads());
    plan.run(queries, layer, output, compute.pool);
}

}  // namespace plimsoll
