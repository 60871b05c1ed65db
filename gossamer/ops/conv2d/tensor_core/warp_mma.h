/* Multiplication of a tile of implicit_gemm by warps, which load the operands from shared memory to
 * registers (sm_80). */

#pragma once

#include "mma/warp.h"
#include "ptx/ldmatrix.h"
#include "implicit_gemm_tile.h"

#if !WGMMA
/* Multiplies a step. x_address, weight_address: the addresses of the lane's first lines. */
INLINE void multiply_step(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint x_address,
                          uint weight_address, int step)
{
    uint4 lines[FRAGMENTS_P], weights[FRAGMENTS_M / 2];
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        lines[i] = rounded_operands(
            ldmatrix_x4((x_address ^ (uint)step << 5) + i * 16 * LINE));
    UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++)
        weights[j] = ldmatrix_x4((weight_address ^ (uint)step << 5) + j * 16 * LINE);
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++) {
            mma_sync(sums[i][2 * j], lines[i], weights[j].x, weights[j].y);
            mma_sync(sums[i][2 * j + 1], lines[i], weights[j].z, weights[j].w);
        }
}

/* Multiplies a warp's share of a stage. lines, weights: the addresses of the stage's lines. steps:
 * the steps of K that are left; a stage has at most STEPS. warp_m, warp_p, warp_k: number of the
 * warp along the channels, the pixels and K. */
INLINE void multiply_stage(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint lines, uint weights,
                           int steps, uint warp_m, uint warp_p, uint warp_k, uint lane)
{
    uint x_address = lines + (warp_p * (TILE_P / WARPS_P) + lane % 16) * LINE
                     + ((lane / 16 ^ lane % 8) << 4);
    uint weight_address = weights + (warp_m * (TILE_M / WARPS_M) + lane / 16 * 8 + lane % 8) * LINE
                          + ((lane / 8 % 2 ^ lane % 8) << 4);
    if (steps >= STEPS) {
        UNROLL for (int k = 0; k < STEPS; k += WARPS_K)
            multiply_step(sums, x_address, weight_address, k + (int)warp_k);
    } else {
        _Pragma("unroll 1") for (int k = (int)warp_k; k < steps; k += WARPS_K)
            multiply_step(sums, x_address, weight_address, k);
    }
}
#endif
