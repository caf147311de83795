// Many fp32 tensors into one flat fp32 buffer, and back.
//
// Each element is computed as IEEE single precision prescribes, one rounding an operation and nothing fused:
// the weighted element is rounded, then added and rounded again. So the bits are those of `flat += w * t` in
// torch or numpy on any processor and with any instruction set, except for the payload of a NaN.
#pragma once

#include <cstddef>
#include <vector>

namespace godmw {

// The elements [offset, offset + size) of the flat buffer, and the tensor that belongs there.
template <class T>
struct Piece {
    T* data;
    std::size_t size;
    std::size_t offset;
};

// The flat buffer, in elements.
struct Flat {
    float* data;
    std::size_t size;
};

// Throws std::invalid_argument, naming the piece, unless every piece lies within the buffer, no two pieces
// share an element of it, and no tensor lies in its memory.
template <class T>
void check(const Flat& flat, const std::vector<Piece<T>>& pieces);

// flat[piece] = weight * tensor, or flat[piece] += weight * tensor.
void pack(const Flat& flat, const std::vector<Piece<const float>>& pieces, float weight, bool accumulate);

// tensor = flat[piece] / divisor.
void unpack(const Flat& flat, const std::vector<Piece<float>>& pieces, float divisor);

}  // namespace godmw
