/* The sizes of convolution_pool_mma.cu.
 *
 * POOL_H, POOL_W, POOL_Y, POOL_X  the size of the windows over which maxima are taken, and their steps
 * ROWS         rows of outputs that are multiplied together: POOL_Y where windows share rows, else POOL_H
 * SHARED_ROWS  rows of outputs that a window shares with the next one
 * ROWS_HELD    rows of the image in the ring: those under ROWS rows of outputs, and the next ones
 * FOLDED       1: the weights have the sum with a number a channel: behind the window's numbers, of which
 *              there are at most 7 in a line, lines have a 1
 * LEAST        the least result: 0 where the epilogue is folded and ends with ReLU, else minus infinity;
 *              as a pair of halves
 * MAKES_IMAGE  1: the image's numbers are made of what is given; 0: they are given
 * WGMMA        1: the warps multiply together, from shared memory (sm_90a) */

#define WORK_GROUP_SIZE 128
#define WARPS 4
/* work-groups that a multiprocessor is to hold, as far as registers are not spilled for that */
#define BLOCKS_PER_UNIT (MAKES_IMAGE && !WGMMA ? 2 : 3)
#define LINE_WORDS 64 /* columns, and words of 16 bytes of a line */
#define LINES (CHANNELS * KERNEL_H)
#define STEPS CEIL_DIV(LINES, 2)
#define RING (CHANNELS * ROWS_HELD)
#define ZERO_LINE (RING + 1)
#define WEIGHT_WORDS (2 * STEPS * OUT_PART)
#define ADVANCE (POOL_Y * STRIDE_Y) /* rows of the image from one row of results to the next */
#define SPAN (ROWS_HELD - ADVANCE)  /* rows of the image under ROWS rows of outputs */
#define PAIRS CEIL_DIV(KERNEL_W, 2)
/* A lane loads two numbers of a column, and gets the others of its window from the lanes that load
 * them; with other strides it loads all. */
#define EXCHANGES (STRIDE_X <= 2)
#define BEYOND (EXCHANGES ? 2 * (PAIRS - 1) / STRIDE_X : 0) /* columns loaded behind the 64 */
#define ROUNDS (2 + (BEYOND > 0))
#define NUMBERS (EXCHANGES ? 2 : 2 * PAIRS)
#define CHANNELS_AT_ONCE (EXCHANGES ? CHANNELS : 1)
/* words of 4 bytes of a column of maxima, which begin in different banks */
#define COLUMN_WORDS (OUT_PART / 2 + (OUT_PART / 8 % 2 ? 0 : 4))
#define UNITS (OUT_PART / 8)
