// What a caller holds to compute with: threads, the instruction set in use, and memory for a product's inputs.
// One thread at a time may compute with one `Compute`.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "pool.h"
#include "processor.h"

namespace plimsoll {

struct FreeMemory {
    void operator()(void* memory) const { std::free(memory); }
};

using Bytes = std::unique_ptr<unsigned char, FreeMemory>;

// Memory that starts a cache line. Throws std::bad_alloc.
inline Bytes allocate(size_t num_bytes) {
    void* memory = std::aligned_alloc(64, (num_bytes + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    return Bytes(static_cast<unsigned char*>(memory));
}

struct Compute {
    Compute(int num_threads, InstructionSet set) : pool(num_threads), instructions(set) {}

    Pool pool;
    const InstructionSet instructions;

    // Scratch that grows; what it held is lost when it does.
    unsigned char* scratch(size_t num_bytes) {
        if (num_bytes > scratch_bytes_) {
            scratch_ = allocate(num_bytes);
            scratch_bytes_ = num_bytes;
        }
        return scratch_.get();
    }

private:
    Bytes scratch_;
    size_t scratch_bytes_ = 0;
};

}  // namespace plimsoll
