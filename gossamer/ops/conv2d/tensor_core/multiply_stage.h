/* Products of a stage of implicit_gemm. With WGMMA (sm_90a), tensor cores read operands from shared
 * memory. In TF32, however, warpgroups first load the pixels to registers and round them. Without
 * WGMMA (sm_80), warps load both operands to registers. */

#pragma once

#include "mma/lines.h"
#include "mma/precisions.h"
#include "mma/warpgroup.h"
#include "implicit_gemm_tile.h"

/* Multiplies a stage. With WGMMA, the products are only started, as one wgmma group.
 * lines, weights: the addresses of the stage's lines of pixels and of weights.
 * left: number of steps of K that are left, including those of this stage. */
INLINE void multiply_stage(float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4], uint lines, uint weights,
                           [[maybe_unused]] int left, uint warp, [[maybe_unused]] uint lane)
{
#if WGMMA
    lines += warp / 4 * FRAGMENTS_P * 64 * LINE;
#if HALVES
    auto pixels = [&](int i, int step) {
        return matrix_descriptor(lines + i * 64 * LINE + step * 32);
    };
#else
    uint address = lines + piece_offset(warp % 4 * 16 + lane % 16, lane / 16);
    WarpgroupPixels loaded[FRAGMENTS_P][STEPS];
    wgmma_wait_group<0>(); /* then the registers of the previous stage are free */
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int step = 0; step < STEPS; step++)
            loaded[i][step] = rounded_operands(load_step(address, step, i * 64));
    auto pixels = [&](int i, int step) { return loaded[i][step]; };
#endif
    start_products<FRAGMENTS_P, STEPS>(
        sums, pixels, [&](int, int step) { return matrix_descriptor(weights + step * 32); });
#else
    uint warp_m = warp % WARPS_M, warp_p = warp / WARPS_M % WARPS_P;
    lines += piece_offset(warp_p * (TILE_P / WARPS_P) + lane % 16, lane / 16);
    weights += piece_offset(warp_m * (TILE_M / WARPS_M) + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    share_steps<STEPS, WARPS_K>(left, (int)(warp / (WARPS_M * WARPS_P)), [&](int step) {
        multiply_fragments<FRAGMENTS_P, FRAGMENTS_M / 2>(
            sums, [&](int i) { return as_operands(load_step(lines, step, i * 16)); },
            [&](int j) { return packed_operands(load_step(weights, step, j * 16)); });
    });
#endif
}
