// The product of panels with tiles of quantized rows; included once per instruction set, inside its own namespace.
//
// The including file defines LANES (rows of a panel per register), TILE (tokens computed together), the types `Ints`
// and `Floats`, `Codes` (LANES times 4 codes), and `Dot<BITS>`, which sums products of codes of so many bits with
// four columns of a token at a time.
//
// A tile of N tokens is, for each group: N x 32 codes, N scales, N times scale * sum of codes, N x 2 starts (the
// negative sum of the codes of 16 columns times the offset; the first one is that of all 32 where weights have one
// scale for 32 columns).

struct TileGroup {
    const int8_t* codes;
    const float* scales;
    const float* sums;
    const int32_t* starts;
};

// Weights are fetched so far ahead of their use: the processor's own prefetching stops at the end of each page.
constexpr int PREFETCH_BYTES = 2048;

template <int TOKENS>
static inline TileGroup tile_group(const uint8_t* at) {
    const uint8_t* rest = at + TOKENS * GROUP;
    return TileGroup{reinterpret_cast<const int8_t*>(at), reinterpret_cast<const float*>(rest),
                     reinterpret_cast<const float*>(rest + 4 * TOKENS),
                     reinterpret_cast<const int32_t*>(rest + 8 * TOKENS)};
}

// Codes of columns 4k..4k+3 for LANES rows of a group.
template <const Format& FORMAT>
static inline Codes codes_at(const uint8_t* group, int k, int lane) {
    if constexpr (FORMAT.low_bits == 8) {
        return load_codes(group + k * PART_BYTES + 4 * lane);
    } else {
        const Codes both = load_codes(group + k / 2 * PART_BYTES + 4 * lane);
        const Codes low = k % 2 == 0 ? low_halves(both) : high_halves(both);
        if constexpr (FORMAT.high_bits == 0) return low;
        const uint8_t* high = group + FORMAT.low_bytes() + 4 * lane;
        if constexpr (FORMAT.high_bits == 1) return join_codes(low, load_codes(high), k - 4, 0x10);
        return join_codes(low, load_codes(high + k / 4 * PART_BYTES), 2 * (k % 4) - 4, 0x30);
    }
}

template <const Format& FORMAT>
struct GroupScales {
    Floats scales[2];
    Floats minimum;
};

struct BlockScales {
    Floats scale;
    Floats minimum;
    const uint8_t* packed;
};

template <const Format& FORMAT>
static inline BlockScales block_scales(const uint8_t* block, int lane) {
    BlockScales scales{};
    if constexpr (FORMAT.has_block_scales()) scales.scale = load_halves(block + 2 * lane);
    if constexpr (FORMAT.scales == Scales::k_minimum) {
        scales.minimum = load_halves(block + 2 * PANEL + 2 * lane);
        scales.packed = block + 4 * PANEL;
    }
    return scales;
}

// Four scales, four minimums, four bytes with the low halves of the other four of each, whose two high bits stand in
// the two high bits of the former; `first` is 0 for scales, 4 for minimums.
static inline Floats packed_scales(const uint8_t* packed, int group, int first, int lane) {
    using Line = uint8_t __attribute__((vector_size(PANEL), aligned(1), may_alias));
    const Line* lines = reinterpret_cast<const Line*>(packed);
    if (group < 4) {
        const Line scales = lines[first + group] & 63;
        return load_bytes(reinterpret_cast<const uint8_t*>(&scales) + lane);
    }
    const Line both = lines[8 + group - 4];
    const Line scales = (first == 0 ? both & 15 : both >> 4) | (lines[first + group - 4] >> 6 << 4);
    return load_bytes(reinterpret_cast<const uint8_t*>(&scales) + lane);
}

// `g` counts the groups of a block.
template <const Format& FORMAT>
static inline GroupScales<FORMAT> group_scales(const BlockScales& block, const uint8_t* group, int g, int lane) {
    const uint8_t* at = group + FORMAT.low_bytes() + FORMAT.high_bits * PART_BYTES;
    GroupScales<FORMAT> scales{};
    if constexpr (FORMAT.scales == Scales::k_minimum) {
        scales.scales[0] = multiplied(block.scale, packed_scales(block.packed, g, 0, lane));
        scales.minimum = negative(multiplied(block.minimum, packed_scales(block.packed, g, 4, lane)));
    } else if constexpr (FORMAT.scales == Scales::k_halves) {
        scales.scales[0] = multiplied(block.scale, load_signed_bytes(at + lane));
        scales.scales[1] = multiplied(block.scale, load_signed_bytes(at + PANEL + lane));
    } else {
        scales.scales[0] = load_halves(at + 2 * lane);
        if constexpr (FORMAT.scales == Scales::half_minimum) scales.minimum = load_halves(at + 2 * PANEL + 2 * lane);
    }
    return scales;
}

