// What a decoder layer does beside its matrix products, for one row or one block of rows at a time.
//
// Owns attention over paged keys and values, and the small operations of a row: one table of functions per instruction
// set.
//
// The cache of one layer is `[pages][kv_heads][page]` for keys and values alike: codes of 8 bits, and a scale in float16
// for each CODE_GROUP dimensions of a token; a number is its code times the scale. Inside the page of one head, keys lie
// `[head_dim / 2][16 tokens][2]` and values `[16 / 2 tokens][head_dim][2]`, so that one instruction multiplies pairs and
// no sum goes across lanes; scales follow, `[groups][16 tokens]`.
//
// Invariant: the result of a query is a function of its own sequence: a context is cut at multiples of CHUNK_TOKENS,
// counted from its first token, whatever rows are computed together, and the parts are added up in order.
#pragma once

#include <cstdint>

#include "half.h"
#include "processor.h"

namespace plimsoll {

constexpr int PAGE_TOKENS = 16;
constexpr int CHUNK_TOKENS = 256;
constexpr int MAX_BLOCK_QUERIES = 24;
constexpr int MAX_HEAD_DIM = 256;
constexpr int CODE_GROUP = 32;

constexpr float LARGEST_CODE = 127.0f;

struct code {
    int8_t value;
};

// Bytes of one head's keys, or values, in a page.
inline int64_t head_page_bytes(int64_t head_dim) {
    const int64_t num_groups = (head_dim + CODE_GROUP - 1) / CODE_GROUP;
    return PAGE_TOKENS * (head_dim + num_groups * static_cast<int64_t>(sizeof(half)));
}

// Consecutive tokens of one sequence with the query heads that share one key/value head.
struct AttendBlock {
    const float* query;  // the first token's first head; heads follow each other
    int64_t query_stride;  // floats from token to token
    int num_tokens;
    int num_heads;  // num_tokens * num_heads <= MAX_BLOCK_QUERIES
    int head_dim;  // a multiple of 16, at most MAX_HEAD_DIM
    int64_t first_position;
    int64_t window;  // how many tokens a token sees, itself included; 0 sees all
    float scale;
    const int32_t* pages;
    const void* keys;  // of this key/value head in page 0
    const void* values;
    int64_t page_stride;  // bytes from page to page
    const void* next_keys;  // of what is attended after this: its keys in page 0, and its chunk
    int64_t next_chunk;
};

// What one chunk adds to one query: the largest score, the sum of weights, the weighted values.
struct Partial {
    float largest;
    float sum;
    float* values;
};

struct RowTurn {
    float* row;  // queries, keys, values: [heads + 2 * kv_heads][head_dim], turned in place
    const float* bias;  // of the whole row, or null
    const float* head_norms;  // [heads + kv_heads][head_dim], or null
    const float* cosines;  // [head_dim / 2]
    const float* sines;
    int num_heads;
    int num_kv_heads;
    int head_dim;
    float epsilon;
    void* keys;  // of the token's page, first head
    void* values;
    int place;  // of the token in its page
};

struct LayerOperations {
    const char* name;
    // Partials of one chunk for all queries of the block, token by token; `sum` is 0 where a query sees nothing of it.
    void (*attend_chunk)(const AttendBlock& block, int64_t chunk, Partial* partials);
    // total = total and next together; `total.sum` 0 means that nothing is there yet.
    void (*merge)(Partial& total, const Partial& next, int head_dim);
    void (*finish)(const Partial& total, int head_dim, float* output);
    void (*turn_row)(const RowTurn& turn);
    void (*rms_norm)(const float* input, const float* weight, float epsilon, int size, float* output);
    void (*add)(float* total, const float* addend, int size);
    void (*silu_multiply)(const float* gate, const float* up, int size, float* output);
    void (*gelu_multiply)(const float* gate, const float* up, int size, float* output);
};

extern const LayerOperations generic_layer_operations;
#if defined(__x86_64__)
extern const LayerOperations avx2_layer_operations;
extern const LayerOperations avx512_layer_operations;
#endif

const LayerOperations& layer_operations_of(InstructionSet set);

}  // namespace plimsoll
