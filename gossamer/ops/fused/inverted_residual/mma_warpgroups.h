/* Products of a warpgroup for inverted_residual_mma.cu (sm_90a): four warps multiply 64 pixels in
 * registers by weights in shared memory. The tensor cores read the weights once for all four
 * warps. */

#pragma once

#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 1 /* 1: a warpgroup is four warps, which multiply together by wgmma (sm_90a) */
#endif

#include "mma/warpgroup_operands.h"
#include "ptx/wgmma.h"
#include "mma_products.h"

#if WGMMA
#define WGMMA_PIXELS(width)                                                                  \
    asm volatile(WGMMA_TEXT(WGMMA_RS, width)                                                \
                 : WGMMA_SUMS(width)                                                        \
                 : "r"(pixels.x), "r"(pixels.y), "r"(pixels.z), "r"(pixels.w), "l"(weights));

/* wgmma.mma_async with the pixels in registers: starts to multiply a warp's 16 pixels by
 * CHANNELS_AT_ONCE channels (16, 32, 64 or 128), over one step of K. sums: four numbers for each 8
 * channels, in the order in which multiply_tile stores them. */
template <int CHANNELS_AT_ONCE>
INLINE void wgmma_rs(float (*sums)[4], const uint4 &pixels, ulong weights)
{
    if constexpr (CHANNELS_AT_ONCE == 128)
        WGMMA_PIXELS(128)
    else if constexpr (CHANNELS_AT_ONCE == 64)
        WGMMA_PIXELS(64)
    else if constexpr (CHANNELS_AT_ONCE == 32)
        WGMMA_PIXELS(32)
    else
        WGMMA_PIXELS(16)
}

/* Starts to multiply a warp's 16 pixels by PAIRS * 16 channels, over one step of K. weights: the
 * matrix descriptor of the weights. */
template <int PAIRS>
INLINE void multiply_step(float (*sums)[4], const uint4 &pixels, ulong weights)
{
    constexpr int AT_ONCE = PAIRS >= 8 ? 8 : PAIRS >= 4 ? 4 : PAIRS >= 2 ? 2 : 1;
    wgmma_rs<16 * AT_ONCE>(sums, pixels, weights);
    /* addresses in a matrix descriptor are in units of 16 bytes */
    if constexpr (PAIRS > AT_ONCE)
        multiply_step<PAIRS - AT_ONCE>(sums + 2 * AT_ONCE, pixels,
                                       weights + AT_ONCE * PAIR_WORDS);
}

/* Starts to multiply a warp's 16 pixels by PAIRS * 16 channels, over STEPS steps of K. first: the
 * first element of the first pixel's row. row: distance between rows, in elements. weights: the
 * address of the first step's weights. The weights of successive steps are STEP_PAIRS * PAIR_WORDS
 * words of 16 bytes apart. */
template <int PAIRS, int STEPS, int STEP_PAIRS>
INLINE void multiply_steps(float (*sums)[4], const REAL *first, int row, uint weights, uint lane)
{
    constexpr int MOST = 8; /* steps whose pixels are held in registers at once */
    ulong description = tile_descriptor(weights, 8, 16);
    UNROLL for (int from = 0; from < STEPS; from += MOST) {
        uint4 found[MOST];
        UNROLL for (int i = 0; i < MOST; i++)
            if (from + i < STEPS)
                found[i] = load_pixels(first, row, from + i, lane);
        wgmma_fence();
        UNROLL for (int i = 0; i < MOST; i++)
            if (from + i < STEPS)
                multiply_step<PAIRS>(sums, found[i],
                                     description + (from + i) * (STEP_PAIRS * PAIR_WORDS));
        wgmma_commit_group();
        if (from + MOST < STEPS)
            wgmma_wait_group<0>();
    }
}
#endif
