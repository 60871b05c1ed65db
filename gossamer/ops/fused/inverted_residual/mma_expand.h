/* The expansion of inverted_residual_mma.cu: computes the hidden channels of a tile's pixels. */

#pragma once

#include "mma_products.h"
#include "mma_tile.h"
#include "mma_warpgroups.h"

#if EXPANDS
/* Multiplies EXPAND_TILES tiles of pixels by the weights of EXPAND_PAIRS pairs of channel tiles.
 * pixels: the inputs of the first pixel. factors: the first pair's weights for the first step of
 * K. */
INLINE void multiply_inputs(float (&values)[EXPAND_TILES][2 * EXPAND_PAIRS][4], const REAL *pixels,
                            const uint4 *factors, uint lane)
{
#if WGMMA
    multiply_steps<EXPAND_PAIRS, EXPAND_STEPS, CHUNK_PAIRS>(values[0], pixels, X_ROW,
                                                            shared_address(factors), lane);
    wgmma_wait_group<0>();
#else
    UNROLL_BY(STEPS_AT_ONCE) for (int step = 0; step < EXPAND_STEPS; step++) {
        Pixels found[EXPAND_TILES];
        UNROLL for (int m = 0; m < EXPAND_TILES; m++)
            found[m] = load_pixels(pixels + m * 16 * X_ROW, X_ROW, step, lane);
        UNROLL for (int pair = 0; pair < EXPAND_PAIRS; pair++) {
            Weights own = load_weights(factors + (step * CHUNK_PAIRS + pair) * PAIR_WORDS, lane);
            UNROLL for (int m = 0; m < EXPAND_TILES; m++) {
                multiply_tile(values[m][2 * pair], found[m], own, 0);
                multiply_tile(values[m][2 * pair + 1], found[m], own, 1);
            }
        }
    }
#endif
}

/* Expands the pixels of a tile to a chunk of hidden channels. A unit is EXPAND_TILES tiles of
 * pixels for each warp of a warpgroup, by EXPAND_PAIRS pairs of channel tiles. Units are
 * distributed round-robin among the warpgroups. factors: the weights of the chunk. chunk_constants:
 * the channel operands of the chunk's epilogues. offsets: the offset of each pixel in `expanded`,
 * in elements. units: the number of units. */
INLINE void expand_chunk(REAL *expanded, const REAL *inputs, const uint4 *factors,
                         [[maybe_unused]] const float *chunk_constants, const int *offsets,
                         const Tile &tile, int units)
{
    EXPAND_OPERANDS
    for (int unit = tile.warp / WARPGROUP_WARPS; unit < units; unit += WARPGROUPS) {
        int part = unit % EXPAND_PARTS * EXPAND_PAIRS;
        int first = unit / EXPAND_PARTS * (WARPGROUP_WARPS * EXPAND_TILES)
                    + (int)tile.warp % WARPGROUP_WARPS;
        float values[EXPAND_TILES][2 * EXPAND_PAIRS][4];
        UNROLL for (int m = 0; m < EXPAND_TILES; m++)
            UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++)
                UNROLL for (int i = 0; i < 4; i++)
                    values[m][n][i] = EXPAND_START(part * 16 + n * 8 + (int)tile.lane % 4 * 2
                                                   + i % 2);
        multiply_inputs(values, inputs + first * 16 * X_ROW, factors + part * PAIR_WORDS,
                        tile.lane);
        UNROLL for (int i = 0; i < 2 * EXPAND_TILES; i++) {
            int pixel = first * 16 + (int)tile.lane / 4 + 8 * i;
            if (pixel < tile.pixels) {
                REAL *target = expanded + offsets[pixel];
                UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++) {
                    int channel = part * 16 + n * 8 + (int)tile.lane % 4 * 2;
                    float first = values[i / 2][n][i % 2 * 2];
                    float second = values[i / 2][n][i % 2 * 2 + 1];
                    EXPAND_STORE(target + channel, first, second, channel)
                }
            }
        }
    }
}
#endif
