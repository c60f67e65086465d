// Scaled dot-product attention of a few tokens over many keys, of float32 or bfloat16; scores, weights and sums are
// float32. Several heads may share the keys and values of one.
//
// A token's sums run over the keys in their order, a segment of them at a time, whatever other tokens are in the
// pass; a key that its mask hides adds 0, so that the last ones of a segment, which all tokens of a tile do not see,
// need not be read. A result does not depend on the other tokens, nor on the number of threads.

#include <algorithm>
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

constexpr int MOST = 6;  // tokens whose sums are in registers
constexpr std::int64_t SEGMENT = 256;  // keys whose sums are one: they stay in a core's cache for all tokens
constexpr std::int64_t STRIP = 64;  // tokens that a thread works on at a time
constexpr std::int64_t SHARED = 1 << 20;  // floats of results up to which all threads share the segments
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

// The tokens that attend to the keys of one head, numbered query head by query head.
template <class Element>
struct Head {
    const Attention &a;
    std::int64_t row, shared;

    std::int64_t head(std::int64_t t) const { return shared * a.groups + t / a.width; }
    std::int64_t token(std::int64_t t) const { return t % a.width; }
    const Element *query(std::int64_t t) const {
        const std::int64_t *step = a.query_step;
        return static_cast<const Element *>(a.query) + row * step[0] + head(t) * step[1] + token(t) * step[2];
    }
    const Element *mask(std::int64_t t) const {
        return static_cast<const Element *>(a.mask) + row * a.mask_step[0] + token(t) * a.mask_step[1];
    }
    const Element *keys() const { return static_cast<const Element *>(a.key) + row * a.key_step[0] + shared * a.key_step[1]; }
    const Element *values() const {
        return static_cast<const Element *>(a.value) + row * a.value_step[0] + shared * a.value_step[1];
    }
    Element *out(std::int64_t t) const {
        return static_cast<Element *>(a.out) + ((row * a.width + token(t)) * a.shared * a.groups + head(t)) * a.value_size;
    }
};

inline float single(float value) { return value; }
inline float single(Half value) { return wide(value); }

// Some tokens of a head, in tiles.
template <class Element>
struct Strip {
    Head<Element> head;
    std::int64_t from, to;

    std::int64_t count() const { return to - from; }
    std::int64_t tiles() const { return (count() + MOST - 1) / MOST; }
    std::int64_t begin(std::int64_t tile) const { return from + count() * tile / tiles(); }

    // How many keys of the segment that begins at `first`, up to the last that any token of a tile sees.
    std::int64_t seen(std::int64_t tile, std::int64_t first) const {
        std::int64_t most = 0;
        for (std::int64_t t = begin(tile); t < begin(tile + 1); t++) {
            const Element *mask = head.mask(t) + first;
            std::int64_t mine = std::min(SEGMENT, head.a.total - first);
            while (mine > most && single(mask[mine - 1]) <= HIDDEN) mine--;
            most = std::max(most, mine);
        }
        return most;
    }
};

template <int SIZE>
inline Vector product(const float *query, const float *key, std::int64_t size) {
    Vector sum = load(query) * load(key);
    for (std::int64_t d = LANES; d < (SIZE ? SIZE : size); d += LANES) sum += load(query + d) * load(key + d);
    return sum;
}

// The products of a query with LANES keys; SIZE is that of their vectors, if it is known.
template <int SIZE, class Key, int... I>
inline Vector products(const float *query, Key key, std::int64_t size, std::integer_sequence<int, I...>) {
    Vector sums[LANES] = {product<SIZE>(query, key(I), size)...};
    return totals(sums);
}

// The scores of a strip's tokens, SEGMENT apart, for the keys from `first` on.
template <class Element, int SIZE>
void score(const Strip<Element> &strip, std::int64_t first, std::int64_t last, float *scores, float *queries) {
    const Attention &a = strip.head.a;
    const std::int64_t size = SIZE ? SIZE : a.key_size;
    float *widened = queries + STRIP * size;
    for (std::int64_t t = 0; t < strip.count(); t++)
        for (std::int64_t d = 0; d < size; d += LANES)
            store(queries + t * size + d, load(strip.head.query(strip.from + t) + d));
    for (std::int64_t j = first; j < last; j += LANES) {
        const Element *keys = strip.head.keys() + j * a.key_step[2];
        const std::int64_t most = last - 1 - j;  // the last key again where there are no more
        const auto all = [&](auto key) {
            for (std::int64_t t = 0; t < strip.count(); t++)
                store(scores + t * SEGMENT + j - first,
                      products<SIZE>(queries + t * size, key, size, std::make_integer_sequence<int, LANES>{}) * a.scale);
        };
        if constexpr (sizeof(Element) < sizeof(float)) {  // widened once for all tokens
            for (int i = 0; i < LANES; i++)
                for (std::int64_t d = 0; d < size; d += LANES)
                    store(widened + i * size + d, load(keys + std::min<std::int64_t>(i, most) * a.key_step[2] + d));
            all([&](int i) { return widened + i * size; });
        } else
            all([&](int i) { return keys + std::min<std::int64_t>(i, most) * a.key_step[2]; });
    }
}

