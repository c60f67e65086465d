// Scaled dot-product attention of a few tokens over many keys, of float32 or bfloat16; scores, weights and sums are
// float32. Several heads may share the keys and values of one.
//
// A token's sums run over the keys in their order, whatever other tokens are in the pass; a key that its mask
// hides adds 0, so that the last ones, which all tokens of a tile do not see, need not be read. A result does not
// depend on the other tokens, nor on the number of threads.

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "attention.h"
#include "vectors.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

using namespace draftwise;

constexpr int MOST = 6;  // tokens at a time
constexpr float HIDDEN = -1e30f;  // a mask of so little makes a weight of 0 beside any key that is seen

// Of two vectors, each in groups of 2 * HALF lanes: the sums of the halves of each group, those of the first
// vector before those of the second.
template <int HALF>
constexpr int lane(int i, int more) {
    return (i % (2 * HALF) < HALF ? 0 : LANES) + i / (2 * HALF) * (2 * HALF) + i % HALF + more;
}

template <int HALF, int... I>
inline Vector halved(Vector a, Vector b, std::integer_sequence<int, I...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, lane<HALF>(I, 0)...) + __builtin_shufflevector(a, b, lane<HALF>(I, HALF)...);
#else
    return __builtin_shuffle(a, b, Whole{lane<HALF>(I, 0)...}) + __builtin_shuffle(a, b, Whole{lane<HALF>(I, HALF)...});
#endif
}

// The sum of each of LANES vectors, in the lane of its number.
template <int HALF = LANES / 2>
inline Vector totals(Vector *of) {
    for (int k = 0; k < HALF; k++)
        of[k] = halved<HALF>(of[k], of[k + HALF], std::make_integer_sequence<int, LANES>{});
    if constexpr (HALF > 1)
        return totals<HALF / 2>(of);
    else
        return of[0];
}

inline float total(Vector of) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += of[i];
    return sum;
}

// e^x for x <= 0, to two units in the last place; 0 where that is below the smallest normal number.
inline Vector exponential(Vector x) {
    const Vector shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number
    const Vector power = shifted - 12582912.0f;
    const Vector rest = (x - power * 0.693145752f) - power * 1.42860677e-6f;  // ln 2 in two parts
    Vector series = rest * 1.9875691500e-4f + 1.3981999507e-3f;  // Cephes' coefficients
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    Whole bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    Vector scale;
    std::memcpy(&scale, &bits, sizeof bits);
    const Vector found = series * scale;
    std::memcpy(&bits, &found, sizeof bits);
    bits &= ~(x < -87.0f);
    std::memcpy(&scale, &bits, sizeof bits);
    return scale;
}

// Some of the tokens that attend to the keys of one head; `at` numbers them head by head.
template <class Element>
struct Tile {
    const Attention &a;
    std::int64_t row, shared, at;
    std::int64_t total, room;  // keys that are read, and scores for them
    float *scores;  // (tokens, room)
    float *queries;  // (tokens, key size)
    float *keys;  // (LANES, key size)

    std::int64_t head(int t) const { return shared * a.groups + (at + t) / a.width; }
    std::int64_t token(int t) const { return (at + t) % a.width; }
    const Element *query(int t) const {
        return static_cast<const Element *>(a.query) + row * a.query_step[0] + head(t) * a.query_step[1] + token(t) * a.query_step[2];
    }
    const Element *mask(int t) const {
        return static_cast<const Element *>(a.mask) + row * a.mask_step[0] + token(t) * a.mask_step[1];
    }
    Element *out(int t) const {
        return static_cast<Element *>(a.out) + ((row * a.width + token(t)) * a.shared * a.groups + head(t)) * a.value_size;
    }
};

// The products of a query with LANES keys.
template <class Key>
inline Vector products(const float *query, Key key, std::int64_t size) {
    Vector sums[LANES];
    for (int i = 0; i < LANES; i++) {
        const auto *at = key(i);
        sums[i] = load(query) * load(at);
        for (std::int64_t d = LANES; d < size; d += LANES) sums[i] += load(query + d) * load(at + d);
    }
    return totals(sums);
}

template <class Element, int TOKENS>
void score(const Tile<Element> &tile) {
    const Attention &a = tile.a;
    const auto *keys = static_cast<const Element *>(a.key) + tile.row * a.key_step[0] + tile.shared * a.key_step[1];
    float *queries[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        queries[t] = tile.queries + t * a.key_size;
        for (std::int64_t d = 0; d < a.key_size; d += LANES) store(queries[t] + d, load(tile.query(t) + d));
    }
    for (std::int64_t first = 0; first < tile.room; first += LANES) {
        const std::int64_t last = tile.total - 1 - first;  // the last key again where there are no more
        const auto key = [&](int i) { return keys + (first + (i < last ? i : last)) * a.key_step[2]; };
        float *scores = tile.scores + first;
        if constexpr (sizeof(Element) < sizeof(float) && TOKENS > 1) {  // widened once for all tokens
            for (int i = 0; i < LANES; i++)
                for (std::int64_t d = 0; d < a.key_size; d += LANES)
                    store(tile.keys + i * a.key_size + d, load(key(i) + d));
            for (int t = 0; t < TOKENS; t++)
                store(scores + t * tile.room,
                      products(queries[t], [&](int i) { return tile.keys + i * a.key_size; }, a.key_size) * a.scale);
        } else {
            for (int t = 0; t < TOKENS; t++)
                store(scores + t * tile.room, products(queries[t], key, a.key_size) * a.scale);
        }
    }
}

