/* Squeeze-and-excite in inverted_residual_mma.cu. Each work-group of a cluster holds the hidden
 * channels of its chunks in shared memory, for a whole image.
 *
 * The first product has SQUEEZED results. Each result is a sum over all channels. `parts` holds the
 * partial sum over each work-group's channels for each result, as (work-groups, results). */

#pragma once

#if !defined CONFIGURED && !defined EXCITES
#define EXCITES 1 /* 1: with squeeze-and-excite */
#endif
#if !defined CONFIGURED && !defined OWN_CHUNKS
#define OWN_CHUNKS 2 /* maximum number of chunks per work-group */
#endif
#if !defined CONFIGURED && !defined HIDDEN_ROW
#define HIDDEN_ROW 64 /* channels of all chunks */
#define EXCITE_OPERANDS /* declares the operands of both products' epilogues */
#define SQUEEZE_EPILOGUE(value, channel, index) /* applies the epilogue of the first product */
#define EXCITE_EPILOGUE(value, channel, index) /* applies the epilogue of the second product */
/* scales a result by its channel's gate */
#define SCALE_EPILOGUE(value, channel, index) value *= scale_operand0[channel];
#endif

#if !defined CONFIGURED && !defined CLUSTER
#define CLUSTER 2 /* work-groups of the cluster */
#endif
#if !defined CONFIGURED && !defined SQUEEZED
#define SQUEEZED 8 /* results of the first product */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/shfl.h"
#include "mma_products.h"
#include "mma_tile.h"

#if EXCITES
#define EXCITE_PARAMETERS                                                      \
    , const REAL *RESTRICT squeeze, const REAL *RESTRICT excite, const float *RESTRICT small_constants

/* Adds up the sums of a warp's lanes, and stores the total in `parts` of all work-groups of the
 * cluster. The total is the partial sum of work-group `rank` for result `number` of the first
 * product. */
INLINE void give_part(float *parts, float sum, int number, int rank, uint lane)
{
    sum = warp_sum(sum, lane);
    if (lane < CLUSTER)
        *map_cluster(parts + rank * SQUEEZED + number, (int)lane) = sum;
}

/* Returns result `number` of the first product. All work-groups must have called give_part and then
 * waited on a barrier of the cluster. */
INLINE float sum_of_parts(const float *parts, int number)
{
    float sum = 0.0f;
    UNROLL for (int other = 0; other < CLUSTER; other++)
        sum += parts[other * SQUEEZED + number];
    return sum;
}

/* Returns the result of the second product for a channel. weights: (SQUEEZED, channels). row:
 * distance between rows of weights in memory, in elements. */
INLINE float gate_sum(const float *squeezed, const REAL *weights, int row, int channel)
{
    float sum = 0.0f;
    UNROLL_BY(8) for (int number = 0; number < SQUEEZED; number++)
        sum = FMA(squeezed[number], LOAD_REAL(weights, number * row + channel), sum);
    return sum;
}

/* Computes the mean over the image for each channel of this work-group's convolved chunks. means:
 * (chunks, CHUNK). */
INLINE void sum_channels(float *means, const REAL *convolved, int own_chunks, uint warp, uint lane)
{
    for (int unit = warp; unit < own_chunks * (CHUNK / WIDTH); unit += WARPS) {
        int own_chunk = unit / (CHUNK / WIDTH), channel = unit % (CHUNK / WIDTH) * WIDTH;
        const REAL *values = convolved + own_chunk * CONVOLVED_WORDS * WIDTH + channel;
        float totals[WIDTH];
        UNROLL for (int i = 0; i < WIDTH; i++)
            totals[i] = 0.0f;
        for (int pixel = lane; pixel < TILE_H * TILE_W; pixel += 32)
            UNROLL for (int i = 0; i < WIDTH; i += 4) {
                float4 found = LOAD_REAL4(values, pixel * CHUNK_ROW + i);
                totals[i] += found.x;
                totals[i + 1] += found.y;
                totals[i + 2] += found.z;
                totals[i + 3] += found.w;
            }
        UNROLL for (int i = 0; i < WIDTH; i++) {
            float total = warp_sum(totals[i], lane);
            if (lane == 0)
                means[own_chunk * CHUNK + channel + i] = total * (1.0f / (TILE_H * TILE_W));
        }
    }
}

