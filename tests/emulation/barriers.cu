/* A warp copies 512 bytes in each of two turns, and another writes them out. EARLY: the other
 * arrives before it has read. FORGETS: the first makes no second copy. */

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/mbarrier.h"

KERNEL void two_turns(const uint4 *RESTRICT x, uint4 *RESTRICT y)
{
    SHARED ALIGNED(16) uint4 rows[32];
    SHARED ALIGNED(8) ulong barriers[2];
    int lane = LOCAL_ID(0) % 32;
    ulong *full = barriers, *empty = barriers + 1;
    if (LOCAL_ID(0) == 0) {
        begin_barrier(full, 1);
        begin_barrier(empty, 32);
        show_barriers();
    }
    BARRIER();
    for (uint turn = 0; turn < 2; turn++) {
        if (LOCAL_ID(0) == 0 && (turn == 0 || !FORGETS)) {
            if (turn > 0)
                wait_for_turn(empty, turn - 1);
            expect_bytes(full, 512);
            copy_bytes(shared_address(rows), x + turn * 32, 512, full);
        }
        if (LOCAL_ID(0) >= 32) {
            wait_for_turn(full, turn);
            if (EARLY)
                arrive(empty);
            y[turn * 32 + lane] = rows[lane];
            if (!EARLY)
                arrive(empty);
        }
    }
}
