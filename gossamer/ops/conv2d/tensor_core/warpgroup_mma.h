/* Multiplication of tiles of implicit_gemm by warpgroups, with the operands in shared memory, or, in
 * TF32, with the pixels in registers, where they are rounded (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 1 /* 1: warpgroups multiply by wgmma (sm_90a) */
#endif

#include "mma/warp.h"
#include "mma/warpgroup.h"
#include "ptx/ldmatrix.h"
#include "implicit_gemm_tile.h"

#if WGMMA
/* Starts the products of a stage for a warpgroup, as one wgmma group. lines, weights: the addresses
 * of the stage's lines of pixels and of weights. */
INLINE void multiply_stage(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint lines, uint weights,
                           uint warp)
{
    lines += warp / 4 * FRAGMENTS_P * 64 * LINE;
    WarpgroupPixels pixels[FRAGMENTS_P][STEPS];
#if HALVES
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int step = 0; step < STEPS; step++)
            pixels[i][step] = matrix_descriptor(lines + i * 64 * LINE + step * 32);
#else
    uint lane = (uint)LOCAL_ID(0) % 32;
    uint address = lines + (warp % 4 * 16 + lane % 16) * LINE + ((lane / 16 ^ lane % 8) << 4);
    wgmma_wait_group<0>(); /* the registers of the stage before are free */
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int step = 0; step < STEPS; step++)
            pixels[i][step] =
                rounded_operands(ldmatrix_x4((address ^ (uint)step << 5) + i * 64 * LINE));
#endif
    wgmma_fence();
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int step = 0; step < STEPS; step++)
            wgmma(sums[i], pixels[i][step], matrix_descriptor(weights + step * 32));
    wgmma_commit_group();
}
#endif
