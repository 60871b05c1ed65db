/* Sparse convolution with weights in tables, for several output channels at once. A block is ROWS
 * output channels. A column is a pair (input channel, tap). A block has the columns in which at
 * least one of its output channels has a nonzero weight. The input of a column is loaded once for
 * all output channels of the block. `columns` has, for each column, the offset of its input from
 * the start of a window. `values` has ROWS weights for each column, one for each output channel.
 * Both tables are read four columns at a time. Columns with zero weights fill up the last four
 * columns of a block.
 *
 * A set of LANES work-items computes LANES * POINTS output points of a block. The columns of a
 * block are divided among SPLITS sets. SPLITS is 1 or a multiple of ROWS. At the end, the sets add
 * up their sums. A work-group computes BLOCKS blocks for the same output points.
 *
 * The output points of a plane are numbered by (line, place, image). A line is a row of output
 * pixels, and a place is a position along a line. A plane is one image, or all images if images are
 * the innermost axis.
 *
 * With LINEAR, a line has as many places as an input line. The index of a point is then also the
 * offset of its window. The places of a line past its last output are computed, but not stored.
 * Without LINEAR, a work-item computes the offset of every point's window. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ROWS 4 /* output channels of a block */
#define POINTS 4 /* output points of a work-item */
#define LANES 32 /* work-items of a set, which computes LANES * POINTS output points of a block */
#define BLOCKS 1 /* blocks of a work-group */
#define SPLITS 1 /* sets that share the columns of a block: 1 or a multiple of ROWS */
/* 1: x is stored without padding. In tap_masks, each column has a bit for the row of its tap (bits
 * 0 to 15) and a bit for the column of its tap (bits 16 to 31). Each point has a mask with the bits
 * of the rows and columns of taps that are outside of x. If this mask has the bit of a tap's row or
 * column, the point reads zero for the tap. */
#define MASKED 0
#define VECTOR 1 /* points that are loaded and stored at once: 1, or 4 neighbouring images */
/* distance in points from a work-item's point (or vector) to its next point: LANES * VECTOR, or
 * less if the next point would be past the last point */
#define DISTANCE 32
/* 1: a line has as many places as an input line; 0: as many as an output line */
#define LINEAR 1
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#define SET_COUNT (BLOCKS * SPLITS)
#define WORK_GROUP_SIZE (LANES * SET_COUNT)
#define VECTORS (POINTS / VECTOR)
#define WIDTH (LANES * VECTOR)
#define SPAN (WIDTH + (VECTORS - 1) * DISTANCE) /* output points of a set */

/* UNIT: the type of VECTOR points as floats. FETCHED_UNIT: the type of the same points as they are
 * loaded from memory. */
#if VECTOR == 4
#define UNIT float4
#define FETCHED_UNIT FETCHED_REAL4
#define FETCH_UNIT FETCH_REAL4
#define UNIT_VALUE REAL_VALUE4
#define STORE_UNIT STORE_REAL4
#define EPILOGUE_UNIT EPILOGUE4
#define ZERO_UNIT MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define ZERO_FETCHED ZERO_REAL4
#define MULTIPLY_ADD(sum, weight, value)    \
    (sum).x = FMA(weight, (value).x, (sum).x); \
    (sum).y = FMA(weight, (value).y, (sum).y); \
    (sum).z = FMA(weight, (value).z, (sum).z); \
    (sum).w = FMA(weight, (value).w, (sum).w);
#define ADD(sum, value)      \
    (sum).x += (value).x;    \
    (sum).y += (value).y;    \
    (sum).z += (value).z;    \
    (sum).w += (value).w;
#else
#define UNIT float
#define FETCHED_UNIT FETCHED_REAL
#define FETCH_UNIT FETCH_REAL
#define UNIT_VALUE REAL_VALUE
#define STORE_UNIT STORE_REAL
#define EPILOGUE_UNIT EPILOGUE
#define ZERO_UNIT 0.0f
#define ZERO_FETCHED 0
#define MULTIPLY_ADD(sum, weight, value) sum = FMA(weight, value, sum);
#define ADD(sum, value) sum += value;
#endif

