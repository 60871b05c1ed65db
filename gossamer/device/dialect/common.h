/* One kernel dialect, two compilers: OpenCL C 1.2 and CUDA C++ (NVRTC).
 *
 * opencl.h and cuda.h stand before this file: each gives the macros of its own compiler.
 *
 * Kernels are written in OpenCL C 1.2 with the macros below. Sizes are kernel arguments, tile
 * sizes are macros. Pointer parameters carry GLOBAL or SHARED_POINTER; SHARED arrays stand at the
 * outermost scope of a kernel; no kernel returns before a BARRIER. */

#if !defined(__OPENCL_VERSION__) && !defined(__CUDACC__)
#error "the dialect knows OpenCL C and CUDA C++ (NVRTC), and no other compiler"
#endif

/* Warps are 32 work-items with neighbouring LOCAL_ID(0). Where each has a program counter of its
 * own, work-items in PART(condition), whole warps, go their own way: WARP_BARRIER waits for the
 * warp, PART_BARRIER for so many items of the group, all those in the part (number: 1 to 15, one
 * a part), and BALLOT sets bit n of the result, a uint, where the predicate of the warp's item n
 * is true. Elsewhere all work-items enter every part, one part after the other, so these three
 * stand outside of all conditions that are not the same for the whole group, and what is the
 * part's own work stands inside of one. VOTES(name, warps) stands among the SHARED arrays. */

/* Address of four floats at a 16-byte boundary. */
#define LOAD4(pointer) (*(const GLOBAL float4 *)(pointer))
#define STORE4(pointer, value) (*(GLOBAL float4 *)(pointer) = (value))
#define SHARED_LOAD4(pointer) (*(const SHARED_POINTER float4 *)(pointer))
#define SHARED_STORE4(pointer, value) (*(SHARED_POINTER float4 *)(pointer) = (value))

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
