// The C functions for compute, matrices and the decoder: what Python calls through ctypes. Nothing is thrown across them;
// a null handle is a failure. Sizes are checked on the Python side, in kernels/native_library.py and
// models/native_decoder.py. PLIMSOLL_SOURCE_HASH comes from build.py.
#include <exception>
#include <new>

#include "decoder.h"
#include "matrix.h"

using namespace plimsoll;

extern "C" {

const char* plimsoll_source_hash() { return PLIMSOLL_SOURCE_HASH; }

int plimsoll_num_instruction_sets() { return NUM_INSTRUCTION_SETS; }

const char* plimsoll_instruction_set_name(int set) { return name_of(static_cast<InstructionSet>(set)); }

int plimsoll_can_use(int set) { return is_usable(static_cast<InstructionSet>(set)) ? 1 : 0; }

Compute* plimsoll_open(int num_threads, int set) {
    try {
        return new Compute(num_threads, static_cast<InstructionSet>(set));
    } catch (const std::exception&) {
        return nullptr;
    }
}

void plimsoll_close(Compute* compute) { delete compute; }

int plimsoll_num_threads(const Compute* compute) { return compute->pool.num_threads(); }

Matrix* plimsoll_pack(Compute* compute, const char* storage, int64_t num_rows, int64_t num_columns,
                      const uint8_t* stored) {
    const Format* format = find_format(storage);
    if (format == nullptr) return nullptr;
    try {
        return pack_matrix(*compute, *format, num_rows, num_columns, stored);
    } catch (const std::exception&) {
        return nullptr;
    }
}

int plimsoll_pack_into(Compute* compute, const char* storage, int64_t num_rows, int64_t num_columns,
                       const uint8_t* stored, uint8_t* panels) {
    const Format* format = find_format(storage);
    if (format == nullptr) return 1;
    pack_panels(*compute, Matrix{format, num_rows, num_columns, nullptr, nullptr}, stored, panels);
    return 0;
}

Matrix* plimsoll_view(const char* storage, int64_t num_rows, int64_t num_columns, const uint8_t* panels) {
    const Format* format = find_format(storage);
    return format == nullptr ? nullptr : new (std::nothrow) Matrix{format, num_rows, num_columns, panels, nullptr};
}

void plimsoll_free(Matrix* matrix) { delete matrix; }

int64_t plimsoll_matrix_bytes(const Matrix* matrix) { return matrix->num_bytes(); }

int plimsoll_multiply(Compute* compute, const Matrix* matrix, const float* input, int64_t num_tokens, float* output) {
    try {
        multiply(*compute, *matrix, input, num_tokens, output, matrix->num_rows);
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}

void plimsoll_take_rows(Compute* compute, const Matrix* matrix, const int64_t* rows, int64_t num_taken,
                        float* output) {
    take_rows(*compute, *matrix, rows, num_taken, output);
}

int plimsoll_forward(Compute* compute, const Decoder* decoder, const DecoderStep* step) {
    try {
        forward(*compute, *decoder, *step);
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}

int plimsoll_attend(Compute* compute, const Decoder* decoder, const DecoderStep* step, int64_t layer,
                    const float* queries, float* output) {
    try {
        attend(*compute, *decoder, *step, layer, queries, output);
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}

}  // extern "C"
