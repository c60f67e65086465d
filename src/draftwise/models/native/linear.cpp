// y = x W^T + b for float32 weights that lie in panels of some outputs: (panels, inputs, PANEL), the last panel
// filled up with zeros.
//
// A sum runs over the inputs in their order, in one accumulator for each output. So the result for a token does
// not depend on how many tokens are multiplied together, nor on the number of threads. Many tokens are multiplied
// by a block of inputs after the other, whose weights stay in the cache; between two blocks the sums are in y.

#include <cstring>

#include "vectors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

using namespace draftwise;

constexpr int least(int a, int b) { return a < b ? a : b; }

constexpr int PANEL = LANES == 16 ? 32 : 16;
constexpr int PARTS = PANEL / LANES;
constexpr int HELD = SUMS / PARTS;  // panels times tokens at a time
constexpr int MOST = least(HELD, LANES == 16 ? 12 : 6);  // tokens at a time
constexpr int WIDEST = least(HELD, LANES == 16 ? 2 : 4);  // panels at a time
constexpr std::int64_t BLOCK = 512;  // inputs

struct Product {
    const float *x, *w, *bias;
    float *y;
    std::int64_t tokens, outputs, inputs;
};

struct Block {
    std::int64_t token, panel, from, to;  // the first token and panel, and the inputs of the block
};

template <int TOKENS, int PANELS>
void tile(const Product &p, const Block &at) {
    Vector sums[TOKENS][PANELS][PARTS] = {};
    const float *x = p.x + at.token * p.inputs, *w = p.w + at.panel * p.inputs * PANEL;
    float *y = p.y + at.token * p.outputs + at.panel * PANEL;
    const std::int64_t left = p.outputs - at.panel * PANEL;  // outputs of these panels and all later ones
    const auto size = [left](int q) { return left - q * PANEL < PANEL ? left - q * PANEL : PANEL; };
    float found[PANEL] = {};
    if (at.from > 0)
        for (int t = 0; t < TOKENS; t++)
            for (int q = 0; q < PANELS; q++) {
                std::memcpy(found, y + t * p.outputs + q * PANEL, size(q) * sizeof(float));
                for (int part = 0; part < PARTS; part++) sums[t][q][part] = load(found + part * LANES);
            }
    for (std::int64_t i = at.from; i < at.to; i++) {
        Vector weights[PANELS][PARTS];
        for (int q = 0; q < PANELS; q++)
            for (int part = 0; part < PARTS; part++)
                weights[q][part] = load(w + (q * p.inputs + i) * PANEL + part * LANES);
        for (int t = 0; t < TOKENS; t++) {
            const float input = x[t * p.inputs + i];
            for (int q = 0; q < PANELS; q++)
                for (int part = 0; part < PARTS; part++) sums[t][q][part] += input * weights[q][part];
        }
    }
    for (int t = 0; t < TOKENS; t++)
        for (int q = 0; q < PANELS; q++) {
            for (int part = 0; part < PARTS; part++) store(found + part * LANES, sums[t][q][part]);
            if (p.bias && at.to == p.inputs)
                for (int k = 0; k < size(q); k++) found[k] += p.bias[(at.panel + q) * PANEL + k];
            std::memcpy(y + t * p.outputs + q * PANEL, found, size(q) * sizeof(float));
        }
}

using Tile = void (*)(const Product &, const Block &);

template <int TOKENS, int PANELS>
constexpr Tile fitting() {
    if constexpr (TOKENS * PANELS <= HELD && PANELS <= WIDEST && TOKENS <= MOST)
        return tile<TOKENS, PANELS>;
    else
        return nullptr;
}

template <int TOKENS>
struct Row {
    static constexpr Tile tiles[3] = {fitting<TOKENS, 1>(), fitting<TOKENS, 2>(), fitting<TOKENS, 4>()};
};

constexpr const Tile *TILES[] = {Row<1>::tiles, Row<2>::tiles, Row<3>::tiles, Row<4>::tiles,
                                 Row<5>::tiles, Row<6>::tiles, Row<7>::tiles, Row<8>::tiles,
                                 Row<9>::tiles, Row<10>::tiles, Row<11>::tiles, Row<12>::tiles};

// Some panels for all tokens: as many panels at a time as the registers hold, then fewer.
void columns(const Product &p, std::int64_t panel, std::int64_t end) {
    const std::int64_t tiles = (p.tokens + MOST - 1) / MOST;
    const std::int64_t most = (p.tokens + tiles - 1) / tiles;  // tokens of the largest tile
    const std::int64_t block = tiles > 1 ? BLOCK : p.inputs;
    int size = 2;
    while (panel < end) {
        while (size && (!TILES[most - 1][size] || (1 << size) > end - panel)) size--;
        for (std::int64_t from = 0; from < p.inputs; from += block)
            for (std::int64_t i = 0; i < tiles; i++) {
                const std::int64_t token = p.tokens * i / tiles, next = p.tokens * (i + 1) / tiles;
                const std::int64_t to = from + block < p.inputs ? from + block : p.inputs;
                TILES[next - token - 1][size](p, Block{token, panel, from, to});
            }
        panel += 1 << size;
    }
}

void run(const Product &p) {
    const std::int64_t panels = (p.outputs + PANEL - 1) / PANEL;
#if defined(_OPENMP)
#pragma omp parallel
    {
        const std::int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        columns(p, panels * thread / threads, panels * (thread + 1) / threads);
    }
#else
    columns(p, 0, panels);
#endif
}

}  // namespace

extern "C" std::int64_t draftwise_panel() { return PANEL; }

extern "C" void draftwise_linear(const float *x, const float *w, const float *bias, float *y, std::int64_t tokens,
                                 std::int64_t outputs, std::int64_t inputs) {
    if (tokens > 0) run(Product{x, w, bias, y, tokens, outputs, inputs});
}
