// Products with AVX512-VNNI: four products and their sum in one instruction, a whole panel at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include "matrix.h"

namespace plimsoll {
namespace avx512_vnni {

constexpr int LANES = PANEL;
constexpr int TILE = 8;

using Ints = __m512i;
using Floats = __m512;
using Codes = __m512i;

static inline Codes load_codes(const uint8_t* from) { return _mm512_loadu_si512(from); }
static inline Codes low_halves(Codes codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
static inline Codes high_halves(Codes codes) { return low_halves(_mm512_srli_epi16(codes, 4)); }

// Bits cross from byte to byte in the shift, and the mask drops them.
static inline Codes join_codes(Codes low, Codes high, int shift_right, char mask) {
    const Codes moved = shift_right >= 0 ? _mm512_srli_epi16(high, static_cast<unsigned>(shift_right))
                                         : _mm512_slli_epi16(high, static_cast<unsigned>(-shift_right));
    return _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(mask)));
}

static inline Floats load_halves(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
static inline Floats load_bytes(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
static inline Floats load_signed_bytes(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
static inline Floats spread(const float* from) { return _mm512_set1_ps(*from); }
static inline Floats multiplied(Floats one, Floats other) { return _mm512_mul_ps(one, other); }
static inline Floats negative(Floats values) { return _mm512_xor_ps(values, _mm512_set1_ps(-0.0f)); }
static inline Floats multiply_add(Floats one, Floats other, Floats total) { return _mm512_fmadd_ps(one, other, total); }
static inline Floats to_floats(Ints values) { return _mm512_cvtepi32_ps(values); }
static inline void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }

template <int BITS>
struct Dot {
    using Type = Ints;
    static Ints begin(const int32_t* start) { return _mm512_set1_epi32(*start); }
    static void add(Ints& sums, Codes weights, const int8_t* values) {
        int32_t four;
        __builtin_memcpy(&four, values, 4);
        sums = _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(four));
    }
    static Ints end(Ints sums, const int32_t*) { return sums; }
};

#include "matrix_product_body.h"

}  // namespace avx512_vnni

const ProductOperations avx512_vnni_product_operations{avx512_vnni::TILE, avx512_vnni::quantize_rows,
                                                       avx512_vnni::multiply_any};

}  // namespace plimsoll
#endif
