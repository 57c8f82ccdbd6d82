// One name for a vector register of floats, whatever the processor: included by the files that are compiled once per
// instruction set, inside the namespace of that set.
//
// Owns `vec`, loads and stores of float32 and float16, and the exponential. WIDTH divides 16, the tokens of a page.
// Invariant: an operation on a lane depends on that lane alone, so results do not depend on where a value stands.

#pragma GCC diagnostic ignored "-Wpsabi"  // these functions are never called across files

using vec = float __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
using ivec = int32_t __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static inline vec load(const float* from) { return *reinterpret_cast<const vec*>(from); }
static inline void store(float* to, vec values) { *reinterpret_cast<vec*>(to) = values; }
static inline vec spread(float value) { return vec{} + value; }
static inline vec larger(vec one, vec other) { return one > other ? one : other; }

#if defined(VECTORS_AVX512)
static inline vec load(const half* from) {
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
static inline void store(half* to, vec values) {
    // The masked form: the plain one makes compilers warn of a register that starts undefined.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_maskz_cvtps_ph(0xffff, (__m512)values, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(VECTORS_AVX2)
static inline vec load(const half* from) {
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline void store(half* to, vec values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)values, _MM_FROUND_TO_NEAREST_INT));
}
#else
static inline vec load(const half* from) {
    vec values;
    for (int lane = 0; lane < WIDTH; lane++) values[lane] = from_half(from[lane]);
    return values;
}
static inline void store(half* to, vec values) {
    for (int lane = 0; lane < WIDTH; lane++) to[lane] = to_half(values[lane]);
}
#endif

static inline float sum_lanes(vec values) {
    float sums[WIDTH];
    store(sums, values);
    for (int width = WIDTH / 2; width > 0; width /= 2)
        for (int lane = 0; lane < width; lane++) sums[lane] += sums[lane + width];
    return sums[0];
}

static inline float largest_lane(vec values) {
    float largest = values[0];
    for (int lane = 1; lane < WIDTH; lane++) largest = values[lane] > largest ? values[lane] : largest;
    return largest;
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
