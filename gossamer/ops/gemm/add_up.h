/* The sum over a work-group, for kernels in which a work-group computes one column of a product.
 * Each work-item has a partial sum for each of ROWS rows. */

#pragma once

#if !defined CONFIGURED && !defined ROWS
#define ROWS 1 /* partial sums of a work-item */
#define WORK_GROUP_SIZE 128 /* work-items of a work-group, a power of two */
#endif

#include "dialect/common.h"

/* Adds up the partial sums of all work-items by a tree reduction. Writes the sum of each row to
 * partial[row * WORK_GROUP_SIZE]. */
INLINE void add_up(SHARED_POINTER float *partial, const float *sum, int item)
{
    UNROLL for (int row = 0; row < ROWS; row++)
        partial[row * WORK_GROUP_SIZE + item] = sum[row];
    BARRIER();
    for (int reach = WORK_GROUP_SIZE / 2; reach > 0; reach /= 2) {
        if (item < reach) {
            UNROLL for (int row = 0; row < ROWS; row++)
                partial[row * WORK_GROUP_SIZE + item] += partial[row * WORK_GROUP_SIZE + item + reach];
        }
        BARRIER();
    }
}
