/* Grouped convolution of NHWC tensors on tensor cores, with float32 sums.
 *
 * A unit is UNIT neighbouring output channels, which may belong to several groups. One product
 * computes a unit. The product sums over the input channels of all these groups, which lie in SPAN
 * words of 16 bytes of each pixel. A weight between channels of different groups is zero.
 *
 * A tile is STRIPS * ROWS rows and COLUMNS columns of outputs. A work-group computes UNITS units of
 * one or more tiles. It copies the weights of its units once. For each tile, it copies the pixels
 * under the windows. In shared memory a pixel takes an odd number of words. The columns of a row
 * that are congruent modulo the stride are adjacent. Therefore neighbouring outputs read from
 * different banks.
 *
 * A warp multiplies one unit by 16 positions. A position is one column of a strip, that is, ROWS
 * outputs. A row of the left operand holds the inputs of one position. The weights of one column of
 * the window are loaded at once, for all rows of the window. Then each input row is loaded once,
 * for all output rows whose windows contain the input row. Within a unit the output channels are
 * permuted, so that a lane's sums belong to neighbouring channels of a pixel. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: x, y and the epilogue's tensor operands are 16-bit floats; 0: TF32 */
#define ROWS 4 /* rows of outputs of a warp */
#define STRIPS 2 /* strips of ROWS rows in a tile */
#define COLUMNS 14 /* columns of outputs of a tile */
#define UNITS 4 /* units of a work-group */
#define STAGES 2 /* tiles in shared memory: 2 if a work-group may compute several tiles, else 1 */
#define TILES 2 /* tiles of 8 output channels of a unit: 2 or 4 */
#define SPAN 2 /* words of a pixel that a unit reads, an even number */
#define PIECES 8 /* words of a pixel that a work-group reads; each unit reads SPAN of them */
#define GROUP_IN 4 /* input channels of a group */
#define GROUP_OUT 4 /* output channels of a group */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 1 /* rows from a window to the next */
#define STRIDE_X 1 /* columns from a window to the next */
#define DILATION_Y 1 /* rows from a tap to the next */
#define DILATION_X 1 /* columns from a tap to the next */
#define WARPS 4 /* warps of a work-group */
#define PER_UNIT 4 /* work-groups that a multiprocessor should hold; this bounds registers */
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "mma/neighbours.h"
#include "mma/warp.h"
#include "ops/epilogue.h"

