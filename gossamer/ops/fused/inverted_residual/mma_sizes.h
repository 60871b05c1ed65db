/* The macros of inverted_residual_mma.cu, and the sizes that follow from them. */

#pragma once

#if !defined CONFIGURED && !defined HALVES
#define HALVES 1 /* 1: x, y and operands are 16-bit floats; 0: they are 32-bit floats */
#endif
#if !defined CONFIGURED && !defined TF32
#define TF32 0 /* 1: 32-bit floats are multiplied as TF32; 0: they are multiplied as float32 */
#endif
#if !defined CONFIGURED && !defined TILE_H
#define TILE_H 4 /* rows of outputs of a tile */
#define TILE_W 4 /* columns of outputs of a tile */
#define CHUNK 16 /* hidden channels that are expanded at a time, a multiple of 16 */
#define WARPS 4 /* warps of a work-group */
/* channels of x, a multiple of 8; with GATHERS, the number of inputs of a window, rounded up to a
 * multiple of DEPTH */
#define CHANNELS 16
#define OUT_CHANNELS 24 /* channels of y, a multiple of 8 */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 1 /* rows from a window to the next */
#define STRIDE_X 1 /* columns from a window to the next */
/* 1: the block begins with an expansion; 0: x has the hidden channels */
#define EXPANDS 1
#define PADDED 0 /* 1: the last chunk has padding channels */
/* number of tiles of 16 pixels into which the pixels under a tile's windows are divided; it is a
 * multiple of EXPAND_TILES */
#define ROW_TILES 3
#define EXPAND_TILES 1 /* tiles of pixels that a warp expands at once */
#define EXPAND_PAIRS 1 /* pairs of channel tiles that a warp expands at once */
/* neighbouring outputs of a row that a work-item convolves at once, a divisor of TILE_W */
#define COLUMNS_AT_ONCE 4
#define RUN 2 /* consecutive rows of outputs that a warp convolves, a divisor of TILE_H */
#define ROWS_AT_ONCE 2 /* rows of a run whose sums a warp accumulates at once */
#define STAGES 2 /* chunks whose weights are in shared memory; 1 if a work-group has one chunk */
#define WARPGROUPS_M 1 /* number of parts into which the output channels are divided */
#endif
#if !defined CONFIGURED && !defined WGMMA
/* 1: a warpgroup is four warps, which multiply together by wgmma (sm_90a); this requires BULK; 0: a
 * warpgroup is one warp */
#define WGMMA 0
#endif
#if !defined CONFIGURED && !defined BULK
/* 1: one work-item copies the weights of a chunk by bulk copies (sm_90); always 0 with EXCITES */
#define BULK 0
#endif
#if !defined CONFIGURED && !defined BLOCKS_PER_UNIT
#define BLOCKS_PER_UNIT 1 /* work-groups that must fit one multiprocessor at the same time */
#define EXPAND_CONSTANTS 0 /* number of channel operands of the expansion's epilogue */
#define DEPTHWISE_CONSTANTS 0 /* number of channel operands of the depthwise epilogue */
#define PROJECT_CONSTANTS 0 /* number of channel operands of the projection's epilogue */
#define EXPAND_OPERANDS /* declares the operands of the expansion's epilogue for a chunk */
#define DEPTHWISE_OPERANDS /* declares the operands of the depthwise epilogue for a chunk */
#define PROJECT_OPERANDS /* declares the operands of the projection's epilogue */
#define EXPAND_START(channel) 0.0f /* the initial value of sums of the expansion */
/* applies the expansion's epilogue to two neighbouring channels and stores them */
#define EXPAND_STORE(target, first, second, channel) store_two(target, first, second);
#define DEPTHWISE_START(channel) 0.0f /* the initial value of depthwise sums */
/* applies the depthwise convolution's epilogue to two neighbouring channels and stores them */
#define DEPTHWISE_STORE(target, first, second, channel) store_two(target, first, second);
#define PROJECT_EPILOGUE(value, channel, index) /* applies the projection's epilogue */
#endif
#if !defined CONFIGURED && !defined CLUSTER
#define CLUSTER 1 /* work-groups of a cluster; a tile's chunks are distributed among them */
#endif
#if !defined CONFIGURED && !defined GATHERS
/* 1: the expansion is a convolution of an image with filters of FILTER_H by FILTER_W; its windows
 * have GATHERED numbers */
