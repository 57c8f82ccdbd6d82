// Products with AVX2: pairs of products in 16 bits.
#if defined(__x86_64__)
#include <immintrin.h>

#include "matrix.h"

namespace plimsoll {
namespace avx2 {

constexpr int TILE = 4;

#include "lanes_avx2.h"

static inline Ints pairs_to_sums(Ints pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// 5 and 6 bits: a pair is at most 2 * 63 * 127.
template <int BITS>
struct Dot {
    using Type = Ints;
    static Ints begin(const int32_t* start) { return spread_start(start); }
    static void add(Ints& sums, Codes weights, const int8_t* values) {
        sums = _mm256_add_epi32(sums, pairs_to_sums(_mm256_maddubs_epi16(weights, spread_four(values))));
    }
    static Ints end(Ints sums, const int32_t*) { return sums; }
};

// 4 bits: eight pairs are at most 8 * 2 * 15 * 127, which 16 bits hold.
template <>
struct Dot<4> {
    using Type = Ints;
    static Ints begin(const int32_t*) { return _mm256_setzero_si256(); }
    static void add(Ints& pairs, Codes weights, const int8_t* values) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights, spread_four(values)));
    }
    static Ints end(Ints pairs, const int32_t* start) {
        return _mm256_add_epi32(pairs_to_sums(pairs), spread_start(start));
    }
};

// 8 bits: pairs of unsigned codes would not fit, so the sign moves to the other factor: at most 2 * 128 * 127.
template <>
struct Dot<8> {
    using Type = Ints;
    static Ints begin(const int32_t*) { return _mm256_setzero_si256(); }
    static void add(Ints& sums, Codes weights, const int8_t* values) {
        const Ints codes = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
        const Ints signed_values = _mm256_sign_epi8(spread_four(values), codes);
        sums = _mm256_add_epi32(sums, pairs_to_sums(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), signed_values)));
    }
    static Ints end(Ints sums, const int32_t*) { return sums; }
};

#include "matrix_product_body.h"

}  // namespace avx2

const ProductOperations avx2_product_operations{avx2::TILE, avx2::quantize_rows, avx2::multiply_any};

}  // namespace plimsoll
#endif
