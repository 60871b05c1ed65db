/* The macros with which one kernel source compiles as OpenCL C 1.2 and as CUDA C++ (NVRTC).
 *
 * The files cuda.h and opencl.h, which are included below, define the macros for one compiler each.
 *
 * Kernels are written in OpenCL C 1.2 with these macros. Sizes of tensors are kernel arguments,
 * and tile sizes are macros. Pointer parameters are declared with GLOBAL or SHARED_POINTER. SHARED
 * arrays are declared at the outermost scope of a kernel. No work-item returns before the last
 * BARRIER of its kernel. */

#pragma once

#include "dialect/cuda.h"
#include "dialect/opencl.h"

#if !defined(__OPENCL_C_VERSION__) && !defined(__CUDACC__)
#error "the dialect knows OpenCL C and CUDA C++ (NVRTC), and no other compiler"
#endif

/* LAUNCH_BOUNDS(threads, groups) limits the registers per work-item so that `groups` work-groups of
 * `threads` work-items fit on a multiprocessor. WORK_GROUP_OF(items) replaces LAUNCH_BOUNDS and
 * fixes the work-group size: NVIDIA's OpenCL allows more than 256 work-items per work-group only if
 * the size is fixed. */

/* Warps are 32 work-items with consecutive LOCAL_ID(0).
 *
 * A part is code for some warps of a work-group; it begins with if (PART(condition)). In CUDA, a
 * warp enters the part only if the condition is true; meanwhile, other warps run other parts. In
 * OpenCL all work-items enter every part, one part after the other. Code that only the part's warps
 * may run must therefore test the condition again. In OpenCL the following macros may wait for the
 * whole work-group, so they must not be inside a condition that differs within the work-group:
 *   WARP_BARRIER()               waits for all work-items of the warp.
 *   PART_BARRIER(number, items)  waits for all `items` work-items of the part; each part has its
 *                                own number from 1 to 15.
 *   BALLOT(result, votes, predicate)  sets bit n of the uint `result` if the predicate is true for
 *                                work-item n of the warp. `votes` is an array that
 *                                VOTES(name, warps) declares among the SHARED arrays.
 *   VOTE_OR(words, index, predicate)  sets bit n of the SHARED uint words[index] if the predicate
 *                                is true for work-item n of the warp. The word must be 0 before the
 *                                call. All work-items of the warp must call VOTE_OR, with the same
 *                                `index`. A BARRIER must precede reads of the word. */

/* Loads and stores of four floats at addresses that are multiples of 16 bytes. */
#define LOAD4(pointer) (*(const GLOBAL float4 *)(pointer))
#define STORE4(pointer, value) (*(GLOBAL float4 *)(pointer) = (value))
#define SHARED_LOAD4(pointer) (*(const SHARED_POINTER float4 *)(pointer))
#define SHARED_STORE4(pointer, value) (*(SHARED_POINTER float4 *)(pointer) = (value))

/* ADD_PRODUCT4(sum, a, b) adds a * b to sum, all of them float4; ADD_SCALED4(sum, factor, b) adds
 * factor * b for a float `factor`. In OpenCL each is one vector operation, because Intel's compiler
 * for CPUs splits a float4 that is used in scalar operations, and moves its elements one by one. */

/* FLOAT16 is a vector of 16 floats, for kernels that run on CPUs. ZERO16 is a FLOAT16 of zeros.
 * LOAD16 and STORE16 accept any address. FMA16(factor, values, sums) returns factor * values + sums
 * for a float `factor`. */

/* 16-bit floats exist in memory only: pointers point to HALF, and arithmetic is in float. Loads and
 * stores of four halves need an address that is a multiple of 8 bytes; those of eight halves need a
 * multiple of 16 bytes. FETCH_HALF loads a value without converting it, and HALF_VALUE converts the
 * fetched value later, so that no instruction waits for the load before the value is used.
 * LOWER_VALUE4 and UPPER_VALUE4 convert the first four and the last four of eight fetched halves to
 * a float4.
 *
 * REAL is the type of a kernel's tensors in memory: HALF if HALVES is set, else float. */
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

/* DIVISOR(name) declares the kernel parameters of a divisor; gossamer.ops.strided.divisor returns
 * the arguments. QUOTIENT divides x, 0 <= x < 2^31, by the divisor with a multiplication and a
 * shift. */
#define DIVISOR(name) int name, int name##_multiplier, int name##_shift
#define QUOTIENT(x, name) \
    (MULTIPLY_HIGH((uint)(x) << 1, (uint)name##_multiplier) >> name##_shift)

/* Expressions are computed in the type VALUE. */
#ifndef VALUE
#define VALUE float
#endif
#define ZERO ((VALUE)0)
#define ONE ((VALUE)1)
/* The result of MAXIMUM and MINIMUM is NaN if an argument is NaN, as in NumPy. The test for NaN is
 * on `b`. In most expressions `b` is a literal; compilers then remove the test, and one instruction
 * remains. */
#ifndef MAXIMUM
#define MAXIMUM(a, b) (((a) < (b) || (b) != (b)) ? (b) : (a))
#define MINIMUM(a, b) (((a) > (b) || (b) != (b)) ? (b) : (a))
#endif

#ifndef ERF
/* The error function, with an absolute error below 3e-7 and a relative one below 5e-7, as x times a
 * polynomial of x * x, which is fitted for magnitudes up to 3.9. erff has a branch and ex2. */
[[maybe_unused]] INLINE float ERF(float x)
{
    const float terms[] = { 0.00164509239f, -0.00408510026f, 0.00281895185f, -0.00336029171f,
                            0.0124066044f,  -0.0222792607f,  0.0298778769f,  -0.0417209826f,
                            0.0576667488f,  -0.0740129501f,  0.090706259f,   -0.109514177f,
                            0.134689048f,   -0.181011543f,   0.362583995f };
    x = MAXIMUM(MINIMUM(x, 3.9f), -3.9f);
    float from_middle = FMA(x * x, 2.0f / (3.9f * 3.9f), -1.0f), sum = terms[0];
    UNROLL for (int i = 1; i < 15; i++)
        sum = FMA(sum, from_middle, terms[i]);
    return sum * x;
}
#endif
