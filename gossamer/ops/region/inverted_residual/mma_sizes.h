/* Sizes that follow from the macros of inverted_residual_mma.cu, which says what these are. */

#pragma once

#include "dialect/common.h"

#define WORK_GROUP_SIZE (32 * WARPS)
#if GATHERS
#define INPUT IMAGE_TYPE
#define GATHER_PARAMETERS \
    , int image_height, int image_width, int image_top, int image_left GIVEN_EPILOGUE_PARAMETERS
#else
#define INPUT REAL
#define GATHER_PARAMETERS
#endif
#define HALO_H ((TILE_H - 1) * STRIDE_Y + KERNEL_H)
#define HALO_W ((TILE_W - 1) * STRIDE_X + KERNEL_W)
#define PIXEL_TILES CEIL_DIV(TILE_H * TILE_W, 16)
#define WIDTH (HALVES ? 8 : 4)       /* elements of 16 bytes */
#define DEPTH (HALVES ? 16 : 8)      /* input channels that a step multiplies */
/* whether tensor cores convolve */
#define CONVOLVES (HALVES && KERNEL_H * KERNEL_W <= 25 && STRIDE_Y <= 2)
#define EXPAND_STEPS CEIL_DIV(CHANNELS, DEPTH)
#define PROJECT_STEPS (CHUNK / DEPTH)
#define PAIR_WORDS 32 /* words of 16 bytes of a step's weights for 16 channels */
#define CHUNK_PAIRS (CHUNK / 16)
#define OUT_PAIRS CEIL_DIV(OUT_CHANNELS, 16)
#define OUT_TILES (OUT_CHANNELS / 8)
/* rows in shared memory: an odd number of words, so that eight rows are in different banks */
#define X_ROW (EXPAND_STEPS * DEPTH + WIDTH)
#define CHUNK_ROW (CHUNK + WIDTH)
/* the parts of shared memory, in words of 16 bytes */
#define X_WORDS (EXPANDS ? ROW_TILES * 16 * X_ROW / WIDTH : 0)
#define EXPANDED_WORDS (HALO_H * HALO_W * CHUNK_ROW / WIDTH)
#define CONVOLVED_WORDS (PIXEL_TILES * 16 * CHUNK_ROW / WIDTH)
#define EXPAND_WORDS (EXPANDS ? EXPAND_STEPS * CHUNK_PAIRS * PAIR_WORDS : 0)
#define TAP_WORDS (KERNEL_H * KERNEL_W * CHUNK / (CONVOLVES ? 8 : 4))
#define CONSTANT_WORDS (TAP_WORDS + (EXPAND_CONSTANTS + DEPTHWISE_CONSTANTS) * CHUNK / 4)
#define PROJECT_WORDS (PROJECT_STEPS * OUT_PAIRS * PAIR_WORDS)
#define WEIGHT_WORDS (EXPAND_WORDS + CONSTANT_WORDS + PROJECT_WORDS)
#define RESULT_WORDS (PROJECT_CONSTANTS * OUT_CHANNELS / 4)
#define PLACE_WORDS (ROW_TILES * 4)
#define BARRIER_WORDS 3 /* a barrier for each part of two stages, and one for sums */
#define FRAGMENTS (PIXEL_TILES * OUT_TILES)
#define SHARE CEIL_DIV(FRAGMENTS, CLUSTER)
#define SUM_WORDS (SHARE * CLUSTER * 32) /* sums of the results that a work-group receives */
/* inputs and what is expanded of them; with squeeze-and-excite sums take their place at the end */
#define BEFORE_WORDS (X_WORDS + (EXPANDS ? 1 : STAGES) * EXPANDED_WORDS)
#define FRONT_WORDS \
    (EXCITES && CLUSTER > 1 && SUM_WORDS > BEFORE_WORDS ? SUM_WORDS : BEFORE_WORDS)
/* a chunk's weights in front of those of the projection, which are copied later but for the first
 * chunk; with squeeze-and-excite all are copied at once where those of all chunks fit */
#define FIRST_WORDS (EXCITES && OWN_CHUNKS <= STAGES ? WEIGHT_WORDS : EXPAND_WORDS + CONSTANT_WORDS)
/* whether a chunk is projected with the expansion of the next one, as there are several */
#define PROJECTS_LATER (!EXCITES && STAGES > 1)
/* chunks whose results of the depthwise convolution are kept */
#define KEPT_CHUNKS (EXCITES ? OWN_CHUNKS : 1)
/* means or gates of the kept channels, and numbers of the first product: parts and sums */
#define GATE_WORDS (EXCITES ? OWN_CHUNKS * CHUNK / 4 + CEIL_DIV((CLUSTER + 1) * SQUEEZED, 4) : 0)
/* what chunks need */
#define CHUNK_WORDS (FRONT_WORDS - X_WORDS + KEPT_CHUNKS * CONVOLVED_WORDS \
                     + STAGES * WEIGHT_WORDS + GATE_WORDS)
/* A warpgroup multiplies together: four warps with WGMMA, otherwise one. Each warp has a tile of
 * pixels. */
#define WARPGROUPS (WGMMA ? WARPS / 4 : WARPS)
#define WARPGROUP_WARPS (WGMMA ? 4 : 1)
/* of the projection's warpgroups WARPGROUPS_M share the channels, the others the pixels */
#define WARPGROUPS_P (WARPGROUPS / WARPGROUPS_M)
#define SUM_TILES CEIL_DIV(CEIL_DIV(PIXEL_TILES, WARPGROUP_WARPS), WARPGROUPS_P)
#define SUM_PAIRS CEIL_DIV(OUT_PAIRS, WARPGROUPS_M)
#define EXPAND_PARTS (CHUNK_PAIRS / EXPAND_PAIRS)
/* a column of outputs is RUN of them below one another */
#define COLUMNS (TILE_H / RUN * TILE_W)
#define COLUMN_TILES CEIL_DIV(COLUMNS, 16)

/* Code that runs only once waits for its own fetches, so loops of few iterations are not
 * unrolled. */
#define ONCE_EACH UNROLL_BY(1)
#define STEPS_AT_ONCE 4 /* steps of the expansion whose loads are under way together */
