/* Multiplication by a warpgroup of tiles of implicit_gemm, whose operands lie in shared memory
 * (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 1 /* 1: warpgroups multiply by wgmma (sm_90a) */
#endif

#include "mma/warpgroup.h"
#include "implicit_gemm_tile.h"

#if WGMMA
/* Starts to multiply a stage for the tiles of a warpgroup, as one group of wgmma. lines,
 * weights: the addresses of the stage's lines. */
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
