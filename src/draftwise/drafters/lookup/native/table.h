// A hash table with open addressing from 64-bit keys, of which none is EMPTY, to 32-bit values.
#pragma once

#include <cstdint>
#include <vector>

constexpr uint64_t EMPTY = ~uint64_t(0);

inline uint64_t mixed(uint64_t key) {  // the finaliser of MurmurHash3
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdULL;
    key ^= key >> 33;
    key *= 0xc4ceb9fe1a85ec53ULL;
    return key ^ key >> 33;
}

class Table {
  public:
    // Where the value of a key is, which must not be kept: nullptr if it is not there.
    int32_t *find(uint64_t key) {
        Slot &slot = slots[place(key)];
        return slot.key == EMPTY ? nullptr : &slot.value;
    }

    // Add a key that is not there yet.
    void add(uint64_t key, int32_t value) {
        if (2 * (held + 1) > slots.size()) grow();
        slots[place(key)] = {key, value};
        ++held;
    }

  private:
    struct Slot {
        uint64_t key;
        int32_t value;
    };
    std::vector<Slot> slots = std::vector<Slot>(64, Slot{EMPTY, 0});
    size_t held = 0;

    size_t place(uint64_t key) const {
        const size_t mask = slots.size() - 1;
        size_t at = mixed(key) & mask;
        while (slots[at].key != EMPTY && slots[at].key != key) at = (at + 1) & mask;
        return at;
    }

    void grow() {
        std::vector<Slot> before(2 * slots.size(), Slot{EMPTY, 0});
        before.swap(slots);
        for (const Slot &slot : before)
            if (slot.key != EMPTY) slots[place(slot.key)] = slot;
    }
};
