/* Direct sparse convolution. The weights are a CSR matrix. An output is the inner product of a row
 * of this matrix and elements of the padded input x. The column index of a weight is stretched: it
 * is not the weight's index in its filter, but the offset in x from the start of a window to the
 * input of this weight. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
/* work-items of a work-group; if THREADS is not defined, this file contains the kernel `stretch` */
#define THREADS 64
/* output points of a work-item; if POINTS is not defined, this file contains the kernel `untiled`
 * */
#define POINTS 1
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#ifndef THREADS

/* A work-item stretches the columns of one row. row_step and column_step are the distances in x
 * from a tap to the tap below it and to the tap on its right. They include the dilation. */
KERNEL void stretch(const GLOBAL int *RESTRICT rows, const GLOBAL int *RESTRICT columns,
                    GLOBAL int *RESTRICT stretched, int out_channels, int out_per_group,
                    int in_per_group, int taps, int kernel_width, int x_channel, int row_step,
                    int column_step)
{
    pdl_trigger_and_wait();
    int m = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (m < out_channels) {
        int first_channel = m / out_per_group * in_per_group;
        int end = rows[m + 1];
        for (int j = rows[m]; j < end; j++) {
            int channel = first_channel + columns[j] / taps, tap = columns[j] % taps;
            stretched[j] = channel * x_channel + tap / kernel_width * row_step
                           + tap % kernel_width * column_step;
        }
    }
}

#else

#if HALVES
#define ELEMENT HALF
#define READ(index) LOAD_HALF(x, index)
#define WRITE(index, value) STORE_HALF(y, index, value)
#else
#define ELEMENT float
#define READ(index) x[index]
#define WRITE(index, value) y[index] = value
#endif

/* The output points of one channel are indexed by (outer, line, place, inner). A line is a row of
 * output pixels, and a place is one pixel of this row. outer and inner together select the image;
 * _Points in direct_sparse.py divides the batch between them.
 *
 * plane: points of one outer index.
 * row: points of one line.
 * inner, as a parameter: points of one place.
 * x_outer, ..., y_inner: the strides of the window in x and of the result in y along each index, in
 * elements. */
#define PARAMETERS                                                                          \
    const GLOBAL ELEMENT *x, const GLOBAL int *RESTRICT rows,                      \
    const GLOBAL int *RESTRICT columns, const GLOBAL float *RESTRICT values,                \
    GLOBAL ELEMENT *RESTRICT y, int out_channels, DIVISOR(points), DIVISOR(plane),          \
    DIVISOR(row), DIVISOR(inner), int x_outer, int x_line, int x_place, int x_inner,        \
    int y_channel, int y_outer, int y_line, int y_place, int y_inner

/* Computes the indices of an output point. */
#define LOCATE(point)                                                                       \
    int outer_index = (int)QUOTIENT(point, plane);                                          \
    int in_plane = (int)(point) - outer_index * plane;                                      \
    int line_index = (int)QUOTIENT(in_plane, row);                                          \
    int in_row = in_plane - line_index * row;                                               \
    int place_index = (int)QUOTIENT(in_row, inner);                                         \
    int inner_index = in_row - place_index * inner;

/* OFFSET(x): offset in x of the window of LOCATE's point. OFFSET(y): offset in y of its result. */
#define OFFSET(in)                                                                          \
    (outer_index * in##_outer + line_index * in##_line + place_index * in##_place           \
     + inner_index * in##_inner)

/* A work-item computes one output. */
#ifndef POINTS
KERNEL WORK_GROUP_OF(THREADS) void untiled(PARAMETERS EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * THREADS + (uint)LOCAL_ID(0);
    if (item < (uint)out_channels * (uint)points) {
        int m = (int)QUOTIENT(item, points);
        int point = (int)item - m * points;
        LOCATE(point)
        int window = OFFSET(x), end = rows[m + 1];
        float sum = 0.0f;
        for (int j = rows[m]; j < end; j++)
            sum = FMA(values[j], READ(window + columns[j]), sum);
        int index = m * y_channel + OFFSET(y);
        EPILOGUE(sum, m, index)
        WRITE(index, sum);
    }
}
#endif

/* A work-group multiplies one row of the weights, in tiles of THREADS weights. Each work-item loads
 * one weight of a tile, and uses all weights of the tile. In place of a point past the last point,
 * a work-item computes the last point, but does not store it.
 *
 * Work-groups are assumed to start on the multiprocessors (units) in turn. Most work-groups of one
 * unit have the same span of points, and their rows are successive in `order`. A work-group
 * therefore often finds its inputs in the unit's cache, because another work-group has loaded them.
 * The first `longer` units run `waves` + 1 work-groups each. Each other unit runs `waves`. */
#ifdef POINTS
KERNEL WORK_GROUP_OF(THREADS) void tiled(
    PARAMETERS, const GLOBAL int *RESTRICT order, DIVISOR(units), int waves,
    int longer EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED int tile_column[THREADS];
    SHARED float tile_value[THREADS];
    int item = LOCAL_ID(0);
    int wave = (int)QUOTIENT(GROUP_ID(0), units), unit = GROUP_ID(0) - wave * units;
    int work = unit * waves + (unit < longer ? unit : longer) + wave;
    int span = work / out_channels, m = order[work - span * out_channels];
    uint first = (uint)span * (THREADS * POINTS) + (uint)item;
    int window[POINTS];
    float sum[POINTS];
    UNROLL for (int k = 0; k < POINTS; k++) {
        uint wanted = first + (uint)k * THREADS;
        int point = wanted < (uint)points ? (int)wanted : points - 1;
        LOCATE(point)
        window[k] = OFFSET(x);
        sum[k] = 0.0f;
    }
    int end = rows[m + 1];
    for (int start = rows[m]; start < end; start += THREADS) {
        int count = end - start < THREADS ? end - start : THREADS;
        if (item < count) {
            tile_column[item] = columns[start + item];
            tile_value[item] = values[start + item];
        }
        BARRIER();
        if (first < (uint)points)
            for (int j = 0; j < count; j++) {
                int column = tile_column[j];
                float value = tile_value[j];
                UNROLL for (int k = 0; k < POINTS; k++)
                    sum[k] = FMA(value, READ(window[k] + column), sum[k]);
            }
        BARRIER();
    }
    UNROLL for (int k = 0; k < POINTS; k++) {
        uint point = first + (uint)k * THREADS;
        if (point < (uint)points) {
            LOCATE(point)
            int index = m * y_channel + OFFSET(y);
            EPILOGUE(sum[k], m, index)
            WRITE(index, sum[k]);
        }
    }
}
#endif

#endif
