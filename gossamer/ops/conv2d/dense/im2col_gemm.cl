/* Convolution as a tiled matrix product with implicit im2col. The left matrix, output pixels by K,
 * is never stored: its values are gathered from the input when tiles are filled. An index k of the
 * axis K stands for an input channel c of the group and a tap (r, s).
 *
 *   y[pixel, m] = sum over k of x[pixel, k] * weight[k, m]
 *
 * A work-group computes TILE_P output pixels by TILE_M output channels, and a work-item computes
 * WORK_P by WORK_M of these outputs. Both operands are read from tiles in shared memory. A tile has
 * TILE_K values of k and is filled one step ahead. With SLICE_K > 1, the work-items form SLICE_K
 * sets (k-slices). Each set sums over a part of a tile's K range, and the sums of all sets are
 * added at the end. The k-slices give small layers more work-items. With SPLIT_K > 1, SPLIT_K
 * work-groups share the K range of a tile. Each work-group then writes its sums as floats (split,
 * pixel, channel) without an epilogue, and split_sum.cl adds up these sums. BLOCKS_PER_UNIT
 * work-groups must fit a multiprocessor at once. This bounds the registers of a work-item.
 *
 * x and y begin at the elements x_first and y_first of their buffers. In NHWC, a pixel of y has
 * y_channels channels in memory. If y is a part of a larger tensor, y_channels is the number of
 * channels of the larger tensor. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_P 64 /* output pixels of a tile */
#define TILE_M 64 /* output channels of a tile */
#define TILE_K 8 /* values of k of a tile */
#define WORK_P 4 /* output pixels of a work-item */
#define WORK_M 4 /* output channels of a work-item */
#define SLICE_K 1 /* k-slices of a work-group, whose sums are added at the end */
#define SPLIT_K 1 /* work-groups that share the K range of a tile */
/* work-groups that must fit a multiprocessor at once; this bounds the registers */
#define BLOCKS_PER_UNIT 1
/* 1: k is channel k of the pixel itself. 0: for index k, k_table[k / VECTOR] holds the offset in x
 * from the window's corner, and the row and the column in the window */
#define POINTWISE 0
/* 1: x, y and the epilogue's tensor operands are 16-bit floats; the tiles in shared memory are
 * always 32-bit floats */
#define HALVES 1
/* 4 if four consecutive k are adjacent in x (NHWC, channels a multiple of 4), else 1 */
#define VECTOR 1
/* 1: neighbouring work-items load neighbouring pixels (NCHW); 0: neighbouring k */
#define PIXELS_FIRST 1
/* 1 if y and the epilogue's tensor operands are NHWC, 0 if they are NCHW */
#define OUT_NHWC 0
/* 4 if the output channels of a group are adjacent and their number is a multiple of 4, else 1 */
#define OUT_VECTOR 1
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#define THREADS_P (TILE_P / WORK_P)
#define THREADS_M (TILE_M / WORK_M)
#define SET (THREADS_P * THREADS_M) /* work-items of a k-slice */
#define WORK_GROUP_SIZE (SET * SLICE_K)
/* Tile `A` holds inputs, and tile `B` holds weights. A unit of `A` is VECTOR values of a pixel. A
 * unit of `B` is four output channels of one k. A work-item loads A_LOADS units of tile `A` and
 * B_LOADS units of tile `B`. */
#define A_STRIDE (TILE_P + 4)
#define A_UNITS (TILE_P * TILE_K / VECTOR)
#define A_LOADS CEIL_DIV(A_UNITS, WORK_GROUP_SIZE)
#define B_UNITS (TILE_K * TILE_M / 4)
#define B_LOADS CEIL_DIV(B_UNITS, WORK_GROUP_SIZE)
#define TILE_WORDS (TILE_K * (A_STRIDE + TILE_M))
#define SUM_WORDS (SLICE_K > 1 ? SLICE_K * TILE_P * TILE_M : 0)
#define SHARED_WORDS (2 * TILE_WORDS > SUM_WORDS ? 2 * TILE_WORDS : SUM_WORDS)

#if PIXELS_FIRST
#define UNIT_PIXEL(unit) ((unit) % TILE_P)
#define UNIT_K(unit) ((unit) / TILE_P * VECTOR)
#else
#define UNIT_PIXEL(unit) ((unit) / (TILE_K / VECTOR))
#define UNIT_K(unit) ((unit) % (TILE_K / VECTOR) * VECTOR)
#endif

#if VECTOR == 4
#define UNIT FETCHED_REAL4
#define FETCH_UNIT FETCH_REAL4
#define UNIT_VALUE REAL_VALUE4
#define ZERO_UNIT ZERO_REAL4
#else
#define UNIT FETCHED_REAL
#define FETCH_UNIT FETCH_REAL
#define UNIT_VALUE REAL_VALUE
#define ZERO_UNIT 0
#endif

