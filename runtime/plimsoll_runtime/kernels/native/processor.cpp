#include "processor.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace plimsoll {

namespace {

#if defined(__x86_64__)

struct Registers {
    unsigned a, b, c, d;
};

Registers ask(unsigned leaf, unsigned subleaf) {
    Registers answer{0, 0, 0, 0};
    __get_cpuid_count(leaf, subleaf, &answer.a, &answer.b, &answer.c, &answer.d);
    return answer;
}

bool has(unsigned word, int bit) { return (word >> bit & 1u) != 0; }

// Whether the system keeps these register parts over a switch of threads (XCR0).
bool system_keeps(uint64_t parts) {
    if (!has(ask(1, 0).c, 27)) return false;
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((static_cast<uint64_t>(high) << 32 | low) & parts) == parts;
}

bool has_avx2() {
    const unsigned word = ask(1, 0).c;
    return has(word, 12) && has(word, 28) && has(word, 29) && has(ask(7, 0).b, 5) && system_keeps(0x6);
}

bool has_avx_vnni() { return has_avx2() && ask(7, 0).a >= 1 && has(ask(7, 1).a, 4); }

bool has_avx512_vnni() {
    const Registers words = ask(7, 0);
    const bool has_base = has(words.b, 16) && has(words.b, 17) && has(words.b, 30) && has(words.b, 31);
    return has_avx2() && has_base && has(words.c, 11) && system_keeps(0xe6);
}

#else

bool has_avx2() { return false; }
bool has_avx_vnni() { return false; }
bool has_avx512_vnni() { return false; }

#endif

}  // namespace

const char* name_of(InstructionSet set) {
    static const char* const names[NUM_INSTRUCTION_SETS] = {"generic", "avx2", "avx_vnni", "avx512_vnni"};
    return names[static_cast<int>(set)];
}

bool is_usable(InstructionSet set) {
    switch (set) {
        case InstructionSet::generic: return true;
        case InstructionSet::avx2: return has_avx2();
        case InstructionSet::avx_vnni: return has_avx_vnni();
        case InstructionSet::avx512_vnni: return has_avx512_vnni();
    }
    return false;
}

InstructionSet best_instruction_set() {
    int best = NUM_INSTRUCTION_SETS - 1;
    while (!is_usable(static_cast<InstructionSet>(best))) best--;
    return static_cast<InstructionSet>(best);
}

}  // namespace plimsoll
