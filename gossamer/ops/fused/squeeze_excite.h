/* The two small products of a squeeze-and-excite layer, computed by a cluster of work-groups. Each
 * work-group has some of the channels of an image.
 *
 * The first product makes SQUEEZED numbers. `parts` has the partial sum of each work-group for each
 * number, as an array (work-groups, numbers). */

#pragma once

#if !defined CONFIGURED && !defined CLUSTER
#define CLUSTER 2 /* work-groups of the cluster */
#endif
#if !defined CONFIGURED && !defined SQUEEZED
#define SQUEEZED 8 /* numbers that the first product makes */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/shfl.h"

/* Adds up the sums of a warp's lanes. The result is the partial sum of work-group `rank` for a
 * number of the first product, and is stored in `parts` of all work-groups of the cluster. */
[[maybe_unused]] INLINE void give_part(float *parts, float sum, int number, int rank, uint lane)
{
    sum = warp_sum(sum, lane);
    if (lane < CLUSTER)
        *map_cluster(parts + rank * SQUEEZED + number, (int)lane) = sum;
}

/* Returns a number of the first product. Before the call, all work-groups must have given their
 * partial sums, and a barrier of the cluster must have been passed. */
[[maybe_unused]] INLINE float sum_of_parts(const float *parts, int number)
{
    float sum = 0.0f;
    UNROLL for (int other = 0; other < CLUSTER; other++)
        sum += parts[other * SQUEEZED + number];
    return sum;
}

/* Returns the second product for a channel. weights: (numbers, channels). row: distance between
 * rows of weights in memory, in elements. */
[[maybe_unused]] INLINE float gate_sum(const float *squeezed, const REAL *weights, int row,
                                       int channel)
{
    float sum = 0.0f;
    UNROLL_BY(8) for (int number = 0; number < SQUEEZED; number++)
        sum = FMA(squeezed[number], LOAD_REAL(weights, number * row + channel), sum);
    return sum;
}
