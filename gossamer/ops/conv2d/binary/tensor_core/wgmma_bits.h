/* Products of a warpgroup on bit tensor cores: 64 pixels, whose words are in registers, by TILE_C
 * channels, whose weights are in shared memory (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined TILE_C
#define TILE_C 64 /* channels of a work-group: 64, 128 or 256 */
#endif

#include "dialect/common.h"
#include "ptx/wgmma.h"
#define WGMMA_SUM(j, i) "+r"(sums[4 * (j) + (i)])
#include "mma/warpgroup_operands.h"
#include "bits.h"

/* STEP_BYTES: bytes of the weights of a step. Each plane of the weights has the lower half and then
 * the upper half of the step's bits. SUMS: number of sums that a lane holds. */
#define PLANE_BYTES (TILE_C * 32)
#define STEP_BYTES (PLANES * PLANE_BYTES)
#define SUMS (TILE_C / 2)

/* wgmma.mma_async.k256: starts the multiplication of 64 pixels by TILE_C channels over 256 bits.
 * If `adds` is 0, the numbers of ones replace the sums, else they are added to the sums. Of each 8
 * channels, a lane holds the sums of channels 2 (lane % 4) and 2 (lane % 4) + 1. Of its warp's 16
 * pixels, the lane has pixels lane / 4 and lane / 4 + 8. */
INLINE void wgmma_bits(int (&sums)[SUMS], uint upper_low, uint lower_low, uint upper_high,
                       uint lower_high, ulong weights, int adds)
{
    asm volatile(WGMMA_TEXT(WGMMA_BITS, TILE_C)
                 : WGMMA_SUMS(TILE_C)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
}

/* Returns the matrix descriptor of weights: core matrices of 8 channels x 128 bits. The next
 * 8 channels follow after 128 bytes, and the next 128 bits after TILE_C * 16 bytes. */
INLINE ulong described_weights(uint address)
{
    return (ulong)(address >> 4) | (ulong)TILE_C << 16 | (ulong)(128 >> 4) << 32;
}

/* Starts the products of the steps of a phase, as one wgmma group. The first product of phase 0
 * sets the sums. All other products are added to the sums.
 *
 * upper, lower: the operands of the lane's two pixels.
 * weights: the address of the weights of phase 0. */
INLINE void multiply_steps(int (&sums)[SUMS], const Operand (&upper)[AT_ONCE],
                           const Operand (&lower)[AT_ONCE], uint weights, int phase)
{
    wgmma_fence();
    UNROLL for (int step = 0; step < AT_ONCE; step++)
        UNROLL for (int plane = 0; plane < PLANES; plane++)
            wgmma_bits(sums, upper[step].low[plane], lower[step].low[plane],
                       upper[step].high[plane], lower[step].high[plane],
                       described_weights(weights + (phase * AT_ONCE + step) * STEP_BYTES
                                         + plane * PLANE_BYTES),
                       phase + step + plane > 0);
    wgmma_commit_group();
}
