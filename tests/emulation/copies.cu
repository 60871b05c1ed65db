/* Two warps copy 16 bytes in each lane, and each reads the other's bytes as four matrices, from
 * those of the last lane to those of the first. LATE: it does not wait for the copies. EARLY: it
 * copies again before all have read. */

#include "dialect/common.h"

INLINE uint address_of(const void *pointer)
{
    return (uint)__cvta_generic_to_shared(pointer);
}

INLINE void copy(uint target, const uint4 *source, int size)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(size) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

KERNEL void matrices(const uint4 *RESTRICT x, uint4 *RESTRICT y, int taken)
{
    SHARED uint4 rows[2][64];
    int lane = LOCAL_ID(0);
    copy(address_of(&rows[0][lane]), x + lane, lane < taken ? 16 : 0);
    copy(address_of(&rows[1][lane]), x + lane, 16);
#if !LATE
    asm volatile("cp.async.wait_group %0;" ::"n"(1) : "memory");
#endif
    BARRIER();
    uint address = address_of(&rows[0][63 - lane]);
    uint4 loaded;
#if TRANSPOSED
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "r"(address) : "memory");
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "r"(address) : "memory");
#endif
    y[lane] = loaded;
#if !EARLY
    BARRIER();
#endif
    copy(address_of(&rows[0][lane]), x, 16);
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
}
