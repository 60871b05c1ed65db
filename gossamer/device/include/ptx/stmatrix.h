/* Stores of matrices from the registers of a warp to shared memory (sm_90). */

#pragma once

#include "dialect/common.h"

/* stmatrix.x4.trans: transposes four 8x8 matrices of 16-bit numbers, and stores them. Lane l passes
 * columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix, and the address of the 16 bytes
 * that receive column l % 8 of matrix l / 8. */
[[maybe_unused]] INLINE void stmatrix_x4_trans(uint address, uint4 matrices)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(matrices.x), "r"(matrices.y), "r"(matrices.z),
                   "r"(matrices.w) : "memory");
}
