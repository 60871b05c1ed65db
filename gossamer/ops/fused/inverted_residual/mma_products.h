/* Operands of products of 16 pixels by 8 channels for inverted_residual_mma.cu, and functions that
 * round, clip and store results. */

#pragma once

#include "ptx/ldmatrix.h"
#include "mma/precisions.h"
#include "mma_sizes.h"

/* Loads 16 rows of one step of K, one row for each pixel. first: the first element of the first
 * row. row: distance between rows, in elements. */
INLINE Pixels load_pixels(const REAL *first, int row, int step, uint lane)
{
    /* With the address computed this way, the compiler keeps one register for all addresses that
     * differ only by constants. The constants become offsets of the loads. */
    uint address = (uint)__cvta_generic_to_shared(first)
                   + (lane % 16 * (uint)row + lane / 16 * WIDTH) * (uint)sizeof(REAL)
                   + (uint)step * (2 * WIDTH * (uint)sizeof(REAL));
    return as_operands(ldmatrix_x4(address));
}

/* Loads the weights of one step of K for two tiles of channels. */
INLINE Weights load_weights(const uint4 *first, uint lane)
{
    return packed_operands(first[(int)lane]);
}

#if HALVES
/* Returns two values as 16-bit floats, the first in the lower half. Negative values become 0, and
 * NaN stays NaN. */
INLINE uint two_halves_from_0(float first, float second)
{
    uint packed;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

/* Returns the smaller of two numbers in each half, or NaN where one is NaN. */
INLINE uint smaller_halves(uint a, uint b)
{
    uint result;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}
#endif

/* Stores two values at neighbouring addresses. */
INLINE void store_two(REAL *target, float first, float second)
{
#if HALVES
    *(uint *)target = two_halves(first, second);
#else
    *(float2 *)target = make_float2(first, second);
#endif
}
