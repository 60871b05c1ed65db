/* Products of a stage of implicit_gemm. With WGMMA (sm_90a), warpgroups read operands from shared
 * memory; in TF32 they first load the pixels to registers and round them. Without WGMMA (sm_80),
 * warps load both operands to registers. */

#pragma once

#include "mma/warp.h"
#include "mma/warpgroup.h"
#include "ptx/ldmatrix.h"
#include "implicit_gemm_tile.h"

#if WGMMA
/* Starts the products of a stage for a warpgroup, as one wgmma group. lines, weights: the addresses
 * of the stage's lines of pixels and of weights. */
INLINE void multiply_stage(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint lines, uint weights,
                           int, uint warp, [[maybe_unused]] uint lane)
{
    lines += warp / 4 * FRAGMENTS_P * 64 * LINE;
    WarpgroupPixels pixels[FRAGMENTS_P][STEPS];
#if HALVES
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int step = 0; step < STEPS; step++)
            pixels[i][step] = matrix_descriptor(lines + i * 64 * LINE + step * 32);
#else
    uint address = lines + (warp % 4 * 16 + lane % 16) * LINE + ((lane / 16 ^ lane % 8) << 4);
    wgmma_wait_group<0>(); /* wgmma no longer reads the previous stage's registers */
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
#else
/* Multiplies a warp's share of a stage. lines, weights: the addresses of the stage's lines. steps:
 * number of remaining steps of K; a stage has at most STEPS. */
INLINE void multiply_stage(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint lines, uint weights,
                           int steps, uint warp, uint lane)
{
    uint warp_m = warp % WARPS_M, warp_p = warp / WARPS_M % WARPS_P;
    int warp_k = (int)(warp / (WARPS_M * WARPS_P));
    lines += (warp_p * (TILE_P / WARPS_P) + lane % 16) * LINE + ((lane / 16 ^ lane % 8) << 4);
    weights += (warp_m * (TILE_M / WARPS_M) + lane / 16 * 8 + lane % 8) * LINE
               + ((lane / 8 % 2 ^ lane % 8) << 4);
    auto multiply_step = [&](int step) {
        uint4 left[FRAGMENTS_P], right[FRAGMENTS_M / 2];
        UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
            left[i] = rounded_operands(ldmatrix_x4((lines ^ (uint)step << 5) + i * 16 * LINE));
        UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++)
            right[j] = ldmatrix_x4((weights ^ (uint)step << 5) + j * 16 * LINE);
        UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
            UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++) {
                mma_sync(sums[i][2 * j], left[i], right[j].x, right[j].y);
                mma_sync(sums[i][2 * j + 1], left[i], right[j].z, right[j].w);
            }
    };
    if (steps >= STEPS) {
        UNROLL for (int k = 0; k < STEPS; k += WARPS_K)
            multiply_step(k + warp_k);
    } else {
        _Pragma("unroll 1") for (int k = warp_k; k < steps; k += WARPS_K)
            multiply_step(k);
    }
}
#endif
