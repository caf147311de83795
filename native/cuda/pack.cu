// The CUDA twin of pack.cpp: many fp32 tensors into one flat fp32 buffer and back, on the caller's stream.
//
// The pieces travel as kernel arguments, PIECES at a launch, so nothing is allocated or copied. The *_rn
// intrinsics round every operation and are never fused: the bits are the CPU's.
#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "godmw/pack.hpp"

namespace godmw::cuda {

namespace {

constexpr int PIECES = 128;  // 24 bytes each; kernel arguments are limited to 4 KiB
constexpr int THREADS = 256;
constexpr unsigned BLOCKS_PER_PIECE = 64;  // a grid-stride loop takes what is longer

template <class T>
struct Batch {
    Piece<T> pieces[PIECES];
};

struct Scale {
    float weight;
    __device__ void operator()(float* flat, const float* tensor) const {
        *flat = __fmul_rn(*tensor, weight);
    }
};

struct AddScaled {
    float weight;
    __device__ void operator()(float* flat, const float* tensor) const {
        *flat = __fadd_rn(*flat, __fmul_rn(*tensor, weight));
    }
};

struct Divide {
    float divisor;
    __device__ void operator()(const float* flat, float* tensor) const {
        *tensor = __fdiv_rn(*flat, divisor);
    }
};

// blockIdx.y is the piece.
template <class T, class Operation>
__global__ void each_element(float* flat, Batch<T> batch, Operation operation) {
    const Piece<T> piece = batch.pieces[blockIdx.y];
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < piece.size;
         i += stride)
        operation(flat + piece.offset + i, piece.data + i);
}

template <class T, class Operation>
cudaError_t launch(const Flat& flat, const std::vector<Piece<T>>& pieces, Operation operation,
                   cudaStream_t stream) {
    for (std::size_t first = 0; first < pieces.size(); first += PIECES) {
        Batch<T> batch{};
        unsigned count = 0;
        std::size_t longest = 0;
        for (; count < PIECES && first + count < pieces.size(); ++count) {
            batch.pieces[count] = pieces[first + count];
            if (batch.pieces[count].size > longest) longest = batch.pieces[count].size;
        }
        if (longest == 0) continue;
        const std::size_t blocks = (longest + THREADS - 1) / THREADS;
        const dim3 grid(blocks < BLOCKS_PER_PIECE ? static_cast<unsigned>(blocks) : BLOCKS_PER_PIECE, count);
        each_element<<<grid, THREADS, 0, stream>>>(flat.data, batch, operation);
        if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

}  // namespace

cudaError_t pack(const Flat& flat, const std::vector<Piece<const float>>& pieces, float weight,
                 bool accumulate, cudaStream_t stream) {
    return accumulate ? launch(flat, pieces, AddScaled{weight}, stream)
                      : launch(flat, pieces, Scale{weight}, stream);
}

cudaError_t unpack(const Flat& flat, const std::vector<Piece<float>>& pieces, float divisor,
                   cudaStream_t stream) {
    return launch(flat, pieces, Divide{divisor}, stream);
}

}  // namespace godmw::cuda
