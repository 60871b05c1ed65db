/* Definitions for OpenCL C 1.2 of the macros that common.h describes. */

#pragma once

#ifdef __OPENCL_C_VERSION__

#define KERNEL __kernel
#define GLOBAL __global
#define SHARED __local
#define SHARED_POINTER __local
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#define CONSTANT_TABLE __constant
#define RESTRICT restrict
#define INLINE static inline
#define UNROLL _Pragma("unroll")
#define LAUNCH_BOUNDS(threads, groups)
#define WORK_GROUP_OF(items) __attribute__((reqd_work_group_size(items, 1, 1)))
#ifdef POCL_DEVICE_ADDRESS_BITS
/* PoCL wrongly assumes that all work-items take the same path at a branch directly after a barrier.
 * An empty statement of inline assembly between the barrier and the branch avoids this error. */
#define BARRIER_OF(memories)               \
    do {                                   \
        barrier(memories);                 \
        __asm__ volatile("" ::: "memory"); \
    } while (0)
#else
#define BARRIER_OF(memories) barrier(memories)
#endif
#define BARRIER() BARRIER_OF(CLK_LOCAL_MEM_FENCE)
/* a barrier that also orders the accesses of the work-group to global memory */
#define GLOBAL_BARRIER() BARRIER_OF(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define LOCAL_ID(d) ((int)get_local_id(d))
#define GROUP_ID(d) ((int)get_group_id(d))
#define LOCAL_SIZE(d) ((int)get_local_size(d))
#define GROUP_COUNT(d) ((int)get_num_groups(d))
#define FMA(a, b, c) fma(a, b, c)
#define MAKE4(x, y, z, w) ((float4)(x, y, z, w))
#define ADD_PRODUCT4(sum, a, b) (sum) = fma(a, b, sum)
#define ADD_SCALED4(sum, factor, b) (sum) = fma((float4)(factor), b, sum)
#define FLOAT16 float16
#define ZERO16 ((float16)0.0f)
#define LOAD16(pointer) vload16(0, pointer)
#define STORE16(pointer, value) vstore16(value, 0, pointer)
#define FMA16(factor, values, sums) fma((float16)(factor), values, sums)
#define PART(condition) 1
#define WARP_BARRIER() BARRIER()
#define PART_BARRIER(number, items) BARRIER()
#define VOTES(name, warps) SHARED uint name[warps];
#define BALLOT(result, votes, predicate)                                   \
    do {                                                                   \
        BARRIER();                                                         \
        if (LOCAL_ID(0) % 32 == 0)                                         \
            (votes)[LOCAL_ID(0) / 32] = 0;                                 \
        BARRIER();                                                         \
        if (predicate)                                                     \
            ATOMIC_OR((votes) + LOCAL_ID(0) / 32, 1u << LOCAL_ID(0) % 32); \
        BARRIER();                                                         \
        (result) = (votes)[LOCAL_ID(0) / 32];                              \
    } while (0)
#define VOTE_OR(words, index, predicate)                            \
    do {                                                            \
        if (predicate)                                              \
            ATOMIC_OR((words) + (index), 1u << LOCAL_ID(0) % 32);   \
    } while (0)
#define ATOMIC_OR(pointer, value) atomic_or(pointer, value)
#define POPCOUNT(x) popcount(x)
#define POPCOUNT64(x) popcount((ulong)(x))
#define MULTIPLY_HIGH(a, b) mul_hi(a, b)
#define INT64 long
#define BITS_AS_FLOAT(bits) as_float((uint)(bits))
#define HALF half
#define LOAD_HALF(pointer, index) vload_half((size_t)(index), pointer)
#define STORE_HALF(pointer, index, value) vstore_half_rte(value, (size_t)(index), pointer)
#define LOAD_HALF4(pointer, index) vloada_half4(0, (pointer) + (index))
#define STORE_HALF4(pointer, index, value) vstorea_half4_rte(value, 0, (pointer) + (index))
/* OpenCL C has no variables of type half, so a fetched value is a float */
#define FETCHED_HALF float
#define FETCHED_HALF4 float4
#define FETCH_HALF LOAD_HALF
#define FETCH_HALF4 LOAD_HALF4
#define HALF_VALUE(fetched) (fetched)
#define HALF_VALUE4(fetched) (fetched)
#define ZERO_HALF4 MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define FETCHED_HALF8 float8
#define FETCH_HALF8(pointer, index) vloada_half8(0, (pointer) + (index))
#define LOWER_VALUE4(fetched) ((fetched).lo)
#define UPPER_VALUE4(fetched) ((fetched).hi)
#define ZERO_HALF8 ((float8)(0.0f))
#define STORE_HALF8(pointer, index, lower, upper) \
    vstorea_half8_rte((float8)(lower, upper), 0, (pointer) + (index))
/* a float rounded to the nearest float16 or bfloat16 */
float rounded_to_half(float x)
{
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return vload_half(0, (half *)&bits);
}
#define ROUNDED_TO_HALF rounded_to_half
#define ROUNDED_TO_BFLOAT16(x) \
    ((x) != (x) ? (x) : as_float((as_uint(x) + 0x7fffu + (as_uint(x) >> 16 & 1u)) & 0xffff0000u))
#define SIGMOID(x) (1.0f / (1.0f + exp(-(x))))
#define ERF(x) erf(x)
/* Dynamic shared memory is a kernel parameter in OpenCL and an extern array in CUDA. The array is
 * aligned only to its element type: for accesses of 16 bytes, declare it as an array of uint4. */
#define DYNAMIC_SHARED_PARAMETER(type, name) , __local type *name
#define DYNAMIC_SHARED(type, name)

#endif

