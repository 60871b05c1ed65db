/* Multiplication by the four warps of a warpgroup together, of a left operand that is 2:4 sparse and
 * a right operand, both float16 in shared memory (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined TILE_N
#define TILE_N 64 /* lines of the right operand: a multiple of 32 from 64 to 256 */
#endif

#include "dialect/common.h"
#include "mma/warpgroup_operands.h"
#include "ptx/wgmma.h"

/* wgmma.mma_async.sp: multiplies 64 rows of the left operand with TILE_N lines of the right operand
 * over 32 values of K, and adds to the sums. Of each four neighbours of a row along K the left
 * operand stores two; its matrix descriptor is that of 16 stored values of each row.
 *
 * indices: 32 bits of each lane that say which two of four neighbours are stored, by two numbers of
 * two bits, the smaller first. Lane l of warp w has the four pairs of row 16 w + l / 4 in bits 0 to
 * 15, from the lowest on, and those of the row 8 rows further in bits 16 to 31, for 16 values of K:
 * the first 16 where l is even, else the last 16. With selector 0 the lanes l % 4 < 2 are read, with
 * selector 1 the other lanes.
 *
 * Lane l of warp w gets the sums of rows i and i + 8 for lines 8 j + 2 (l % 4) and the line after,
 * where i is 16 w + l / 4, in sums[j][0] and [1] for row i, and in [2] and [3] for row i + 8. */
template <int selector>
INLINE void wgmma_sparse(float (&sums)[TILE_N / 8][4], ulong left, ulong right, uint indices)
{
    asm volatile(WGMMA_TEXT(WGMMA_SPARSE, TILE_N)
                 : WGMMA_SUMS(TILE_N)
                 : "l"(left), "l"(right), "r"(indices), "n"(selector));
}
