#include "layer_operations.h"

namespace plimsoll {

const LayerOperations& layer_operations_of(InstructionSet set) {
#if defined(__x86_64__)
    switch (set) {
        case InstructionSet::avx512_vnni: return avx512_layer_operations;
        case InstructionSet::avx_vnni:
        case InstructionSet::avx2: return avx2_layer_operations;
        case InstructionSet::generic: break;
    }
#else
    static_cast<void>(set);
#endif
    return generic_layer_operations;
}

}  // namespace plimsoll
