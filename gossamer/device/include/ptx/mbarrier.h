/* Barriers in shared memory for warps that copy and warps that multiply (sm_90). A barrier has turns:
 * each ends when as many have arrived as it was begun with, and when the bytes that were expected
 * have come. */

#pragma once

#include "dialect/common.h"
#include "ptx/cp_async.h"

/* Begins a barrier at which so many arrive in each turn. */
[[maybe_unused]] INLINE void begin_barrier(ulong *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes barriers that were begun visible to copies of bytes. */
[[maybe_unused]] INLINE void show_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Makes what the work-item wrote to shared memory visible to copies of bytes and to multiplications of
 * warpgroups. */
[[maybe_unused]] INLINE void show_writes()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Arrives at a barrier. */
[[maybe_unused]] INLINE void arrive(ulong *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives at a barrier whose turn does not end before so many bytes have come. */
[[maybe_unused]] INLINE void expect_bytes(ulong *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

/* Arrives at a barrier when all earlier copies of the work-item have been made. */
[[maybe_unused]] INLINE void arrive_when_copied(ulong *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

/* Waits for the end of a turn, which are numbered from 0 on. */
[[maybe_unused]] INLINE void wait_for_turn(ulong *barrier, uint turn)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}"
                 ::"r"(shared_address(barrier)), "r"(turn & 1) : "memory");
}

/* Stores four floats at a place in the shared memory of a work-group of the cluster that corresponds to
 * one in the own, where the barrier that corresponds to `barrier` expects them. */
[[maybe_unused]] INLINE void send_to_group(uint target, float first, float second, float third,
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

/* Copies bytes to shared memory, where a barrier expects them. */
[[maybe_unused]] INLINE void copy_bytes(uint target, const void *source, int bytes, ulong *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 ::"r"(target), "l"(source), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
