/* Defines where the operands of a tile of implicit_gemm lie in shared memory, and which warps hold
 * the tile's sums.
 *
 * A tile is TILE_P pixels by TILE_M output channels, computed in stages of 128 bytes of K (64
 * float16 or 32 floats). A line is the 128 bytes of one pixel or one output channel in a stage;
 * mma/lines.h defines its pieces and steps. Shared memory has SLOTS slots. Each slot holds the
 * lines of a stage: first the lines of pixels, then the lines of output channels. In device memory,
 * the pieces of weights are already in the order of shared memory, and the lines of a stage lie one
 * after the other.
 *
 * WARPS_P x WARPS_M warps share a tile. If there are few pixels, WARPS_K warps (slice-K) and the
 * CLUSTER work-groups of a cluster (split-K) share the K range of a tile. At the end, they add up
 * their sums. With WGMMA, WARPS_M and WARPS_K are 1, and COPIERS further work-items do nothing but
 * copy.
 *
 * A fragment is the sums of 16 pixels by 8 output channels. Each row of a fragment is held by four
 * lanes. A block is the 4 * VECTOR output channels that these lanes hold in OF_BLOCK successive
 * fragments. If four or more channels are stored at once, the lines of a block are ordered so that
 * the channels of one lane are adjacent in memory. */

#pragma once

#if !defined CONFIGURED && !defined HALVES
/* 1: x, weight, y and the epilogue's tensor operands are 16-bit floats; 0: they are floats, read as
 * TF32 */
#define HALVES 1
#endif
#if !defined CONFIGURED && !defined TILE_P
#define TILE_P 128 /* output pixels of a tile */
#define TILE_M 64 /* output channels of a tile */
#define WARPS_P 4 /* warps along the pixels of a tile */
#define WARPS_M 1 /* warps along the output channels of a tile; 1 with WGMMA */
#define WARPS_K 1 /* warps that share the K range of a tile; 1 with WGMMA */
#define SLOTS 3 /* slots for the lines of a stage in shared memory */
/* 1: a work-group keeps the weights of its output channels for all tiles */
#define KEEPS_WEIGHTS 0
/* 1: the epilogue's one tensor operand, STAGED_OPERAND, is copied to shared memory ahead of the
 * epilogue, in stages that follow the stages of lines; OUT_VECTOR is then VECTOR */
#define STAGED 0
#endif
#if !defined CONFIGURED && !defined CLUSTER
#define CLUSTER 1 /* work-groups that share the K range of a tile */
#endif
#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 0 /* 1: warpgroups multiply by wgmma (sm_90a) */
#endif
#if !defined CONFIGURED && !defined COPY_WARPS
#define COPY_WARPS 4 /* with WGMMA, warps that do nothing but copy */
#endif
#if !defined CONFIGURED && !defined COPIER_REGISTERS
#define COPIER_REGISTERS 40 /* registers of a work-item that copies, with WGMMA */
#define MULTIPLIER_REGISTERS 232 /* registers of a work-item that multiplies, with WGMMA */
#endif

#include "dialect/common.h"
#include "mma/lines.h"

#define WARPS (WARPS_P * WARPS_M * WARPS_K) /* warps that multiply */
#define WORK_GROUP_SIZE (32 * WARPS + (WGMMA ? COPIERS : 0))
#if WGMMA
#define COPIERS (32 * COPY_WARPS)
#else
#define COPIERS (32 * WARPS)
#endif
#define VECTOR (HALVES ? 8 : 4) /* values of a piece */
#define HAS_BARRIERS (WGMMA || CLUSTER > 1) /* 1: shared memory begins with barriers */
#define STEPS 4 /* steps of a stage */
#define SLOT_BYTES ((TILE_P + (KEEPS_WEIGHTS ? 0 : TILE_M)) * LINE)
#define LEAD (SLOTS - 1) /* stages that are copied ahead */
#define X_LOADS (TILE_P * 8 / COPIERS) /* pieces of pixels that a work-item copies in a stage */
/* fragments of a warp's sums along the pixels and along the output channels */
#define FRAGMENTS_P (TILE_P / WARPS_P / 16)
#define FRAGMENTS_M (TILE_M / WARPS_M / 8)
#define OF_BLOCK (VECTOR / 2) /* fragments of a block */
#define BLOCKS (FRAGMENTS_M / OF_BLOCK)
#define HOLDERS (CLUSTER * WARPS_K) /* warps that hold a partial sum of each output */
#define SUMS (TILE_P / 8 * WARPS_M * BLOCKS) /* sets of sums, each of 8 pixels by one block */
#define SHARE CEIL_DIV(SUMS, CLUSTER) /* sets that a work-group adds up */
/* The staged operand has one row for each pixel of a tile. The rows are divided into OPERAND_STAGES
 * stages of OPERAND_ROWS rows. Each of these stages is copied to a slot of its own, like a stage of
 * lines. A row has OPERAND_PIECES pieces. OPERAND_PLACE is the index of a piece within its slot. */
#define OPERAND_PIECES (TILE_M / VECTOR)
#define OPERAND_FITS(stages) (TILE_P / (stages) * OPERAND_PIECES * 16 <= SLOT_BYTES)
#define OPERAND_STAGES (STAGED ? OPERAND_FITS(1) ? 1 : OPERAND_FITS(2) ? 2 : 4 : 0)
#define OPERAND_ROWS (TILE_P / (STAGED ? OPERAND_STAGES : 1))
#define OPERAND_PLACE(row, piece) \
    ((row) * OPERAND_PIECES + ((piece) ^ (OPERAND_PIECES % 8 == 0 ? (row) % 2 * 4 : 0)))
/* FRAGMENT_LINE is the first of the 16 lines of fragment i. */
#if WGMMA
#define FRAGMENT_LINE(i) ((warp / 4 * FRAGMENTS_P + (i)) * 64 + warp % 4 * 16)
#else
#define FRAGMENT_LINE(i) (warp_p * (TILE_P / WARPS_P) + (i) * 16)
#endif
