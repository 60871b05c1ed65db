/* Rings of slots in shared memory, which producer warps fill and consumer warps read (sm_90). Only
 * this file counts the phases of barriers.
 *
 * A slot has two barriers. A phase of `filled` ends when the slot has been filled, and a phase of
 * `read` when the slot has been read. Each warp goes through the slots in turn, by its own Ring:
 *
 *   a producer   producer_acquire, copies that arrive at filled_barrier, advance
 *   a consumer   consumer_wait, products, advance, and release_previous once the products that
 *                were started before the last ones have ended
 *
 * Where barriers of the work-group say that a slot was read, only the barriers `filled` are used.
 * Slots for data that stay are KeptSlots. The same functions take them, so that a kernel has the
 * same code for a Ring and for KeptSlots: nobody releases them, and nobody waits for it. */

#pragma once

#include "dialect/common.h"
#include "ptx/mbarrier.h"

/* filled, read: the barriers of the first slot, which those of the other slots follow. slot: the
 * slot that is filled or read next. round: how often all slots have been used before. last: the
 * barrier `read` of the slot before. */
template <int slots> struct Ring {
    ulong *filled, *read;
    int slot;
    uint round;
    ulong *last;
};

/* Slots that are filled once and read as often as needed. filled: the barrier of the first slot,
 * which those of the other slots follow. slots: their number. slot: the slot that is filled or read
 * next. */
struct KeptSlots {
    ulong *filled;
    int slots, slot;
};

/* Initialises a barrier that is used once, and expects `bytes` bytes that are copied or stored. */
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

/* Returns a ring of `slots` slots, or, where `slots` is 0, a slot for each of `parts` parts. */
template <int slots> INLINE auto slots_at(ulong *barriers, [[maybe_unused]] int parts)
{
    if constexpr (slots > 0)
        return ring_at<slots>(barriers);
    else
        return KeptSlots{barriers, parts, 0};
}

/* Initialises the barriers, which one work-item does. fills: the arrivals that fill a slot. reads:
 * the arrivals that release a slot. Then fence_mbarrier_init and a barrier of the work-group are
 * needed. */
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

/* Waits until the slot may be filled again. */
template <int slots> INLINE void producer_acquire(const Ring<slots> &ring)
{
    if (ring.round > 0)
        mbarrier_wait_parity(ring.read + ring.slot, ring.round - 1);
}

[[maybe_unused]] INLINE void producer_acquire(const KeptSlots &) {}

/* Waits until the slot has been filled. */
template <int slots> INLINE void consumer_wait(const Ring<slots> &ring)
{
    mbarrier_wait_parity(ring.filled + ring.slot, ring.round);
}

/* Waits until the slot `ahead` slots further has been filled. */
template <int slots> INLINE void consumer_wait(const Ring<slots> &ring, int ahead)
{
    mbarrier_wait_parity(ring.filled + (ring.slot + ahead) % slots,
                         ring.round + (ring.slot + ahead >= slots));
}

[[maybe_unused]] INLINE void consumer_wait(const KeptSlots &kept)
{
    wait_once(kept.filled + kept.slot);
}

/* Returns the barrier at which copies to the slot arrive. */
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

/* Copies the parts of a tile, of `bytes` bytes each, to slots in turn, by one work-item. to: the
 * first slot in shared memory. from: the first part. distance: words of 16 bytes from a part to the
 * next. There is at least one part, whose copy does not wait for their number. */
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

/* Says that the slot before the next one has been read: once for the whole warp where wgmma alone
 * has read it (lanes is 1), by every lane where lanes have read or written it (lanes is 32). */
template <int lanes, int slots> INLINE void release_previous(const Ring<slots> &ring)
{
    if (lanes == 1)
        mbarrier_arrive_warp(ring.last);
    else
        mbarrier_arrive(ring.last);
}

template <int lanes> INLINE void release_previous(const KeptSlots &) {}

/* Goes to the first one of slots that are kept, at the beginning of a tile. A ring goes on. */
template <int slots> INLINE void rewind(Ring<slots> &) {}

[[maybe_unused]] INLINE void rewind(KeptSlots &kept)
{
    kept.slot = 0;
}
