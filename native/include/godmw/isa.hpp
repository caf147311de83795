// The loops over elements, once for every instruction set, and the choice among them.
//
// All sets give the same bits; they differ in speed alone.
#pragma once

#include <cstddef>

namespace godmw {

// `out` and `in` do not overlap and hold n elements.
struct Loops {
    const char* isa;
    void (*scale)(float* out, const float* in, std::size_t n, float weight);       // out = weight * in
    void (*add_scaled)(float* out, const float* in, std::size_t n, float weight);  // out += weight * in
    void (*divide)(float* out, const float* in, std::size_t n, float divisor);     // out = in / divisor
};

extern const Loops loops_portable;
extern const Loops loops_avx2;
extern const Loops loops_avx512;

// The loops in use; at first the best that this processor has.
const Loops& loops();

// Use the best loops that this processor has and that are not above `limit` ("portable", "avx2", "avx512").
// False if there is no such limit.
bool limit_isa(const char* limit);

}  // namespace godmw
