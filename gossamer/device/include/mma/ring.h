/* Rings of slots in shared memory (sm_90). Producer warps fill the slots, and consumer warps read
 * them. The functions count the phases of the barriers, so that kernels need not.
 *
 * A slot has two barriers. A phase of `filled` ends when the slot has been filled, and a phase of
 * `read` when the slot has been read. Each warp has its own Ring, and calls for each slot in turn:
 *
 *   a producer   producer_acquire, copies that arrive at filled_barrier, advance
 *   a consumer   consumer_wait, products that read the slot, advance; and release_previous as soon
 *                as the products that read the previous slot have ended
 *
 * If barriers of the work-group order the reads of a slot before its next fill, only the barriers
 * `filled` are used.
 *
 * KeptSlots are slots that are filled once and never released. The same functions accept a Ring and
 * KeptSlots, so that a kernel has the same code for both. */

#pragma once

#include "dialect/common.h"
#include "ptx/mbarrier.h"

/* filled, read: the barriers of the first slot; the barriers of the other slots follow. slot: the
 * current slot, which is filled or read next. round: number of times that all slots have been used.
 * last: the barrier `read` of the previous slot. */
template <int slots> struct Ring {
    ulong *filled, *read;
    int slot;
    uint round;
    ulong *last;
};

/* Slots that are filled once and read as often as needed. filled: the barrier of the first slot;
 * the barriers of the other slots follow. slots: number of slots. slot: the current slot, which is
 * filled or read next. */
struct KeptSlots {
    ulong *filled;
    int slots, slot;
};

/* Initialises a barrier for one phase, which ends when `bytes` bytes have been copied or stored. */
[[maybe_unused]] INLINE void init_once(ulong *barrier, int bytes)
{
    mbarrier_init(barrier, 1);
    mbarrier_arrive_expect_tx(barrier, bytes);
}

/* Waits at a barrier that is used once. */
[[maybe_unused]] INLINE void wait_once(ulong *barrier)
{
    mbarrier_wait_parity(barrier, 0);
}

/* Returns a ring at its first slot. barriers: 2 * slots barriers in shared memory. */
template <int slots> INLINE Ring<slots> ring_at(ulong *barriers)
{
    return {barriers, barriers + slots, 0, 0, barriers + slots};
}

/* Returns a ring of `slots` slots; if `slots` is 0, returns KeptSlots with `parts` slots. */
template <int slots> INLINE auto slots_at(ulong *barriers, [[maybe_unused]] int parts)
{
    if constexpr (slots > 0)
        return ring_at<slots>(barriers);
    else
        return KeptSlots{barriers, parts, 0};
}

/* Initialises the barriers. One work-item calls this function; fence_mbarrier_init and a barrier of
 * the work-group must follow. fills: number of arrivals that end a phase of `filled`. reads: number
 * of arrivals that end a phase of `read`. */
template <int slots> INLINE void init_ring(const Ring<slots> &ring, int fills, int reads)
{
    UNROLL for (int slot = 0; slot < slots; slot++) {
        mbarrier_init(ring.filled + slot, fills);
        mbarrier_init(ring.read + slot, reads);
    }
}

[[maybe_unused]] INLINE void init_ring(const KeptSlots &kept, int fills, int)
{
    for (int slot = 0; slot < kept.slots; slot++)
        mbarrier_init(kept.filled + slot, fills);
}

/* Waits until the current slot may be filled again. */
template <int slots> INLINE void producer_acquire(const Ring<slots> &ring)
{
    if (ring.round > 0)
        mbarrier_wait_parity(ring.read + ring.slot, ring.round - 1);
}

[[maybe_unused]] INLINE void producer_acquire(const KeptSlots &) {}

/* Waits until the current slot has been filled. */
template <int slots> INLINE void consumer_wait(const Ring<slots> &ring)
{
    mbarrier_wait_parity(ring.filled + ring.slot, ring.round);
}

/* Waits until the slot that is `ahead` slots after the current one has been filled. */
template <int slots> INLINE void consumer_wait(const Ring<slots> &ring, int ahead)
{
    mbarrier_wait_parity(ring.filled + (ring.slot + ahead) % slots,
                         ring.round + (ring.slot + ahead >= slots));
}

[[maybe_unused]] INLINE void consumer_wait(const KeptSlots &kept)
{
    wait_once(kept.filled + kept.slot);
}

/* Returns the barrier at which copies to the current slot arrive. */
template <class Slots> INLINE ulong *filled_barrier(const Slots &slots)
{
    return slots.filled + slots.slot;
}

/* Goes to the next slot. */
template <int slots> INLINE void advance(Ring<slots> &ring)
{
    ring.last = ring.read + ring.slot;
    if (++ring.slot == slots) {
        ring.slot = 0;
        ring.round++;
    }
}

[[maybe_unused]] INLINE void advance(KeptSlots &kept)
{
    kept.slot++;
}

/* Copies the parts of a tile to successive slots. One work-item calls this function. bytes: size of
 * a part, and of a slot. to: address of slot 0 in shared memory. from: the first part. distance:
 * distance from the start of a part to the start of the next, in words of 16 bytes. parts: number
 * of parts, at least 1. The loop tests `parts` after a copy, so that the first copy does not wait
 * until `parts` is known. */
template <int bytes, class Slots>
INLINE void copy_parts(Slots &slots, uint to, const uint4 *from, int distance, int parts)
{
    int part = 0;
    do {
        producer_acquire(slots);
        start_bulk_copy(to + slots.slot * bytes, from, bytes, filled_barrier(slots));
        from += distance;
        advance(slots);
    } while (++part < parts);
}

/* Arrives at the barrier `read` of the previous slot. lanes: number of lanes that arrive. If only
 * wgmma has read the slot, 1 is enough: lane 0 arrives for the whole warp. If the lanes themselves
 * have read or written the slot, all 32 arrive. */
template <int lanes, int slots> INLINE void release_previous(const Ring<slots> &ring)
{
    if (lanes == 1)
        mbarrier_arrive_warp(ring.last);
    else
        mbarrier_arrive(ring.last);
}

template <int lanes> INLINE void release_previous(const KeptSlots &) {}

/* Goes back to the first slot of KeptSlots, at the beginning of a tile. A Ring stays unchanged. */
template <int slots> INLINE void rewind(Ring<slots> &) {}

[[maybe_unused]] INLINE void rewind(KeptSlots &kept)
{
    kept.slot = 0;
}
