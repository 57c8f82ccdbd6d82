#include "matrix.h"

#include <algorithm>

namespace plimsoll {

namespace {

constexpr int64_t CHUNK_TOKENS = 128;  // quantized together: what a second-level cache holds beside a panel
constexpr int TASKS_PER_THREAD = 4;  // so that a thread that comes late takes fewer

const ProductOperations& operations_of(InstructionSet set) {
#if defined(__x86_64__)
    switch (set) {
        case InstructionSet::avx512_vnni: return avx512_vnni_product_operations;
        case InstructionSet::avx_vnni: return avx_vnni_product_operations;
        case InstructionSet::avx2: return avx2_product_operations;
        case InstructionSet::generic: break;
    }
#else
    static_cast<void>(set);
#endif
    return generic_product_operations;
}

void quantize(Compute& compute, const ProductOperations& operations, const Matrix& matrix, const float* input,
              int64_t num_tokens, uint8_t* tiles) {
    const int64_t columns = matrix.num_columns, token_bytes = columns / GROUP * TILE_GROUP_BYTES;
    auto task = [&](int index) {
        const int64_t token = static_cast<int64_t>(index) * operations.tile;
        const int count = static_cast<int>(std::min<int64_t>(operations.tile, num_tokens - token));
        operations.quantize(input + token * columns, columns, count, *matrix.format, tiles + token * token_bytes);
    };
    compute.pool.run(static_cast<int>((num_tokens + operations.tile - 1) / operations.tile), task);
}

}  // namespace

void multiply(Compute& compute, const Matrix& matrix, const float* input, int64_t num_tokens, float* output,
              int64_t output_stride) {
    const ProductOperations& operations = operations_of(compute.instructions);
    const int64_t token_bytes = matrix.num_columns / GROUP * TILE_GROUP_BYTES;
    uint8_t* tiles = compute.scratch(std::min(CHUNK_TOKENS, num_tokens) * token_bytes);
    const int64_t panels = matrix.num_panels();
    const int64_t num_tasks = std::min<int64_t>(panels, TASKS_PER_THREAD * compute.pool.num_threads());
    for (int64_t token = 0; token < num_tokens; token += CHUNK_TOKENS) {
        const int64_t count = std::min(CHUNK_TOKENS, num_tokens - token);
        quantize(compute, operations, matrix, input + token * matrix.num_columns, count, tiles);
        auto task = [&](int index) {
            operations.multiply(matrix, panels * index / num_tasks, panels * (index + 1) / num_tasks, tiles, count,
                                output + token * output_stride, output_stride);
        };
        compute.pool.run(static_cast<int>(num_tasks), task);
    }
}

}  // namespace plimsoll