// Turns a token's scores into weights, with their highest and their sum.
template <class Element>
void weigh(const Element *mask, float *scores, std::int64_t count, float *top, float *sum) {
    const std::int64_t room = (count + LANES - 1) / LANES * LANES;
    Vector tops = Vector{} - INFINITY, sums = {};
    std::int64_t j = 0;
    for (; j + LANES <= count; j += LANES) {
        const Vector x = load(scores + j) + load(mask + j);
        store(scores + j, x);
        tops = x > tops ? x : tops;
    }
    *top = -INFINITY;
    for (int i = 0; i < LANES; i++) *top = std::max(*top, tops[i]);
    for (; j < count; j++) {
        scores[j] += single(mask[j]);
        *top = std::max(*top, scores[j]);
    }
    for (; j < room; j++) scores[j] = -INFINITY;
    const float highest = *top == -INFINITY ? 0 : *top;  // everything is hidden: all weights are 0
    for (j = 0; j < room; j += LANES) {
        const Vector x = exponential(load(scores + j) - highest);
        store(scores + j, x);
        sums += x;
    }
    *sum = total(sums);
}

// The sums of a segment's values, by the weights of some tokens: PARTS registers of each.
template <class Element, int TOKENS, int PARTS>
void mix(const Element *values, std::int64_t step, std::int64_t count, const float *weights, float *results,
         std::int64_t size) {
    Vector sums[TOKENS][PARTS] = {};
    for (std::int64_t j = 0; j < count; j++) {
        Vector value[PARTS];
        for (int p = 0; p < PARTS; p++) value[p] = load(values + j * step + p * LANES);
        for (int t = 0; t < TOKENS; t++) {
            const float weight = weights[t * SEGMENT + j];
            for (int p = 0; p < PARTS; p++) sums[t][p] += weight * value[p];
        }
    }
    for (int t = 0; t < TOKENS; t++)
        for (int p = 0; p < PARTS; p++) store(results + t * size + p * LANES, sums[t][p]);
}

template <class Element, int TOKENS>
void mix_all(const Attention &a, const Element *values, std::int64_t count, const float *weights, float *results) {
    constexpr int PARTS = SUMS / TOKENS >= 4 ? 4 : SUMS / TOKENS >= 2 ? 2 : 1;
    const std::int64_t step = a.value_step[2], size = a.value_size + 2;
    std::int64_t d = 0;
    for (; d + PARTS * LANES <= a.value_size; d += PARTS * LANES)
        mix<Element, TOKENS, PARTS>(values + d, step, count, weights, results + d, size);
    for (; d < a.value_size; d += LANES) mix<Element, TOKENS, 1>(values + d, step, count, weights, results + d, size);
}

template <class Element>
constexpr void (*MIX[MOST])(const Attention &, const Element *, std::int64_t, const float *, float *) = {
    mix_all<Element, 1>, mix_all<Element, 2>, mix_all<Element, 3>,
    mix_all<Element, 4>, mix_all<Element, 5>, mix_all<Element, 6>};

// What no key has shown of a token.
inline void clear(float *result, std::int64_t size) {
    std::fill(result, result + size + 2, 0.0f);
    result[size] = -INFINITY;
}

// What a segment of keys adds to each of a strip's tokens: a sum of values, the highest score, the sum of weights.
template <class Element>
void attend(const Strip<Element> &strip, std::int64_t first, float *results) {
    const Attention &a = strip.head.a;
    static thread_local std::vector<float> memory;
    const std::size_t size = (STRIP + LANES) * a.key_size + STRIP * SEGMENT;
    if (memory.size() < size) memory.resize(size);
    float *scores = memory.data(), *queries = scores + STRIP * SEGMENT;
    std::int64_t counts[STRIP], most = 0;
    for (std::int64_t tile = 0; tile < strip.tiles(); tile++) most = std::max(most, counts[tile] = strip.seen(tile, first));
    const auto scoring = a.key_size == 64    ? score<Element, 64>
                         : a.key_size == 96  ? score<Element, 96>
                         : a.key_size == 128 ? score<Element, 128>
                                             : score<Element, 0>;
    scoring(strip, first, first + most, scores, queries);
    for (std::int64_t tile = 0; tile < strip.tiles(); tile++) {
        const std::int64_t from = strip.begin(tile) - strip.from, to = strip.begin(tile + 1) - strip.from;
        for (std::int64_t t = from; t < to; t++) {
            float *result = results + t * (a.value_size + 2), *top = result + a.value_size;
            clear(result, a.value_size);
            if (counts[tile] > 0)
                weigh(strip.head.mask(strip.from + t) + first, scores + t * SEGMENT, counts[tile], top, top + 1);
        }
        if (counts[tile] > 0)
            MIX<Element>[to - from - 1](a, strip.head.values() + first * a.value_step[2], counts[tile], scores + from * SEGMENT,
                                        results + from * (a.value_size + 2));
    }
}

