/* Asynchronous multiplications by the four warps of a warpgroup, and instructions that move
 * registers between warpgroups (sm_90a). */

#pragma once

#include "dialect/common.h"

/* wgmma.fence: orders earlier accesses of registers and of shared memory before wgmma. */
[[maybe_unused]] INLINE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Returns the matrix descriptor of a wgmma operand in shared memory without swizzling. The operand
 * consists of tiles of 8 rows of 16 bytes; the rows of a tile are contiguous.
 * next_columns: stride from a tile to the tile with the next columns, in units of 16 bytes.
 * next_rows: stride from a tile to the tile with the next rows, in units of 16 bytes. */
[[maybe_unused]] INLINE ulong tile_descriptor(uint address, int next_columns, int next_rows)
{
    return (ulong)(address >> 4 & 0x3fff) | (ulong)next_columns << 16 | (ulong)next_rows << 32;
}

/* wgmma.commit_group: makes a group of the multiplications started since the last group. */
[[maybe_unused]] INLINE void wgmma_commit_group()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* wgmma.wait_group: waits until at most `left` of the committed groups are incomplete. */
template <int left> INLINE void wgmma_wait_group()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* setmaxnreg.dec: each work-item keeps `registers` registers and releases the others. Warps that
 * copy need fewer registers than warps that multiply. */
template <int registers> INLINE void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* setmaxnreg.inc: waits until other warps have released enough registers, and gives each work-item
 * `registers` registers. */
template <int registers> INLINE void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* bar.sync: waits for the four warps of a warpgroup. group: number of the warpgroup, below 15. */
[[maybe_unused]] INLINE void warpgroup_barrier(uint group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