// Adds columns 4 * FIRST_K .. 4 * STOP_K - 1 of one group, which share scales.scales[part], to the totals.
template <const Format& FORMAT, int TOKENS, int FIRST_K, int STOP_K>
static inline void add_columns(const uint8_t* group, const TileGroup& tile, int lane, int part, Floats scale,
                               Floats* totals) {
    using Sum = Dot<FORMAT.low_bits + FORMAT.high_bits>;
    typename Sum::Type sums[TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < TOKENS; t++) sums[t] = Sum::begin(tile.starts + 2 * t + part);
#pragma GCC unroll 8
    for (int k = FIRST_K; k < STOP_K; k++) {
        const Codes codes = codes_at<FORMAT>(group, k, lane);
#pragma GCC unroll 16
        for (int t = 0; t < TOKENS; t++) Sum::add(sums[t], codes, tile.codes + t * GROUP + 4 * k);
    }
#pragma GCC unroll 16
    for (int t = 0; t < TOKENS; t++) {
        const Floats factor = multiplied(scale, spread(tile.scales + t));
        totals[t] = multiply_add(to_floats(Sum::end(sums[t], tile.starts + 2 * t + part)), factor, totals[t]);
    }
}

template <const Format& FORMAT, int TOKENS>
static inline void add_group(const uint8_t* group, int g, const BlockScales& block, const TileGroup& tile, int lane,
                             Floats* totals) {
    const GroupScales<FORMAT> scales = group_scales<FORMAT>(block, group, g, lane);
    if constexpr (FORMAT.scales == Scales::k_halves) {
        add_columns<FORMAT, TOKENS, 0, 4>(group, tile, lane, 0, scales.scales[0], totals);
        add_columns<FORMAT, TOKENS, 4, 8>(group, tile, lane, 1, scales.scales[1], totals);
    } else {
        add_columns<FORMAT, TOKENS, 0, 8>(group, tile, lane, 0, scales.scales[0], totals);
    }
    if constexpr (FORMAT.scales == Scales::half_minimum || FORMAT.scales == Scales::k_minimum) {
#pragma GCC unroll 16
        for (int t = 0; t < TOKENS; t++) totals[t] = multiply_add(scales.minimum, spread(tile.sums + t), totals[t]);
    }
}

// LANES rows of a panel with one tile; `output` is [TOKENS][output_stride].
template <const Format& FORMAT, int TOKENS>
static void multiply_panel(const uint8_t* panel, int64_t num_blocks, const uint8_t* tile, int lane, float* output,
                           int64_t output_stride) {
    Floats totals[TOKENS] = {};
    for (int64_t block = 0; block < num_blocks; block++, panel += FORMAT.block_bytes()) {
        const BlockScales scales = block_scales<FORMAT>(panel, lane);
        const uint8_t* group = panel + FORMAT.header_bytes();
        for (int g = 0; g < FORMAT.block_groups; g++) {
            for (int line = 0; line < FORMAT.group_bytes(); line += 64)
                __builtin_prefetch(group + PREFETCH_BYTES + line);
            add_group<FORMAT, TOKENS>(group, g, scales, tile_group<TOKENS>(tile), lane, totals);
            group += FORMAT.group_bytes();
            tile += TOKENS * TILE_GROUP_BYTES;
        }
    }
    for (int t = 0; t < TOKENS; t++) store(output + t * output_stride, totals[t]);
}

template <const Format& FORMAT, int TOKENS>
static void multiply_whole_panel(const Matrix& matrix, int64_t index, const uint8_t* tile, float* output,
                                 int64_t output_stride) {
    const int64_t row = index * PANEL, num_rows = matrix.num_rows - row < PANEL ? matrix.num_rows - row : PANEL;
    if (num_rows == PANEL) {
        for (int lane = 0; lane < PANEL; lane += LANES)
            multiply_panel<FORMAT, TOKENS>(matrix.panel(index), matrix.blocks_per_row(), tile, lane,
                                           output + row + lane, output_stride);
        return;
    }
    float results[TOKENS * PANEL];
    for (int lane = 0; lane < PANEL; lane += LANES)
        multiply_panel<FORMAT, TOKENS>(matrix.panel(index), matrix.blocks_per_row(), tile, lane, results + lane, PANEL);
    for (int t = 0; t < TOKENS; t++)
        for (int64_t r = 0; r < num_rows; r++) output[t * output_stride + row + r] = results[t * PANEL + r];
}

// The function for the number of tokens of a tile.
template <const Format& FORMAT, int TOKENS>
static void multiply_tile(const Matrix& matrix, int64_t index, const uint8_t* tile, int num_tokens, float* output,
                          int64_t output_stride) {
    if constexpr (TOKENS > 1) {
        if (num_tokens < TOKENS)
            return multiply_tile<FORMAT, TOKENS / 2>(matrix, index, tile, num_tokens, output, output_stride);
    }
    multiply_whole_panel<FORMAT, TOKENS>(matrix, index, tile, output, output_stride);
}

