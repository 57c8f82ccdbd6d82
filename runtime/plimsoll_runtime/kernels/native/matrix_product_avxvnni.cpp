// Products with AVX-VNNI: four products and their sum in one instruction, eight rows at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include "matrix.h"

namespace plimsoll {
namespace avx_vnni {

constexpr int TILE = 4;

#include "lanes_avx2.h"

template <int BITS>
struct Dot {
    using Type = Ints;
    static Ints begin(const int32_t* start) { return spread_start(start); }
    static void add(Ints& sums, Codes weights, const int8_t* values) {
        sums = _mm256_dpbusd_avx_epi32(sums, weights, spread_four(values));
    }
    static Ints end(Ints sums, const int32_t*) { return sums; }
};

#include "matrix_product_body.h"

}  // namespace avx_vnni

const ProductOperations avx_vnni_product_operations{avx_vnni::TILE, avx_vnni::quantize_rows, avx_vnni::multiply_any};

}  // namespace plimsoll
#endif
