/* Products of 16 pixels by 8 channels for inverted_residual_mma.cu, the bounds of results, and how
 * they are stored. */

#pragma once

#include "ptx/ldmatrix.h"
#include "mma/precisions.h"
#include "mma_sizes.h"

/* Loads a step of 16 rows. first: the first element of the first row. */
INLINE Pixels load_pixels(const REAL *first, int row, int step, uint lane)
{
    /* addresses that differ by constants only share one register, with the constants as offsets */
    uint address = (uint)__cvta_generic_to_shared(first)
                   + (lane % 16 * (uint)row + lane / 16 * WIDTH) * (uint)sizeof(REAL)
                   + (uint)step * (2 * WIDTH * (uint)sizeof(REAL));
    return as_operands(ldmatrix_x4(address));
}

/* Loads a step's weights for two tiles of channels. */
INLINE Weights load_weights(const uint4 *first, uint lane)
{
    return as_operands(first[(int)lane]);
}

/* Returns a value as the tensor cores read it: TF32 rounded, where they would truncate it. */
INLINE float rounded(float value)
{
#if TF32
    /* an addition would make a zero of the NaN that GPUs compute, whose bits are all 1 */
    return value == value ? __int_as_float(__float_as_int(value) + 0x1000) : value;
#else
    return value;
#endif
}

#if HALVES
/* Returns two values as 16-bit floats that are at least 0, the first in the lower half; NaN of
 * NaN. */
INLINE uint two_halves_from_0(float first, float second)
{
    uint packed;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

/* The larger and the smaller ones of two pairs of 16-bit floats; NaN where one is NaN. */
INLINE uint larger_halves(uint a, uint b)
{
    uint result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

INLINE uint smaller_halves(uint a, uint b)
{
    uint result;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}
#endif

/* Stores two neighbours. */
INLINE void store_two(REAL *target, float first, float second)
{
#if HALVES
    *(uint *)target = two_halves(first, second);
#else
    *(float2 *)target = make_float2(first, second);
#endif
}
