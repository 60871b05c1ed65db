/* Pooling of a tensor (outer, height, width, inner) whose last dimension is contiguous. NCHW is
 * (N * C, H, W, 1), NHWC is (N, H, W, C), CHWN is (C, H, W, N).
 *
 * A work-item computes LANES neighbours along `inner`, or PIXELS neighbours along the width. At
 * most one of LANES and PIXELS is 4; the other is 1. LANES = 4 requires inner % 4 == 0; PIXELS = 4
 * requires inner == 1 and out_width % 4 == 0.
 *
 * source_inner and target_inner are the sizes of the last dimension in memory. They exceed `inner`
 * if a tensor is a slice of the channels of a larger tensor. source_first and target_first are the
 * offsets of the first elements.
 *
 * An average divides by the number of window positions in the input or in the counted padding. The
 * counted padding has counted_top rows above the input, counted_bottom rows below it, counted_left
 * columns on its left, and counted_right columns on its right.
 *
 * MAX: defined for the maximum, undefined for the average. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LANES 1 /* neighbours along `inner` that a work-item computes, 1 or 4 */
#define PIXELS 4 /* neighbours along the width that a work-item computes, 1 or 4 */
/* height and width of the window; undefined if they differ or are not known at compile time */
#define WINDOW 3
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

/* TAKE updates a result with one value of the window. START is the initial result. */
#ifdef MAX
#define START (-INFINITY)
#define TAKE(total, value) total = MAXIMUM(total, value)
#else
#define START 0.0f
#define TAKE(total, value) total += value
#endif

#ifdef WINDOW
#define ROWS WINDOW
#define COLUMNS WINDOW
#define UNROLL_WINDOW UNROLL
#else
#define ROWS kernel_height
#define COLUMNS kernel_width
#define UNROLL_WINDOW
#endif

#if LANES == 4
#define TAKE_AT(pixel, pointer, index) { \
    float4 value = LOAD_REAL4(pointer, index); \
    TAKE(total[0], value.x); \
    TAKE(total[1], value.y); \
    TAKE(total[2], value.z); \
    TAKE(total[3], value.w); \
}
#else
#define TAKE_AT(pixel, pointer, index) { \
    float value = LOAD_REAL(pointer, index); \
    TAKE(total[pixel], value); \
}
#endif

KERNEL void pool(const GLOBAL REAL *source, GLOBAL REAL *RESTRICT target, int count,
                 int height, int width, int source_first, int source_inner, int target_first,
                 int target_inner, DIVISOR(inner_steps), DIVISOR(out_columns), DIVISOR(out_height),
                 int kernel_height, int kernel_width, int stride_y, int stride_x, int top, int left,
                 int dilation_y, int dilation_x,
                 int counted_top, int counted_left, int counted_bottom, int counted_right)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        uint rest = QUOTIENT(item, inner_steps);
        int i = (int)(item - rest * (uint)inner_steps) * LANES;
        uint line = QUOTIENT(rest, out_columns);
        int x0 = (int)(rest - line * (uint)out_columns) * PIXELS * stride_x - left;
        uint outer = QUOTIENT(line, out_height);
        int y0 = (int)(line - outer * (uint)out_height) * stride_y - top;
        const GLOBAL REAL *plane = source + source_first
                                   + (size_t)outer * (size_t)(height * width * source_inner) + i;
        int row_step = dilation_y * width * source_inner, column_step = dilation_x * source_inner;
        int pixel_step = stride_x * source_inner;
        float total[LANES * PIXELS];
        UNROLL
        for (int k = 0; k < LANES * PIXELS; k++)
            total[k] = START;
        if (y0 >= 0 && y0 + (ROWS - 1) * dilation_y < height && x0 >= 0
            && x0 + (PIXELS - 1) * stride_x + (COLUMNS - 1) * dilation_x < width) {
            const GLOBAL REAL *corner = plane + (y0 * width + x0) * source_inner;
            UNROLL_WINDOW
            for (int r = 0; r < ROWS; r++) {
                UNROLL_WINDOW
                for (int s = 0; s < COLUMNS; s++) {
                    UNROLL
                    for (int p = 0; p < PIXELS; p++)
                        TAKE_AT(p, corner + r * row_step + s * column_step, p * pixel_step)
                }
            }
#ifndef MAX
            UNROLL
            for (int k = 0; k < LANES * PIXELS; k++)
                total[k] = total[k] / (float)(ROWS * COLUMNS);
#endif
        } else {
            UNROLL
            for (int p = 0; p < PIXELS; p++) {
                int taps = 0;
                for (int r = 0; r < ROWS; r++) {
                    int y = y0 + r * dilation_y;
                    if (y < -counted_top || y >= height + counted_bottom)
                        continue;
                    for (int s = 0; s < COLUMNS; s++) {
                        int x = x0 + p * stride_x + s * dilation_x;
                        taps += x >= -counted_left && x < width + counted_right;
                        if (y >= 0 && y < height && x >= 0 && x < width)
                            TAKE_AT(p, plane, (y * width + x) * source_inner)
                    }
                }
#ifndef MAX
                UNROLL
                for (int k = 0; k < LANES; k++)
                    total[p * LANES + k] = total[p * LANES + k] / (float)taps;
#endif
            }
        }
        GLOBAL REAL *result = target + target_first + (size_t)rest * (PIXELS * target_inner) + i;
#if LANES * PIXELS == 4
        STORE_REAL4(result, 0, MAKE4(total[0], total[1], total[2], total[3]));
#else
        STORE_REAL(result, 0, total[0]);
#endif
    }
}
