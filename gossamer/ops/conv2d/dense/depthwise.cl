/* Depthwise convolution: each output channel reads one input channel.
 *
 * A work-item computes ROWS by COLUMNS neighbouring outputs of VECTOR channels. The work-item loads
 * each input row of its window into registers once, and uses the row for all taps and outputs that
 * need it. Layouts are given as strides. The epilogue's tensor operands have the layout of y. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ROWS 2 /* rows of outputs of a work-item */
#define COLUMNS 2 /* columns of outputs of a work-item */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 1 /* rows from a window to the next */
#define STRIDE_X 1 /* columns from a window to the next */
#define DILATION_Y 1 /* rows from a tap to the next */
#define DILATION_X 1 /* columns from a tap to the next */
#define MULTIPLIER 1 /* output channels of an input channel */
/* channels of a work-item: 8 (with HALVES), 4 or 1; 8 and 4 need MULTIPLIER 1 and channels that are
 * adjacent in memory */
#define VECTOR 1
/* 1: neighbouring work-items compute neighbouring channels (NHWC); 0: neighbouring columns */
#define CHANNELS_FIRST 1
#define WORK_GROUP_SIZE 64 /* work-items of a work-group */
#define HALVES 1 /* 1: x, y and the epilogue's tensor operands are 16-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#define WINDOW_H ((ROWS - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define WINDOW_W ((COLUMNS - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)

/* The macros below handle VECTOR channels at once. LANES is the type of their values; FETCH_LANES
 * loads values of x, and LANES_VALUE converts loaded values to floats. */
#if VECTOR == 8
struct Eight {
    float4 lower, upper;
};

INLINE struct Eight eight(float4 lower, float4 upper)
{
    struct Eight both;
    both.lower = lower;
    both.upper = upper;
    return both;
}

#define LANES struct Eight
#define NO_LANES eight(MAKE4(0.0f, 0.0f, 0.0f, 0.0f), MAKE4(0.0f, 0.0f, 0.0f, 0.0f))
#define LOAD_TAPS(pointer) eight(LOAD4(pointer), LOAD4((pointer) + 4))
#define FETCHED_LANES FETCHED_HALF8
#define NONE_FETCHED ZERO_HALF8
#define FETCH_LANES FETCH_HALF8
#define LANES_VALUE(fetched) eight(LOWER_VALUE4(fetched), UPPER_VALUE4(fetched))
#define STORE_LANES(y, index, value) STORE_HALF8(y, index, (value).lower, (value).upper)
#define EPILOGUE_LANES(value, channel, index)      \
    EPILOGUE4(value.lower, channel, index)         \
    EPILOGUE4(value.upper, (channel) + 4, (index) + 4)
#define ADD_PRODUCT(sum, a, b)                           \
    do {                                                 \
        ADD_PRODUCT4((sum).lower, (a).lower, (b).lower); \
        ADD_PRODUCT4((sum).upper, (a).upper, (b).upper); \
    } while (0)