#define GATHERS 0
#endif
#if !defined CONFIGURED && !defined EXCITES
#define EXCITES 0 /* 1: with squeeze-and-excite */
#endif
#if !defined CONFIGURED && !defined OWN_CHUNKS
#define OWN_CHUNKS 0 /* with EXCITES: the maximum number of chunks per work-group */
#endif
#if !defined CONFIGURED && !defined SQUEEZED
#define SQUEEZED 8 /* with EXCITES: the number of results of the first product */
#endif

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
#define PIXEL_TILES CEIL_DIV(TILE_H * TILE_W, 16) /* tiles of 16 pixels that hold the outputs */
#define WIDTH (HALVES ? 8 : 4)       /* elements in 16 bytes */
#define DEPTH (HALVES ? 16 : 8)      /* input channels per step of K */
/* whether tensor cores compute the depthwise convolution */
#define CONVOLVES (HALVES && KERNEL_H * KERNEL_W <= 25 && STRIDE_Y <= 2)
/* steps of K of the expansion, and of a chunk's projection */
#define EXPAND_STEPS CEIL_DIV(CHANNELS, DEPTH)
#define PROJECT_STEPS (CHUNK / DEPTH)
#define PAIR_WORDS 32 /* size of a step's weights for 16 channels, in words of 16 bytes */
/* pairs of channel tiles of a chunk and of the output, and channel tiles of the output */
#define CHUNK_PAIRS (CHUNK / 16)
#define OUT_PAIRS CEIL_DIV(OUT_CHANNELS, 16)
#define OUT_TILES (OUT_CHANNELS / 8)
/* elements of a row in shared memory: an odd number of words of 16 bytes, so that eight rows begin
 * in different banks */
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
#define OFFSET_WORDS (ROW_TILES * 4)
#define BARRIER_WORDS 3 /* room for five barriers: two for each of two stages, and one for sums */
#define FRAGMENTS (PIXEL_TILES * OUT_TILES) /* fragments (16 pixels by 8 channels) of results */
#define SHARE CEIL_DIV(FRAGMENTS, CLUSTER)  /* maximum number of fragments per work-group */
#define SUM_WORDS (SHARE * CLUSTER * 32) /* sums of the results that a work-group receives */
/* the inputs and the expanded pixels; with squeeze-and-excite, the sums that a work-group receives
 * at the end overwrite them */
#define BEFORE_WORDS (X_WORDS + (EXPANDS ? 1 : STAGES) * EXPANDED_WORDS)
#define FRONT_WORDS \
    (EXCITES && CLUSTER > 1 && SUM_WORDS > BEFORE_WORDS ? SUM_WORDS : BEFORE_WORDS)
/* Words of a chunk's weights that are copied first; the projection's weights follow later. There
 * are two exceptions. With squeeze-and-excite, all words are copied first if the stages have room
 * for all chunks of a work-group. Without squeeze-and-excite, all words of a work-group's first
 * chunk are copied at once. */
#define FIRST_WORDS (EXCITES && OWN_CHUNKS <= STAGES ? WEIGHT_WORDS : EXPAND_WORDS + CONSTANT_WORDS)
/* 1: a chunk is projected while the next chunk is expanded. This needs several chunks per
 * work-group. It is impossible with squeeze-and-excite: there, the projection needs the gates, and
 * the gates depend on all chunks. */
#define PROJECTS_LATER (!EXCITES && STAGES > 1)
/* chunks whose results of the depthwise convolution are kept */
#define KEPT_CHUNKS (EXCITES ? OWN_CHUNKS : 1)
/* means or gates of the kept channels, and the first product's partial sums and results */
#define GATE_WORDS (EXCITES ? OWN_CHUNKS * CHUNK / 4 + CEIL_DIV((CLUSTER + 1) * SQUEEZED, 4) : 0)
/* words for chunks: expanded and convolved pixels, weights, and gates */
#define CHUNK_WORDS (FRONT_WORDS - X_WORDS + KEPT_CHUNKS * CONVOLVED_WORDS \
                     + STAGES * WEIGHT_WORDS + GATE_WORDS)
/* The warps of a warpgroup multiply together, each warp one tile of pixels. A warpgroup has four
 * warps with WGMMA, and one warp without. */
#define WARPGROUPS (WGMMA ? WARPS / 4 : WARPS)
#define WARPGROUP_WARPS (WGMMA ? 4 : 1)
/* The projection's channels are divided into WARPGROUPS_M parts, and its pixels into WARPGROUPS_P
 * parts. A warpgroup computes one part of the channels for one part of the pixels. */
#define WARPGROUPS_P (WARPGROUPS / WARPGROUPS_M)
/* pixel tiles, and pairs of channel tiles, for which a warp has accumulators */
#define SUM_TILES CEIL_DIV(CEIL_DIV(PIXEL_TILES, WARPGROUP_WARPS), WARPGROUPS_P)
#define SUM_PAIRS CEIL_DIV(OUT_PAIRS, WARPGROUPS_M)
#define EXPAND_PARTS (CHUNK_PAIRS / EXPAND_PAIRS) /* parts of a chunk in the expansion */
/* number of columns; a column is RUN outputs, one below the other */
#define COLUMNS (TILE_H / RUN * TILE_W)
#define COLUMN_TILES CEIL_DIV(COLUMNS, 16)
#define STEPS_AT_ONCE 4 /* steps of K of the expansion whose loads are in flight at once */