#if SPLIT_K > 1
#define RESULT float
#define STORE_RESULT(pointer, index, value) ((pointer)[index] = (value))
#define STORE_RESULT4(pointer, index, value) STORE4((pointer) + (index), value)
#else
#define RESULT REAL
#define STORE_RESULT STORE_REAL
#define STORE_RESULT4 STORE_REAL4
#endif

#if OUT_NHWC
#define OUT_INDEX(pixel, channel) (y_first + (pixel) * y_channels + (channel))
#else
#define OUT_INDEX(pixel, channel) \
    (((pixel) / plane * y_channels + (channel)) * plane + (pixel) % plane)
#endif

/* Loads the work-item's units of the tiles that begin at fetched_k into registers. */
#define FETCH(fetched_k)                                                              \
    {                                                                                 \
        UNROLL for (int i = 0; i < A_LOADS; i++) {                                    \
            int unit = item + i * WORK_GROUP_SIZE;                                    \
            int k_index = (fetched_k) + UNIT_K(unit);                                 \
            a_next[i] = ZERO_UNIT;                                                    \
            if ((A_UNITS % WORK_GROUP_SIZE == 0 || unit < A_UNITS) && k_index < depth \
                && base[i] != OUTSIDE)                                                \
                FETCH_A(i, k_index)                                                   \
        }                                                                             \
        UNROLL for (int i = 0; i < B_LOADS; i++) {                                    \
            int unit = item + i * WORK_GROUP_SIZE;                                    \
            int k_index = (fetched_k) + unit / (TILE_M / 4);                          \
            int m = first_m + unit % (TILE_M / 4) * 4;                                \
            b_next[i] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                                \
            if ((B_UNITS % WORK_GROUP_SIZE == 0 || unit < B_UNITS) && k_index < depth \
                && m < weight_stride)                                                 \
                b_next[i] = LOAD4(weight + k_index * weight_stride + m);              \
        }                                                                             \
    }

#define OUTSIDE (-0x7fffffff) /* base[i] of a pixel after the last pixel */

#if POINTWISE
#define FETCH_A(i, k_index) a_next[i] = FETCH_UNIT(x + base[i], (k_index) * x_channel);
#else
#define FETCH_A(i, k_index)                                                                 \
    {                                                                                       \
        int2 entry = k_table[(k_index) / VECTOR];                                           \
        int row = origin[i].x + (entry.y >> 16), column = origin[i].y + (entry.y & 0xffff); \
        if ((uint)row < (uint)height && (uint)column < (uint)width)                         \
            a_next[i] = FETCH_UNIT(x + base[i], entry.x);                                   \
    }
#endif

#if VECTOR == 4
#define STORE_UNIT(tile, k_index, pixel, unit)                  \
    {                                                           \
        float4 value = UNIT_VALUE(unit);                        \
        (tile)[((k_index) + 0) * A_STRIDE + (pixel)] = value.x; \
        (tile)[((k_index) + 1) * A_STRIDE + (pixel)] = value.y; \
        (tile)[((k_index) + 2) * A_STRIDE + (pixel)] = value.z; \
        (tile)[((k_index) + 3) * A_STRIDE + (pixel)] = value.w; \
    }
#else
#define STORE_UNIT(tile, k_index, pixel, unit) \
    (tile)[(k_index) * A_STRIDE + (pixel)] = UNIT_VALUE(unit);
#endif

/* Stores the work-item's units from registers to shared memory. Tile `A` begins at `tile`, and tile
 * `B` follows tile `A`. */
#define STORE_TILE(tile)                                                         \
    {                                                                            \
        UNROLL for (int i = 0; i < A_LOADS; i++) {                               \
            int unit = item + i * WORK_GROUP_SIZE;                               \
            if (A_UNITS % WORK_GROUP_SIZE == 0 || unit < A_UNITS) {              \
                STORE_UNIT(tile, UNIT_K(unit), UNIT_PIXEL(unit), a_next[i])      \
            }                                                                    \
        }                                                                        \
        UNROLL for (int i = 0; i < B_LOADS; i++) {                               \
            int unit = item + i * WORK_GROUP_SIZE;                               \
            if (B_UNITS % WORK_GROUP_SIZE == 0 || unit < B_UNITS)                \
                SHARED_STORE4((tile) + TILE_K * A_STRIDE + unit * 4, b_next[i]); \
        }                                                                        \
    }

