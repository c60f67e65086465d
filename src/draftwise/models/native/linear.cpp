// y = x W^T + b for weights that lie in panels of some outputs, the last panel filled up with zeros: float32 as
// (panels, inputs, PANEL), bfloat16 as (panels, inputs / 2, PANEL, 2). Sums are float32. Weights in bfloat16 are
// multiplied with tokens in bfloat16, or with tokens in float32: then the sums are those of the same weights in
// float32, bit for bit, of half the memory. So are those of weights in float16, which lie as in float32, and of
// quantised ones: blocks of inputs with codes of 4 or 8 bits (`codes.h`).
//
// A sum runs over the inputs in their order, in one accumulator for each output. So the result for a token does
// not depend on how many tokens are multiplied together, nor on the number of threads. Many tokens are multiplied
// by a block of inputs after the other, whose weights stay in the cache, decoded if they are codes; between two
// blocks the sums are stored.

#include <cstring>
#include <vector>

#include "codes.h"
#include "vectors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#define DRAFTWISE_FLOAT16
#endif

namespace {

using namespace draftwise;

constexpr int least(int a, int b) { return a < b ? a : b; }

constexpr int HELD = SUMS / PARTS;  // panels times tokens at a time
constexpr int MOST = least(HELD, LANES == 16 ? 12 : 6);  // tokens at a time
constexpr int WIDEST = least(HELD, LANES == 16 ? 2 : 4);  // panels at a time
constexpr std::int64_t BLOCK = 512;  // inputs

// How the weights of LANES outputs are multiplied. An Element is what is stored, a Value belongs to a token. What is
// Loaded are the weights of STEP inputs, decoded PIECE inputs at a time.
struct Float32 {
    using Element = float;
    using Value = float;
    static constexpr int STEP = 1, PIECE = 1;
    using Loaded = Vector;
    using Weights = Vector;
    using Input = float;
    static std::int64_t size(std::int64_t inputs) { return inputs * PANEL; }  // elements of a panel
    static Loaded loaded(const float *panel, std::int64_t i, int part) {
        return load(panel + i * PANEL + part * LANES);
    }
    static Weights weights(Loaded loaded, int) { return loaded; }
    static Input input(const float *at) { return *at; }
    static Vector add(Vector sum, Input input, Weights weights) { return sum + input * weights; }
};

struct Widened {
    using Element = Half;
    using Value = float;
    static constexpr int STEP = 2, PIECE = 2;
    struct Weights {
        Vector first, second;
    };
    using Loaded = Weights;
    struct Input {
        float first, second;
    };
    static std::int64_t size(std::int64_t inputs) { return inputs * PANEL; }
    static Loaded loaded(const Element *panel, std::int64_t i, int part) {
        Whole pairs, first, second;
        std::memcpy(&pairs, panel + i * PANEL + part * LANES * 2, sizeof pairs);
        first = pairs << 16;
        second = pairs & -65536;
        Weights found;
        std::memcpy(&found.first, &first, sizeof first);
        std::memcpy(&found.second, &second, sizeof second);
        return found;
    }
    static Weights weights(const Loaded &loaded, int) { return loaded; }
    static Input input(const float *at) { return Input{at[0], at[1]}; }
    static Vector add(Vector sum, Input input, Weights weights) {
        return sum + input.first * weights.first + input.second * weights.second;
    }
};

#if defined(DRAFTWISE_FLOAT16)
struct WidenedFloat16 : Float32 {
    using Element = Half;
    static Loaded loaded(const Element *panel, std::int64_t i, int part) {
        const Element *at = panel + i * PANEL + part * LANES;
#if defined(__AVX512F__)
        return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
#else
        return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
#endif
    }
};
#endif

#if defined(__AVX512BF16__)
struct BFloat16 {
    using Element = Half;
    using Value = Half;
    static constexpr int STEP = 2, PIECE = 2;
    using Loaded = __m512bh;
    using Weights = __m512bh;
    using Input = __m512bh;
    static std::int64_t size(std::int64_t inputs) { return inputs * PANEL; }
    static Loaded loaded(const Element *panel, std::int64_t i, int part) {
        Loaded found;
        std::memcpy(&found, panel + i * PANEL + part * LANES * 2, sizeof found);
        return found;
    }
    static Weights weights(Loaded loaded, int) { return loaded; }
    static Input input(const Value *at) {
        std::int32_t pair;
        std::memcpy(&pair, at, sizeof pair);
        return (__m512bh)_mm512_set1_epi32(pair);
    }
    static Vector add(Vector sum, Input input, Weights weights) {
        return (Vector)_mm512_dpbf16_ps((__m512)sum, input, weights);
    }
};
#else
struct BFloat16 : Widened {
    using Value = Half;
    static Input input(const Value *at) { return Input{wide(at[0]), wide(at[1])}; }
};
#endif

template <int BITS>
struct Quantised : Float32 {
    using Code = Codes<BITS>;
    using Element = std::int32_t;
    static constexpr int STEP = Code::STEP;
    using Loaded = typename Code::Loaded;
    static std::int64_t size(std::int64_t inputs) { return inputs / Code::INPUTS * Code::SIZE; }
    static Loaded loaded(const Element *panel, std::int64_t i, int part) { return Code::loaded(panel, i, part); }
    static Weights weights(const Loaded &loaded, int place) { return Code::weights(loaded, place); }
};

template <class Kind>
struct Product {
    const typename Kind::Value *x;
    const typename Kind::Element *w;
    std::int64_t tokens, outputs, inputs;
    std::int64_t stride = inputs;  // from a token of `x` to the next
};

// Sums of some tokens and panels over some inputs; `out` has a row of `step` sums for each token.
struct Block {
    std::int64_t token, panel, from, to;
    float *out;
    std::int64_t step, left;  // the outputs of these panels and all later ones
    bool first;  // whether these are the first inputs
};

template <class Kind, int TOKENS, int PANELS>
void tile(const Product<Kind> &p, const Block &at) {
    Vector sums[TOKENS][PANELS][PARTS] = {};
    const auto *x = p.x + at.token * p.stride;
    const auto *w = p.w + at.panel * Kind::size(p.inputs);
    const auto size = [&at](int q) { return at.left - q * PANEL < PANEL ? at.left - q * PANEL : PANEL; };
    float found[PANEL] = {};
    if (!at.first)
        for (int t = 0; t < TOKENS; t++)
            for (int q = 0; q < PANELS; q++) {
                std::memcpy(found, at.out + t * at.step + q * PANEL, size(q) * sizeof(float));
                for (int part = 0; part < PARTS; part++) sums[t][q][part] = load(found + part * LANES);
            }
    for (std::int64_t i = at.from; i < at.to; i += Kind::STEP) {
        typename Kind::Loaded loaded[PANELS][PARTS];
        for (int q = 0; q < PANELS; q++)
            for (int part = 0; part < PARTS; part++)
                loaded[q][part] = Kind::loaded(w + q * Kind::size(p.inputs), i, part);
#pragma GCC unroll 8
        for (int place = 0; place < Kind::STEP; place += Kind::PIECE) {
            typename Kind::Weights weights[PANELS][PARTS];
            for (int q = 0; q < PANELS; q++)
                for (int part = 0; part < PARTS; part++) weights[q][part] = Kind::weights(loaded[q][part], place);
            for (int t = 0; t < TOKENS; t++) {
                const auto input = Kind::input(x + t * p.stride + i + place);
                for (int q = 0; q < PANELS; q++)
                    for (int part = 0; part < PARTS; part++)
                        sums[t][q][part] = Kind::add(sums[t][q][part], input, weights[q][part]);
            }
        }
    }
    for (int t = 0; t < TOKENS; t++)
        for (int q = 0; q < PANELS; q++) {
            for (int part = 0; part < PARTS; part++) store(found + part * LANES, sums[t][q][part]);
            std::memcpy(at.out + t * at.step + q * PANEL, found, size(q) * sizeof(float));
        }
}

template <class Kind>
using Tile = void (*)(const Product<Kind> &, const Block &);

template <class Kind, int TOKENS, int PANELS>
constexpr Tile<Kind> fitting() {
    if constexpr (TOKENS * PANELS <= HELD && PANELS <= WIDEST && TOKENS <= MOST)
        return tile<Kind, TOKENS, PANELS>;
    else
        return nullptr;
}

template <class Kind, int TOKENS>
struct Row {
    static constexpr Tile<Kind> tiles[3] = {fitting<Kind, TOKENS, 1>(), fitting<Kind, TOKENS, 2>(),
                                            fitting<Kind, TOKENS, 4>()};
};

template <class Kind>
constexpr const Tile<Kind> *TILES[] = {Row<Kind, 1>::tiles, Row<Kind, 2>::tiles,  Row<Kind, 3>::tiles,
                                       Row<Kind, 4>::tiles, Row<Kind, 5>::tiles,  Row<Kind, 6>::tiles,
                                       Row<Kind, 7>::tiles, Row<Kind, 8>::tiles,  Row<Kind, 9>::tiles,
                                       Row<Kind, 10>::tiles, Row<Kind, 11>::tiles, Row<Kind, 12>::tiles};

// The weights of some inputs of a panel as they lie in float32.
template <class Kind>
void decode(const typename Kind::Element *panel, std::int64_t from, std::int64_t to, float *out) {
    for (std::int64_t i = from; i < to; i += Kind::STEP)
        for (int part = 0; part < PARTS; part++) {
            const auto loaded = Kind::loaded(panel, i, part);
            for (int place = 0; place < Kind::STEP; place++)
                store(out + (i - from + place) * PANEL + part * LANES, Kind::weights(loaded, place));
        }
}

// All tokens, a tile after the other.
template <class Kind>
void tokens(const Product<Kind> &p, Block at, int size) {
    const std::int64_t tiles = (p.tokens + MOST - 1) / MOST;
    float *out = at.out;
    for (std::int64_t i = 0; i < tiles; i++) {
        const std::int64_t next = p.tokens * (i + 1) / tiles;
        at.token = p.tokens * i / tiles, at.out = out + at.token * at.step;
        TILES<Kind>[next - at.token - 1][size](p, at);
    }
}

// The sums of all tokens and 1 << `size` panels, in rows of `step`.
template <class Kind>
void panels(const Product<Kind> &p, std::int64_t panel, int size, float *out, std::int64_t step) {
    const std::int64_t block = p.tokens > MOST ? BLOCK : p.inputs;
    for (std::int64_t from = 0; from < p.inputs; from += block) {
        const std::int64_t to = from + block < p.inputs ? from + block : p.inputs;
        Block at{0, panel, from, to, out, step, p.outputs - panel * PANEL, from == 0};
        if constexpr (Kind::STEP > Kind::PIECE) {
            if (p.tokens > MOST) {  // decoded once, not for every tile
                static thread_local std::vector<float> memory(WIDEST * PANEL * BLOCK);
                const std::int64_t inputs = to - from;
                for (int q = 0; q < 1 << size; q++)
                    decode<Kind>(p.w + (panel + q) * Kind::size(p.inputs), from, to, memory.data() + q * inputs * PANEL);
                at.panel = 0, at.from = 0, at.to = inputs;
                tokens<Float32>({p.x + from, memory.data(), p.tokens, p.outputs, inputs, p.inputs}, at, size);
                continue;
            }
        }
        tokens<Kind>(p, at, size);
    }
}

void finish(float *sums, const float *bias, float *, std::int64_t count) {
    if (bias)
        for (std::int64_t k = 0; k < count; k++) sums[k] += bias[k];
}

void finish(float *sums, const Half *bias, Half *y, std::int64_t count) {
    for (std::int64_t k = 0; k < count; k++) y[k] = narrow(bias ? sums[k] + wide(bias[k]) : sums[k]);
}

// Some panels for all tokens: as many panels at a time as the registers hold, then fewer. Sums of float32 are made
// where the result belongs.
template <class Kind>
void columns(const Product<Kind> &p, const typename Kind::Value *bias, typename Kind::Value *y,
             std::int64_t panel, std::int64_t end) {
    static thread_local std::vector<float> memory;
    constexpr bool direct = sizeof(*y) == sizeof(float);
    const std::int64_t tiles = (p.tokens + MOST - 1) / MOST, most = (p.tokens + tiles - 1) / tiles;
    if (!direct && memory.size() < std::size_t(p.tokens * WIDEST * PANEL)) memory.resize(p.tokens * WIDEST * PANEL);
    int size = 2;
    while (panel < end) {
        while (size && (!TILES<Kind>[most - 1][size] || (1 << size) > end - panel)) size--;
        const std::int64_t first = panel * PANEL, all = std::int64_t(PANEL) << size;
        const std::int64_t count = all < p.outputs - first ? all : p.outputs - first;
        const std::int64_t step = direct ? p.outputs : all;
        float *sums = direct ? reinterpret_cast<float *>(y) + first : memory.data();
        panels<Kind>(p, panel, size, sums, step);
        for (std::int64_t t = 0; t < p.tokens; t++)
            finish(sums + t * step, bias ? bias + first : nullptr, y + t * p.outputs + first, count);
        panel += 1 << size;
    }
}

template <class Kind>
void run(const Product<Kind> &p, const typename Kind::Value *bias, typename Kind::Value *y) {
    if (!p.tokens) return;
    const std::int64_t all = (p.outputs + PANEL - 1) / PANEL;
#if defined(_OPENMP)
#pragma omp parallel
    {
        const std::int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        columns<Kind>(p, bias, y, all * thread / threads, all * (thread + 1) / threads);
    }
#else
    columns<Kind>(p, bias, y, 0, all);
#endif
}

}  // namespace