// Tokens are cut into tiles of TILE, and what is left into powers of two downwards: fewer functions to compile.
static inline int tokens_of_tile(int64_t num_left) {
    int size = TILE;
    while (size > num_left) size /= 2;
    return size;
}

template <const Format& FORMAT>
static void multiply_panels(const Matrix& matrix, int64_t first, int64_t stop, const uint8_t* tiles,
                            int64_t num_tokens, float* output, int64_t output_stride) {
    const int64_t token_bytes = matrix.num_columns / GROUP * TILE_GROUP_BYTES;
    for (int64_t index = first; index < stop; index++)
        for (int64_t token = 0; token < num_tokens;) {
            const int count = tokens_of_tile(num_tokens - token);
            multiply_tile<FORMAT, TILE>(matrix, index, tiles + token * token_bytes, count,
                                        output + token * output_stride, output_stride);
            token += count;
        }
}

static void multiply_any(const Matrix& matrix, int64_t first, int64_t stop, const uint8_t* tiles, int64_t num_tokens,
                         float* output, int64_t output_stride) {
    using Function = void (*)(const Matrix&, int64_t, int64_t, const uint8_t*, int64_t, float*, int64_t);
    struct Choice {
        const Format* format;
        Function function;
    };
    static constexpr Choice choices[] = {
        {&Q4_0, multiply_panels<Q4_0>}, {&Q4_1, multiply_panels<Q4_1>}, {&Q5_0, multiply_panels<Q5_0>},
        {&Q5_1, multiply_panels<Q5_1>}, {&Q8_0, multiply_panels<Q8_0>}, {&Q4_K, multiply_panels<Q4_K>},
        {&Q5_K, multiply_panels<Q5_K>}, {&Q6_K, multiply_panels<Q6_K>},
    };
    for (const Choice& choice : choices)
        if (choice.format->name == matrix.format->name)
            return choice.function(matrix, first, stop, tiles, num_tokens, output, output_stride);
}

// One group of one row. The largest magnitude is found among the bits, where NaN is above all numbers: a NaN in the
// input makes the scale, and so every output of the row, NaN.
static inline void quantize_group(const float* input, int offset, int8_t* codes, float* scale, float* sum,
                                  int32_t* starts) {
    uint32_t largest_bits = 0;
    for (int c = 0; c < GROUP; c++) {
        uint32_t bits;
        __builtin_memcpy(&bits, input + c, 4);
        bits &= 0x7fffffffu;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    float largest;
    __builtin_memcpy(&largest, &largest_bits, 4);
    const float factor = largest < 1e-30f ? 0.0f : 127.0f / largest;
    int32_t sums[2] = {0, 0};
    for (int half = 0; half < 2; half++)
        for (int c = 0; c < GROUP / 2; c++) {
            // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
            const float shifted = input[half * (GROUP / 2) + c] * factor + 12582912.0f;
            int32_t bits;
            __builtin_memcpy(&bits, &shifted, 4);
            const int8_t code = static_cast<int8_t>(bits - 0x4b400000);
            codes[half * (GROUP / 2) + c] = code;
            sums[half] += code;
        }
    *scale = largest / 127.0f;
    *sum = *scale * static_cast<float>(sums[0] + sums[1]);
    starts[0] = -offset * sums[0];
    starts[1] = -offset * sums[1];
}

static void quantize_tile(const float* input, int64_t num_columns, int num_tokens, const Format& format,
                          uint8_t* tile) {
    const bool has_halves = format.scales == Scales::k_halves;
    for (int64_t c = 0; c < num_columns; c += GROUP, tile += num_tokens * TILE_GROUP_BYTES) {
        int8_t* codes = reinterpret_cast<int8_t*>(tile);
        float* scales = reinterpret_cast<float*>(tile + num_tokens * GROUP);
        float* sums = scales + num_tokens;
        int32_t* starts = reinterpret_cast<int32_t*>(sums + num_tokens);
        for (int t = 0; t < num_tokens; t++) {
            quantize_group(input + t * num_columns + c, format.offset, codes + t * GROUP, scales + t, sums + t,
                           starts + 2 * t);
            if (!has_halves) starts[2 * t] += starts[2 * t + 1];
        }
    }
}

static void quantize_rows(const float* input, int64_t num_columns, int num_tokens, const Format& format,
                          uint8_t* tiles) {
    for (int token = 0; token < num_tokens;) {
        const int count = tokens_of_tile(num_tokens - token);
        quantize_tile(input + token * num_columns, num_columns, count, format, tiles);
        tiles += count * (num_columns / GROUP * TILE_GROUP_BYTES);
        token += count;
    }
}
