/* Definitions for CUDA C++ (NVRTC) of the macros that common.h describes. */
#ifdef __CUDACC__

#define KERNEL extern "C" __global__
#define GLOBAL
#define SHARED __shared__
#define SHARED_POINTER
#define ALIGNED(bytes) __align__(bytes)
#define CONSTANT_TABLE static __device__ const
#define RESTRICT __restrict__
#define INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define LAUNCH_BOUNDS(threads, groups) __launch_bounds__(threads, groups)
#define EXACT_WORK_GROUP(threads) __launch_bounds__(threads, 1)
#define BARRIER() __syncthreads()
#define GLOBAL_BARRIER() __syncthreads()
#define LOCAL_ID(d) ((int)((d) == 0 ? threadIdx.x : (d) == 1 ? threadIdx.y : threadIdx.z))
#define GROUP_ID(d) ((int)((d) == 0 ? blockIdx.x : (d) == 1 ? blockIdx.y : blockIdx.z))
#define LOCAL_SIZE(d) ((int)((d) == 0 ? blockDim.x : (d) == 1 ? blockDim.y : blockDim.z))
#define GROUP_COUNT(d) ((int)((d) == 0 ? gridDim.x : (d) == 1 ? gridDim.y : gridDim.z))
#define FMA(a, b, c) fmaf(a, b, c)
#define MAKE4(x, y, z, w) make_float4(x, y, z, w)
#define PART(condition) (condition)
#define WARP_BARRIER() __syncwarp()
#define PART_BARRIER(number, items) \
    asm volatile("bar.sync %0, %1;" ::"n"(number), "n"(items) : "memory")
#define VOTES(name, warps)
#define BALLOT(result, votes, predicate) ((result) = __ballot_sync(0xffffffffu, predicate))
#define VOTE_OR(words, index, predicate)                          \
    do {                                                          \
        uint ballot_ = __ballot_sync(0xffffffffu, predicate);     \
        if (LOCAL_ID(0) % 32 == 0)                                \
            (words)[index] = ballot_;                             \
    } while (0)
#define ATOMIC_OR(pointer, value) atomicOr(pointer, value)
#define POPCOUNT(x) __popc(x)
#define POPCOUNT64(x) __popcll(x)
#define MULTIPLY_HIGH(a, b) __umulhi(a, b)
#define INT64 long long
#define DYNAMIC_SHARED_PARAMETER(type, name)
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[];

typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long long ulong;

#define HALF unsigned short
#define LOAD_HALF(pointer, index) half_to_float((pointer)[index])
#define STORE_HALF(pointer, index, value) ((pointer)[index] = float_to_half(value))
#define LOAD_HALF4(pointer, index) halves_to_floats(FETCH_HALF4(pointer, index))
#define STORE_HALF4(pointer, index, value) \
    (*(ushort4 *)((pointer) + (index)) = floats_to_halves(value))
#define FETCHED_HALF unsigned short
#define FETCHED_HALF4 ushort4
#define FETCH_HALF(pointer, index) ((pointer)[index])
#define FETCH_HALF4(pointer, index) (*(const ushort4 *)((pointer) + (index)))
#define HALF_VALUE(fetched) half_to_float(fetched)
#define HALF_VALUE4(fetched) halves_to_floats(fetched)
#define ZERO_HALF4 make_ushort4(0, 0, 0, 0)

[[maybe_unused]] static __device__ __forceinline__ float half_to_float(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

[[maybe_unused]] static __device__ __forceinline__ unsigned short float_to_half(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

[[maybe_unused]] static __device__ __forceinline__ float4 halves_to_floats(ushort4 bits)
{
    return make_float4(half_to_float(bits.x), half_to_float(bits.y), half_to_float(bits.z),
                       half_to_float(bits.w));
}

[[maybe_unused]] static __device__ __forceinline__ ushort4 floats_to_halves(float4 value)
{
    return make_ushort4(float_to_half(value.x), float_to_half(value.y), float_to_half(value.z),
                        float_to_half(value.w));
}

/* A sigmoid with an error of a few units in the last place; 0 where the exponential overflows. */
[[maybe_unused]] static __device__ __forceinline__ float QUICK_SIGMOID(float x)
{
    float e, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + e));
    return y;
}

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

#endif

