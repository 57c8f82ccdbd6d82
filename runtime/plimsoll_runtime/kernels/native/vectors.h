// One name for a vector register of floats, whatever the processor: included by the files that are compiled once per
// instruction set, inside the namespace of that set.
//
// Owns `vec`, loads of float32 and float16, products of 8-bit codes with pairs of 16-bit words, stores, and the
// exponential. WIDTH divides 16, the tokens of a page.
// Invariant: an operation on a lane depends on that lane alone, so results do not depend on where a value stands.

#pragma GCC diagnostic ignored "-Wpsabi"  // these functions are never called across files

using vec = float __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
using ivec = int32_t __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static inline vec load(const float* from) { return *reinterpret_cast<const vec*>(from); }
static inline void store(float* to, vec values) { *reinterpret_cast<vec*>(to) = values; }
static inline vec spread(float value) { return vec{} + value; }
static inline vec larger(vec one, vec other) { return one > other ? one : other; }
static inline vec smaller(vec one, vec other) { return one < other ? one : other; }

// `widen` makes words of 2 * WIDTH codes; `dot` adds to each lane the products of its two words with those of `pair`.
#if defined(VECTORS_AVX512)
using words = __m512i;
using Sums = __m512i;
static inline vec load(const half* from) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
static inline words widen(const code* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
static inline Sums dot(Sums total, words codes, int32_t pair) {
    return _mm512_dpwssd_epi32(total, codes, _mm512_set1_epi32(pair));
}
static inline vec numbers(Sums sums) { return (vec)_mm512_cvtepi32_ps(sums); }
#elif defined(VECTORS_AVX2)
using words = __m256i;
using Sums = __m256i;
static inline vec load(const half* from) {
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline words widen(const code* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline Sums dot(Sums total, words codes, int32_t pair) {
    return _mm256_add_epi32(total, _mm256_madd_epi16(codes, _mm256_set1_epi32(pair)));
}
static inline vec numbers(Sums sums) { return (vec)_mm256_cvtepi32_ps(sums); }
#else
struct words {
    int16_t values[2 * WIDTH];
};
using Sums = ivec;
static inline vec load(const half* from) {
    vec values;
    for (int lane = 0; lane < WIDTH; lane++) values[lane] = from_half(from[lane]);
    return values;
}
static inline words widen(const code* from) {
    words codes;
    for (int i = 0; i < 2 * WIDTH; i++) codes.values[i] = from[i].value;
    return codes;
}
static inline Sums dot(Sums total, const words& codes, int32_t pair) {
    const int32_t low = static_cast<int16_t>(pair), high = pair >> 16;
    for (int lane = 0; lane < WIDTH; lane++)
        total[lane] += codes.values[2 * lane] * low + codes.values[2 * lane + 1] * high;
    return total;
}
static inline vec numbers(Sums sums) { return __builtin_convertvector(sums, vec); }
#endif

// To the nearest integer, ties to even, of numbers below 2^22: adding 1.5 * 2^23 leaves it in the lowest bits.
static inline ivec rounded(vec numbers) { return (ivec)(numbers + 12582912.0f) - (ivec)spread(12582912.0f); }

static inline void store_words(int16_t* to, ivec integers) {
    using shorts = int16_t __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
    *reinterpret_cast<shorts*>(to) = __builtin_convertvector(integers, shorts);
}

static inline float sum_lanes(vec values) {
    float sums[WIDTH];
    store(sums, values);
    for (int width = WIDTH / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++) sums[lane] += sums[lane + width];
    return sums[0];
}

static inline float largest_lane(vec values) {
    float lanes[WIDTH];
    store(lanes, values);
    for (int width = WIDTH / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++)
            lanes[lane] = lanes[lane + width] > lanes[lane] ? lanes[lane + width] : lanes[lane];
    return lanes[0];
}

static inline float largest_magnitude(const float* numbers, int size) {
    vec largest = {};
    for (int at = 0; at < size; at += WIDTH) {
        const vec number = load(numbers + at);
        largest = larger(larger(number, -number), largest);
    }
    return largest_lane(largest);
}

// e^x to about 1 ulp, exactly 1 at 0 and exactly 0 below -87; NaN stays NaN. Cephes' reduction and polynomial.
static inline vec exponential(vec x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the lowest bits
    vec kept = x > 88.0f ? spread(88.0f) : (x < -87.0f ? spread(-87.0f) : x);
    vec shifted = kept * 1.44269504088896341f + shift;
    vec turns = shifted - shift;
    vec rest = kept - turns * 0.693359375f;
    rest = rest - turns * -2.12194440e-4f;
    vec poly = spread(1.9875691500e-4f);
    poly = poly * rest + 1.3981999507e-3f;
    poly = poly * rest + 8.3334519073e-3f;
    poly = poly * rest + 4.1665795894e-2f;
    poly = poly * rest + 1.6666665459e-1f;
    poly = poly * rest + 5.0000001201e-1f;
    vec value = poly * (rest * rest) + rest + 1.0f;
    ivec power = ((ivec)shifted - (ivec)spread(shift)) << 23;
    vec scaled = (vec)((ivec)value + power);
    return x < -87.0f ? vec{} : scaled;
}
