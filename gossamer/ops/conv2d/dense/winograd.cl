/* The transforms of Winograd's minimal filtering F(4 x 4, 3 x 3). The output is cut into tiles of
 * 4 x 4 results. Each tile depends on 6 x 6 inputs. A transformed tile has 36 points. Between the
 * two transforms, another kernel multiplies the channels by the weights at each point.
 *
 * Tensors are NHWC. x_first and y_first are the indices of the first elements of x and y. In
 * memory, a pixel of x has x_channels channels, and a pixel of y has y_channels; both numbers
 * include channels of other tensors. A work-item transforms one channel of one tile. */

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#define OUTPUT 4           /* rows and columns of results of a tile */
#define INPUT (OUTPUT + 2) /* rows and columns of inputs of a tile */
#define POINTS (INPUT * INPUT)

/* The transforms of a row or column of INPUT values, in place. The first OUTPUT values that
 * TRANSFORM_OUTPUT leaves are results. apart: elements from one value to the next.
 * The interpolation points are 0, plus and minus A, plus and minus B, and infinity. With these A
 * and B the error is half of the error with A = 1 and B = 2. The factors that are products of A and
 * B are exact in float32. */
#define A 0.625f
#define B 1.5f
#define TRANSFORM_INPUT(d, apart)                                              \
    {                                                                          \
        float d0 = (d)[0], d1 = (d)[apart], d2 = (d)[2 * (apart)];             \
        float d3 = (d)[3 * (apart)], d4 = (d)[4 * (apart)];                    \
        float even_a = FMA(-B * B, d2, d4), odd_a = A * FMA(-B * B, d1, d3);   \
        float even_b = FMA(-A * A, d2, d4), odd_b = B * FMA(-A * A, d1, d3);   \
        (d)[0] = FMA(A * A * B * B, d0, FMA(-(A * A + B * B), d2, d4));        \
        (d)[apart] = even_a + odd_a;                                           \
        (d)[2 * (apart)] = even_a - odd_a;                                     \
        (d)[3 * (apart)] = even_b + odd_b;                                     \
        (d)[4 * (apart)] = even_b - odd_b;                                     \
        (d)[5 * (apart)] = FMA(A * A * B * B, d1,                              \
                               FMA(-(A * A + B * B), d3, (d)[5 * (apart)]));   \
    }
#define TRANSFORM_OUTPUT(m, apart)                                             \
    {                                                                          \
        float sum_a = (m)[apart] + (m)[2 * (apart)];                           \
        float difference_a = (m)[apart] - (m)[2 * (apart)];                    \
        float sum_b = (m)[3 * (apart)] + (m)[4 * (apart)];                     \
        float difference_b = (m)[3 * (apart)] - (m)[4 * (apart)];              \
        (m)[0] += sum_a + sum_b;                                               \
        (m)[apart] = FMA(A, difference_a, B * difference_b);                   \
        (m)[2 * (apart)] = FMA(A * A, sum_a, B * B * sum_b);                   \
        (m)[3 * (apart)] = FMA(A * A * A, difference_a,                        \
                               FMA(B * B * B, difference_b, (m)[5 * (apart)])); \
    }

/* points: the transformed tiles, of shape (tiles, points, channels). */
KERNEL void winograd_input(const GLOBAL float *x, GLOBAL float *RESTRICT points, int items,
                           DIVISOR(channels), DIVISOR(tiles_x), DIVISOR(tiles_y), int height,
                           int width, int x_first, int x_channels, int pad_top, int pad_left)
{
    pdl_trigger_and_wait();
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int tile = (int)QUOTIENT(item, channels), channel = item - tile * channels;
        int line = (int)QUOTIENT(tile, tiles_x), tile_x = tile - line * tiles_x;
        int image = (int)QUOTIENT(line, tiles_y), tile_y = line - image * tiles_y;
        int top = tile_y * OUTPUT - pad_top, left = tile_x * OUTPUT - pad_left;
        float d[POINTS];
        UNROLL for (int i = 0; i < INPUT; i++)
            UNROLL for (int j = 0; j < INPUT; j++) {
                int row = top + i, column = left + j;
                int inside = (uint)row < (uint)height && (uint)column < (uint)width;
                d[i * INPUT + j] = inside
                    ? x[x_first + ((image * height + row) * width + column) * x_channels + channel]
                    : 0.0f;
            }
        UNROLL for (int i = 0; i < INPUT; i++)
            TRANSFORM_INPUT(d + i * INPUT, 1)
        UNROLL for (int j = 0; j < INPUT; j++)
            TRANSFORM_INPUT(d + j, INPUT)
        UNROLL for (int point = 0; point < POINTS; point++)
            points[(tile * POINTS + point) * channels + channel] = d[point];
    }
}

KERNEL void winograd_output(const GLOBAL float *points, GLOBAL float *RESTRICT y,
                            int items, DIVISOR(channels), DIVISOR(tiles_x), DIVISOR(tiles_y),
                            int height, int width, int y_first, int y_channels EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int tile = (int)QUOTIENT(item, channels), channel = item - tile * channels;
        int line = (int)QUOTIENT(tile, tiles_x), tile_x = tile - line * tiles_x;
        int image = (int)QUOTIENT(line, tiles_y), tile_y = line - image * tiles_y;
        float m[POINTS];
        UNROLL for (int point = 0; point < POINTS; point++)
            m[point] = points[(tile * POINTS + point) * channels + channel];
        UNROLL for (int i = 0; i < INPUT; i++)
            TRANSFORM_OUTPUT(m + i * INPUT, 1)
        UNROLL for (int j = 0; j < OUTPUT; j++)
            TRANSFORM_OUTPUT(m + j, INPUT)
        UNROLL for (int i = 0; i < OUTPUT; i++)
            UNROLL for (int j = 0; j < OUTPUT; j++) {
                int row = tile_y * OUTPUT + i, column = tile_x * OUTPUT + j;
                if (row < height && column < width) {
                    int pixel = (image * height + row) * width + column;
                    int index = y_first + pixel * y_channels + channel;
                    float value = m[i * INPUT + j];
                    EPILOGUE(value, channel, index)
                    y[index] = value;
                }
            }
    }
}
