/* A warp copies rows of 512 bytes to a ring of SLOTS slots, and CONSUMERS warps write them out,
 * AT_ONCE rows at once. KEPT: each row has a slot of its own, and is written out twice. */

#define SLOTS 3
#define CONSUMERS 2

#include "dialect/common.h"
#include "mma/ring.h"

KERNEL void through_slots(const uint4 *RESTRICT x, uint4 *RESTRICT y, int rows)
{
    SHARED ALIGNED(16) uint4 held[KEPT ? 8 : SLOTS][32];
    SHARED ALIGNED(8) ulong barriers[8];
    int lane = LOCAL_ID(0) % 32, consumer = LOCAL_ID(0) / 32 - 1;
#if KEPT
    KeptSlots ring = {barriers, rows, 0};
#else
    Ring<SLOTS> ring = ring_at<SLOTS>(barriers);
#endif
    if (LOCAL_ID(0) == 0) {
        init_ring(ring, 1, 32 * CONSUMERS);
        fence_mbarrier_init();
    }
    BARRIER();
    if (consumer < 0) {
        for (int row = 0; row < rows && lane == 0; row++) {
            producer_acquire(ring);
            start_bulk_copy(shared_address(held[ring.slot]), x + row * 32, 512,
                            filled_barrier(ring));
            advance(ring);
        }
        return;
    }
    for (int time = 0; time <= KEPT; time++) {
        rewind(ring);
        for (int row = 0; row < rows; row += AT_ONCE) {
            consumer_wait(ring);
#if AT_ONCE > 1
            consumer_wait(ring, 1);
#endif
            for (int i = 0; i < AT_ONCE; i++) {
                uint4 *to = y + ((time * CONSUMERS + consumer) * rows + row + i) * 32;
                to[lane] = held[ring.slot][lane];
                advance(ring);
                release_previous<32>(ring);
            }
        }
    }
}
