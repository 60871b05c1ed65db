/* The words of CUDA C++ that kernels use, for a clang without CUDA's headers: enough to parse the
 * kernels, not to compile them. */

#pragma once

#define __CUDACC__ 1
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(x, y, z)

typedef __SIZE_TYPE__ size_t;

struct CudaIndex {
    unsigned x, y, z;
};
extern const __device__ CudaIndex threadIdx, blockIdx, blockDim, gridDim;

#define VECTORS(name, type)   \
    struct name##2 {          \
        type x, y;            \
    };                        \
    struct name##4 {          \
        type x, y, z, w;      \
    };
VECTORS(float, float)
VECTORS(int, int)
VECTORS(uint, unsigned)
VECTORS(uchar, unsigned char)
VECTORS(ushort, unsigned short)

__device__ float2 make_float2(float x, float y);
__device__ float4 make_float4(float x, float y, float z, float w);
__device__ int4 make_int4(int x, int y, int z, int w);
__device__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w);
__device__ ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z,
                                unsigned short w);
__device__ void __syncthreads();
__device__ void __syncwarp(unsigned mask = ~0u);
__device__ unsigned __ballot_sync(unsigned mask, int predicate);
__device__ unsigned __reduce_or_sync(unsigned mask, unsigned value);
template <class T> __device__ T __shfl_sync(unsigned mask, T value, int lane);
template <class T> __device__ T __shfl_xor_sync(unsigned mask, T value, int bits);
__device__ size_t __cvta_generic_to_shared(const void *pointer);
__device__ int __float_as_int(float value);
__device__ float __int_as_float(int bits);
__device__ int __popc(unsigned bits);
__device__ int __popcll(unsigned long long bits);
__device__ unsigned __umulhi(unsigned a, unsigned b);
__device__ unsigned atomicOr(unsigned *place, unsigned value);
__device__ int atomicAdd(int *place, int value);
#define FUNCTION(name) __device__ float name(float x); __device__ float name##f(float x);
FUNCTION(exp) FUNCTION(log) FUNCTION(sqrt) FUNCTION(tanh) FUNCTION(floor) FUNCTION(ceil)
FUNCTION(erf) FUNCTION(rint) FUNCTION(fabs) FUNCTION(cos) FUNCTION(sin)
__device__ float fmaf(float a, float b, float c);
__device__ float pow(float a, float b);
