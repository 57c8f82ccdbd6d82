// Quantized weight matrices, packed for the product with rows of float32.
//
// A matrix `[rows, columns]` is kept in panels of 16 rows; the last panel is filled up with rows of zeros. A panel is a
// sequence of blocks of `block_groups` groups of 32 columns:
//
//   block  = header, group, group, ...
//   header only K-quants: d f16 x 16; not Q6_K: m f16 x 16, and 12 x 16 bytes with the scales and minimums of the eight
//          groups, 6 bits each, packed over 12 bytes as in the file
//   group  = low codes, high bits, scales
//   low    4 bits: 4 x 64 bytes; byte 4 * row + b of part j holds column 8j + b (low half) and 8j + 4 + b (high half)
//          8 bits: 8 x 64 bytes; byte 4 * row + b of part k holds column 4k + b
//   high   `high_bits` x 64 bytes: byte 4 * row + b of part j holds, bits upwards, the high bits of columns
//          4k + b, for k = 0..7 (1 bit) or k = 4j..4j+3 (2 bits)
//   scales half: d f16 x 16 (and m f16 x 16); K halves: two x i8 x 16, one for 16 columns each
//
// So a matrix takes the bytes of its file, but for the last panel. The value of a weight is scale * (code - offset) +
// minimum (K-quants: - minimum). Products: each row of the input is quantized to 8 bits by groups of 32,
// code = round(x * 127 / largest), and the sum over a group is exact in integers; groups are added in float32 in their
// order, with fused multiply-add, on every instruction set and for every number of rows. So a result depends on its own
// row alone, and is the same bit for bit on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute.h"

namespace plimsoll {

constexpr int GROUP = 32;
constexpr int PANEL = 16;
constexpr int PART_BYTES = 4 * PANEL;
constexpr int K_SCALE_BYTES = 12;

enum class Scales { half, half_minimum, k_minimum, k_halves };

struct Format {
    const char* name;
    int low_bits;
    int high_bits;
    int offset;
    Scales scales;
    int block_groups;
    int stored_bytes;  // of one block of one row, in a file

    constexpr bool has_block_scales() const { return scales == Scales::k_minimum || scales == Scales::k_halves; }
    constexpr int header_bytes() const {
        return !has_block_scales() ? 0 : (scales == Scales::k_minimum ? 4 + K_SCALE_BYTES : 2) * PANEL;
    }
    constexpr int scale_bytes() const {
        return scales == Scales::k_minimum ? 0 : (scales == Scales::half_minimum ? 4 : 2) * PANEL;
    }
    constexpr int low_bytes() const { return low_bits * PART_BYTES; }
    constexpr int group_bytes() const { return low_bytes() + high_bits * PART_BYTES + scale_bytes(); }
    constexpr int block_bytes() const { return header_bytes() + block_groups * group_bytes(); }
};

constexpr Format Q4_0{"Q4_0", 4, 0, 8, Scales::half, 1, 18};
constexpr Format Q4_1{"Q4_1", 4, 0, 0, Scales::half_minimum, 1, 20};
constexpr Format Q5_0{"Q5_0", 4, 1, 16, Scales::half, 1, 22};
constexpr Format Q5_1{"Q5_1", 4, 1, 0, Scales::half_minimum, 1, 24};
constexpr Format Q8_0{"Q8_0", 8, 0, 128, Scales::half, 1, 34};
constexpr Format Q4_K{"Q4_K", 4, 0, 0, Scales::k_minimum, 8, 144};
constexpr Format Q5_K{"Q5_K", 4, 1, 0, Scales::k_minimum, 8, 176};
constexpr Format Q6_K{"Q6_K", 4, 2, 32, Scales::k_halves, 8, 210};

struct Matrix {
    const Format* format;
    int64_t num_rows;
    int64_t num_columns;
    const uint8_t* panels;
    Bytes owned;  // the panels, unless somebody else keeps them

    int64_t num_panels() const { return (num_rows + PANEL - 1) / PANEL; }
    int64_t blocks_per_row() const { return num_columns / (GROUP * format->block_groups); }
    int64_t panel_bytes() const { return blocks_per_row() * format->block_bytes(); }
    int64_t num_bytes() const { return num_panels() * panel_bytes(); }
    const uint8_t* panel(int64_t index) const { return panels + index * panel_bytes(); }
};

// Null where the library has no such format.
const Format* find_format(const char* name);

// `stored` holds the rows as in a file; not needed afterwards. num_columns is a whole number of blocks.
Matrix* pack_matrix(Compute& compute, const Format& format, int64_t num_rows, int64_t num_columns,
                    const uint8_t* stored);

// The panels of such a matrix into memory of the caller's, `num_bytes()` of them.
void pack_panels(Compute& compute, const Matrix& matrix, const uint8_t* stored, uint8_t* panels);

// output[t * output_stride + r] = sum over c of input[t * num_columns + c] * weight[r, c].
void multiply(Compute& compute, const Matrix& matrix, const float* input, int64_t num_tokens, float* output,
              int64_t output_stride);

// The float32 values of rows, exactly as the format defines them: `[num_taken, num_columns]`.
void take_rows(Compute& compute, const Matrix& matrix, const int64_t* rows, int64_t num_taken, float* output);

// What differs between instruction sets. Inputs are quantized into tiles of `tile` rows (see matrix_product_body.h).
struct ProductOperations {
    int tile;
    // 1..tile rows of `input`, `[rows, columns]`, for weights of this format.
    void (*quantize)(const float* input, int64_t num_columns, int num_tokens, const Format& format, uint8_t* tiles);
    // Panels first..stop-1 with all tiles of num_tokens rows; `output` is that of the first token, all rows.
    void (*multiply)(const Matrix& matrix, int64_t first, int64_t stop, const uint8_t* tiles, int64_t num_tokens,
                     float* output, int64_t output_stride);
};

extern const ProductOperations generic_product_operations;
#if defined(__x86_64__)
extern const ProductOperations avx2_product_operations;
extern const ProductOperations avx_vnni_product_operations;
extern const ProductOperations avx512_vnni_product_operations;
#endif

// Bytes of one group of one row in a tile: 32 codes, scale, scale * sum, and two starts of the integer sums.
constexpr int64_t TILE_GROUP_BYTES = GROUP + 4 * 4;

}  // namespace plimsoll
