/* Sums over the work-items of a warp. */

#pragma once

#include "dialect/common.h"

/* Returns the sum of a value over all lanes of a warp, or over each group of `lanes` neighbouring
 * ones; every lane receives the sum. */
template <uint lanes = 32> INLINE float warp_sum(float value, uint lane)
{
    UNROLL for (uint step = lanes / 2; step > 0; step /= 2)
        value += __shfl_sync(0xffffffffu, value, lane ^ step);
    return value;
}
