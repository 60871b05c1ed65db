/* The four warps of a warpgroup multiply a 2:4 sparse left operand by a dense right operand
 * (sm_90a). Both operands are float16 in shared memory. */

#pragma once

#if !defined CONFIGURED && !defined TILE_N
#define TILE_N 64 /* lines of the right operand: a multiple of 32 from 64 to 256 */
#endif

#include "dialect/common.h"
#include "mma/warpgroup_operands.h"
#include "ptx/wgmma.h"

/* wgmma.mma_async.sp: multiplies 64 rows of the left operand by TILE_N lines of the right operand
 * over 32 values of K, and adds the products to the sums. The left operand stores two of each four
 * neighbours along K. Its matrix descriptor covers 16 stored values of each row.
 *
 * indices: 32 bits of each lane. Each pair of two-bit numbers tells which two of four neighbours
 * are stored, the smaller number first. Let i = 16 w + l / 4 for lane l of warp w. Bits 0 to 15 are
 * four pairs of row i, from the lowest bits on; bits 16 to 31 are four pairs of row i + 8. Four
 * pairs cover 16 values of K: the first 16 if l is even, the last 16 if l is odd.
 * selector: 0 if the indices of lanes with l % 4 < 2 are read, 1 if those of the other lanes are.
 *
 * Let c = 8 j + 2 (l % 4). Lane l of warp w receives the sums of lines c and c + 1 of the right
 * operand: for row i in sums[j][0] and sums[j][1], for row i + 8 in sums[j][2] and sums[j][3]. */
template <int selector>
INLINE void wgmma_sparse(float (&sums)[TILE_N / 8][4], ulong left, ulong right, uint indices)
{
    asm volatile(WGMMA_TEXT(WGMMA_SPARSE, TILE_N)
                 : WGMMA_SUMS(TILE_N)
                 : "l"(left), "l"(right), "r"(indices), "n"(selector));
}
