// The counting suffix automaton of ../automaton.py, step for step: the same states, counts and choices.
//
// States and edges are numbers in the order in which they were made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "table.h"

constexpr int32_t NOTHING = -1, ROOT = 0;

struct State {
    int32_t link = NOTHING, length = 0, count = 0, follows = 0;
    int32_t best = NOTHING;                   // the edge that was followed most often
    int32_t first = NOTHING, last = NOTHING;  // its edges, the oldest first
};

struct Edge {
    int32_t token, to, next;  // the next edge of the same state
};

struct Walks {
    int32_t tries;
    double factor, offset, least;
};

struct Path {
    double score = 0.0;
    std::vector<int32_t> contexts;
};

struct Automaton {
    int64_t size = 0;
    int32_t depth, deepest = ROOT, span = 0, match = 0, last = ROOT;
    std::vector<State> states = std::vector<State>(1);
    std::vector<Edge> edges;
    Table table;

    explicit Automaton(int32_t depth) : depth(depth) {}

    static uint64_t key(int32_t state, int32_t token) { return uint64_t(uint32_t(state)) << 32 | uint32_t(token); }

    int32_t edge(int32_t state, int32_t token) {
        const State &one = states[state];
        if (one.first == one.last)  // most states have one edge
            return one.first != NOTHING && edges[one.first].token == token ? one.first : NOTHING;
        const int32_t *found = table.find(key(state, token));
        return found ? *found : NOTHING;
    }

    int32_t connect(int32_t state, int32_t token, int32_t to) {
        const int32_t made = int32_t(edges.size());
        edges.push_back({token, to, NOTHING});
        State &one = states[state];
        if (one.first == NOTHING) {
            one.first = made;
        } else {
            if (one.first == one.last) table.add(key(state, edges[one.first].token), one.first);
            table.add(key(state, token), made);
            edges[one.last].next = made;
        }
        one.last = made;
        return made;
    }

    int32_t make(int32_t length) {
        states.emplace_back();
        states.back().length = length;
        return int32_t(states.size()) - 1;
    }

    void append(int32_t token) {
        ++size;
        const int32_t known = edge(last, token);
        if (known != NOTHING) {  // the text so far occurred before, followed by this token
            last = direct(last, token, edges[known].to);
            return;
        }
        const int32_t made = make(states[last].length + 1);
        int32_t before = last;
        last = made;
        while (before != NOTHING && edge(before, token) == NOTHING) {
            connect(before, token, made);
            before = states[before].link;
        }
        const int32_t link = before == NOTHING ? ROOT : direct(before, token, edges[edge(before, token)].to);
        states[made].link = link;
    }

    // The state after this token, without substrings that do not end where it does.
    int32_t direct(int32_t before, int32_t token, int32_t state) {
        return states[state].length == states[before].length + 1 ? state : split(before, token, state);
    }

    int32_t split(int32_t before, int32_t token, int32_t state) {
        const int32_t clone = make(states[before].length + 1);
        for (int32_t e = states[state].first; e != NOTHING; e = edges[e].next) {
            const int32_t copy = connect(clone, edges[e].token, edges[e].to);
            if (e == states[state].best) states[clone].best = copy;
        }
        states[clone].link = states[state].link;
        states[state].link = clone;
        states[clone].count = states[state].count;
        states[clone].follows = states[state].follows;
        for (int32_t e; before != NOTHING; before = states[before].link) {
            if ((e = edge(before, token)) == NOTHING || edges[e].to != state) break;
            edges[e].to = clone;
        }
        return clone;
    }

    // Count `token` after every context of up to `depth` tokens that precedes it.
    void score(int32_t token) {
        const int32_t after = edges[edge(deepest, token)].to;
        int32_t counted = NOTHING;
        for (int32_t context = deepest; context != NOTHING; context = states[context].link) {
            const int32_t e = edge(context, token), state = edges[e].to;
            State &one = states[context];
            if (state != counted) ++states[counted = state].count;
            ++one.follows;
            if (one.best != e && (one.best == NOTHING || states[state].count >= states[edges[one.best].to].count))
                one.best = e;
        }
        span = std::min(span + 1, depth);
        deepest = shorten(after, span);
    }

    // The state of the last `span` tokens of a substring of `state`.
    int32_t shorten(int32_t state, int32_t span) const {
        while (state && states[states[state].link].length >= span) state = states[state].link;
        return state;
    }

    void extend(const int32_t *tokens, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            append(tokens[i]);
            score(tokens[i]);
        }
        match = last ? states[states[last].link].length : 0;
    }

    void begin() {
        last = deepest = ROOT;
        span = match = 0;
    }

    // Follow another text through this index.
    void step(int32_t &state, int32_t &span, int32_t token) {
        int32_t e;
        while ((e = edge(state, token)) == NOTHING) {
            if ((state = states[state].link) == NOTHING) {
                state = ROOT;
                span = 0;
                return;
            }
            span = states[state].length;
        }
        span = std::min(span + 1, depth);
        state = shorten(edges[e].to, span);
    }

    // The longest suffix that was followed by a token, of a text that ends with `span` tokens of `state`.
    void followed(int32_t &state, int32_t &span) const {
        while (state && !states[state].follows) {
            state = states[state].link;
            span = states[state].length;
        }
    }

    // The best of the walks from the first `tries` contexts; of equals, the first.
    Path best_walk(int32_t state, int32_t span, int32_t length, const Walks &walks) const {
        Path best;
        for (int32_t k = 0; k < walks.tries; ++k) {
            followed(state, span);
            if (!state) break;
            const double most = std::min(double(length), walks.factor * span + walks.offset);
            Path path = walk(state, int64_t(most), walks.least);
            if (!k || path.score > best.score) best = std::move(path);
            state = states[state].link;
            span = states[state].length;
        }
        return best;
    }

    Path walk(int32_t state, int64_t most, double least) const {
        Path path;
        double joint = 1.0;
        while (int64_t(path.contexts.size()) < most) {
            while (state && !states[state].follows) state = states[state].link;
            if (!state) break;
            const int32_t after = edges[states[state].best].to;
            joint *= double(states[after].count) / double(states[state].follows);
            if (joint < least) break;
            path.score += joint;
            path.contexts.push_back(state);
            state = states[states[after].link].length >= depth ? states[after].link : after;
        }
        return path;
    }
};
