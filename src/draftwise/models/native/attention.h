#pragma once

#include <cstdint>

// The tensors of one call. Sizes are numbers of elements, steps the distances between neighbours; the elements of
// a head's vector, of a mask's row and of `out`, (rows, width, heads, value size), lie side by side.
struct Attention {
    const void *query, *key, *value, *mask;  // of float, or bfloat16 if `half`
    void *out;
    std::int64_t rows, shared, groups, width, total, key_size, value_size;  // heads: shared * groups
    std::int64_t query_step[3], key_step[3], value_step[3];  // between rows, heads and tokens
    std::int64_t mask_step[2];  // between rows and tokens; added to the scores of all heads
    float scale;
    std::int32_t half;
};

extern "C" void draftwise_attention(const Attention *);
