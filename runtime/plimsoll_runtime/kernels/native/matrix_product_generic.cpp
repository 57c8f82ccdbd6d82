// Products without any instruction set beyond the compiler's own.
#include <cmath>

#include "half.h"
#include "matrix.h"

namespace plimsoll {
namespace generic {

constexpr int LANES = PANEL;
constexpr int TILE = 2;

struct Ints {
    int32_t lanes[LANES];
};
struct Floats {
    float lanes[LANES];
};
struct Codes {
    uint8_t codes[4 * LANES];
};

static inline Codes load_codes(const uint8_t* from) {
    Codes loaded;
    __builtin_memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

static inline Codes low_halves(Codes codes) {
    for (uint8_t& code : codes.codes) code &= 15;
    return codes;
}

static inline Codes high_halves(Codes codes) {
    for (uint8_t& code : codes.codes) code >>= 4;
    return codes;
}

static inline Codes join_codes(Codes low, const Codes& high, int shift_right, int mask) {
    for (int i = 0; i < 4 * LANES; i++) {
        const int moved = shift_right >= 0 ? high.codes[i] >> shift_right : high.codes[i] << -shift_right;
        low.codes[i] = static_cast<uint8_t>(low.codes[i] | (moved & mask));
    }
    return low;
}

static inline Floats load_halves(const uint8_t* from) {
    Floats loaded;
    for (int lane = 0; lane < LANES; lane++) {
        half value;
        __builtin_memcpy(&value, from + 2 * lane, 2);
        loaded.lanes[lane] = from_half(value);
    }
    return loaded;
}

static inline Floats load_bytes(const uint8_t* from) {
    Floats loaded;
    for (int lane = 0; lane < LANES; lane++) loaded.lanes[lane] = from[lane];
    return loaded;
}

static inline Floats load_signed_bytes(const uint8_t* from) {
    Floats loaded;
    for (int lane = 0; lane < LANES; lane++) loaded.lanes[lane] = static_cast<int8_t>(from[lane]);
    return loaded;
}

static inline Floats spread(const float* from) {
    Floats made;
    for (float& lane : made.lanes) lane = *from;
    return made;
}

static inline Floats multiplied(const Floats& one, const Floats& other) {
    Floats made;
    for (int lane = 0; lane < LANES; lane++) made.lanes[lane] = one.lanes[lane] * other.lanes[lane];
    return made;
}

static inline Floats negative(const Floats& values) {
    Floats made;
    for (int lane = 0; lane < LANES; lane++) made.lanes[lane] = -values.lanes[lane];
    return made;
}

static inline Floats multiply_add(const Floats& one, const Floats& other, const Floats& total) {
    Floats made;
    for (int lane = 0; lane < LANES; lane++)
        made.lanes[lane] = std::fma(one.lanes[lane], other.lanes[lane], total.lanes[lane]);
    return made;
}

static inline Floats to_floats(const Ints& values) {
    Floats made;
    for (int lane = 0; lane < LANES; lane++) made.lanes[lane] = static_cast<float>(values.lanes[lane]);
    return made;
}

static inline void store(float* to, const Floats& values) { __builtin_memcpy(to, &values, sizeof values); }

template <int BITS>
struct Dot {
    using Type = Ints;
    static Ints begin(const int32_t* start) {
        Ints sums;
        for (int32_t& lane : sums.lanes) lane = *start;
        return sums;
    }
    static void add(Ints& sums, const Codes& weights, const int8_t* values) {
        for (int lane = 0; lane < LANES; lane++)
            for (int b = 0; b < 4; b++) sums.lanes[lane] += weights.codes[4 * lane + b] * values[b];
    }
    static Ints end(const Ints& sums, const int32_t*) { return sums; }
};

#include "matrix_product_body.h"

}  // namespace generic

const ProductOperations generic_product_operations{generic::TILE, generic::quantize_rows, generic::multiply_any};

}  // namespace plimsoll
