/* Multiplication of tiles of implicit_gemm by warpgroups, with the operands in shared memory
 * (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 1 /* 1: warpgroups multiply by wgmma (sm_90a) */
#endif

#include "mma/warpgroup.h"
#include "implicit_gemm_tile.h"

#if WGMMA
/* Starts the products of a stage for a warpgroup, as one wgmma group. lines, weights: the addresses
 * of the stage's lines of pixels and of weights. */
INLINE void multiply_stage(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint lines, uint weights,
                           uint warp)
{
    wgmma_fence();
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int step = 0; step < STEPS; step++)
            wgmma_ss(sums[i],
                     matrix_descriptor(lines + (warp / 4 * FRAGMENTS_P + i) * 64 * LINE
                                       + step * 32),
                     matrix_descriptor(weights + step * 32));
    wgmma_commit_group();
}
#endif
