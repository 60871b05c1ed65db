/* Groups of multiplications that the four warps of a warpgroup start together, and wait for later
 * (sm_90a). */

#pragma once

#include "dialect/common.h"

/* Orders earlier accesses of registers and of shared memory before the multiplications. */
[[maybe_unused]] INLINE void begin_multiplications()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Makes a group of the multiplications that were started since the last one. */
[[maybe_unused]] INLINE void commit_multiplications()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `left` of the committed groups of multiplications are under way. */
template <int left> INLINE void wait_for_multiplications()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
