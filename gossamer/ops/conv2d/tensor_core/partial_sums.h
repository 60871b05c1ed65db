/* Adds up the partial sums of a tile of implicit_gemm.cu. CLUSTER work-groups share the K
 * range of a tile, and WARPS_K warps of each work-group share the work-group's part of the range.
 * So HOLDERS = CLUSTER * WARPS_K warps hold a partial sum of each output. The sums are divided into
 * sets, each of 8 pixels by 4 * VECTOR channels. Each work-group adds up every CLUSTER-th set. */

#pragma once

#include "ptx/cluster.h"
#include "ptx/mbarrier.h"
#include "implicit_gemm_tile.h"

/* Returns the bytes of sums that a work-group receives from all holders. rank: the rank of the
 * work-group in its cluster. */
[[maybe_unused]] INLINE int received_bytes(int rank)
{
    return CEIL_DIV(SUMS - rank, CLUSTER) * (HOLDERS * 32 * VECTOR * 4);
}

/* Gives each set of a warp's sums to the work-group that adds up the set.
 * partial: room for SHARE sets of each holder in shared memory.
 * summed: with clusters, the barrier that completes when all sums have arrived.
 * holder: index of the warp among the HOLDERS warps with partial sums of the same outputs.
 * warp_m, warp_p: index of the warp along the channels and along the pixels of the tile. */
[[maybe_unused]] INLINE void give_sums(float4 *partial, [[maybe_unused]] ulong *summed,
                                       const float (&sums)[FRAGMENTS_P][FRAGMENTS_M][4],
                                       int holder, [[maybe_unused]] uint warp, uint warp_m,
                                       [[maybe_unused]] uint warp_p, uint lane)
{
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int block = 0; block < BLOCKS; block++) {
                int set = ((int)FRAGMENT_LINE(i) / 8 + half) * (WARPS_M * BLOCKS)
                          + (int)warp_m * BLOCKS + block;
                float4 *place = partial + (holder * SHARE + set / CLUSTER) * (VECTOR * 8) + lane;
                UNROLL for (int v = 0; v < VECTOR / 4; v++) {
                    const float (&lower)[4] = sums[i][block * OF_BLOCK + 2 * v];
                    const float (&upper)[4] = sums[i][block * OF_BLOCK + 2 * v + 1];
#if CLUSTER > 1
                    st_async_cluster(shared_address(place + v * 32), lower[half * 2],
                                     lower[half * 2 + 1], upper[half * 2], upper[half * 2 + 1],
                                     summed, set % CLUSTER);
#else
                    place[v * 32] = MAKE4(lower[half * 2], lower[half * 2 + 1], upper[half * 2],
                                          upper[half * 2 + 1]);
#endif
                }
            }
}

/* Adds the partial sums of one set, from all holders, to a lane's values. share: index of the set
 * among the sets that this work-group adds up. */
[[maybe_unused]] INLINE void add_parts(float (&values)[VECTOR], const float4 *partial, int share,
                                       uint lane)
{
    UNROLL for (int other = 0; other < HOLDERS; other++)
        UNROLL for (int v = 0; v < VECTOR / 4; v++) {
            float4 more = partial[(other * SHARE + share) * (VECTOR * 8) + v * 32 + lane];
            values[4 * v] += more.x;
            values[4 * v + 1] += more.y;
            values[4 * v + 2] += more.z;
            values[4 * v + 3] += more.w;
        }
}
