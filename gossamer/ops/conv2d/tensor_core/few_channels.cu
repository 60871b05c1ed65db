/* A convolution of few input channels on tensor cores, in float16 with float32 sums. Typically this
 * is the first convolution of a network. x is a float32 image in NCHW, or another tensor, such as
 * bytes in NHWC, from which the kernel computes the image (ops/image.h). No other kernel has to
 * convert the image. y is float16 in NHWC.
 *
 * A work-group computes TILE_H by TILE_W outputs of OUT_PART output channels. The work-group copies
 * the pixels under the windows of these outputs to shared memory as float16, with zeros outside of
 * the image. A line is one row of one channel in shared memory: PITCH numbers. The lines of all
 * channels of a row are adjacent, and the lines of the next row follow them. So the window of an
 * output covers parts of LINES successive lines. Each part begins PITCH numbers after the previous
 * part.
 *
 * A row of the left operand is the window of an output. For each of the window's lines the row has
 * ROW_WIDTH numbers: KERNEL_W numbers of the line, then zeros. A lane loads two neighbouring
 * numbers at once, and clears numbers beyond the window. With an odd stride, every other window
 * begins at an odd index, where the address of two numbers is not aligned to 4 bytes. Such windows
 * are loaded from a second copy of all numbers in shared memory. The second copy is shifted by one
 * number.
 *
 * The columns of the right operand are output channels. They are permuted within GROUP_TILES
 * neighbouring tiles. Because of the permutation, the sums that mma leaves in a lane belong to
 * neighbouring channels of a pixel. A lane stores these sums at once. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: operands are 16-bit floats */
#define WARPS 4 /* warps of a work-group */
#define TILE_H 8 /* rows of outputs of a tile */
#define TILE_W 16 /* columns of outputs of a tile */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 2 /* rows from a window to the next */
#define STRIDE_X 2 /* columns from a window to the next */
#define CHANNELS 3 /* input channels */
#define OUT_PART 32 /* output channels of a work-group, a multiple of 8 */
/* numbers of a window's line, including the zeros that fill the line: KERNEL_W rounded up to a
 * power of 2, at least 2 and at most 16 */
#define ROW_WIDTH 4
#define STEPS 3 /* steps of 16 numbers into which a row of the left operand is divided */
#define GROUP_TILES 4 /* tiles of 8 output channels that are permuted together: 4, 2 or 1 */
#define TILES_AT_ONCE 1 /* tiles of 16 outputs that a warp multiplies at once */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "mma/neighbours.h"
#include "mma/warp.h"
#include "ops/epilogue.h"
#include "ops/image.h"

#define WORK_GROUP_SIZE (32 * WARPS)
#define HALO_H ((TILE_H - 1) * STRIDE_Y + KERNEL_H)
#define HALO_W ((TILE_W - 1) * STRIDE_X + KERNEL_W)
#define PITCH (CEIL_DIV(HALO_W, 2) * 2) /* numbers of a line */
#define COPIED (CHANNELS * HALO_H * PITCH)
/* padding after the last line, in numbers: lanes may load the padding together with the last
 * windows, and then clear it */
#define TAIL (16 * PITCH)
/* index at which the second copy begins; 0 if there is no second copy. The copies begin half of the
 * banks apart, to avoid bank conflicts. */
