// Quantised weights: an output's inputs in blocks, each value code * scale, plus the block's least value if codes
// have 4 bits.
//
// A panel's block is an array of int32, in rows of PANEL: the bits of the scales, those of the least values, then
// words that hold the codes of STEP inputs, the first in the lowest bits.

#pragma once

#include "vectors.h"

namespace draftwise {

template <int BITS>
struct Codes;

// Decoding is fast enough to wait for memory, which processors fetch ahead too late by themselves (measured: 15 %).
constexpr int AHEAD = 384;  // int32, some blocks

template <>
struct Codes<4> {
    static constexpr int INPUTS = 32, STEP = 8, HEAD = 2;  // of a block, of a word, rows before the words
    static constexpr int SIZE = (HEAD + INPUTS / STEP) * PANEL;
    struct Loaded {
        Whole word;
        Vector scale, least;
    };
    static Loaded loaded(const std::int32_t *panel, std::int64_t i, int part) {
        const std::int32_t *at = panel + i / INPUTS * SIZE + part * LANES;
        Loaded loaded;
        std::memcpy(&loaded.scale, at, sizeof loaded.scale);
        std::memcpy(&loaded.least, at + PANEL, sizeof loaded.least);
        const std::int32_t *word = at + (HEAD + i % INPUTS / STEP) * PANEL;
        __builtin_prefetch(word + AHEAD);
        std::memcpy(&loaded.word, word, sizeof loaded.word);
        return loaded;
    }
    // Rounded once, with or without a fused multiplication: code * scale is exact (`quantise`).
    static Vector weights(const Loaded &loaded, int place) {
        return __builtin_convertvector(loaded.word >> (4 * place) & 15, Vector) * loaded.scale + loaded.least;
    }
};

template <>
struct Codes<8> {
    static constexpr int INPUTS = 16, STEP = 4, HEAD = 1;
    static constexpr int SIZE = (HEAD + INPUTS / STEP) * PANEL;
    struct Loaded {
        Whole word;
        Vector scale;
    };
    static Loaded loaded(const std::int32_t *panel, std::int64_t i, int part) {
        const std::int32_t *at = panel + i / INPUTS * SIZE + part * LANES;
        Loaded loaded;
        std::memcpy(&loaded.scale, at, sizeof loaded.scale);
        const std::int32_t *word = at + (HEAD + i % INPUTS / STEP) * PANEL;
        __builtin_prefetch(word + AHEAD);
        std::memcpy(&loaded.word, word, sizeof loaded.word);
        return loaded;
    }
    static Vector weights(const Loaded &loaded, int place) {
        return __builtin_convertvector(loaded.word << (24 - 8 * place) >> 24, Vector) * loaded.scale;
    }
};

}  // namespace draftwise
