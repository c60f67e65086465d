// Finds the codes of weights that were quantised once and stored in float32 since: of each block a scale, so that
// every value comes out again, bit for bit.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "codes.h"

namespace {

using namespace draftwise;

// How the values of a block are made: code * scale + least.
struct Grid {
    float scale, least;
};

// Whether all values are among those of a grid, and with which codes; those of 8 bits have a sign.
template <int BITS>
bool covers(Grid grid, const float *values, std::int32_t *codes) {
    constexpr int lowest = BITS == 4 ? 0 : -128, highest = BITS == 4 ? 15 : 127;
    for (int i = 0; i < Codes<BITS>::INPUTS; i++) {
        const double code = grid.scale ? std::nearbyint((double(values[i]) - grid.least) / grid.scale) : 0.0;
        if (!(code >= lowest && code <= highest)) return false;
        const double product = code * grid.scale;  // exact in double precision
        if (double(float(product)) != product || float(product) + grid.least != values[i]) return false;
        codes[i] = std::int32_t(code);
    }
    return true;
}

// A grid that covers a block's values; first those that quantisers choose, in which an extreme value has the last
// code.
bool find(const float *values, Grid &grid, std::int32_t *codes, Codes<4>) {
    const auto [least, greatest] = std::minmax_element(values, values + Codes<4>::INPUTS);
    for (int steps = 15; steps > 0; steps--) {
        grid = {float((double(*greatest) - *least) / steps), *least};
        if (covers<4>(grid, values, codes)) return true;
    }
    return false;
}

bool find(const float *values, Grid &grid, std::int32_t *codes, Codes<8>) {
    if (covers<8>(grid, values, codes)) return true;  // of the block before: those of some formats are longer
    float most = 0.0f;
    for (int i = 0; i < Codes<8>::INPUTS; i++) most = std::max(most, std::fabs(values[i]));
    for (const auto &[first, last] : {std::pair(128, 127), std::pair(32, 1), std::pair(126, 33)})
        for (int steps = first; steps >= last; steps--) {
            grid = {float(double(most) / steps), 0.0f};
            if (covers<8>(grid, values, codes)) return true;
        }
    return false;
}

// One output of a panel, `place` in it.
template <int BITS>
bool quantise(const float *row, std::int64_t inputs, std::int32_t *panel, int place) {
    using Code = Codes<BITS>;
    Grid grid = {0.0f, 0.0f};
    std::int32_t codes[Code::INPUTS];
    for (std::int64_t block = 0; block < inputs / Code::INPUTS; block++) {
        if (!find(row + block * Code::INPUTS, grid, codes, Code())) return false;
        if (!panel) continue;
        std::int32_t *at = panel + block * Code::SIZE + place;
        std::memcpy(at, &grid.scale, sizeof grid.scale);
        if (Code::HEAD > 1) std::memcpy(at + PANEL, &grid.least, sizeof grid.least);
        for (int i = 0; i < Code::INPUTS; i++)
            at[(Code::HEAD + i / Code::STEP) * PANEL] |=
                std::int32_t((std::uint32_t(codes[i]) & ((1u << BITS) - 1)) << (i % Code::STEP * BITS));
    }
    return true;
}

template <int BITS>
bool run(const float *w, std::int64_t outputs, std::int64_t inputs, std::int32_t *packed) {
    const std::int64_t size = inputs / Codes<BITS>::INPUTS * Codes<BITS>::SIZE;
    std::atomic<bool> fits = true;
#pragma omp parallel for schedule(dynamic, PANEL)
    for (std::int64_t i = 0; i < outputs; i++)
        if (fits && !quantise<BITS>(w + i * inputs, inputs, packed ? packed + i / PANEL * size : nullptr, i % PANEL))
            fits = false;
    return fits;
}

}  // namespace

extern "C" {

// A weight of shape (outputs, inputs) in codes, if each of its values has one; `packed` is nothing or filled with
// zeros.
bool draftwise_quantise_4_bits(const float *w, std::int64_t outputs, std::int64_t inputs, std::int32_t *packed) {
    return run<4>(w, outputs, inputs, packed);
}

bool draftwise_quantise_8_bits(const float *w, std::int64_t outputs, std::int64_t inputs, std::int32_t *packed) {
    return run<8>(w, outputs, inputs, packed);
}
}
