/* Barriers in shared memory (sm_90), and copies that signal a barrier. Warps that multiply wait at
 * a barrier for warps that copy, and vice versa. A barrier has phases, numbered from 0. A phase
 * ends when the barrier has received as many arrivals as mbarrier_init specified, and all expected
 * bytes have been copied. */

#pragma once

#include "dialect/common.h"
#include "ptx/cp_async.h"

/* mbarrier.init: initialises a barrier whose phases end after `arrivals` arrivals. */
[[maybe_unused]] INLINE void mbarrier_init(ulong *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* fence.mbarrier_init: makes initialised barriers visible to bulk copies and to the cluster. */
[[maybe_unused]] INLINE void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* fence.proxy.async: makes the work-item's writes to shared memory visible to bulk copies and to
 * wgmma. */
[[maybe_unused]] INLINE void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* mbarrier.arrive: arrives at a barrier. */
[[maybe_unused]] INLINE void mbarrier_arrive(ulong *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

/* mbarrier.arrive by lane 0: arrives at a barrier once for the whole warp, after all lanes have
 * called this function. */
[[maybe_unused]] INLINE void mbarrier_arrive_warp(ulong *barrier)
{
    WARP_BARRIER();
    if (LOCAL_ID(0) % 32 == 0)
        mbarrier_arrive(barrier);
}

/* mbarrier.arrive.expect_tx: arrives at a barrier, and makes the barrier's current phase wait until
 * `bytes` more bytes have been copied. */
[[maybe_unused]] INLINE void mbarrier_arrive_expect_tx(ulong *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

/* cp.async.mbarrier.arrive.noinc: arrives at a barrier when all earlier cp.async copies of the
 * work-item are complete. */
[[maybe_unused]] INLINE void cp_async_mbarrier_arrive(ulong *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

/* mbarrier.try_wait.parity in a loop: waits for the end of phase number `phase`, which must be the
 * barrier's current phase or the previous one. Only the parity of the number is used. */
[[maybe_unused]] INLINE void mbarrier_wait_parity(ulong *barrier, uint phase)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}"
                 ::"r"(shared_address(barrier)), "r"(phase & 1) : "memory");
}

/* mapa and st.async: stores four floats in the shared memory of work-group `group` of the cluster.
 * `target` and `barrier` are addresses in the calling work-group's shared memory. Both are mapped
 * to the same offsets in the shared memory of `group`: the floats are stored at the mapped target,
 * and the mapped barrier counts the 16 bytes. */
[[maybe_unused]] INLINE void st_async_cluster(uint target, float first, float second, float third,
                                              float fourth, ulong *barrier, int group)
{
    asm volatile("{ .reg .b32 there, expecting; "
                 "mapa.shared::cluster.u32 there, %0, %6; "
                 "mapa.shared::cluster.u32 expecting, %1, %6; "
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
                 " [there], {%2, %3, %4, %5}, [expecting]; }"
                 ::"r"(target), "r"(shared_address(barrier)), "f"(first), "f"(second), "f"(third),
                 "f"(fourth), "r"(group) : "memory");
}

/* cp.async.bulk: starts a copy of `bytes` bytes, a multiple of 16, to shared memory. `barrier`
 * counts the copied bytes; mbarrier_arrive_expect_tx must announce these bytes to the barrier. */
[[maybe_unused]] INLINE void cp_async_bulk(uint target, const void *source, int bytes,
                                           ulong *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 ::"r"(target), "l"(source), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

/* Arrives at a barrier, and starts a copy of `bytes` bytes. The barrier's current phase ends only
 * after the copy. */
[[maybe_unused]] INLINE void start_bulk_copy(uint target, const void *source, int bytes,
                                             ulong *barrier)
{
    mbarrier_arrive_expect_tx(barrier, bytes);
    cp_async_bulk(target, source, bytes, barrier);
}
