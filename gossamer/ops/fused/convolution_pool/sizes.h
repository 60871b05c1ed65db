/* The sizes of convolution_pool_mma.cu.
 *
 * POOL_H, POOL_W  the size of the windows over which maxima are taken
 * POOL_Y, POOL_X  the strides of these windows
 * ROWS         rows of outputs that are multiplied together: POOL_Y where windows share rows,
 *              otherwise POOL_H
 * SHARED_ROWS  rows of outputs that a window shares with the next window
 * ROWS_HELD    rows of the image in the ring: the rows under ROWS rows of outputs, and the ADVANCE
 *              next rows
 * FOLDED       1: the weights include the bias of each channel. Lines then have a 1 after the
 *              numbers of a window, and a window has at most 7 columns
 * LEAST        the least result, as a pair of halves: 0 where the epilogue is folded and ends with
 *              ReLU, otherwise minus infinity
 * MAKES_IMAGE  1: the kernel computes the image from the network's input; 0: the network's input is
 *              the image
 * WGMMA        1: the warps multiply together, from shared memory (sm_90a) */

#pragma once

#if !defined CONFIGURED && !defined HALVES
#define HALVES 1 /* 1: operands are float16 */
#endif
#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 0 /* 1: the warps multiply together by wgmma (sm_90a) */
#endif
#if !defined CONFIGURED && !defined CHANNELS
#define CHANNELS 3 /* channels of the image */
#define OUT_PART 32 /* output channels of a work-group */
#define KERNEL_H 3 /* rows of the convolution's window */
#define KERNEL_W 3 /* columns of the convolution's window */
#define STRIDE_Y 2 /* rows from a window to the next */
#define STRIDE_X 2 /* columns from a window to the next */
#define POOL_H 3 /* rows of the windows over which maxima are taken */
#define POOL_W 3 /* columns of the windows over which maxima are taken */
#define POOL_Y 2 /* rows from one of these windows to the next */
#define POOL_X 2 /* columns from one of these windows to the next */
#define ROWS 2 /* rows of outputs that are multiplied together */
#define SHARED_ROWS 1 /* rows of outputs that a window shares with the next window */
#define ROWS_HELD 9 /* rows of the image in the ring */
#define FOLDED 0 /* 1: the weights include the bias of each channel */
#define LEAST 0xfc00fc00u /* the least result, as a pair of halves */
#define MAKES_IMAGE 0 /* 1: the kernel computes the image from the network's input */
#endif

#include "dialect/common.h"

#define WORK_GROUP_SIZE 128
#define WARPS 4
/* work-groups that a multiprocessor is to hold: the most without spilled registers */
#define BLOCKS_PER_UNIT (MAKES_IMAGE && !WGMMA ? 2 : 3)
#define LINE_WORDS 64 /* words of 16 bytes of a line, one for each column */
#define LINES (CHANNELS * KERNEL_H) /* lines of a window */
#define STEPS CEIL_DIV(LINES, 2)    /* steps, which multiply two lines each */
#define RING (CHANNELS * ROWS_HELD) /* lines of the ring */
#define ZERO_LINE (RING + 1)        /* number of the line of zeros */
#define WEIGHT_WORDS (2 * STEPS * OUT_PART) /* words of 16 bytes of the weights */
#define ADVANCE (POOL_Y * STRIDE_Y) /* rows of the image from one row of results to the next */
#define SPAN (ROWS_HELD - ADVANCE)  /* rows of the image under ROWS rows of outputs */
#define PAIRS CEIL_DIV(KERNEL_W, 2) /* pairs of numbers of a row of a window */
/* With a stride of at most 2, a lane loads two numbers of a column's window, and gets the other
 * numbers from the lanes that load them. With larger strides a lane loads all numbers of the
 * window. */
#define EXCHANGES (STRIDE_X <= 2)
#define BEYOND (EXCHANGES ? 2 * (PAIRS - 1) / STRIDE_X : 0) /* columns loaded after the 64 */
#define ROUNDS (2 + (BEYOND > 0)) /* rounds in which the 32 lanes of a warp load a row's columns */
#define NUMBERS (EXCHANGES ? 2 : 2 * PAIRS) /* numbers that a lane loads of a column's window */
#define CHANNELS_AT_ONCE (EXCHANGES ? CHANNELS : 1) /* channels that a lane loads at once */
/* words of 4 bytes of a column of maxima, with padding so that columns begin in different banks */
#define COLUMN_WORDS (OUT_PART / 2 + (OUT_PART / 8 % 2 ? 0 : 4))
#define UNITS (OUT_PART / 8) /* groups of 8 output channels */