extern "C" {

std::int64_t draftwise_panel() { return PANEL; }

void draftwise_linear_float32(const float *x, const float *w, const float *bias, float *y, std::int64_t tokens,
                              std::int64_t outputs, std::int64_t inputs) {
    run<Float32>({x, w, tokens, outputs, inputs}, bias, y);
}

void draftwise_linear_widened(const float *x, const Half *w, const float *bias, float *y, std::int64_t tokens,
                              std::int64_t outputs, std::int64_t inputs) {
    run<Widened>({x, w, tokens, outputs, inputs}, bias, y);
}

// Nothing where the processor has no such numbers: a check finds that out before the kernel is used.
void draftwise_linear_widened_float16(const float *x, const Half *w, const float *bias, float *y,
                                      std::int64_t tokens, std::int64_t outputs, std::int64_t inputs) {
#if defined(DRAFTWISE_FLOAT16)
    run<WidenedFloat16>({x, w, tokens, outputs, inputs}, bias, y);
#endif
}

void draftwise_linear_4_bits(const float *x, const std::int32_t *w, const float *bias, float *y,
                             std::int64_t tokens, std::int64_t outputs, std::int64_t inputs) {
    run<Quantised<4>>({x, w, tokens, outputs, inputs}, bias, y);
}

void draftwise_linear_8_bits(const float *x, const std::int32_t *w, const float *bias, float *y,
                             std::int64_t tokens, std::int64_t outputs, std::int64_t inputs) {
    run<Quantised<8>>({x, w, tokens, outputs, inputs}, bias, y);
}

void draftwise_linear_bfloat16(const Half *x, const Half *w, const Half *bias,
                               Half *y, std::int64_t tokens, std::int64_t outputs, std::int64_t inputs) {
    run<BFloat16>({x, w, tokens, outputs, inputs}, bias, y);
}
}
