// From the rows of a file to panels, and back to values.
#include <algorithm>
#include <vector>

#include "half.h"
#include "matrix.h"

namespace plimsoll {

namespace {

constexpr int MAX_BLOCK_COLUMNS = 256;
constexpr int MAX_BLOCK_SCALES = 16;

// One block of one row: codes with their offset, and the scales as they are stored.
struct RowBlock {
    uint8_t codes[MAX_BLOCK_COLUMNS];
    uint16_t scale;  // float16
    uint16_t minimum;
    uint8_t scales[MAX_BLOCK_SCALES];  // K-quants: 8 scales and 8 minimums in 12 bytes, or 16 scales
};

uint16_t half_bits(const uint8_t* at) { return static_cast<uint16_t>(at[0] | at[1] << 8); }

void unpack_32(const Format& format, const uint8_t* stored, RowBlock& block) {
    const bool has_minimum = format.scales == Scales::half_minimum;
    block.scale = half_bits(stored);
    block.minimum = has_minimum ? half_bits(stored + 2) : 0;
    const uint8_t* high = stored + (has_minimum ? 4 : 2);
    const uint8_t* low = high + 4 * format.high_bits;
    if (format.low_bits == 8) {
        for (int c = 0; c < GROUP; c++) block.codes[c] = static_cast<uint8_t>(low[c] ^ 128);
        return;
    }
    for (int c = 0; c < GROUP; c++) {
        const int code = c < 16 ? low[c] & 15 : low[c - 16] >> 4;
        const int top = format.high_bits == 1 ? high[c / 8] >> (c % 8) & 1 : 0;
        block.codes[c] = static_cast<uint8_t>(code | top << 4);
    }
}

void unpack_k_minimum(const Format& format, const uint8_t* stored, RowBlock& block) {
    block.scale = half_bits(stored);
    block.minimum = half_bits(stored + 2);
    std::copy(stored + 4, stored + 4 + K_SCALE_BYTES, block.scales);
    const uint8_t* high = stored + 16;
    const uint8_t* low = high + 32 * format.high_bits;
    for (int part = 0; part < 8; part++)
        for (int c = 0; c < GROUP; c++) {
            const uint8_t both = low[part / 2 * 32 + c];
            const int top = format.high_bits == 1 ? high[c] >> part & 1 : 0;
            block.codes[part * GROUP + c] = static_cast<uint8_t>((part % 2 == 0 ? both & 15 : both >> 4) | top << 4);
        }
}

void unpack_q6_k(const uint8_t* stored, RowBlock& block) {
    block.scale = half_bits(stored + 208);
    block.minimum = 0;
    std::copy(stored + 192, stored + 208, block.scales);
    for (int part = 0; part < 8; part++)
        for (int c = 0; c < GROUP; c++) {
            const uint8_t both = stored[part / 4 * 64 + part % 2 * 32 + c];
            const int top = stored[128 + part / 4 * 32 + c] >> (2 * (part % 4)) & 3;
            block.codes[part * GROUP + c] = static_cast<uint8_t>((part % 4 < 2 ? both & 15 : both >> 4) | top << 4);
        }
}

void unpack(const Format& format, const uint8_t* stored, RowBlock& block) {
    switch (format.scales) {
        case Scales::k_minimum: return unpack_k_minimum(format, stored, block);
        case Scales::k_halves: return unpack_q6_k(stored, block);
        default: return unpack_32(format, stored, block);
    }
}

void put_half(uint8_t* to, int row, uint16_t bits) {
    to[2 * row] = static_cast<uint8_t>(bits & 255);
    to[2 * row + 1] = static_cast<uint8_t>(bits >> 8);
}

void put_codes(const Format& format, const uint8_t* codes, int row, uint8_t* group) {
    for (int c = 0; c < GROUP; c++) {
        const int k = c / 4, at = 4 * row + c % 4;
        if (format.low_bits == 8) {
            group[k * PART_BYTES + at] = codes[c];
            continue;
        }
        group[k / 2 * PART_BYTES + at] |= static_cast<uint8_t>((codes[c] & 15) << (k % 2 * 4));
        uint8_t* high = group + format.low_bytes() + at;
        if (format.high_bits == 1) high[0] |= static_cast<uint8_t>(codes[c] >> 4 << k);
        if (format.high_bits == 2) high[k / 4 * PART_BYTES] |= static_cast<uint8_t>(codes[c] >> 4 << (2 * (k % 4)));
    }
}

uint8_t code_at(const Format& format, const uint8_t* group, int row, int c) {
    const int k = c / 4, at = 4 * row + c % 4;
    if (format.low_bits == 8) return group[k * PART_BYTES + at];
    const int low = group[k / 2 * PART_BYTES + at] >> (k % 2 * 4) & 15;
    const uint8_t* high = group + format.low_bytes() + at;
    if (format.high_bits == 1) return static_cast<uint8_t>(low | (high[0] >> k & 1) << 4);
    if (format.high_bits == 2)
        return static_cast<uint8_t>(low | (high[k / 4 * PART_BYTES] >> (2 * (k % 4)) & 3) << 4);
    return static_cast<uint8_t>(low);
}

void put_scales(const Format& format, const RowBlock& block, int g, int row, uint8_t* to) {
    switch (format.scales) {
        case Scales::half_minimum: put_half(to + 2 * PANEL, row, block.minimum); [[fallthrough]];
        case Scales::half: return put_half(to, row, block.scale);
        case Scales::k_minimum: return;
        case Scales::k_halves:
            to[row] = block.scales[2 * g];
            to[PANEL + row] = block.scales[2 * g + 1];
            return;
    }
}

void put_block(const Format& format, const RowBlock& block, int row, uint8_t* to) {
    if (format.has_block_scales()) put_half(to, row, block.scale);
    if (format.scales == Scales::k_minimum) {
        put_half(to + 2 * PANEL, row, block.minimum);
        for (int i = 0; i < K_SCALE_BYTES; i++) to[(4 + i) * PANEL + row] = block.scales[i];
    }
    for (int g = 0; g < format.block_groups; g++) {
        uint8_t* group = to + format.header_bytes() + g * format.group_bytes();
        put_codes(format, block.codes + g * GROUP, row, group);
        put_scales(format, block, g, row, group + format.low_bytes() + format.high_bits * PART_BYTES);
    }
}

void pack_panel(const Matrix& matrix, const uint8_t* stored, int64_t index, uint8_t* panel) {
    const Format& format = *matrix.format;
    std::fill(panel, panel + matrix.panel_bytes(), uint8_t{0});
    const int64_t num_blocks = matrix.blocks_per_row(), row_bytes = num_blocks * format.stored_bytes;
    const int num_rows = static_cast<int>(std::min<int64_t>(PANEL, matrix.num_rows - index * PANEL));
    for (int row = 0; row < num_rows; row++)
        for (int64_t b = 0; b < num_blocks; b++) {
            RowBlock block;
            unpack(format, stored + (index * PANEL + row) * row_bytes + b * format.stored_bytes, block);
            put_block(format, block, row, panel + b * format.block_bytes());
        }
}

float half_at(const uint8_t* at, int row) { return from_half(half{half_bits(at + 2 * row)}); }

struct Line {
    float scale[2];  // for 16 columns each
    float minimum;
};

// See packed_scales in matrix_product_body.h; `first` is 0 for scales, 4 for minimums.
int packed_scale(const uint8_t* block, int g, int first, int row) {
    const uint8_t* packed = block + 4 * PANEL + row;
    if (g < 4) return packed[(first + g) * PANEL] & 63;
    const int both = packed[(8 + g - 4) * PANEL];
    return (first == 0 ? both & 15 : both >> 4) | packed[(first + g - 4) * PANEL] >> 6 << 4;
}

Line line_of(const Format& format, const uint8_t* block, int g, const uint8_t* scales, int row) {
    switch (format.scales) {
        case Scales::half_minimum: return {{half_at(scales, row), half_at(scales, row)}, half_at(scales + 32, row)};
        case Scales::half: return {{half_at(scales, row), half_at(scales, row)}, 0};
        case Scales::k_minimum: {
            const float scale = half_at(block, row) * static_cast<float>(packed_scale(block, g, 0, row));
            const float minimum = half_at(block + 2 * PANEL, row) * static_cast<float>(packed_scale(block, g, 4, row));
            return {{scale, scale}, -minimum};
        }
        case Scales::k_halves: {
            const float scale = half_at(block, row);
            const int8_t* both = reinterpret_cast<const int8_t*>(scales);
            return {{scale * both[row], scale * both[PANEL + row]}, 0};
        }
    }
    return {};
}

void decode_group(const Format& format, const uint8_t* block, int g, int row, float* output) {
    const uint8_t* group = block + format.header_bytes() + g * format.group_bytes();
    const uint8_t* scales = group + format.low_bytes() + format.high_bits * PART_BYTES;
    const Line line = line_of(format, block, g, scales, row);
    const bool has_minimum = format.scales == Scales::half_minimum || format.scales == Scales::k_minimum;
    for (int c = 0; c < GROUP; c++) {
        const float scaled = line.scale[c / 16] * static_cast<float>(code_at(format, group, row, c) - format.offset);
        output[c] = has_minimum ? scaled + line.minimum : scaled;
    }
}

}  // namespace

void pack_panels(Compute& compute, const Matrix& matrix, const uint8_t* stored, uint8_t* panels) {
    const int64_t count = matrix.num_panels();
    const int num_tasks = static_cast<int>(std::min<int64_t>(count, 8 * compute.pool.num_threads()));
    auto task = [&](int index) {
        for (int64_t panel = count * index / num_tasks; panel < count * (index + 1) / num_tasks; panel++)
            pack_panel(matrix, stored, panel, panels + panel * matrix.panel_bytes());
    };
    compute.pool.run(num_tasks, task);
}

Matrix* pack_matrix(Compute& compute, const Format& format, int64_t num_rows, int64_t num_columns,
                    const uint8_t* stored) {
    auto matrix = std::make_unique<Matrix>(Matrix{&format, num_rows, num_columns, nullptr, nullptr});
    matrix->owned = allocate(static_cast<size_t>(std::max<int64_t>(matrix->num_bytes(), 1)));
    matrix->panels = matrix->owned.get();
    pack_panels(compute, *matrix, stored, matrix->owned.get());
    return matrix.release();
}

void take_rows(Compute& compute, const Matrix& matrix, const int64_t* rows, int64_t num_taken, float* output) {
    const Format& format = *matrix.format;
    const int64_t per_task = std::max<int64_t>(8, num_taken / Pool::MAX_TASKS + 1);
    auto task = [&](int index) {
        for (int64_t taken = index * per_task; taken < std::min(num_taken, (index + 1) * per_task); taken++) {
            const int row = static_cast<int>(rows[taken] % PANEL);
            const uint8_t* block = matrix.panel(rows[taken] / PANEL);
            float* to = output + taken * matrix.num_columns;
            for (int64_t b = 0; b < matrix.blocks_per_row(); b++, block += format.block_bytes())
                for (int g = 0; g < format.block_groups; g++, to += GROUP)
                    decode_group(format, block, g, row, to);
        }
    };
    compute.pool.run(static_cast<int>((num_taken + per_task - 1) / per_task), task);
}

const Format* find_format(const char* name) {
    static constexpr const Format* formats[] = {&Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q8_0, &Q4_K, &Q5_K, &Q6_K};
    for (const Format* format : formats)
        if (__builtin_strcmp(format->name, name) == 0) return format;
    return nullptr;
}

}  // namespace plimsoll
