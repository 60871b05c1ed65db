/* A warp copies 512 bytes in each of two phases, and another writes them out. EARLY: the other
 * arrives before it has read. FORGETS: the first makes no second copy. */

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/mbarrier.h"

KERNEL void two_phases(const uint4 *RESTRICT x, uint4 *RESTRICT y)
{
    SHARED ALIGNED(16) uint4 rows[32];
    SHARED ALIGNED(8) ulong barriers[2];
    int lane = LOCAL_ID(0) % 32;
    ulong *full = barriers, *empty = barriers + 1;
    if (LOCAL_ID(0) == 0) {
        mbarrier_init(full, 1);
        mbarrier_init(empty, 32);
        fence_mbarrier_init();
    }
    BARRIER();
    for (uint phase = 0; phase < 2; phase++) {
        if (LOCAL_ID(0) == 0 && (phase == 0 || !FORGETS)) {
            if (phase > 0)
                mbarrier_wait_parity(empty, phase - 1);
            mbarrier_arrive_expect_tx(full, 512);
            cp_async_bulk(shared_address(rows), x + phase * 32, 512, full);
        }
        if (LOCAL_ID(0) >= 32) {
            mbarrier_wait_parity(full, phase);
            if (EARLY)
                mbarrier_arrive(empty);
            y[phase * 32 + lane] = rows[lane];
            if (!EARLY)
                mbarrier_arrive(empty);
        }
    }
}
