// The operations of a layer for one instruction set: see layer_operations.h.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "layer_operations.h"

#define VECTORS_AVX2

namespace plimsoll {

namespace {

constexpr int WIDTH = 8;
constexpr int TILE_QUERIES = 3;
constexpr int SCORE_PAGES = 1;
constexpr int VALUE_GROUPS = 1;

#include "vectors.h"
#include "attention_body.h"
#include "row_body.h"

}  // namespace

const LayerOperations avx2_layer_operations = {
    "avx2", attend_chunk, merge, finish, turn_row, rms_norm, add, silu_multiply, gelu_multiply,
};

}  // namespace plimsoll
#endif