/* Computes this work-group's partial sum for each result of the first product, and sends the
 * partial sum to all work-groups of the cluster. weights: (results, channels). */
INLINE void squeeze_means(float *parts, const float *means, const REAL *weights, int own_chunks,
                          int rank, uint warp, uint lane)
{
    for (int number = warp; number < SQUEEZED; number += WARPS) {
        float sum = 0.0f;
        for (int own_chunk = 0; own_chunk < own_chunks; own_chunk++) {
            const REAL *row = weights + number * HIDDEN_ROW + (rank + own_chunk * CLUSTER) * CHUNK;
            UNROLL for (int first = 0; first < CHUNK; first += 32) {
                int channel = first + (int)lane;
                if (channel < CHUNK)
                    sum = FMA(means[own_chunk * CHUNK + channel], LOAD_REAL(row, channel), sum);
            }
        }
        give_part(parts, sum, number, rank, lane);
    }
}
/* Computes the gates for the channels of this work-group's chunks. gates: (chunks, CHUNK). In
 * shared memory, room for the first product's partial sums and results follows the gates. */
INLINE void make_gates(float *gates, const REAL *convolved, int own_chunks, const Tile &tile,
                       const REAL *squeeze, const REAL *excite,
                       [[maybe_unused]] const float *small_constants)
{
    float *parts = gates + OWN_CHUNKS * CHUNK;
    sum_channels(gates, convolved, own_chunks, tile.warp, tile.lane);
    BARRIER();
    CLUSTER_WAIT();
    squeeze_means(parts, gates, squeeze, own_chunks, tile.rank, tile.warp, tile.lane);
    CLUSTER_BARRIER();
    EXCITE_OPERANDS
    float *squeezed = parts + CLUSTER * SQUEEZED;
    for (int number = tile.item; number < SQUEEZED; number += WORK_GROUP_SIZE) {
        float sum = sum_of_parts(parts, number);
        SQUEEZE_EPILOGUE(sum, number, 0)
        squeezed[number] = sum;
    }
    BARRIER();
    for (int i = tile.item; i < own_chunks * CHUNK; i += WORK_GROUP_SIZE) {
        int channel = (tile.rank + i / CHUNK * CLUSTER) * CHUNK + i % CHUNK;
        float gate = gate_sum(squeezed, excite, HIDDEN_ROW, channel);
        EXCITE_EPILOGUE(gate, channel, 0)
        gates[i] = gate;
    }
    BARRIER();
}

/* Scales this work-group's convolved channels by the gates. hidden: number of hidden channels. */
INLINE void scale_chunks(REAL *convolved, const float *gates, int own_chunks, const Tile &tile,
                         [[maybe_unused]] int hidden)
{
    for (int i = tile.item; i < own_chunks * TILE_H * TILE_W * (CHUNK / 4); i += WORK_GROUP_SIZE) {
        int channel = i % (CHUNK / 4) * 4, pixel = i / (CHUNK / 4);
        int own_chunk = pixel / (TILE_H * TILE_W);
        int offset = own_chunk * CONVOLVED_WORDS * WIDTH + pixel % (TILE_H * TILE_W) * CHUNK_ROW
                    + channel;
        float4 value = LOAD_REAL4(convolved, offset);
        float lanes[4] = {value.x, value.y, value.z, value.w};
        const float *scale_operand0 = gates + own_chunk * CHUNK;
        UNROLL for (int j = 0; j < 4; j++) {
            SCALE_EPILOGUE(lanes[j], channel + j, 0)
#if PADDED
            /* zeroes padding channels, which the scaling may have changed */
            if ((tile.rank + own_chunk * CLUSTER) * CHUNK + channel + j >= hidden)
                lanes[j] = 0.0f;
#endif
        }
        STORE_REAL4(convolved, offset, MAKE4(lanes[0], lanes[1], lanes[2], lanes[3]));
    }
}
#else
#define EXCITE_PARAMETERS
#endif
