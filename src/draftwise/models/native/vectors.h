// Vectors of this machine's registers, in the notation that GCC and Clang share.

#pragma once

#include <cstdint>
#include <cstring>

namespace draftwise {

// Floats of a register, and how many registers hold sums beside what is added to them.
#if defined(__AVX512F__)
constexpr int LANES = 16, SUMS = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, SUMS = 12;
#elif defined(__aarch64__)
constexpr int LANES = 4, SUMS = 24;
#else
constexpr int LANES = 4, SUMS = 8;
#endif

// Outputs that a weight's panel holds, and how many registers.
constexpr int PANEL = LANES == 16 ? 32 : 16;
constexpr int PARTS = PANEL / LANES;

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef std::int32_t Whole __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere in memory

inline Vector load(const float *at) { return *reinterpret_cast<const Loose *>(at); }

// bfloat16, the upper half of a float32.
typedef std::uint16_t Half;
typedef Half Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

inline Vector load(const Half *at) {
    const Whole bits = __builtin_convertvector(*reinterpret_cast<const Halves *>(at), Whole) << 16;
    Vector found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

inline float wide(Half value) {
    const std::uint32_t bits = std::uint32_t(value) << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

// The nearest one, the even one of two; NaN stays NaN.
inline Half narrow(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return value != value ? Half(0x7fc0) : Half((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void store(float *at, Vector value) { *reinterpret_cast<Loose *>(at) = value; }

inline void store(Half *at, Vector value) {
    for (int i = 0; i < LANES; i++) at[i] = narrow(value[i]);
}

}  // namespace draftwise
