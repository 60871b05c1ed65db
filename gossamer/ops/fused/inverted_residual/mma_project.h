/* The projection of inverted_residual_mma.cu, and the reduction of its sums over a cluster. */

#pragma once

#include "mma/ring.h"
#include "ptx/cluster.h"
#include "mma_products.h"
#include "mma_tile.h"
#include "mma_warpgroups.h"

/* The accumulators of a work-item, for SUM_TILES pixel tiles of the warp by 2 * SUM_PAIRS channel
 * tiles of the warpgroup. */
typedef float Sums[SUM_TILES][2 * SUM_PAIRS][4];

/* The share of the projection that a warpgroup computes: part m of WARPGROUPS_M parts of the
 * channels, and part p of WARPGROUPS_P parts of the pixels. */
struct Share {
    int m, p;
};

INLINE Share share_of(uint warp)
{
    int warpgroup = warp / WARPGROUP_WARPS;
    return {warpgroup % WARPGROUPS_M, warpgroup / WARPGROUPS_M};
}

/* Returns the index of a warp's m-th pixel tile. */
INLINE int tile_of(const Share &share, uint warp, int m)
{
    return (share.p * SUM_TILES + m) * WARPGROUP_WARPS + (int)warp % WARPGROUP_WARPS;
}

/* Adds the projection of a chunk to the sums. pixels: the convolved channels of the pixels.
 * factors: the projection's weights. */
INLINE void project_chunk(Sums &sums, const REAL *pixels, const uint4 *factors, const Share &share,
                          uint warp, uint lane)
{
#if WGMMA
    UNROLL for (int m = 0; m < SUM_TILES; m++) {
        int tile = tile_of(share, warp, m);
        tile = tile < PIXEL_TILES ? tile : PIXEL_TILES - 1;
        multiply_steps<SUM_PAIRS, PROJECT_STEPS, OUT_PAIRS>(
            sums[m], pixels + tile * 16 * CHUNK_ROW, CHUNK_ROW,
            shared_address(factors + share.m * SUM_PAIRS * PAIR_WORDS), lane);
    }
    wgmma_wait_group<0>();
#else
    UNROLL_BY(2) for (int step = 0; step < PROJECT_STEPS; step++) {
        Pixels found[SUM_TILES];
        UNROLL for (int m = 0; m < SUM_TILES; m++) {
            /* In place of a tile beyond the last one, the last tile is multiplied again, and the
             * result is not stored. A branch would take longer than the superfluous product. */
            int tile = tile_of(share, warp, m);
            if ((WARPGROUPS_P - 1) * SUM_TILES + m >= PIXEL_TILES)
                tile = tile < PIXEL_TILES ? tile : PIXEL_TILES - 1;
            found[m] = load_pixels(pixels + tile * 16 * CHUNK_ROW, CHUNK_ROW, step, lane);
        }
        UNROLL for (int pair = 0; pair < SUM_PAIRS; pair++) {
            int own_pair = share.m * SUM_PAIRS + pair;
            if ((WARPGROUPS_M - 1) * SUM_PAIRS + pair >= OUT_PAIRS)
                own_pair = own_pair < OUT_PAIRS ? own_pair : OUT_PAIRS - 1;
            Weights own = load_weights(factors + (step * OUT_PAIRS + own_pair) * PAIR_WORDS, lane);
            UNROLL for (int m = 0; m < SUM_TILES; m++)
                UNROLL for (int i = 0; i < 2; i++)
                    if (2 * pair + i < OUT_TILES)
                        multiply_tile(sums[m][2 * pair + i], found[m], own, i);
        }
    }
#endif
}

/* Calls store(pixel, channel, first, second) for each pair of neighbouring channels of each pixel
 * of the tile. In a cluster, each fragment of the results belongs to one work-group. All
 * work-groups send their sums for the fragment to this work-group. partial: room for the sums that
 * a work-group receives. summed: the barrier that completes when all these sums have arrived. */
template <class Store>
INLINE void reduce_sums(const Sums &sums, [[maybe_unused]] float4 *partial,
                        [[maybe_unused]] ulong *summed, const Share &share, const Tile &tile,
                        const Store &store)
{
    int first_pixel = (int)tile.lane / 4, first_channel = (int)tile.lane % 4 * 2;
    if constexpr (CLUSTER > 1) {
        UNROLL for (int m = 0; m < SUM_TILES; m++)
            UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++) {
                int pixels = tile_of(share, tile.warp, m), channels = share.m * SUM_PAIRS * 2 + n;
                if (pixels < PIXEL_TILES && channels < OUT_TILES) {
                    int fragment = pixels * OUT_TILES + channels;
                    float4 *own = partial + (fragment / CLUSTER * CLUSTER + tile.rank) * 32
                                  + tile.lane;
                    st_async_cluster(shared_address(own), sums[m][n][0], sums[m][n][1],
                                     sums[m][n][2], sums[m][n][3], summed, fragment % CLUSTER);
                }
            }
        wait_once(summed);
        ONCE_EACH for (int slot = tile.warp; slot < SHARE; slot += WARPS) {
            int fragment = slot * CLUSTER + tile.rank;
            if (fragment < FRAGMENTS) {
                float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                UNROLL for (int other = 0; other < CLUSTER; other++) {
                    float4 part = partial[(slot * CLUSTER + other) * 32 + tile.lane];
                    values[0] += part.x;
                    values[1] += part.y;
                    values[2] += part.z;
                    values[3] += part.w;
                }
                UNROLL for (int i = 0; i < 2; i++)
                    store(fragment / OUT_TILES * 16 + first_pixel + 8 * i,
                          fragment % OUT_TILES * 8 + first_channel, values[2 * i],
                          values[2 * i + 1]);
            }
        }
    } else {
        UNROLL for (int m = 0; m < SUM_TILES; m++)
            UNROLL for (int i = 0; i < 2; i++)
                UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++) {
                    int pixels = tile_of(share, tile.warp, m);
                    int channels = share.m * SUM_PAIRS * 2 + n;
                    if (pixels < PIXEL_TILES && channels < OUT_TILES)
                        store(pixels * 16 + first_pixel + 8 * i, channels * 8 + first_channel,
                              sums[m][n][2 * i], sums[m][n][2 * i + 1]);
                }
    }
}
