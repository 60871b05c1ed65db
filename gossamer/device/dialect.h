/* One kernel dialect, two compilers: OpenCL C 1.2 and CUDA C++ (NVRTC).
 *
 * Kernels are written in OpenCL C 1.2 with the macros below. Sizes are kernel arguments, tile
 * sizes are macros. Pointer parameters carry GLOBAL or LOCAL_POINTER; LOCAL arrays stand at the
 * outermost scope of a kernel; no kernel returns before a BARRIER. */

#ifdef __OPENCL_VERSION__

#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_POINTER __local
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#define CONSTANT_TABLE __constant
#define RESTRICT restrict
#define INLINE static inline
#define UNROLL _Pragma("unroll")
#define LAUNCH_BOUNDS(threads, groups)
#ifdef POCL_DEVICE_ADDRESS_BITS
/* PoCL takes a branch right behind a barrier for one that all work-items take alike, even where
 * its condition was only computed before: something must stand between them. */
#define BARRIER_OF(memories)               \
    do {                                   \
        barrier(memories);                 \
        __asm__ volatile("" ::: "memory"); \
    } while (0)
#else
#define BARRIER_OF(memories) barrier(memories)
#endif
#define BARRIER() BARRIER_OF(CLK_LOCAL_MEM_FENCE)
/* orders what the group's work-items do to global memory too */
#define GLOBAL_BARRIER() BARRIER_OF(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define LOCAL_ID(d) ((int)get_local_id(d))
#define GROUP_ID(d) ((int)get_group_id(d))
#define LOCAL_SIZE(d) ((int)get_local_size(d))
#define GROUP_COUNT(d) ((int)get_num_groups(d))
#define FMA(a, b, c) fma(a, b, c)
#define MAKE4(x, y, z, w) ((float4)(x, y, z, w))
#define PART(condition) 1
#define WARP_BARRIER() BARRIER()
#define PART_BARRIER(number, items) BARRIER()
#define VOTES(name, warps) LOCAL uint name[warps];
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
#define ATOMIC_OR(pointer, value) atomic_or(pointer, value)
#define POPCOUNT(x) popcount(x)
#define MULTIPLY_HIGH(a, b) mul_hi(a, b)
#define INT64 long
#define HALF half
#define LOAD_HALF(pointer, index) vload_half((size_t)(index), pointer)
#define STORE_HALF(pointer, index, value) vstore_half_rte(value, (size_t)(index), pointer)
#define LOAD_HALF4(pointer, index) vloada_half4(0, (pointer) + (index))
#define STORE_HALF4(pointer, index, value) vstorea_half4_rte(value, 0, (pointer) + (index))
/* halves cannot be variables here: they are floats as soon as they are fetched */
#define FETCHED_HALF float
#define FETCHED_HALF4 float4
#define FETCH_HALF LOAD_HALF
#define FETCH_HALF4 LOAD_HALF4
#define HALF_VALUE(fetched) (fetched)
#define HALF_VALUE4(fetched) (fetched)
#define ZERO_HALF4 MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define QUICK_SIGMOID(x) (1.0f / (1.0f + exp(-(x))))
/* Shared memory beyond the static limit: a parameter here, an extern array in CUDA. */
#define DYNAMIC_LOCAL_PARAMETER(type, name) , __local type *name
#define DYNAMIC_LOCAL(type, name)

#else

#define KERNEL extern "C" __global__
#define GLOBAL
#define LOCAL __shared__
#define LOCAL_POINTER
#define ALIGNED(bytes) __align__(bytes)
#define CONSTANT_TABLE static __device__ const
#define RESTRICT __restrict__
#define INLINE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define LAUNCH_BOUNDS(threads, groups) __launch_bounds__(threads, groups)
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
#define ATOMIC_OR(pointer, value) atomicOr(pointer, value)
#define POPCOUNT(x) __popc(x)
#define MULTIPLY_HIGH(a, b) __umulhi(a, b)
#define INT64 long long
#define DYNAMIC_LOCAL_PARAMETER(type, name)
#define DYNAMIC_LOCAL(type, name) extern __shared__ type name[];

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

