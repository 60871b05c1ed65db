/* Multiplication on tensor cores by one warp, and packing of two float16 numbers in a register. */

#pragma once

#if !defined CONFIGURED && !defined HALVES
#define HALVES 1 /* 1: operands are float16; 0: operands are floats, read as TF32 */
#endif

#include "dialect/common.h"

#ifdef __CUDACC__

/* cvt.rn.f16x2: returns two numbers as 16-bit floats, the first in the lower half. */
[[maybe_unused]] INLINE uint two_halves(float first, float second)
{
    uint packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

/* max.NaN.f16x2: returns, in each half, the larger of the two numbers in `a` and `b`; NaN if one of
 * the two is NaN. */
[[maybe_unused]] INLINE uint larger_halves(uint a, uint b)
{
    uint result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

/* Prepares a float, given by its bits, for tensor cores. Tensor cores truncate a float to the 11
 * significant bits of TF32. Half of the last of these bits is therefore added, so that the
 * truncation rounds. NaN and infinity are returned unchanged. */
[[maybe_unused]] INLINE uint round_to_tf32(uint bits)
{
    float power_of_two = __int_as_float((int)(bits & 0xff800000u));
    return (uint)__float_as_int(FMA(power_of_two, 0x1p-11f, __int_as_float((int)bits)));
}

/* Returns words of 16 bytes as operands: floats are rounded to TF32, float16 is unchanged. */
[[maybe_unused]] INLINE uint4 rounded_operands(const uint4 &words)
{
#if HALVES
    return words;
#else
    return make_uint4(round_to_tf32(words.x), round_to_tf32(words.y), round_to_tf32(words.z),
                      round_to_tf32(words.w));
#endif
}

/* mma.sync.m16n8k16 (TF32: m16n8k8): multiplies a 16 x 16 (TF32: 16 x 8) tile of weights by 8
 * columns of the other operand and adds the products to sum. A lane holds rows lane / 4 and lane /
 * 4 + 8 of the result, each in columns 2 (lane % 4) and 2 (lane % 4) + 1. */
[[maybe_unused]] INLINE void mma_sync(float (&sum)[4], const uint4 &weights, uint lower, uint upper)
{
#if HALVES
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(weights.x), "r"(weights.y), "r"(weights.z), "r"(weights.w), "r"(lower), "r"(upper));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(weights.x), "r"(weights.y), "r"(weights.z), "r"(weights.w), "r"(lower), "r"(upper));
#endif
}
#endif
