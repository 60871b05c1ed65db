/* The two small products of a squeeze-and-excite layer, computed by a cluster of work-groups. Each
 * work-group computes a slice of the channels of an image.
 *
 * The first product has SQUEEZED results. Each result is a sum over all channels. `parts` holds the
 * partial sum over each work-group's channels for each result, as (work-groups, results). */

#pragma once

#if !defined CONFIGURED && !defined CLUSTER
#define CLUSTER 2 /* work-groups of the cluster */
#endif
#if !defined CONFIGURED && !defined SQUEEZED
#define SQUEEZED 8 /* results of the first product */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/shfl.h"

/* Adds up the sums of a warp's lanes, and stores the total in `parts` of all work-groups of the
 * cluster. The total is the partial sum of work-group `rank` for result `number` of the first
 * product. */
[[maybe_unused]] INLINE void give_part(float *parts, float sum, int number, int rank, uint lane)
{
    sum = warp_sum(sum, lane);
    if (lane < CLUSTER)
        *map_cluster(parts + rank * SQUEEZED + number, (int)lane) = sum;
}

/* Returns result `number` of the first product. All work-groups must have called give_part and then
 * waited on a barrier of the cluster. */
[[maybe_unused]] INLINE float sum_of_parts(const float *parts, int number)
{
    float sum = 0.0f;
    UNROLL for (int other = 0; other < CLUSTER; other++)
        sum += parts[other * SQUEEZED + number];
    return sum;
}

/* Returns the result of the second product for a channel. weights: (SQUEEZED, channels). row:
 * distance between rows of weights in memory, in elements. */
[[maybe_unused]] INLINE float gate_sum(const float *squeezed, const REAL *weights, int row,
                                       int channel)
{
    float sum = 0.0f;
    UNROLL_BY(8) for (int number = 0; number < SQUEEZED; number++)
        sum = FMA(squeezed[number], LOAD_REAL(weights, number * row + channel), sum);
    return sum;
}