/* Computes the line, the place and the image of an output point. */
#define LOCATE(point)                                   \
    int line_index = (int)QUOTIENT(point, line);        \
    int in_line = (point) - line_index * line;          \
    int place = (int)QUOTIENT(in_line, images);         \
    int image = in_line - place * images;

/* POINT(k) is a work-item's k-th point. It is never past the last point, so its inputs can be read.
 * Several work-items may compute the same point. IS_OWN(k) is true for the work-item that stores
 * the point. */
#if LINEAR && !MASKED
#define POINT(k) (base + (k) * DISTANCE)
#define IS_OWN(k)                                               \
    (POINT(k) >= first && lane * VECTOR < count                 \
     && ((k) == 0 || DISTANCE == WIDTH || lane * VECTOR >= WIDTH - DISTANCE))
#else
#define NOMINAL(k) ((uint)first + (uint)(lane * VECTOR + (k) * DISTANCE))
#define IS_OWN(k) (NOMINAL(k) < (uint)count)
#define POINT(k) (IS_OWN(k) ? (int)NOMINAL(k) : count - VECTOR)
#endif

#if LINEAR
#define FETCH(k, offset) FETCH_UNIT(x + (window + (offset)), (k) * DISTANCE)
#else
#define FETCH(k, offset) FETCH_UNIT(x, window[k] + (offset))
#endif

#if MASKED
#define READ(target, k, part)                     \
    target = ZERO_FETCHED;                        \
    if (!(outside[k] & next_tap_masks.part))          \
        target = FETCH(k, next.part);
#else
#define READ(target, k, part) target = FETCH(k, next.part);
#endif

/* Applies the epilogue to `value`, the sum of the work-item's k-th point (or the sums of its k-th
 * vector of points), and stores the result. */
#define EMIT(channel, k, value)                                            \
    {                                                                      \
        int point = POINT(k);                                              \
        LOCATE(point)                                                      \
        if (IS_OWN(k) && (channel) >= 0 && place < places) {               \
            int index = (channel) * y_channel + plane * y_plane            \
                        + line_index * y_line + place * y_place + image;   \
            EPILOGUE_UNIT(value, channel, index)                           \
            STORE_UNIT(y, index, value);                                   \
        }                                                                  \
    }

KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void direct_sparse_table(
    const GLOBAL REAL *x, const GLOBAL int *RESTRICT starts,
    const GLOBAL int *RESTRICT channels, const GLOBAL int4 *RESTRICT columns,
    const GLOBAL float4 *RESTRICT values, GLOBAL REAL *RESTRICT y, DIVISOR(parts), DIVISOR(tiles),
    int count, DIVISOR(line), DIVISOR(images), int places, int x_start, int x_plane, int x_line,
    int x_place, int y_channel, int y_plane, int y_line, int y_place
#if MASKED
    , const GLOBAL int4 *RESTRICT tap_masks, int height, int width, int kernel_height,
    int kernel_width, int stride_y, int stride_x, int pad_top, int pad_left, int dilation_y,
    int dilation_x
#endif
    EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
#if SPLITS > 1
    SHARED ALIGNED(16) UNIT partial[SET_COUNT * ROWS * VECTORS * LANES];
#endif
    int lane = LOCAL_ID(0) % LANES, set = LOCAL_ID(0) / LANES;
    int split = set % SPLITS;
    int rest = (int)QUOTIENT(GROUP_ID(0), parts);
    int block = (GROUP_ID(0) - rest * parts) * BLOCKS + set / SPLITS;
    int plane = (int)QUOTIENT(rest, tiles);
    int first = (rest - plane * tiles) * SPAN;
#if SPLITS > 1
    int channel = channels[block * ROWS + split % ROWS]; /* the channel that this set adds up */
#endif

    int x_first = plane * x_plane + x_start;
#if LINEAR && MASKED
    int window = x_first + first + lane * VECTOR;
#elif LINEAR
    int last = count - SPAN > 0 ? count - SPAN : 0;
    int base = (first < last ? first : last) + lane * VECTOR;
    base = base < count - VECTOR ? base : count - VECTOR;
    int window = x_first + base;
#else
    int window[VECTORS];
    UNROLL for (int k = 0; k < VECTORS; k++) {
        int point = POINT(k);
        LOCATE(point)
        window[k] = x_first + line_index * x_line + place * x_place + image;
    }
#endif
#if MASKED
    int outside[VECTORS];
    UNROLL for (int k = 0; k < VECTORS; k++) {
        int point = POINT(k);
        LOCATE(point)
        outside[k] = IS_OWN(k) && place < places ? 0 : -1;
        for (int r = 0; r < kernel_height; r++)
            if ((uint)(line_index * stride_y - pad_top + r * dilation_y) >= (uint)height)
                outside[k] |= 1 << r;
        for (int s = 0; s < kernel_width; s++)
            if ((uint)(place * stride_x - pad_left + s * dilation_x) >= (uint)width)
                outside[k] |= (int)(65536u << s);
    }
#endif

    UNIT sum[ROWS][VECTORS];
    UNROLL for (int g = 0; g < ROWS; g++)
        UNROLL for (int k = 0; k < VECTORS; k++)
            sum[g][k] = ZERO_UNIT;

    int start = starts[block], length = starts[block + 1] - start;
    int four = start + length * split / SPLITS;
    int end = start + length * (split + 1) / SPLITS;
    int4 next = columns[four]; /* the table has four more columns after the last block */
#if MASKED
    int4 next_tap_masks = tap_masks[four];
#endif
    while (four < end) {
        FETCHED_UNIT input[4][VECTORS];
        UNROLL for (int k = 0; k < VECTORS; k++) {
            READ(input[0][k], k, x)
            READ(input[1][k], k, y)
            READ(input[2][k], k, z)
            READ(input[3][k], k, w)
        }
        float weight[4 * ROWS];
        UNROLL for (int i = 0; i < ROWS; i++) {
            float4 part = values[four * ROWS + i];
            weight[4 * i + 0] = part.x;
            weight[4 * i + 1] = part.y;
            weight[4 * i + 2] = part.z;
            weight[4 * i + 3] = part.w;
        }
        next = columns[++four];
#if MASKED
        next_tap_masks = tap_masks[four];
#endif
        UNROLL for (int column = 0; column < 4; column++)
            UNROLL for (int k = 0; k < VECTORS; k++) {
                UNIT value = UNIT_VALUE(input[column][k]);
                UNROLL for (int g = 0; g < ROWS; g++) {
                    MULTIPLY_ADD(sum[g][k], weight[column * ROWS + g], value)
                }
            }
    }

#if SPLITS > 1
    UNROLL for (int k = 0; k < VECTORS; k++)
        UNROLL for (int g = 0; g < ROWS; g++)
            partial[((set * VECTORS + k) * ROWS + g) * LANES + lane] = sum[g][k];
    BARRIER();
    for (int k = split / ROWS; k < VECTORS; k += SPLITS / ROWS) {
        int word = (((set - split) * VECTORS + k) * ROWS + split % ROWS) * LANES + lane;
        UNIT value = partial[word];
        UNROLL for (int other = 1; other < SPLITS; other++) {
            UNIT part = partial[word + other * VECTORS * ROWS * LANES];
            ADD(value, part)
        }
        EMIT(channel, k, value)
    }
#else
    UNROLL for (int g = 0; g < ROWS; g++) {
        int channel = channels[block * ROWS + g];
        UNROLL for (int k = 0; k < VECTORS; k++)
            EMIT(channel, k, sum[g][k])
    }
#endif
}
