// y = x W^T + b for float32 weights that lie in panels of sixteen outputs: (outputs / 16, inputs, 16), the last
// panel filled up with zeros.
//
// A sum runs over the inputs in their order, in one accumulator for each output. So the result for a token does
// not depend on how many tokens are multiplied together, nor on the number of threads. Many tokens are multiplied
// by a block of inputs after the other, whose weights stay in the cache; between two blocks the sums are in y.

#include <cstdint>
#include <cstring>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

constexpr int PANEL = 16;
constexpr std::int64_t BLOCK = 512;  // inputs

// Floats of a vector register, and how many panels times tokens the registers hold beside weights and inputs.
#if defined(__AVX512F__)
constexpr int LANES = 16, HELD = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, HELD = 6;
#elif defined(__aarch64__)
constexpr int LANES = 4, HELD = 6;
#else
constexpr int LANES = 4, HELD = 2;
#endif

constexpr int PARTS = PANEL / LANES;
constexpr int MOST = HELD < 6 ? HELD : 6;  // tokens at a time
constexpr int WIDEST = HELD < 4 ? HELD : 4;  // panels at a time

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere in memory

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
                for (int part = 0; part < PARTS; part++) sums[t][q][part] = *(const Loose *)(found + part * LANES);
            }
    for (std::int64_t i = at.from; i < at.to; i++) {
        Vector weights[PANELS][PARTS];
        for (int q = 0; q < PANELS; q++)
            for (int part = 0; part < PARTS; part++)
                weights[q][part] = *(const Loose *)(w + (q * p.inputs + i) * PANEL + part * LANES);
        for (int t = 0; t < TOKENS; t++) {
            const float input = x[t * p.inputs + i];
            for (int q = 0; q < PANELS; q++)
                for (int part = 0; part < PARTS; part++) sums[t][q][part] += input * weights[q][part];
        }
    }
    for (int t = 0; t < TOKENS; t++)
        for (int q = 0; q < PANELS; q++) {
            for (int part = 0; part < PARTS; part++) *(Loose *)(found + part * LANES) = sums[t][q][part];
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

constexpr const Tile *TILES[6] = {Row<1>::tiles, Row<2>::tiles, Row<3>::tiles,
                                  Row<4>::tiles, Row<5>::tiles, Row<6>::tiles};

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

extern "C" {

void draftwise_panels(const float *x, const float *w, const float *bias, float *y, std::int64_t tokens,
                      std::int64_t outputs, std::int64_t inputs) {
    if (tokens > 0) run(Product{x, w, bias, y, tokens, outputs, inputs});
}

// What a graph of TorchInductor calls, by the functions that PyTorch keeps stable for such graphs.
struct AtenTensorOpaque;
using Tensor = AtenTensorOpaque *;
std::int32_t aoti_torch_get_data_ptr(Tensor, void **);
std::int32_t aoti_torch_get_dim(Tensor, std::int64_t *);
std::int32_t aoti_torch_get_sizes(Tensor, std::int64_t **);
std::int32_t aoti_torch_empty_strided(std::int64_t, const std::int64_t *, const std::int64_t *, std::int32_t,
                                      std::int32_t, std::int32_t, Tensor *);
std::int32_t aoti_torch_dtype_float32();
std::int32_t aoti_torch_device_type_cpu();

std::int32_t aoti_torch_cpu_panel_linear(Tensor x, Tensor packed, Tensor shape, Tensor *bias, Tensor *result) {
    std::int64_t dim, *sizes, *wanted, made[8], strides[8], tokens = 1;
    void *pointers[4] = {};
    if (aoti_torch_get_dim(x, &dim) || dim > 8 || aoti_torch_get_sizes(x, &sizes)) return 1;
    if (aoti_torch_get_sizes(shape, &wanted)) return 1;
    for (std::int64_t i = 0; i < dim; i++) made[i] = i + 1 < dim ? sizes[i] : wanted[0];
    for (std::int64_t i = dim - 1, stride = 1; i >= 0; stride *= made[i--]) strides[i] = stride;
    for (std::int64_t i = 0; i + 1 < dim; i++) tokens *= sizes[i];
    if (aoti_torch_empty_strided(dim, made, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0,
                                 result))
        return 1;
    if (aoti_torch_get_data_ptr(x, &pointers[0]) || aoti_torch_get_data_ptr(packed, &pointers[1])) return 1;
    if (bias && aoti_torch_get_data_ptr(*bias, &pointers[2])) return 1;
    if (aoti_torch_get_data_ptr(*result, &pointers[3])) return 1;
    draftwise_panels(static_cast<float *>(pointers[0]), static_cast<float *>(pointers[1]),
                     static_cast<float *>(pointers[2]), static_cast<float *>(pointers[3]), tokens, wanted[0],
                     wanted[1]);
    return 0;
}
}
