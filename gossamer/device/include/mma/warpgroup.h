/* The four warps of a warpgroup multiply pixels by weights (sm_90a). The weights are in shared
 * memory. The pixels are in shared memory if they are float16, or in registers if they are TF32. */

#pragma once

#if !defined CONFIGURED && !defined HALVES
#define HALVES 1 /* 1: operands are float16; 0: operands are floats, read as TF32 */
#endif
#if !defined CONFIGURED && !defined TILE_M
#define TILE_M 64 /* lines of the right operand: 64, 96, 128, 160, 192 or 256 */
#endif

#include "dialect/common.h"
#include "mma/warpgroup_operands.h"
#include "ptx/wgmma.h"

#if HALVES
/* The matrix descriptor of 64 lines over one step of K. */
typedef ulong WarpgroupPixels;
#else
/* A lane's numbers of 16 lines over one step of K, in the layout of mma's operands. */
typedef uint4 WarpgroupPixels;
#endif

/* wgmma.mma_async: multiplies 64 lines of x by TILE_M lines of weights over one step of K. weights:
 * matrix descriptor. adds: 1 adds the products to the sums; 0 (float16 only) overwrites the sums.
 * Let i = 16 (w % 4) + l / 4. Lane l of warp w receives sums of lines i and i + 8 of x, in the
 * layout of mma's results. */
[[maybe_unused]] INLINE void wgmma(float (&sums)[TILE_M / 8][4], const WarpgroupPixels &x,
                                   ulong weights, [[maybe_unused]] int adds = 1)
{
#if HALVES
    asm volatile(WGMMA_TEXT(WGMMA_SS, TILE_M) : WGMMA_SUMS(TILE_M) : "l"(x), "l"(weights), "r"(adds));
#else
    asm volatile(WGMMA_TEXT(WGMMA_RS, TILE_M)
                 : WGMMA_SUMS(TILE_M)
                 : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "l"(weights));
#endif
}

/* Starts the products of a stage for a warpgroup, as one wgmma group. A row is 64 lines of x. Each
 * of `rows` rows is multiplied by TILE_M lines of weights over `steps` steps of K. x: function that
 * returns the left operand of a row and a step. weights: function that returns the matrix
 * descriptor of the right operand of a row and a step. */
template <int rows, int steps, int all_rows, class Left, class Right>
INLINE void start_products(float (&sums)[all_rows][TILE_M / 8][4], Left x, Right weights)
{
    wgmma_fence();
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int step = 0; step < steps; step++)
            wgmma(sums[i], x(i, step), weights(i, step));
    wgmma_commit_group();
}