/* A work-item has runs of four rows and runs of four columns. The runs are spread over the tile so
 * that the four-wide reads of neighbouring work-items fall in different banks. */
#define ROW(thread, i) ((i) / 4 * (4 * THREADS_P) + (thread) * 4 + (i) % 4)
#define COLUMN(thread, j) ((j) / 4 * (4 * THREADS_M) + (thread) * 4 + (j) % 4)

#if OUT_VECTOR == 4
#define STORE_OUTPUT(pixel, m, value)             \
    if ((pixel) < pixels && (m) < out_channels) { \
        int channel = group * out_channels + (m); \
        int index = OUT_INDEX(pixel, channel);    \
        EPILOGUE4(value, channel, index)          \
        STORE_RESULT4(y, index, value);           \
    }
#else
#define STORE_ONE(pixel, m, lane)                 \
    if ((m) < out_channels) {                     \
        int channel = group * out_channels + (m); \
        int index = OUT_INDEX(pixel, channel);    \
        EPILOGUE(lane, channel, index)            \
        STORE_RESULT(y, index, lane);             \
    }
#define STORE_OUTPUT(pixel, m, value)      \
    if ((pixel) < pixels) {                \
        STORE_ONE(pixel, (m) + 0, value.x) \
        STORE_ONE(pixel, (m) + 1, value.y) \
        STORE_ONE(pixel, (m) + 2, value.z) \
        STORE_ONE(pixel, (m) + 3, value.w) \
    }
