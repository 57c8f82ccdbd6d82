// The instruction sets that the library has code for, and which of them this processor (and its system) can run.
#pragma once

namespace plimsoll {

// In order of preference, the last one first.
enum class InstructionSet { generic, avx2, avx_vnni, avx512_vnni };

constexpr int NUM_INSTRUCTION_SETS = 4;

const char* name_of(InstructionSet set);
bool is_usable(InstructionSet set);
InstructionSet best_instruction_set();

}  // namespace plimsoll
