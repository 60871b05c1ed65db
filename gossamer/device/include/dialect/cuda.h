/* Definitions for CUDA C++ (NVRTC) of the macros that common.h describes. */

#pragma once

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
#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(count) PRAGMA(unroll count)
/* Precedes a loop of few iterations that a work-item runs only once. The loop is not unrolled:
 * unrolled code has more instructions, and code that runs only once waits until each instruction is
 * fetched. */
#define ONCE_EACH UNROLL_BY(1)
#define LAUNCH_BOUNDS(threads, groups) __launch_bounds__(threads, groups)
#define WORK_GROUP_OF(items) __launch_bounds__(items, 1)
#define BARRIER() __syncthreads()
#define GLOBAL_BARRIER() __syncthreads()
#define LOCAL_ID(d) ((int)((d) == 0 ? threadIdx.x : (d) == 1 ? threadIdx.y : threadIdx.z))
#define GROUP_ID(d) ((int)((d) == 0 ? blockIdx.x : (d) == 1 ? blockIdx.y : blockIdx.z))
#define LOCAL_SIZE(d) ((int)((d) == 0 ? blockDim.x : (d) == 1 ? blockDim.y : blockDim.z))
#define GROUP_COUNT(d) ((int)((d) == 0 ? gridDim.x : (d) == 1 ? gridDim.y : gridDim.z))
#define FMA(a, b, c) fmaf(a, b, c)
#define MAKE4(x, y, z, w) make_float4(x, y, z, w)
#define ADD_PRODUCT4(sum, a, b)                \
    do {                                       \
        (sum).x = fmaf((a).x, (b).x, (sum).x); \
        (sum).y = fmaf((a).y, (b).y, (sum).y); \
        (sum).z = fmaf((a).z, (b).z, (sum).z); \
        (sum).w = fmaf((a).w, (b).w, (sum).w); \
    } while (0)
#define ADD_SCALED4(sum, factor, b)             \
    do {                                        \
        (sum).x = fmaf(factor, (b).x, (sum).x); \
        (sum).y = fmaf(factor, (b).y, (sum).y); \
        (sum).z = fmaf(factor, (b).z, (sum).z); \
        (sum).w = fmaf(factor, (b).w, (sum).w); \
    } while (0)
#define FLOAT16 sixteen_floats
#define ZERO16 (sixteen_floats{})
#define LOAD16(pointer) load_sixteen(pointer)
#define STORE16(pointer, value) store_sixteen(pointer, value)
#define FMA16(factor, values, sums) fma_sixteen(factor, values, sums)
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

#ifndef __CUDACC_RTC__
/* the headers that nvcc includes have their own definitions of ulong, INFINITY and NAN */
#define ulong dialect_ulong
#undef INFINITY
#undef NAN
#endif
typedef unsigned char uchar;
typedef unsigned short ushort;
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
#define FETCHED_HALF8 uint4
#define FETCH_HALF8(pointer, index) (*(const uint4 *)((pointer) + (index)))
#define LOWER_VALUE4(fetched) words_to_floats((fetched).x, (fetched).y)
#define UPPER_VALUE4(fetched) words_to_floats((fetched).z, (fetched).w)
#define ZERO_HALF8 make_uint4(0, 0, 0, 0)
#define STORE_HALF8(pointer, index, lower, upper) \
    (*(uint4 *)((pointer) + (index)) = floats_to_words(lower, upper))

struct sixteen_floats {
    float lane[16];
};

[[maybe_unused]] static __device__ __forceinline__ sixteen_floats load_sixteen(const float *from)
{
    sixteen_floats values;
    for (int i = 0; i < 16; i++)
        values.lane[i] = from[i];
    return values;
}

[[maybe_unused]] static __device__ __forceinline__ void store_sixteen(float *to,
                                                                      sixteen_floats values)
{
    for (int i = 0; i < 16; i++)
        to[i] = values.lane[i];
}

[[maybe_unused]] static __device__ __forceinline__ sixteen_floats fma_sixteen(
    float factor, sixteen_floats values, sixteen_floats sums)
{
    for (int i = 0; i < 16; i++)
        sums.lane[i] = fmaf(factor, values.lane[i], sums.lane[i]);
    return sums;
}

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

[[maybe_unused]] static __device__ __forceinline__ float4 words_to_floats(unsigned int low,
                                                                          unsigned int high)
{
    return make_float4(half_to_float((unsigned short)low), half_to_float((unsigned short)(low >> 16)),
                       half_to_float((unsigned short)high),
                       half_to_float((unsigned short)(high >> 16)));
}

[[maybe_unused]] static __device__ __forceinline__ uint4 floats_to_words(float4 lower, float4 upper)
{
    return make_uint4(float_to_half(lower.x) | (unsigned int)float_to_half(lower.y) << 16,
                      float_to_half(lower.z) | (unsigned int)float_to_half(lower.w) << 16,
                      float_to_half(upper.x) | (unsigned int)float_to_half(upper.y) << 16,
                      float_to_half(upper.z) | (unsigned int)float_to_half(upper.w) << 16);
}

/* a float rounded to the nearest float16 or bfloat16 */
#define ROUNDED_TO_HALF(x) half_to_float(float_to_half(x))
[[maybe_unused]] static __device__ __forceinline__ float ROUNDED_TO_BFLOAT16(float x)
{
    unsigned int bits = (unsigned int)__float_as_int(x);
    bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    return x != x ? x : __int_as_float((int)bits);
}

/* A sigmoid with an absolute error below 2e-7. The relative error grows from 4e-7 near x = 0 to
 * 4.5e-6 at the smallest results; a result that would be subnormal is 0. */
[[maybe_unused]] static __device__ __forceinline__ float SIGMOID(float x)
{
    float e, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + e));
    return y;
}

/* MAXIMUM and MINIMUM; for floats each is one instruction (sm_80). */
#if __CUDA_ARCH__ >= 800
#define MAXIMUM(a, b) larger(a, b)
#define MINIMUM(a, b) smaller(a, b)

template <typename T> static __device__ __forceinline__ T larger(T a, T b)
{
    return a > b || a != a ? a : b;
}

template <typename T> static __device__ __forceinline__ T smaller(T a, T b)
{
    return a < b || a != a ? a : b;
}

[[maybe_unused]] static __device__ __forceinline__ float larger(float a, float b)
{
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

[[maybe_unused]] static __device__ __forceinline__ float smaller(float a, float b)
{
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
#endif

#define BITS_AS_FLOAT(bits) __int_as_float((int)(bits))
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

#endif

