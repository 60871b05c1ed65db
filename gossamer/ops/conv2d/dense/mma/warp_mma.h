/* Multiplication by a warp of a tile of implicit_gemm, whose operands are loaded from shared memory
 * (sm_80). */

#pragma once

#include "mma/warp.h"
#include "implicit_gemm_tile.h"

#if !WGMMA
/* Loads four matrices of eight pieces. */
INLINE uint4 load_matrices(uint address)
{
    uint4 loaded;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "r"(address) : "memory");
    return loaded;
}

/* Multiplies a step. x_address and weight_address are those of the lane's first lines. */
INLINE void multiply_step(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint x_address,
                          uint weight_address, int step)
{
    uint4 lines[FRAGMENTS_P], weights[FRAGMENTS_M / 2];
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        lines[i] = load_matrices((x_address ^ (uint)step << 5) + i * 16 * LINE);
    UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++)
        weights[j] = load_matrices((weight_address ^ (uint)step << 5) + j * 16 * LINE);
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int j = 0; j < FRAGMENTS_M / 2; j++) {
            multiply(sums[i][2 * j], lines[i], weights[j].x, weights[j].y);
            multiply(sums[i][2 * j + 1], lines[i], weights[j].z, weights[j].w);
        }
}
#endif
