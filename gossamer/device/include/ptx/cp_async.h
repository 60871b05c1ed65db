/* Asynchronous copies into shared memory (sm_80): a work-item starts copies, commits them as a
 * group, and waits for its groups later. */

#pragma once

#include "dialect/common.h"

#ifdef __CUDACC__

/* Returns a pointer into shared memory as the 32-bit address that PTX instructions take. */
[[maybe_unused]] INLINE uint shared_address(const void *pointer)
{
    return (uint)__cvta_generic_to_shared(pointer);
}

/* cp.async.cg: starts a copy of 16 bytes that bypasses the L1 cache.
 * size: number of bytes to read, up to 16; zeros are stored in place of the others. */
[[maybe_unused]] INLINE void cp_async_16(uint target, const void *source, int size)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(size) : "memory");
}

/* cp.async.ca: starts a copy of BYTES (4, 8 or 16) bytes through the L1 cache, for data that are
 * soon copied again.
 * size: number of bytes to read, up to BYTES; zeros are stored in place of the others. */
template <int BYTES> INLINE void cp_async_ca(uint target, const void *source, int size)
{
    if constexpr (BYTES == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     ::"r"(target), "l"(source), "r"(size) : "memory");
    else if constexpr (BYTES == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                     ::"r"(target), "l"(source), "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;"
                     ::"r"(target), "l"(source), "r"(size) : "memory");
}

/* cp.async.commit_group: makes a group of the copies that were started since the last group. */
[[maybe_unused]] INLINE void cp_async_commit_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* cp.async.wait_all: waits for all copies that this work-item started, committed or not. */
[[maybe_unused]] INLINE void cp_async_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* cp.async.wait_group: waits until at most `left` of the committed groups are incomplete. */
template <int left> INLINE void cp_async_wait_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#endif