inline float power(float x) { return exponential(Vector{} + x)[0]; }

// Adds what a segment has shown to what those before it have.
inline void merge(float *result, const float *more, std::int64_t size) {
    if (more[size + 1] == 0) return;  // everything is hidden
    const float top = std::max(result[size], more[size]);
    const float old = power(result[size] - top), young = power(more[size] - top);
    for (std::int64_t d = 0; d < size; d += LANES) store(result + d, load(result + d) * old + load(more + d) * young);
    result[size] = top;
    result[size + 1] = result[size + 1] * old + more[size + 1] * young;
}

template <class Element>
void finish(const Head<Element> &head, std::int64_t t, const float *result) {
    const std::int64_t size = head.a.value_size;
    const float share = result[size + 1] == 0 ? 0 : 1 / result[size + 1];
    for (std::int64_t d = 0; d < size; d += LANES) store(head.out(t) + d, load(result + d) * share);
}

// A thread's share of the units 0, 1, ... `count`.
struct Range {
    std::int64_t first, last;
    Range(std::int64_t count, std::int64_t thread, std::int64_t threads)
        : first(count * thread / threads), last(count * (thread + 1) / threads) {}
};

// Threads share the segments of all heads, whose `results` they then merge.
template <class Element>
void together(const Attention &a, float *results, std::int64_t thread, std::int64_t threads) {
    const std::int64_t tokens = a.width * a.groups, heads = a.rows * a.shared, segments = (a.total + SEGMENT - 1) / SEGMENT;
    const std::int64_t size = a.value_size + 2;
    const auto head = [&](std::int64_t h) { return Head<Element>{a, h / a.shared, h % a.shared}; };
    const Range mine(heads * segments, thread, threads);
    for (std::int64_t u = mine.first; u < mine.last; u++)
        attend(Strip<Element>{head(u / segments), 0, tokens}, u % segments * SEGMENT, results + u * tokens * size);
#pragma omp barrier
    const Range merged(heads * tokens, thread, threads);
    for (std::int64_t u = merged.first; u < merged.last; u++) {
        float *result = results + (u / tokens * segments * tokens + u % tokens) * size;
        for (std::int64_t i = 1; i < segments; i++) merge(result, result + i * tokens * size, a.value_size);
        finish(head(u / tokens), u % tokens, result);
    }
}

// Each thread works on some tokens of some heads alone.
template <class Element>
void alone(const Attention &a, std::int64_t thread, std::int64_t threads) {
    const std::int64_t tokens = a.width * a.groups, strips = (tokens + STRIP - 1) / STRIP, size = a.value_size + 2;
    static thread_local std::vector<float> memory;
    if (memory.size() < static_cast<std::size_t>(2 * STRIP * size)) memory.resize(2 * STRIP * size);
    float *results = memory.data(), *more = results + STRIP * size;
    const Range mine(a.rows * a.shared * strips, thread, threads);
    for (std::int64_t u = mine.first; u < mine.last; u++) {
        const std::int64_t i = u % strips, h = u / strips;
        const Strip<Element> strip{{a, h / a.shared, h % a.shared}, tokens * i / strips, tokens * (i + 1) / strips};
        for (std::int64_t t = 0; t < strip.count(); t++) clear(results + t * size, a.value_size);
        for (std::int64_t first = 0; first < a.total; first += SEGMENT) {
            attend(strip, first, more);
            for (std::int64_t t = 0; t < strip.count(); t++) merge(results + t * size, more + t * size, a.value_size);
        }
        for (std::int64_t t = 0; t < strip.count(); t++) finish(strip.head, strip.from + t, results + t * size);
    }
}

template <class Element>
void run(const Attention &a) {
    if (!a.rows || !a.width || !a.total) return;
    const std::int64_t tokens = a.width * a.groups, segments = (a.total + SEGMENT - 1) / SEGMENT;
    const std::int64_t size = a.rows * a.shared * tokens * segments * (a.value_size + 2);
    const bool shared = tokens <= STRIP && size <= SHARED;
    static thread_local std::vector<float> memory;
    if (shared && memory.size() < static_cast<std::size_t>(size)) memory.resize(size);
    float *results = memory.data();
    int thread = 0, threads = 1;
#pragma omp parallel firstprivate(thread, threads)
    {
#if defined(_OPENMP)
        thread = omp_get_thread_num(), threads = omp_get_num_threads();
#endif
        if (shared)
            together<Element>(a, results, thread, threads);
        else
            alone<Element>(a, thread, threads);
    }
}

}  // namespace

extern "C" void draftwise_attention(const Attention *a) {
    if (a->half)
        run<Half>(*a);
    else
        run<float>(*a);
}
