// The index of n-grams of ../ngrams.py, step for step: the same matches, counts and continuations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "table.h"

constexpr int64_t LOOKED = 32;  // tokens of a match that are counted at most

struct Undone {  // what an n-gram's place was before
    size_t order, slot;
    int32_t place;
};

// Positions after the latest occurrence of each n-gram of one length. Position 0 is a free slot.
struct Places {
    std::vector<int32_t> slots = std::vector<int32_t>(64);
    size_t held = 0;
};

struct Ngrams {
    int32_t shortest, longest, match = 0, length = 0;
    int64_t source = 0;  // the position after the matched n-gram's earlier occurrence
    std::vector<int32_t> tokens;
    std::vector<int64_t> matches, tries;
    std::vector<Places> orders;    // by n
    std::vector<uint64_t> hashes;  // of the n-grams at the end, by n

    Ngrams(int32_t shortest, int32_t longest)
        : shortest(shortest), longest(longest), matches(size_t(longest) + 1, 1), tries(matches.size(), 2),
          orders(matches.size()), hashes(matches.size()) {}

    // Hashes of the n-grams at this end of a text that has `n` tokens there; returns the longest.
    int32_t hash(const int32_t *end, int64_t n) {
        const int32_t most = int32_t(std::min<int64_t>(longest, n));
        for (int32_t k = 1; k <= most; ++k) hashes[k] = mixed(hashes[k - 1] * 31 + uint32_t(end[-k]) + 1);
        return most;
    }

    // The slot of the n-gram before `end`, or the free one where it belongs.
    size_t slot(const Places &places, int32_t n, uint64_t hash, const int32_t *end) const {
        const size_t mask = places.slots.size() - 1;
        size_t at = hash & mask;
        while (places.slots[at] && !std::equal(end - n, end, tokens.data() + places.slots[at] - n))
            at = (at + 1) & mask;
        return at;
    }

    void grow(Places &places, int32_t n) {
        std::vector<int32_t> before(2 * places.slots.size());
        before.swap(places.slots);
        const size_t mask = places.slots.size() - 1;
        for (const int32_t place : before) {
            if (!place) continue;
            uint64_t one = 0;
            for (int32_t k = 1; k <= n; ++k) one = mixed(one * 31 + uint32_t(tokens[place - k]) + 1);
            size_t at = one & mask;  // all are different
            while (places.slots[at]) at = (at + 1) & mask;
            places.slots[at] = place;
        }
    }

    void append(int32_t token, std::vector<Undone> *undo) {
        if (match) {
            ++tries[match];
            matches[match] += tokens[source] == token;
        }
        tokens.push_back(token);
        const int32_t after = int32_t(tokens.size());
        const int32_t *end = tokens.data() + after;
        match = 0;
        for (int32_t n = hash(end, after); n >= shortest; --n) {
            Places &places = orders[n];
            if (!undo && 2 * (places.held + 1) > places.slots.size()) grow(places, n);
            const size_t at = slot(places, n, hashes[n], end);
            if (undo)
                undo->push_back({size_t(n), at, places.slots[at]});
            else if (!places.slots[at])
                ++places.held;
            if (places.slots[at] && !match) {
                match = n;
                source = places.slots[at];
            }
            places.slots[at] = after;
        }
    }

    void extend(const int32_t *news, int64_t n) {
        for (int64_t i = 0; i < n; ++i) append(news[i], nullptr);
        length = match == longest ? common(source, tokens.data() + tokens.size(), match) : match;
    }

    // How many tokens before `source` are those before `end`; so many are known.
    int32_t common(int64_t source, const int32_t *end, int32_t known) const {
        const int64_t most = std::min(source, LOOKED);
        int64_t n = known;
        while (n < most && tokens[source - n - 1] == end[-n - 1]) ++n;
        return int32_t(n);
    }

    // The match after these tokens as well.
    int32_t matched(const int32_t *news, int64_t n) {
        const int64_t kept = std::min<int64_t>(tokens.size(), std::max<int64_t>(LOOKED, longest));
        std::vector<int32_t> tail(tokens.end() - kept, tokens.end());
        tail.insert(tail.end(), news, news + n);
        const int32_t *end = tail.data() + tail.size();
        for (int32_t k = hash(end, int64_t(tail.size())); k >= shortest; --k)
            if (const int32_t place = orders[k].slots[slot(orders[k], k, hashes[k], end)])
                return k == longest ? common(place, end, k) : k;
        return 0;
    }

    // The tokens that would follow these, with the share of matches of their length that were right.
    int32_t continuation(const int32_t *news, int64_t n, int32_t most, int32_t *out, double *right) {
        const int32_t match_before = match;
        const int64_t source_before = source;
        const std::vector<int64_t> matches_before = n ? matches : std::vector<int64_t>(), tries_before = n ? tries : matches_before;
        std::vector<Undone> undo;
        for (int32_t k = shortest; n && k <= longest; ++k)
            while (2 * (orders[k].held + size_t(n)) > orders[k].slots.size()) grow(orders[k], k);
        tokens.reserve(tokens.size() + size_t(n));
        undo.reserve(size_t(n) * size_t(longest));
        for (int64_t i = 0; i < n; ++i) append(news[i], &undo);
        if (!match) most = 0;
        const int64_t period = int64_t(tokens.size()) - source;
        for (int32_t i = 0; i < most; ++i) {
            const int32_t k = int32_t(std::min<int64_t>(int64_t(match) + i, longest));
            out[i] = tokens[source + i % period];
            right[i] = double(matches[k]) / double(tries[k]);
        }
        while (!undo.empty()) {
            const Undone &last = undo.back();
            orders[last.order].slots[last.slot] = last.place;
            undo.pop_back();
        }
        if (n) {
            tokens.resize(tokens.size() - size_t(n));
            matches = matches_before;
            tries = tries_before;
        }
        match = match_before;
        source = source_before;
        return most;
    }
};
