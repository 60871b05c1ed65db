/* Loads of matrices from shared memory to the registers of a warp (sm_75), in the layout of mma's
 * operands. A matrix has 8 rows of 16 bytes. Lane l passes the address of row l % 8 of matrix
 * l / 8, and receives bytes 4 (l % 4) to 4 (l % 4) + 3 of row l / 4 of each matrix. */

#pragma once

#include "dialect/common.h"

#ifdef __CUDACC__

/* ldmatrix.x4: loads four matrices. */
[[maybe_unused]] INLINE uint4 ldmatrix_x4(uint address)
{
    uint4 loaded;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "r"(address) : "memory");
    return loaded;
}

/* ldmatrix.x4.trans: loads four matrices of 16-bit numbers, and transposes each of them. */
[[maybe_unused]] INLINE uint4 ldmatrix_x4_trans(uint address)
{
    uint4 loaded;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "r"(address) : "memory");
    return loaded;
}

/* ldmatrix.x2: loads two matrices, from the addresses that lanes 0 to 15 pass. */
[[maybe_unused]] INLINE uint2 ldmatrix_x2(uint address)
{
    uint2 loaded;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(loaded.x), "=r"(loaded.y) : "r"(address) : "memory");
    return loaded;
}

#endif
