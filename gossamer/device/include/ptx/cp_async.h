/* Asynchronous copies into shared memory (sm_80): a work-item starts some, commits them as a group,
 * and waits for its groups later. */

#pragma once

#include "dialect/common.h"

#ifdef __CUDACC__

/* Returns the address by which instructions know a place in shared memory. */
[[maybe_unused]] INLINE uint shared_address(const void *pointer)
{
    return (uint)__cvta_generic_to_shared(pointer);
}

/* Starts a copy of 16 bytes, or of zeros where size is 0. */
[[maybe_unused]] INLINE void copy_16_bytes(uint target, const void *source, int size)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(size) : "memory");
}

/* Starts a copy of 4 bytes, or of zeros where size is 0. */
[[maybe_unused]] INLINE void copy_4_bytes(uint target, const void *source, int size)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 ::"r"(target), "l"(source), "r"(size) : "memory");
}

/* Makes a group of the copies that were started since the last one. */
[[maybe_unused]] INLINE void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all copies that this work-item started, committed or not. */
[[maybe_unused]] INLINE void wait_for_all_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Waits until at most `left` of the committed groups of copies are under way. */
template <int left> INLINE void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#endif
