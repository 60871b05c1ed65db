/* Depthwise convolution of NHWC tensors by tiles in shared memory.
 *
 * A work-group computes STRIPS_Y * ROWS by STRIPS_X * COLUMNS outputs of 2 * PAIRS channels. The
 * work-group first copies the weights of these channels; at that time, the previous kernel may
 * still run. Then the work-group copies the inputs of its tile. A work-item computes ROWS by
 * COLUMNS neighbouring outputs of a pair of channels, and converts each input of its window to
 * float32 once. Neighbouring work-items read neighbouring channels. Sums are float32. The
 * epilogue's tensor operands have the layout of y. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ROWS 2 /* rows of outputs of a work-item */
#define COLUMNS 7 /* columns of outputs of a work-item */
#define STRIPS_Y 2 /* work-items over the height of a tile */
#define STRIPS_X 1 /* work-items over the width of a tile */
/* pairs of channels of a tile; the channels of one pixel of the tile take a multiple of COPY_BYTES
 * bytes */
#define PAIRS 32
#define COPY_BYTES 16 /* bytes of a copy: 4, 8 or 16; a divisor of the bytes of a pixel of x */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 1 /* rows from a window to the next */
#define STRIDE_X 1 /* columns from a window to the next */
#define DILATION_Y 1 /* rows from a tap to the next */
#define DILATION_X 1 /* columns from a tap to the next */
#define THREADS 64 /* work-items of a work-group */
#define GROUPS 8 /* work-groups that a multiprocessor should hold; this bounds registers */
#define HALVES 1 /* 1: x, y and the epilogue's tensor operands are 16-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#define WINDOW_H ((ROWS - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define WINDOW_W ((COLUMNS - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)
#define TILE_H (ROWS * STRIPS_Y)
#define TILE_W (COLUMNS * STRIPS_X)
#define HALO_H ((TILE_H - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define HALO_W ((TILE_W - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)
#define TAPS (KERNEL_H * KERNEL_W)
#define CHUNK (2 * PAIRS) /* channels of a tile */
/* COPIES: copies for the channels of one pixel. COPY_CHANNELS: channels of a copy. */
#define COPIES (CHUNK * (int)sizeof(REAL) / COPY_BYTES)
#define COPY_CHANNELS (COPY_BYTES / (int)sizeof(REAL))

/* PAIR: the type of two neighbouring channels in x and y. PAIR_VALUE converts a pair to floats, and
 * PAIR_OF converts two floats to a pair. */
#if HALVES
#define PAIR uint
#define PAIR_VALUE(pair) \
    make_float2(HALF_VALUE((HALF)(pair)), HALF_VALUE((HALF)((pair) >> 16)))
#define PAIR_OF(value) (float_to_half((value).x) | (uint)float_to_half((value).y) << 16)
#else
#define PAIR float2
#define PAIR_VALUE(pair) (pair)
#define PAIR_OF(value) (value)
#endif

KERNEL LAUNCH_BOUNDS(THREADS, GROUPS) void depthwise_tiled(
    const REAL *x, const float *RESTRICT weight, REAL *RESTRICT y, DIVISOR(chunks),
    DIVISOR(tiles_x), DIVISOR(tiles_y), int channels, int weight_stride, int height, int width,
    int out_height, int out_width, int pad_top, int pad_left, int x_first, int x_image, int x_row,
    int x_column, int y_first, int y_image, int y_row, int y_column EPILOGUE_PARAMETERS)
{
    SHARED ALIGNED(16) REAL tile[HALO_H * HALO_W * CHUNK];
    SHARED ALIGNED(16) float taps[TAPS * CHUNK];
    pdl_trigger();
    int above_chunks = (int)QUOTIENT(GROUP_ID(0), chunks);
    int above_x = (int)QUOTIENT(above_chunks, tiles_x);
    int image = (int)QUOTIENT(above_x, tiles_y);
    int first_channel = (GROUP_ID(0) - above_chunks * chunks) * CHUNK;
    int first_column = (above_chunks - above_x * tiles_x) * TILE_W;
    int first_row = (above_x - image * tiles_y) * TILE_H;

    for (int i = LOCAL_ID(0); i < TAPS * PAIRS; i += THREADS) {
        int tap = i / PAIRS, channel = first_channel + i % PAIRS * 2;
        bool exists = channel < channels;
        cp_async_ca<8>(shared_address(taps + 2 * i),
                       exists ? weight + tap * weight_stride + channel : weight, exists ? 8 : 0);
    }
    pdl_wait();
    const REAL *source = x + x_first + image * x_image;
    for (int i = LOCAL_ID(0); i < HALO_H * HALO_W * COPIES; i += THREADS) {
        int pixel = i / COPIES, channel = first_channel + i % COPIES * COPY_CHANNELS;
        int row = first_row * STRIDE_Y - pad_top + pixel / HALO_W;
        int column = first_column * STRIDE_X - pad_left + pixel % HALO_W;
        bool exists = (uint)row < (uint)height && (uint)column < (uint)width && channel < channels;
        cp_async_ca<COPY_BYTES>(shared_address(tile + i * COPY_CHANNELS),
                                exists ? source + row * x_row + column * x_column + channel : x,
                                exists ? COPY_BYTES : 0);
    }
    cp_async_wait_all();
    BARRIER();

    int pair = LOCAL_ID(0) % PAIRS, strip = LOCAL_ID(0) / PAIRS;
    int channel = first_channel + 2 * pair;
    int row = first_row + strip / STRIPS_X * ROWS, column = first_column + strip % STRIPS_X * COLUMNS;
    if (strip >= STRIPS_Y * STRIPS_X || channel >= channels || row >= out_height
        || column >= out_width)
        return;
    const REAL *window = tile + 2 * pair
                         + (strip / STRIPS_X * ROWS * STRIDE_Y * HALO_W
                            + strip % STRIPS_X * COLUMNS * STRIDE_X) * CHUNK;
    float2 sums[ROWS][COLUMNS];
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < COLUMNS; j++)
            sums[i][j] = make_float2(0.0f, 0.0f);
    UNROLL for (int wy = 0; wy < WINDOW_H; wy++) {
        float2 line[WINDOW_W];
        UNROLL for (int wx = 0; wx < WINDOW_W; wx++)
            line[wx] = PAIR_VALUE(*(const PAIR *)(window + (wy * HALO_W + wx) * CHUNK));
        UNROLL for (int i = 0; i < ROWS; i++)
            UNROLL for (int r = 0; r < KERNEL_H; r++)
                if (i * STRIDE_Y + r * DILATION_Y == wy)
                    UNROLL for (int s = 0; s < KERNEL_W; s++) {
                        float2 tap = *(const float2 *)(taps + (r * KERNEL_W + s) * CHUNK + 2 * pair);
                        UNROLL for (int j = 0; j < COLUMNS; j++) {
                            float2 input = line[j * STRIDE_X + s * DILATION_X];
                            sums[i][j].x = FMA(input.x, tap.x, sums[i][j].x);
                            sums[i][j].y = FMA(input.y, tap.y, sums[i][j].y);
                        }
                    }
    }
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int j = 0; j < COLUMNS; j++)
            if (row + i < out_height && column + j < out_width) {
                int index = y_first + image * y_image + (row + i) * y_row + (column + j) * y_column
                            + channel;
                float2 value = sums[i][j];
                EPILOGUE(value.x, channel, index)
                EPILOGUE(value.y, channel + 1, index + 1)
                *(PAIR *)(y + index) = PAIR_OF(value);
            }
}
