/* Multiplication by a warp of a tile of implicit_gemm, whose operands are loaded from shared memory
 * (sm_80). */

#pragma once

#include "mma/warp.h"
#include "ptx/ldmatrix.h"
#include "implicit_gemm_tile.h"

#if !WGMMA
/* Multiplies a step. x_address and weight_address are those of the lane's first lines. */
INLINE void multiply_step(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint x_address,
                          uint weight_address, int step)
{
    uint4 lines[FRAGMENTS_P], weights[FRAGMENTS_M / 2];
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        lines[i] = ldmatrix_x4((x_address ^ (uint)step << 5) + i * 16 * LINE);
    UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++)
        weights[j] = ldmatrix_x4((weight_address ^ (uint)step << 5) + j * 16 * LINE);
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++) {
            mma_sync(sums[i][2 * j], lines[i], weights[j].x, weights[j].y);
            mma_sync(sums[i][2 * j + 1], lines[i], weights[j].z, weights[j].w);
        }
}
#endif
