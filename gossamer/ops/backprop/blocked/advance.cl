/* Exact blocking with two launches per block. This kernel is the first launch, which processes the
 * first layer. It applies the updates of the finished block to the weights, and multiplies the new
 * weights by the samples of the next block. The second launch (in_turn.cl) then trains on these
 * samples. The ids of a work-group are (slice of THREADS inputs, tile of UNITS_TILE units,
 * network). A work-item updates the weights of one input. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define THREADS 128 /* work-items of a work-group */
/* Units of a work-group. A warp computes AT_ONCE * UNITS_TILE = 32 sums at once, and each of its 32
 * lanes adds up one of them. */
#define UNITS_TILE 8
#define BLOCK 32 /* maximum number of samples of a block */
#endif

#include "dialect/common.h"

#define WARPS (THREADS / 32)
#define AT_ONCE 4 /* samples that a warp multiplies at once */
#define SUMS (AT_ONCE * UNITS_TILE) /* sums that a warp computes at once */
#define LESSER(a, b) ((a) < (b) ? (a) : (b))

KERNEL WORK_GROUP_OF(THREADS) void advance(
    const GLOBAL float *RESTRICT x, const GLOBAL int *RESTRICT order,
    const GLOBAL float *RESTRICT settings, const GLOBAL float *before, GLOBAL float *after,
    const GLOBAL float *RESTRICT deltas, GLOBAL float *RESTRICT products, int inputs, int units,
    int parameter_count, int samples, int done, int done_count, int next, int next_count)
{
    SHARED ALIGNED(16) float delta[BLOCK * UNITS_TILE];
    SHARED float weight[UNITS_TILE * THREADS], sums[WARPS * SUMS * 33];
    SHARED int done_row[BLOCK], next_row[BLOCK];
    int item = LOCAL_ID(0), lane = item % 32, warp = item / 32;
    int network = GROUP_ID(2), first_unit = GROUP_ID(1) * UNITS_TILE;
    int first_input = GROUP_ID(0) * THREADS, i = first_input + item;
    int own_units = LESSER(UNITS_TILE, units - first_unit);
    float keep = 1.0f - settings[network * 3] * settings[network * 3 + 2], kept = 1.0f;
    const GLOBAL float *from = before + network * parameter_count + first_unit * inputs + i;
    GLOBAL float *to = after + network * parameter_count + first_unit * inputs + i;
    for (int n = item; n < done_count * UNITS_TILE; n += THREADS) {
        int j = n % UNITS_TILE;
        delta[n] = j < own_units ? deltas[(network * BLOCK + n / UNITS_TILE) * units
                                          + first_unit + j] : 0.0f;
    }
    for (int n = item; n < done_count; n += THREADS)
        done_row[n] = order[network * samples + done + n];
    for (int n = item; n < next_count; n += THREADS)
        next_row[n] = order[network * samples + next + n];
    for (int n = 0; n < done_count; n++)
        kept *= keep;
    BARRIER();
    float own[UNITS_TILE];
    UNROLL for (int u = 0; u < UNITS_TILE; u++)
        own[u] = i < inputs && u < own_units ? from[u * inputs] * kept : 0.0f;
    if (i < inputs) {
        for (int s = 0; s < done_count; s++) {
            float value = x[done_row[s] * inputs + i];
            UNROLL for (int u = 0; u < UNITS_TILE; u++)
                own[u] = FMA(delta[s * UNITS_TILE + u], value, own[u]);
        }
        UNROLL for (int u = 0; u < UNITS_TILE; u++)
            if (u < own_units)
                to[u * inputs] = own[u];
    }
    UNROLL for (int u = 0; u < UNITS_TILE; u++)
        weight[u * THREADS + item] = own[u];
    BARRIER();

    for (int first = 0; first < next_count; first += WARPS * AT_ONCE) {
        int begin = first + warp * AT_ONCE;
        float sum[AT_ONCE][UNITS_TILE];
        UNROLL for (int s = 0; s < AT_ONCE; s++)
            UNROLL for (int u = 0; u < UNITS_TILE; u++)
                sum[s][u] = 0.0f;
        for (int n = lane; n < LESSER(THREADS, inputs - first_input); n += 32) {
            float value[AT_ONCE];
            UNROLL for (int s = 0; s < AT_ONCE; s++)
                value[s] = x[next_row[LESSER(begin + s, next_count - 1)] * inputs + first_input
                             + n];
            UNROLL for (int u = 0; u < UNITS_TILE; u++)
                UNROLL for (int s = 0; s < AT_ONCE; s++)
                    sum[s][u] = FMA(value[s], weight[u * THREADS + n], sum[s][u]);
        }
        UNROLL for (int s = 0; s < AT_ONCE; s++)
            UNROLL for (int u = 0; u < UNITS_TILE; u++)
                sums[(warp * SUMS + s * UNITS_TILE + u) * 33 + lane] = sum[s][u];
        WARP_BARRIER();
        /* a work-item adds up the partial sums of all lanes for one sample and unit */
        int s = begin + lane / UNITS_TILE, u = lane % UNITS_TILE;
        float total = 0.0f;
        UNROLL for (int n = 0; n < 32; n++)
            total += sums[(warp * SUMS + lane) * 33 + n];
        if (s < next_count && u < own_units)
            products[((GROUP_ID(0) * GROUP_COUNT(2) + network) * BLOCK + s) * units + first_unit
                     + u] = total;
        WARP_BARRIER();
    }
}
