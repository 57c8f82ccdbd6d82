// The forward pass of one step in one call: every layer, for all sequences together.
//
// Owns the order of a layer's operations and how they are shared out among threads. In: weights and sizes prepared once
// (`Decoder`), the rows of a step, the cache. Out: hidden rows after the final norm; new keys and values in the cache.
// It does not know tokens, embeddings or logits. Plain structs, which Python fills by ctypes (models/native_decoder.py
// has the same fields in the same order, and interface.cpp the C functions); all memory belongs to the caller.
// Invariant: a row's result does not depend on the other rows of the step.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace plimsoll {

constexpr int MAX_PARTS = 3;

// Matrices that share their input; their outputs stand side by side. The parts that are not there are null.
struct Product {
    const Matrix* parts[MAX_PARTS];
};

// Pointers are null where a model has no such weight.
struct DecoderLayer {
    Product query_key_value;
    Product attention_output;
    Product gate_up;  // gates, then ups
    Product down;
    const float* attention_norm;
    const float* query_key_value_bias;
    const float* query_key_norm;  // [heads + kv_heads, head_dim]
    const float* post_attention_norm;
    const float* feed_forward_norm;
    const float* post_feed_forward_norm;
    const float* frequencies;  // of the rotary embedding, [head_dim / 2]
    double rotation_factor;    // on cosines and sines
    int64_t window;            // how many tokens a token sees, itself included; 0: all
};

struct Decoder {
    const DecoderLayer* layers;
    const float* norm;
    int64_t num_layers;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t hidden_size;
    int64_t feed_forward_size;
    int64_t is_gelu;  // 1: gelu_tanh, 0: silu
    double norm_epsilon;
    double attention_scale;
};

// Consecutive rows of one sequence: its tokens at context_tokens .. context_tokens + num_tokens - 1.
struct DecoderSpan {
    int64_t start_row;
    int64_t num_tokens;
    int64_t context_tokens;
    const int32_t* pages;
};

struct DecoderStep {
    const DecoderSpan* spans;  // in order of their rows, which they cover without a gap
    int64_t num_spans;
    int64_t num_rows;
    float* hidden;  // [rows, hidden_size]: embeddings in, final states out
    void* const* keys;  // one per layer
    void* const* values;
};

// Both throw std::bad_alloc.
void forward(Compute& compute, const Decoder& decoder, const DecoderStep& step);
// The attention of one layer alone: `queries` and `output` as in AttentionPlan::run.
void attend(Compute& compute, const Decoder& decoder, const DecoderStep& step, int64_t layer, const float* queries,
            float* output);

}  // namespace plimsoll
