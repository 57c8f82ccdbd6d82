// Float16 numbers as 16 bits, converted in plain C++ for processors that have no instruction for it.
#pragma once

#include <cstdint>
#include <cstring>

struct half {
    uint16_t bits;
};

static inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_half(half value) {
    const uint32_t sign = (value.bits & 0x8000u) << 16;
    const uint32_t rest = value.bits & 0x7fffu;
    if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    // Multiplying by 2^112 moves the exponent to where float32 has it, and makes subnormal numbers normal.
    return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
}

// Rounds to nearest, ties to even.
static inline half to_half(float value) {
    const uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    uint32_t made;
    if (rest > 0x7f800000u) {
        made = 0x7e00u;
    } else if (rest >= 0x477ff000u) {
        made = 0x7c00u;
    } else if (rest < 0x38800000u) {
        made = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000u;
    } else {
        made = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    }
    return half{static_cast<uint16_t>(sign | made)};
}