#elif VECTOR == 4
#define LANES float4
#define NO_LANES MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define LOAD_TAPS(pointer) LOAD4(pointer)
#define FETCHED_LANES FETCHED_REAL4
#define NONE_FETCHED ZERO_REAL4
#define FETCH_LANES FETCH_REAL4
#define LANES_VALUE REAL_VALUE4
#define STORE_LANES STORE_REAL4
#define EPILOGUE_LANES(value, channel, index) EPILOGUE4(value, channel, index)
#define ADD_PRODUCT ADD_PRODUCT4
#else
#define LANES float
#define NO_LANES 0.0f
#define LOAD_TAPS(pointer) (*(pointer))
#define FETCHED_LANES FETCHED_REAL
#define NONE_FETCHED 0
#define FETCH_LANES FETCH_REAL
#define LANES_VALUE REAL_VALUE
#define STORE_LANES STORE_REAL
#define EPILOGUE_LANES(value, channel, index) EPILOGUE(value, channel, index)
#define ADD_PRODUCT(sum, a, b) (sum) = FMA(a, b, sum)
#endif

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void depthwise(
    const GLOBAL REAL *x, const GLOBAL float *RESTRICT weight, GLOBAL REAL *RESTRICT y,
    int items, DIVISOR(units), DIVISOR(tiles_x), DIVISOR(tiles_y), int weight_stride, int height,
    int width, int out_height, int out_width, int pad_top, int pad_left, int x_first, int x_image,
    int x_channel, int x_row, int x_column, int y_first, int y_image, int y_channel, int y_row,
    int y_column EPILOGUE_PARAMETERS)
{
    pdl_trigger();
    int item = GROUP_ID(0) * WORK_GROUP_SIZE + LOCAL_ID(0);
    if (item < items) {
#if CHANNELS_FIRST
        int above_units = (int)QUOTIENT(item, units);
        int above_x = (int)QUOTIENT(above_units, tiles_x);
        int image = (int)QUOTIENT(above_x, tiles_y);
        int channel = (item - above_units * units) * VECTOR;
        int first_column = (above_units - above_x * tiles_x) * COLUMNS;
        int first_row = (above_x - image * tiles_y) * ROWS;
#else
        int above_x = (int)QUOTIENT(item, tiles_x);
        int above_y = (int)QUOTIENT(above_x, tiles_y);
        int image = (int)QUOTIENT(above_y, units);
        int channel = (above_y - image * units) * VECTOR;
        int first_column = (item - above_x * tiles_x) * COLUMNS;
        int first_row = (above_x - above_y * tiles_y) * ROWS;
#endif
        x += x_first + image * x_image + channel / MULTIPLIER * x_channel;
        weight += channel;
        LANES taps[KERNEL_H * KERNEL_W];
        UNROLL for (int tap = 0; tap < KERNEL_H * KERNEL_W; tap++)
            taps[tap] = LOAD_TAPS(weight + tap * weight_stride);
        pdl_wait();
        LANES sum[ROWS * COLUMNS];
        UNROLL for (int i = 0; i < ROWS * COLUMNS; i++)
            sum[i] = NO_LANES;

        UNROLL for (int wy = 0; wy < WINDOW_H; wy++) {
            int row = first_row * STRIDE_Y - pad_top + wy;
            FETCHED_LANES fetched[WINDOW_W];
            UNROLL for (int wx = 0; wx < WINDOW_W; wx++) {
                int column = first_column * STRIDE_X - pad_left + wx;
                fetched[wx] = NONE_FETCHED;
                if ((uint)row < (uint)height && (uint)column < (uint)width)
                    fetched[wx] = FETCH_LANES(x + row * x_row, column * x_column);
            }
            LANES line[WINDOW_W];
            UNROLL for (int wx = 0; wx < WINDOW_W; wx++)
                line[wx] = LANES_VALUE(fetched[wx]);
            UNROLL for (int i = 0; i < ROWS; i++)
                UNROLL for (int r = 0; r < KERNEL_H; r++)
                    if (i * STRIDE_Y + r * DILATION_Y == wy) {
                        UNROLL for (int j = 0; j < COLUMNS; j++)
                            UNROLL for (int s = 0; s < KERNEL_W; s++)
                                ADD_PRODUCT(sum[i * COLUMNS + j],
                                            line[j * STRIDE_X + s * DILATION_X],
                                            taps[r * KERNEL_W + s]);
                    }
        }
        UNROLL for (int i = 0; i < ROWS; i++)
            UNROLL for (int j = 0; j < COLUMNS; j++) {
                int row = first_row + i, column = first_column + j;
                if (row < out_height && column < out_width) {
                    int index = y_first + image * y_image + channel * y_channel + row * y_row
                                + column * y_column;
                    LANES value = sum[i * COLUMNS + j];
                    EPILOGUE_LANES(value, channel, index)
                    STORE_LANES(y, index, value);
                }
            }
    }
}
