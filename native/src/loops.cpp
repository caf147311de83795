// The loops over elements, compiled once for each instruction set under the name GODMW_LOOPS.
//
// Only static functions on raw pointers and no header with inline code: a function shared with another
// object could be linked from here and then run on a processor without this instruction set.
#include "godmw/isa.hpp"

#if defined(_MSC_VER)
#define GODMW_RESTRICT __restrict
#else
#define GODMW_RESTRICT __restrict__
#endif

#define GODMW_JOIN2(a, b) a##b
#define GODMW_JOIN(a, b) GODMW_JOIN2(a, b)
#define GODMW_TEXT2(a) #a
#define GODMW_TEXT(a) GODMW_TEXT2(a)

namespace godmw {

static void scale(float* GODMW_RESTRICT out, const float* GODMW_RESTRICT in, std::size_t n, float weight) {
    for (std::size_t i = 0; i < n; ++i) out[i] = in[i] * weight;
}

static void add_scaled(float* GODMW_RESTRICT out, const float* GODMW_RESTRICT in, std::size_t n,
                       float weight) {
    for (std::size_t i = 0; i < n; ++i) out[i] = out[i] + in[i] * weight;
}

static void divide(float* GODMW_RESTRICT out, const float* GODMW_RESTRICT in, std::size_t n, float divisor) {
    for (std::size_t i = 0; i < n; ++i) out[i] = in[i] / divisor;
}

extern const Loops GODMW_JOIN(loops_, GODMW_LOOPS) = {GODMW_TEXT(GODMW_LOOPS), scale, add_scaled, divide};

}  // namespace godmw