#define SECOND (STRIDE_X % 2 ? CEIL_DIV(COPIED + TAIL, 64) * 64 + 32 : 0)
#define LINES (CHANNELS * KERNEL_H)        /* lines of a window */
#define STEP_LINES (16 / ROW_WIDTH)        /* lines of a step */
#define ROW_PAIRS (ROW_WIDTH / 2)          /* pairs of numbers of a window's line */
#define PIXEL_TILES (TILE_H * TILE_W / 16) /* tiles of 16 outputs */
/* work-groups that a multiprocessor should hold: the largest number for which no registers spill */
#define BLOCKS_PER_UNIT (STRIDE_X % 2 ? 3 : 4)
#define GROUPS (OUT_PART / (8 * GROUP_TILES))
/* tiles of 8 output channels whose weights a lane loads at once */
#define COLUMN_TILES (OUT_PART % 16 ? 1 : 2)
#if OUT_PART % 16
#define Factors uint2
#else
#define Factors uint4
#endif
#define LANE_CHANNELS (2 * GROUP_TILES) /* neighbouring channels of a lane */
#define WEIGHT_WORDS (2 * STEPS * OUT_PART) /* words of 16 bytes */

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void few_channels(
    const IMAGE_TYPE *x, const uint4 *RESTRICT weights, HALF *RESTRICT y, int out_channels,
    int height, int width, int out_height, int out_width, int pad_top, int pad_left,
    int column_tiles GIVEN_EPILOGUE_PARAMETERS EPILOGUE_PARAMETERS)
{
    SHARED ALIGNED(16) HALF windows[SECOND + COPIED + TAIL];
    SHARED uint4 factors[WEIGHT_WORDS];
    int item = LOCAL_ID(0);
    uint lane = (uint)item % 32, warp = (uint)item / 32;
    int part = GROUP_ID(0) / column_tiles;
    pdl_trigger();
    int first_row = GROUP_ID(1) * TILE_H;
    int first_column = (GROUP_ID(0) - part * column_tiles) * TILE_W;
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    int plane = height * width;
    for (int i = item; i < WEIGHT_WORDS; i += WORK_GROUP_SIZE)
        cp_async_16(shared_address(factors + i), weights + part * WEIGHT_WORDS + i, 16);
    cp_async_commit_group();
    pdl_wait();
    bool is_inside = above >= 0 && left >= 0 && above + HALO_H <= height && left + PITCH <= width;
    UNROLL_BY(2) for (int line = (int)warp; line < HALO_H; line += WARPS) {
        int row = above + line;
        bool has_row = is_inside || (uint)row < (uint)height;
        for (int pair = (int)lane; pair < PITCH / 2; pair += 32) {
            int column = left + 2 * pair;
            bool has_first = has_row && (is_inside || (uint)column < (uint)width);
            bool has_second = has_row && (is_inside || (uint)(column + 1) < (uint)width);
            int place = (GROUP_ID(2) * CHANNELS * height + row) * width + column;
            if (IMAGE_NHWC)
                place = ((GROUP_ID(2) * height + row) * width + column) * CHANNELS;
            UNROLL for (int channel = 0; channel < CHANNELS; channel++) {
                const IMAGE_TYPE *from = x + (place + channel * IMAGE_CHANNEL(plane));
                float first, second;
                LOAD_IMAGE(first, from, 0, channel, has_first)
                LOAD_IMAGE(second, from, IMAGE_COLUMN, channel, has_second)
                uint both = two_halves(first, second);
                HALF *target = windows + (line * CHANNELS + channel) * PITCH + 2 * pair;
                *(uint *)target = both;
                if (SECOND) {
                    if (target > windows)
                        target[SECOND - 1] = (HALF)both;
                    target[SECOND] = (HALF)(both >> 16);
                }
            }
        }
    }
    cp_async_wait_group<0>();
    BARRIER();

    /* In each step a lane loads two pairs of numbers. For each pair, `lines` has the pair's line
     * within the step, and `offsets` has the pair's distance from the step's first number. In
     * `masks`, the bits of the pair's numbers that are in the window are 1. */
    int lines[2], offsets[2];
    uint masks[2];
    UNROLL for (int i = 0; i < 2; i++) {
        int pair = i * 4 + (int)lane % 4, column = pair % ROW_PAIRS * 2;
        lines[i] = pair / ROW_PAIRS;
        offsets[i] = lines[i] * PITCH + column;
        masks[i] = (column < KERNEL_W ? 0xffffu : 0) | (column + 1 < KERNEL_W ? 0xffff0000u : 0);
    }
    for (int tile = warp * TILES_AT_ONCE; tile < PIXEL_TILES; tile += WARPS * TILES_AT_ONCE) {
        float sums[TILES_AT_ONCE][OUT_PART / 8][4] = {};
        const HALF *window[TILES_AT_ONCE][2];
        UNROLL for (int m = 0; m < TILES_AT_ONCE; m++)
            UNROLL for (int half = 0; half < 2; half++) {
                int pixel = (tile + m) * 16 + (int)lane / 4 + 8 * half;
                int column = pixel % TILE_W * STRIDE_X;
                window[m][half] = windows + pixel / TILE_W * (STRIDE_Y * CHANNELS * PITCH) + column
                                  + (column % 2 ? SECOND - 1 : 0);
            }
        auto multiply_step = [&](int step, bool is_last) {
            uint4 found[TILES_AT_ONCE];
            UNROLL for (int m = 0; m < TILES_AT_ONCE; m++) {
                uint pairs[2][2];
                UNROLL for (int i = 0; i < 2; i++) {
                    bool exists = !is_last || (STEPS - 1) * STEP_LINES + lines[i] < LINES;
                    UNROLL for (int half = 0; half < 2; half++) {
                        uint both = *(const uint *)(window[m][half] + offsets[i]
                                                    + step * STEP_LINES * PITCH);
                        if (KERNEL_W < ROW_WIDTH)
                            both &= masks[i];
                        pairs[half][i] = exists ? both : 0;
                    }
                }
                found[m] = make_uint4(pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]);
            }
            UNROLL for (int n = 0; n < OUT_PART / 8; n += COLUMN_TILES) {
                Factors factor = ((const Factors *)factors)[(step * (OUT_PART / 8) + n)
                                                            / COLUMN_TILES * 32 + lane];
                UNROLL for (int m = 0; m < TILES_AT_ONCE; m++) {
                    mma_sync(sums[m][n], found[m], factor.x, factor.y);
#if COLUMN_TILES == 2
                    mma_sync(sums[m][n + 1], found[m], factor.z, factor.w);
#endif
                }
            }
        };
        UNROLL_BY(2) for (int step = 0; step < STEPS - 1; step++)
            multiply_step(step, false);
        multiply_step(STEPS - 1, true);
        /* groups of tiles are the outer loop, so that a lane loads the constants of its channels
         * once */
        UNROLL for (int group = 0; group < GROUPS; group++) {
            int channel = part * OUT_PART + group * 8 * GROUP_TILES
                          + (int)lane % 4 * LANE_CHANNELS;
            UNROLL for (int m = 0; m < TILES_AT_ONCE; m++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int pixel = (tile + m) * 16 + (int)lane / 4 + 8 * half;
                    int row = first_row + pixel / TILE_W, column = first_column + pixel % TILE_W;
                    bool exists = row < out_height && column < out_width;
                    int place = (GROUP_ID(2) * out_height + row) * out_width + column;
                    int index = (exists ? place : 0) * out_channels + channel;
                    store_sums<LANE_CHANNELS>(y + index, exists, sums[m] + group * GROUP_TILES,
                                              half, EPILOGUE_OF(LANE_CHANNELS, channel, index));
                }
        }
    }
}