#define WORK_GROUP_SIZE (32 * WARPS)
#define UNIT (8 * TILES)
#define WORD_CHANNELS (16 / (int)sizeof(REAL)) /* channels of a word of 16 bytes */
#define LANE_CHANNELS (2 * TILES)              /* neighbouring output channels of a lane */
#define WINDOW_H ((ROWS - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define HALO_H ((STRIPS * ROWS - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define HALO_W ((COLUMNS - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)
#define CONGRUENT CEIL_DIV(HALO_W, STRIDE_X) /* columns that are congruent modulo the stride */
#define PITCH (PIECES | 1)                   /* words of a pixel */
#define LINE (STRIDE_X * CONGRUENT * PITCH)  /* words of a row of pixels */
#define HALO (HALO_H * LINE)
#define STEPS (SPAN / 2) /* steps of two words of a pixel */
#if SPAN > 2
#define COLUMNS_UNROLLED 1 /* columns of the window whose code is unrolled */
#else
#define COLUMNS_UNROLLED 3
#endif
#define UNIT_WORDS (KERNEL_W * STEPS * KERNEL_H * TILES / 2 * 32) /* words of a unit's weights */
#define POSITION_TILES CEIL_DIV(STRIPS * COLUMNS, 16)
/* index of the first word that a unit reads in each pixel */
#define FIRST_WORD(unit) ((unit) * UNIT / GROUP_OUT * GROUP_IN / WORD_CHANNELS)

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, PER_UNIT) void grouped_mma(
    const REAL *x, const uint4 *RESTRICT weights, REAL *RESTRICT y, int tiles, DIVISOR(tiles_x),
    DIVISOR(tiles_y), int channels, int out_channels, int height, int width, int out_height,
    int out_width, int pad_top, int pad_left, int x_first, int x_image, int x_row, int x_column,
    int y_first, int y_image, int y_row, int y_column EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, factors)
    uint4 *pixels = factors + UNITS * UNIT_WORDS;
    int item = LOCAL_ID(0), lane = item % 32, warp = item / 32;
    int first_unit = GROUP_ID(1) * UNITS;
    int first_word = FIRST_WORD(first_unit);
    pdl_trigger();
    for (int i = item; i < UNITS * UNIT_WORDS; i += WORK_GROUP_SIZE)
        cp_async_16(shared_address(factors + i), weights + first_unit * UNIT_WORDS + i, 16);
    pdl_wait();

    auto begin_copy = [&](int tile, int stage) {
        int above = (int)QUOTIENT(tile, tiles_x);
        int image = (int)QUOTIENT(above, tiles_y);
        int top = (above - image * tiles_y) * (STRIPS * ROWS * STRIDE_Y) - pad_top;
        int left = (tile - above * tiles_x) * (COLUMNS * STRIDE_X) - pad_left;
        const REAL *source = x + x_first + image * x_image;
        uint target = shared_address(pixels + stage * HALO);
        for (int i = item; i < HALO_H * HALO_W * PIECES; i += WORK_GROUP_SIZE) {
            int pixel = i / PIECES, piece = i % PIECES;
            int line = pixel / HALO_W, place = pixel % HALO_W;
            int row = top + line, column = left + place;
            int channel = (first_word + piece) * WORD_CHANNELS;
            bool exists = (uint)row < (uint)height && (uint)column < (uint)width
                          && channel < channels;
            int slot = place % STRIDE_X * CONGRUENT + place / STRIDE_X;
            cp_async_16(target + 16 * (line * LINE + slot * PITCH + piece),
                        exists ? source + row * x_row + column * x_column + channel : x,
                        exists ? 16 : 0);
        }
    };

    auto multiply = [&](int tile, int stage) {
        int above = (int)QUOTIENT(tile, tiles_x);
        int image = (int)QUOTIENT(above, tiles_y);
        int first_row = (above - image * tiles_y) * (STRIPS * ROWS);
        int first_column = (tile - above * tiles_x) * COLUMNS;
        for (int task = warp; task < POSITION_TILES * UNITS; task += WARPS) {
            int unit = task % UNITS, first_position = task / UNITS * 16;
            /* positions after the last one read the pixels of the last one */
            int position = first_position + lane % 16;
            if (position >= STRIPS * COLUMNS)
                position = STRIPS * COLUMNS - 1;
            uint corner = shared_address(
                pixels + stage * HALO + position / COLUMNS * (ROWS * STRIDE_Y * LINE)
                + position % COLUMNS * PITCH + FIRST_WORD(first_unit + unit) - first_word
                + lane / 16);
            const uint4 *factor = factors + unit * UNIT_WORDS + lane;
            float sums[ROWS][TILES][4] = {};
            UNROLL_BY(COLUMNS_UNROLLED) for (int s = 0; s < KERNEL_W; s++) {
                int place = s * DILATION_X;
                int slot = place % STRIDE_X * CONGRUENT + place / STRIDE_X;
                UNROLL_BY(2) for (int step = 0; step < STEPS; step++) {
                    uint4 of_rows[KERNEL_H][TILES / 2];
                    UNROLL for (int r = 0; r < KERNEL_H; r++)
                        UNROLL for (int n = 0; n < TILES / 2; n++)
                            of_rows[r][n] = factor[((s * STEPS + step) * KERNEL_H + r)
                                                   * (TILES / 2 * 32) + n * 32];
                    UNROLL for (int line = 0; line < WINDOW_H; line++) {
                        bool is_read = false;
                        UNROLL for (int r = 0; r < KERNEL_H; r++) {
                            int above_line = line - r * DILATION_Y;
                            is_read |= above_line >= 0 && above_line % STRIDE_Y == 0
                                       && above_line / STRIDE_Y < ROWS;
                        }
                        if (!is_read)
                            continue;
                        uint4 found = rounded_operands(
                            ldmatrix_x4(corner + 16 * (line * LINE + slot * PITCH + 2 * step)));
                        UNROLL for (int i = 0; i < ROWS; i++)
                            UNROLL for (int r = 0; r < KERNEL_H; r++)
                                if (i * STRIDE_Y + r * DILATION_Y == line)
                                    UNROLL for (int n = 0; n < TILES; n++) {
                                        const uint4 &both = of_rows[r][n / 2];
                                        mma_sync(sums[i][n], found, n % 2 ? both.z : both.x,
                                                 n % 2 ? both.w : both.y);
                                    }
                    }
                }
            }
            int channel = (first_unit + unit) * UNIT + lane % 4 * LANE_CHANNELS;
            UNROLL for (int half = 0; half < 2; half++) {
                int of_lane = first_position + lane / 4 + 8 * half;
                int column = first_column + of_lane % COLUMNS;
                int row = first_row + of_lane / COLUMNS * ROWS;
                if (of_lane >= STRIPS * COLUMNS || column >= out_width || channel >= out_channels)
                    continue;
                UNROLL for (int i = 0; i < ROWS; i++)
                    if (row + i < out_height) {
                        int index = y_first + image * y_image + (row + i) * y_row
                                    + column * y_column + channel;
                        store_sums<LANE_CHANNELS>(y + index, true, sums[i], half,
                                                  EPILOGUE_OF(LANE_CHANNELS, channel, index));
                    }
            }
        }
    };

    int stage = 0;
    if (STAGES == 2) {
        begin_copy(GROUP_ID(0), 0);
        cp_async_commit_group();
    }
    for (int tile = GROUP_ID(0); tile < tiles; tile += GROUP_COUNT(0)) {
        int copied = STAGES == 2 ? tile + GROUP_COUNT(0) : tile;
        if (copied < tiles)
            begin_copy(copied, STAGES == 2 ? 1 - stage : 0);
        cp_async_commit_group();
        cp_async_wait_group<STAGES - 1>();
        BARRIER();
        multiply(tile, stage);
        BARRIER();
        stage = (stage + 1) % STAGES;
    }
}