inline float single(float value) { return value; }
inline float single(Half value) { return wide(value); }

// Turns the scores of one token into weights; returns what they are to be multiplied by.
template <class Element>
float weigh(const Element *mask, float *scores, std::int64_t count, std::int64_t room) {
    Vector tops = Vector{} - INFINITY, sums = {};
    std::int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const Vector x = load(scores + j) + load(mask + j);
        store(scores + j, x);
        tops = x > tops ? x : tops;
    }
    float top = -INFINITY;
    for (int i = 0; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
    for (; j < count; j++) {
        scores[j] += single(mask[j]);
        top = scores[j] > top ? scores[j] : top;
    }
    for (; j < room; j++) scores[j] = -INFINITY;
    if (top == -INFINITY) top = 0;  // everything is hidden: all weights are 0
    for (j = 0; j < room; j += LANES) {
        const Vector x = exponential(load(scores + j) - top);
        store(scores + j, x);
        sums += x;
    }
    const float sum = total(sums);
    return sum == 0 ? 0 : 1 / sum;
}

// The values of all keys, by their weights: PARTS registers of each token's result.
template <class Element, int TOKENS, int PARTS>
void mix(const Tile<Element> &tile, std::int64_t from, const float *shares) {
    const Attention &a = tile.a;
    const auto *values =
        static_cast<const Element *>(a.value) + tile.row * a.value_step[0] + tile.shared * a.value_step[1] + from;
    Vector sums[TOKENS][PARTS] = {};
    for (std::int64_t j = 0; j < tile.total; j++) {
        Vector value[PARTS];
        for (int p = 0; p < PARTS; p++) value[p] = load(values + j * a.value_step[2] + p * LANES);
        for (int t = 0; t < TOKENS; t++) {
            const float weight = tile.scores[t * tile.room + j];
            for (int p = 0; p < PARTS; p++) sums[t][p] += weight * value[p];
        }
    }
    for (int t = 0; t < TOKENS; t++)
        for (int p = 0; p < PARTS; p++) store(tile.out(t) + from + p * LANES, sums[t][p] * shares[t]);
}

template <class Element, int TOKENS>
void attend(const Tile<Element> &tile) {
    constexpr int PARTS = SUMS / TOKENS >= 4 ? 4 : SUMS / TOKENS >= 2 ? 2 : 1;
    float shares[TOKENS];
    score<Element, TOKENS>(tile);
    for (int t = 0; t < TOKENS; t++)
        shares[t] = weigh(tile.mask(t), tile.scores + t * tile.room, tile.total, tile.room);
    std::int64_t d = 0;
    for (; d + PARTS * LANES <= tile.a.value_size; d += PARTS * LANES) mix<Element, TOKENS, PARTS>(tile, d, shares);
    for (; d < tile.a.value_size; d += LANES) mix<Element, TOKENS, 1>(tile, d, shares);
}

template <class Element>
constexpr void (*ATTEND[MOST])(const Tile<Element> &) = {attend<Element, 1>, attend<Element, 2>, attend<Element, 3>,
                                                         attend<Element, 4>, attend<Element, 5>, attend<Element, 6>};

// How many keys, up to the last that any token of a tile sees; all where one of them sees none.
template <class Element>
std::int64_t seen(const Tile<Element> &tile, int tokens) {
    std::int64_t most = 0;
    for (int t = 0; t < tokens; t++) {
        const Element *mask = tile.mask(t);
        std::int64_t mine = tile.a.total;
        while (mine && single(mask[mine - 1]) <= HIDDEN) mine--;
        if (!mine) return tile.a.total;
        most = mine > most ? mine : most;
    }
    return most;
}

// A part of all tiles: those of one head follow each other, so that its keys stay in the cache.
template <class Element>
void part(const Attention &a, std::int64_t thread, std::int64_t threads) {
    const std::int64_t tokens = a.width * a.groups, tiles = (tokens + MOST - 1) / MOST;
    const std::int64_t all = a.rows * a.shared * tiles, room = (a.total + LANES - 1) / LANES * LANES;
    static thread_local std::vector<float> memory;
    const std::size_t size = MOST * (room + a.key_size) + LANES * a.key_size;
    if (memory.size() < size) memory.resize(size);
    for (std::int64_t u = all * thread / threads; u < all * (thread + 1) / threads; u++) {
        const std::int64_t i = u % tiles, from = tokens * i / tiles, to = tokens * (i + 1) / tiles;
        float *scores = memory.data(), *queries = scores + MOST * room, *keys = queries + MOST * a.key_size;
        Tile<Element> tile{a, u / tiles / a.shared, u / tiles % a.shared, from, a.total, room, scores, queries, keys};
        tile.total = seen(tile, to - from);
        tile.room = (tile.total + LANES - 1) / LANES * LANES;
        ATTEND<Element>[to - from - 1](tile);
    }
}

template <class Element>
void run(const Attention &a) {
    if (!a.rows || !a.width || !a.total) return;
#if defined(_OPENMP)
#pragma omp parallel
    part<Element>(a, omp_get_thread_num(), omp_get_num_threads());
#else
    part<Element>(a, 0, 1);
#endif
}

}  // namespace

extern "C" void draftwise_attention(const Attention *a) {
    if (a->half)
        run<Half>(*a);
    else
        run<float>(*a);
}
