// Eight rows of a panel in a register: what the products with AVX2 and with AVX-VNNI share.

constexpr int LANES = 8;

using Ints = __m256i;
using Floats = __m256;
using Codes = __m256i;

static inline Codes load_codes(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
static inline Codes low_halves(Codes codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
static inline Codes high_halves(Codes codes) { return low_halves(_mm256_srli_epi16(codes, 4)); }

// Bits cross from byte to byte in the shift, and the mask drops them.
static inline Codes join_codes(Codes low, Codes high, int shift_right, char mask) {
    const Codes moved = shift_right >= 0 ? _mm256_srli_epi16(high, shift_right) : _mm256_slli_epi16(high, -shift_right);
    return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(mask)));
}

static inline Floats load_halves(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline Floats load_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
static inline Floats load_signed_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
static inline Floats spread(const float* from) { return _mm256_broadcast_ss(from); }
static inline Floats multiplied(Floats one, Floats other) { return _mm256_mul_ps(one, other); }
static inline Floats negative(Floats values) { return _mm256_xor_ps(values, _mm256_set1_ps(-0.0f)); }
static inline Floats multiply_add(Floats one, Floats other, Floats total) { return _mm256_fmadd_ps(one, other, total); }
static inline Floats to_floats(Ints values) { return _mm256_cvtepi32_ps(values); }
static inline void store(float* to, Floats values) { _mm256_storeu_ps(to, values); }

static inline Ints spread_four(const int8_t* from) {
    int32_t four;
    __builtin_memcpy(&four, from, 4);
    return _mm256_set1_epi32(four);
}
static inline Ints spread_start(const int32_t* from) { return _mm256_set1_epi32(*from); }