#endif

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void im2col_gemm(
    const GLOBAL REAL *x, const GLOBAL float *RESTRICT weight, GLOBAL RESULT *RESTRICT y,
    const GLOBAL int2 *RESTRICT k_table, int pixels, int out_channels, int depth, int weight_stride,
    int height, int width, int out_width, int plane, int stride_y, int stride_x, int pad_top,
    int pad_left, int x_first, int x_image, int x_row, int x_column, int x_channel, int x_group,
    int y_first, int y_channels EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED ALIGNED(16) float tiles[SHARED_WORDS];

    int item = LOCAL_ID(0);
    int m_tiles = CEIL_DIV(out_channels, TILE_M);
    int first_m = GROUP_ID(0) % m_tiles * TILE_M;
    int first_pixel = GROUP_ID(0) / m_tiles * TILE_P;
    int group = GROUP_ID(1);
    x += x_first + group * x_group;
    weight += group * depth * weight_stride;

    int base[A_LOADS];
#if !POINTWISE
    int2 origin[A_LOADS];
#endif
    UNROLL for (int i = 0; i < A_LOADS; i++) {
        int pixel = first_pixel + UNIT_PIXEL(item + i * WORK_GROUP_SIZE);
        int in_image = pixel % plane;
        int row = in_image / out_width * stride_y - pad_top;
        int column = in_image % out_width * stride_x - pad_left;
        base[i] = pixel < pixels ? pixel / plane * x_image + row * x_row + column * x_column
                                 : OUTSIDE;
#if !POINTWISE
        origin[i].x = row;
        origin[i].y = column;
#endif
    }

    float sum[WORK_P][WORK_M];
    UNROLL for (int i = 0; i < WORK_P; i++)
        UNROLL for (int j = 0; j < WORK_M; j++)
            sum[i][j] = 0.0f;

    int set = item / SET;
#if THREADS_P % 4 == 0 && THREADS_M % 8 == 0
    /* the work-items of a warp are arranged 4 by 8, so that the warp reads the fewest different
     * numbers from shared memory */
    int warp = item % SET / 32, lane = item % 32;
    int thread_m = warp % (THREADS_M / 8) * 8 + lane % 8;
    int thread_p = warp / (THREADS_M / 8) * 4 + lane / 8;
#else
    int thread_m = item % SET % THREADS_M;
    int thread_p = item % SET / THREADS_M;
#endif

    UNIT a_next[A_LOADS];
    float4 b_next[B_LOADS];
    int first_k = 0, steps = CEIL_DIV(depth, TILE_K);
#if SPLIT_K > 1
    int split = GROUP_ID(2), all_steps = steps;
    first_k = all_steps * split / SPLIT_K * TILE_K;
    steps = all_steps * (split + 1) / SPLIT_K - all_steps * split / SPLIT_K;
    y += split * pixels * y_channels;
#endif
    FETCH(first_k)
    STORE_TILE(tiles)
    BARRIER();

    for (int step = 0; step < steps; step++) {
        int current = (step & 1) * TILE_WORDS;
        if (step + 1 < steps)
            FETCH(first_k + (step + 1) * TILE_K)
        UNROLL for (int k = 0; k < TILE_K / SLICE_K; k++) {
            int k_index = k * SLICE_K + set;
            int a_row = current + k_index * A_STRIDE;
            int b_row = current + TILE_K * A_STRIDE + k_index * TILE_M;
            float4 a[WORK_P / 4], b[WORK_M / 4];
            UNROLL for (int i = 0; i < WORK_P / 4; i++)
                a[i] = SHARED_LOAD4(tiles + a_row + ROW(thread_p, 4 * i));
            UNROLL for (int j = 0; j < WORK_M / 4; j++)
                b[j] = SHARED_LOAD4(tiles + b_row + COLUMN(thread_m, 4 * j));
            UNROLL for (int i = 0; i < WORK_P / 4; i++)
                UNROLL for (int j = 0; j < WORK_M / 4; j++) {
                    sum[4 * i + 0][4 * j + 0] = FMA(a[i].x, b[j].x, sum[4 * i + 0][4 * j + 0]);
                    sum[4 * i + 0][4 * j + 1] = FMA(a[i].x, b[j].y, sum[4 * i + 0][4 * j + 1]);
                    sum[4 * i + 0][4 * j + 2] = FMA(a[i].x, b[j].z, sum[4 * i + 0][4 * j + 2]);
                    sum[4 * i + 0][4 * j + 3] = FMA(a[i].x, b[j].w, sum[4 * i + 0][4 * j + 3]);
                    sum[4 * i + 1][4 * j + 0] = FMA(a[i].y, b[j].x, sum[4 * i + 1][4 * j + 0]);
                    sum[4 * i + 1][4 * j + 1] = FMA(a[i].y, b[j].y, sum[4 * i + 1][4 * j + 1]);
                    sum[4 * i + 1][4 * j + 2] = FMA(a[i].y, b[j].z, sum[4 * i + 1][4 * j + 2]);
                    sum[4 * i + 1][4 * j + 3] = FMA(a[i].y, b[j].w, sum[4 * i + 1][4 * j + 3]);
                    sum[4 * i + 2][4 * j + 0] = FMA(a[i].z, b[j].x, sum[4 * i + 2][4 * j + 0]);
                    sum[4 * i + 2][4 * j + 1] = FMA(a[i].z, b[j].y, sum[4 * i + 2][4 * j + 1]);
                    sum[4 * i + 2][4 * j + 2] = FMA(a[i].z, b[j].z, sum[4 * i + 2][4 * j + 2]);
                    sum[4 * i + 2][4 * j + 3] = FMA(a[i].z, b[j].w, sum[4 * i + 2][4 * j + 3]);
                    sum[4 * i + 3][4 * j + 0] = FMA(a[i].w, b[j].x, sum[4 * i + 3][4 * j + 0]);
                    sum[4 * i + 3][4 * j + 1] = FMA(a[i].w, b[j].y, sum[4 * i + 3][4 * j + 1]);
                    sum[4 * i + 3][4 * j + 2] = FMA(a[i].w, b[j].z, sum[4 * i + 3][4 * j + 2]);
                    sum[4 * i + 3][4 * j + 3] = FMA(a[i].w, b[j].w, sum[4 * i + 3][4 * j + 3]);
                }
        }
        if (step + 1 < steps)
            STORE_TILE(tiles + TILE_WORDS - current)
        BARRIER();
    }

#if SLICE_K > 1
    UNROLL for (int i = 0; i < WORK_P; i++)
        UNROLL for (int j = 0; j < WORK_M; j += 4) {
            int word = (set * TILE_P + ROW(thread_p, i)) * TILE_M + COLUMN(thread_m, j);
            SHARED_STORE4(tiles + word,
                         MAKE4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]));
        }
    BARRIER();
    for (int unit = item; unit < TILE_P * TILE_M / 4; unit += WORK_GROUP_SIZE) {
        float4 value = SHARED_LOAD4(tiles + unit * 4);
        UNROLL for (int other = 1; other < SLICE_K; other++) {
            float4 part = SHARED_LOAD4(tiles + other * TILE_P * TILE_M + unit * 4);
            value.x += part.x;
            value.y += part.y;
            value.z += part.z;
            value.w += part.w;
        }
        int pixel = first_pixel + unit / (TILE_M / 4);
        int m = first_m + unit % (TILE_M / 4) * 4;
        STORE_OUTPUT(pixel, m, value)
    }
#else
    UNROLL for (int i = 0; i < WORK_P; i++)
        UNROLL for (int j = 0; j < WORK_M; j += 4) {
            float4 value = MAKE4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
            int pixel = first_pixel + ROW(thread_p, i);
            int m = first_m + COLUMN(thread_m, j);
            STORE_OUTPUT(pixel, m, value)
        }
#endif
}
