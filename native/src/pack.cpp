#include "godmw/pack.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>

#include "godmw/isa.hpp"

namespace godmw {

namespace {

std::string name(std::size_t index) { return "tensor " + std::to_string(index); }

template <class T>
std::string range(const Piece<T>& piece) {
    return "[" + std::to_string(piece.offset) + ", " + std::to_string(piece.offset + piece.size) + ")";
}

template <class T>
bool shares_memory(const Flat& flat, const Piece<T>& piece) {
    const auto flat_begin = reinterpret_cast<std::uintptr_t>(flat.data);
    const auto begin = reinterpret_cast<std::uintptr_t>(piece.data);
    return piece.size > 0 && begin < flat_begin + flat.size * sizeof(float) &&
           flat_begin < begin + piece.size * sizeof(float);
}

// Pieces mostly come in the order of their offsets, and then one pass over neighbours is enough.
template <class T>
void check_disjoint(const std::vector<Piece<T>>& pieces) {
    const auto before = [&](std::size_t a, std::size_t b) { return pieces[a].offset < pieces[b].offset; };
    std::vector<std::size_t> order;
    order.reserve(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i)
        if (pieces[i].size > 0) order.push_back(i);
    if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
    for (std::size_t k = 1; k < order.size(); ++k) {
        const std::size_t i = order[k - 1], j = order[k];
        if (pieces[j].offset - pieces[i].offset < pieces[i].size)
            throw std::invalid_argument(name(i) + " at " + range(pieces[i]) + " and " + name(j) + " at " +
                                        range(pieces[j]) + " overlap in the flat buffer");
    }
}

}  // namespace

template <class T>
void check(const Flat& flat, const std::vector<Piece<T>>& pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Piece<T>& piece = pieces[i];
        if (piece.offset > flat.size || piece.size > flat.size - piece.offset)
            throw std::invalid_argument(name(i) + " at " + range(piece) +
                                        " does not fit into the flat buffer of " +
                                        std::to_string(flat.size) + " elements");
        if (shares_memory(flat, piece))
            throw std::invalid_argument(name(i) + " shares memory with the flat buffer");
    }
    check_disjoint(pieces);
}

template void check(const Flat&, const std::vector<Piece<float>>&);
template void check(const Flat&, const std::vector<Piece<const float>>&);

void pack(const Flat& flat, const std::vector<Piece<const float>>& pieces, float weight, bool accumulate) {
    const auto loop = accumulate ? loops().add_scaled : loops().scale;
    for (const auto& piece : pieces) loop(flat.data + piece.offset, piece.data, piece.size, weight);
}

void unpack(const Flat& flat, const std::vector<Piece<float>>& pieces, float divisor) {
    const auto loop = loops().divide;
    for (const auto& piece : pieces) loop(piece.data, flat.data + piece.offset, piece.size, divisor);
}

}  // namespace godmw
