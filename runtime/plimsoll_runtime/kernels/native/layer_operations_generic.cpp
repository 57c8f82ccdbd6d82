// The operations of a layer for one instruction set: see layer_operations.h.

#include <cmath>
#include <cstring>

#include "layer_operations.h"

namespace plimsoll {

namespace {

constexpr int WIDTH = 4;
constexpr int TILE_QUERIES = 2;
constexpr int SCORE_PAGES = 1;
constexpr int VALUE_GROUPS = 1;

#include "vectors.h"
#include "attention_body.h"
#include "row_body.h"

}  // namespace

const LayerOperations generic_layer_operations = {
    "generic", attend_chunk, merge, finish, turn_row, rms_norm, add, silu_multiply, gelu_multiply,
};

}  // namespace plimsoll