/* Within a few units of the last place, and 0 where the exponential overflows. */
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

/* Warps are 32 work-items with neighbouring LOCAL_ID(0). Where each has a program counter of its
 * own, work-items in PART(condition), whole warps, go their own way: WARP_BARRIER waits for the
 * warp, PART_BARRIER for so many items of the group, all those in the part (number: 1 to 15, one
 * a part), and BALLOT sets bit n of the result, a uint, where the predicate of the warp's item n
 * is true. Elsewhere all work-items enter every part, one part after the other, so these three
 * stand outside of all conditions that are not the same for the whole group, and what is the
 * part's own work stands inside of one. VOTES(name, warps) stands among the LOCAL arrays. */

/* Address of four floats at a 16-byte boundary. */
#define LOAD4(pointer) (*(const GLOBAL float4 *)(pointer))
#define STORE4(pointer, value) (*(GLOBAL float4 *)(pointer) = (value))
#define LOCAL_LOAD4(pointer) (*(const LOCAL_POINTER float4 *)(pointer))
#define LOCAL_STORE4(pointer, value) (*(LOCAL_POINTER float4 *)(pointer) = (value))

/* 16-bit floats live in memory only: HALF is what a pointer to them points at, and arithmetic is
 * in float. Four of them stand at an 8-byte boundary. A FETCHED one is as memory had it: loads
 * that are asked for early, or under a condition, wait for nothing until its HALF_VALUE is taken.
 *
 * REAL is a float of a kernel's tensors in memory: a HALF where HALVES is set, else a float. */
#if HALVES
#define REAL HALF
#define LOAD_REAL LOAD_HALF
#define STORE_REAL STORE_HALF
#define LOAD_REAL4 LOAD_HALF4
#define STORE_REAL4 STORE_HALF4
#define FETCHED_REAL FETCHED_HALF
#define FETCHED_REAL4 FETCHED_HALF4
#define FETCH_REAL FETCH_HALF
#define FETCH_REAL4 FETCH_HALF4
#define REAL_VALUE HALF_VALUE
#define REAL_VALUE4 HALF_VALUE4
#define ZERO_REAL4 ZERO_HALF4
#else
#define REAL float
#define LOAD_REAL(pointer, index) ((pointer)[index])
#define STORE_REAL(pointer, index, value) ((pointer)[index] = (value))
#define LOAD_REAL4(pointer, index) LOAD4((pointer) + (index))
#define STORE_REAL4(pointer, index, value) STORE4((pointer) + (index), value)
#define FETCHED_REAL float
#define FETCHED_REAL4 float4
#define FETCH_REAL LOAD_REAL
#define FETCH_REAL4 LOAD_REAL4
#define REAL_VALUE(fetched) (fetched)
#define REAL_VALUE4(fetched) (fetched)
#define ZERO_REAL4 MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#endif

#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

/* A divisor as kernel parameters (gossamer.ops.strided.divisor gives the arguments), and x divided
 * by it, 0 <= x < 2^31, for the price of a multiplication. */
#define DIVISOR(name) int name, int name##_multiplier, int name##_shift
#define QUOTIENT(x, name) \
    (MULTIPLY_HIGH((uint)(x) << 1, (uint)name##_multiplier) >> name##_shift)

/* Arithmetic of expressions: VALUE is the type they are computed in. */
#ifndef VALUE
#define VALUE float
#endif
#define ZERO ((VALUE)0)
#define ONE ((VALUE)1)
/* a NaN argument stays a NaN, as in NumPy */
#define MAXIMUM(a, b) (((a) > (b) || (a) != (a)) ? (a) : (b))
#define MINIMUM(a, b) (((a) < (b) || (a) != (a)) ? (a) : (b))
#define SIGMOID(x) ((x) >= ZERO ? ONE / (ONE + exp(-(x))) : exp(x) / (ONE + exp(x)))
