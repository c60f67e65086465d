// Vectors of this machine's registers, in the notation that GCC and Clang share.

#pragma once

#include <cstdint>

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

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef std::int32_t Whole __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere in memory

inline Vector load(const float *at) { return *reinterpret_cast<const Loose *>(at); }
inline void store(float *at, Vector value) { *reinterpret_cast<Loose *>(at) = value; }

}  // namespace draftwise
