/* The convolutions of an inverted residual block, or of a separable convolution, with
 * squeeze-and-excite. The gates depend on the whole image. Therefore one launch computes the
 * convolutions before the gates, and another launch computes the projection. Tensors are NHWC.
 *
 * A work-group computes TILE_H by TILE_W pixels of all channels, CHUNK hidden channels at a time.
 * If CONVOLVES is 1, it computes three steps for each chunk:
 * 1. It expands the pixels under the tile's windows into shared memory. Pixels outside the image
 *    are zeros.
 * 2. It convolves the expanded pixels, and writes the results to y, `hidden` numbers for each
 *    pixel.
 * 3. It writes the sum of each channel over the tile to `totals`.
 * The expanded tensor is never stored in global memory.
 *
 * If CONVOLVES is 0, it scales the hidden channels of x by the gates of their image, projects them,
 * and adds the results to accumulators in registers.
 *
 * A unit is four neighbouring pixels by four channels. A work-item computes SUMS units of the
 * projection. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_H 4 /* rows of outputs of a tile */
#define TILE_W 4 /* columns of outputs of a tile */
#define CHUNK 16 /* hidden channels that are expanded at a time, a multiple of 4 */
#define WORK_GROUP_SIZE 64 /* work-items of a work-group */
#define SUMS 1 /* units of the projection that a work-item computes */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 1 /* rows from a window to the next */
#define STRIDE_X 1 /* columns from a window to the next */
/* 1: the block begins with an expansion; 0: x has the hidden channels */
#define EXPANDS 1
#define CONVOLVES 1 /* 1: the convolutions before the gates; 0: the projection */
/* 1: `hidden` is `real_hidden` (the number of hidden channels) rounded up to a multiple of CHUNK;
 * 0: `hidden` equals `real_hidden` */
#define PADDED 0
#define VECTOR 1 /* 1: the output channels are a multiple of 4 */
#define HALVES 1 /* 1: x, y and tensor operands are 16-bit floats; 0: they are 32-bit floats */
/* the epilogues of the three convolutions: their kernel parameters, and the macros that apply
 * them */
#define EXPAND_EPILOGUE_PARAMETERS
#define DEPTHWISE_EPILOGUE_PARAMETERS
#define PROJECT_EPILOGUE_PARAMETERS
#define EXPAND_EPILOGUE4(value, channel, index)
#define DEPTHWISE_EPILOGUE4(value, channel, index)
#define PROJECT_EPILOGUE4(value, channel, index)
#define PROJECT_EPILOGUE(value, channel, index)
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#define HALO_H ((TILE_H - 1) * STRIDE_Y + KERNEL_H)
#define HALO_W ((TILE_W - 1) * STRIDE_X + KERNEL_W)
#define TILE (TILE_H * TILE_W)
#define UNITS CEIL_DIV(TILE, 4) /* units along the pixels of a tile */
#define QUADS (CHUNK / 4)       /* units along the channels of a chunk */
#define ZERO4 MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
/* KEEP_REAL zeroes the padding channels (those from real_hidden on), because an epilogue may have
 * set them to any value. */
#if PADDED
#define KEEP_REAL(value, channel)                                       \
    (value).x = (channel) < real_hidden ? (value).x : 0.0f;             \
    (value).y = (channel) + 1 < real_hidden ? (value).y : 0.0f;         \
    (value).z = (channel) + 2 < real_hidden ? (value).z : 0.0f;         \
    (value).w = (channel) + 3 < real_hidden ? (value).w : 0.0f;
#else
#define KEEP_REAL(value, channel)
#endif

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void excited_block(
    const GLOBAL REAL *x, const GLOBAL float *RESTRICT expand,
    const GLOBAL float *RESTRICT depthwise, const GLOBAL float *RESTRICT project,
    GLOBAL REAL *RESTRICT y, GLOBAL float *RESTRICT totals, const GLOBAL float *gates,
    int channels, int real_hidden, int hidden, int out_channels,
    int out_quads, int height, int width, int out_height, int out_width, int pad_top, int pad_left
    EXPAND_EPILOGUE_PARAMETERS DEPTHWISE_EPILOGUE_PARAMETERS PROJECT_EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
#if CONVOLVES
    SHARED ALIGNED(16) float expanded[HALO_H * HALO_W * CHUNK];
#endif
    SHARED ALIGNED(16) float convolved[UNITS * 4 * CHUNK];
    int item = LOCAL_ID(0), image = GROUP_ID(2);
    int first_row = GROUP_ID(1) * TILE_H, first_column = GROUP_ID(0) * TILE_W;
    /* The halo is the HALO_H by HALO_W pixels under the tile's windows. It begins at (above, left)
     * of the image. Its rows top to bottom - 1 and its columns start to stop - 1 are inside the
     * image. */
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    int top = above < 0 ? -above : 0, start = left < 0 ? -left : 0;
    int bottom = height - above < HALO_H ? height - above : HALO_H;
    int stop = width - left < HALO_W ? width - left : HALO_W;
    int columns = stop > start ? stop - start : 0;
    int pixels = bottom > top ? (bottom - top) * columns : 0;
    const GLOBAL REAL *source = x + (image * height + above + top) * width * channels
                                + (left + start) * channels;

#if CONVOLVES
    if (pixels < HALO_H * HALO_W)
        for (int i = item; i < HALO_H * HALO_W * QUADS; i += WORK_GROUP_SIZE)
            SHARED_STORE4(expanded + 4 * i, ZERO4);
#else
    float4 sums[SUMS][4];
    UNROLL for (int i = 0; i < SUMS; i++)
        UNROLL for (int j = 0; j < 4; j++)
            sums[i][j] = ZERO4;
    const GLOBAL float *scale_operand0 = gates + image * hidden;
#endif
    for (int i = TILE * QUADS + item; i < UNITS * 4 * QUADS; i += WORK_GROUP_SIZE)
        SHARED_STORE4(convolved + 4 * i, ZERO4);
    BARRIER();

    for (int chunk = 0; chunk < hidden; chunk += CHUNK) {
#if CONVOLVES
        for (int unit = item; unit < CEIL_DIV(pixels, 4) * QUADS; unit += WORK_GROUP_SIZE) {
            int quad = unit % QUADS * 4, first = unit / QUADS * 4;
            int channel = chunk + quad;
            int offsets[4], places[4];
            UNROLL for (int j = 0; j < 4; j++) {
                int pixel = first + j < pixels ? first + j : pixels - 1;
                int row = pixel / columns, column = pixel - row * columns;
                offsets[j] = (row * width + column) * channels;
                places[j] = ((top + row) * HALO_W + start + column) * CHUNK + quad;
            }
            float4 values[4];
#if EXPANDS
            UNROLL for (int j = 0; j < 4; j++)
                values[j] = ZERO4;
            const GLOBAL float *weight = expand + channel;
            for (int c = 0; c < channels; c++, weight += hidden) {
                float4 factors = LOAD4(weight);
                UNROLL for (int j = 0; j < 4; j++) {
                    float input = LOAD_REAL(source, offsets[j] + c);
                    ADD_SCALED4(values[j], input, factors);
                }
            }
            UNROLL for (int j = 0; j < 4; j++)
                EXPAND_EPILOGUE4(values[j], channel, 0)
#else
            UNROLL for (int j = 0; j < 4; j++) {
#if !PADDED
                values[j] = MAKE4(LOAD_REAL(source, offsets[j] + channel),
                                  LOAD_REAL(source, offsets[j] + channel + 1),
                                  LOAD_REAL(source, offsets[j] + channel + 2),
                                  LOAD_REAL(source, offsets[j] + channel + 3));
#else
                values[j] = ZERO4;
                if (channel < channels)
                    values[j].x = LOAD_REAL(source, offsets[j] + channel);
                if (channel + 1 < channels)
                    values[j].y = LOAD_REAL(source, offsets[j] + channel + 1);
                if (channel + 2 < channels)
                    values[j].z = LOAD_REAL(source, offsets[j] + channel + 2);
                if (channel + 3 < channels)
                    values[j].w = LOAD_REAL(source, offsets[j] + channel + 3);
#endif
            }
#endif
            UNROLL for (int j = 0; j < 4; j++)
                if (first + j < pixels)
                    SHARED_STORE4(expanded + places[j], values[j]);
        }
        BARRIER();

        for (int i = item; i < TILE * QUADS; i += WORK_GROUP_SIZE) {
            int quad = i % QUADS * 4, pixel = i / QUADS;
            int row = pixel / TILE_W, column = pixel - row * TILE_W;
            int channel = chunk + quad;
            const SHARED_POINTER float *window =
                expanded + (row * STRIDE_Y * HALO_W + column * STRIDE_X) * CHUNK + quad;
            const GLOBAL float *taps = depthwise + channel;
            float4 value = ZERO4;
            UNROLL for (int r = 0; r < KERNEL_H; r++)
                UNROLL for (int s = 0; s < KERNEL_W; s++) {
                    float4 input = SHARED_LOAD4(window + (r * HALO_W + s) * CHUNK);
                    float4 tap = LOAD4(taps + (r * KERNEL_W + s) * hidden);
                    ADD_PRODUCT4(value, input, tap);
                }
            DEPTHWISE_EPILOGUE4(value, channel, 0)
            KEEP_REAL(value, channel)
            row += first_row;
            column += first_column;
            if (row < out_height && column < out_width)
                STORE_REAL4(y, ((image * out_height + row) * out_width + column) * hidden + channel,
                            value);
            else
                value = ZERO4;
            SHARED_STORE4(convolved + pixel * CHUNK + quad, value);
        }
        BARRIER();

        int tile = (image * GROUP_COUNT(1) + GROUP_ID(1)) * GROUP_COUNT(0) + GROUP_ID(0);
        for (int c = item; c < CHUNK; c += WORK_GROUP_SIZE) {
            float total = 0.0f;
            for (int pixel = 0; pixel < TILE; pixel++)
                total += convolved[pixel * CHUNK + c];
            totals[tile * hidden + chunk + c] = total;
        }
#else
        for (int i = item; i < TILE * QUADS; i += WORK_GROUP_SIZE) {
            int quad = i % QUADS * 4, pixel = i / QUADS;
            int row = pixel / TILE_W, column = pixel - row * TILE_W;
            int channel = chunk + quad;
            float4 value = ZERO4;
            if (row < bottom && column < stop) {
                value = LOAD_REAL4(source, (row * width + column) * channels + channel);
                SCALE_EPILOGUE4(value, channel, 0)
                KEEP_REAL(value, channel)
            }
            SHARED_STORE4(convolved + pixel * CHUNK + quad, value);
        }
        BARRIER();

        UNROLL for (int i = 0; i < SUMS; i++) {
            int unit = item + i * WORK_GROUP_SIZE;
            if (unit < UNITS * out_quads) {
                int quad = unit % out_quads, first = unit / out_quads * 4;
                const GLOBAL float *weight = project + chunk * out_quads * 4 + quad * 4;
                const SHARED_POINTER float *input = convolved + first * CHUNK;
                for (int c = 0; c < CHUNK; c++) {
                    float4 factors = LOAD4(weight + c * out_quads * 4);
                    UNROLL for (int j = 0; j < 4; j++)
                        ADD_SCALED4(sums[i][j], input[j * CHUNK + c], factors);
                }
            }
        }
#endif
        BARRIER();
    }

#if !CONVOLVES
    UNROLL for (int i = 0; i < SUMS; i++) {
        int unit = item + i * WORK_GROUP_SIZE;
        int channel = unit % out_quads * 4, first = unit / out_quads * 4;
        UNROLL for (int j = 0; j < 4; j++) {
            int pixel = first + j;
            int row = first_row + pixel / TILE_W, column = first_column + pixel % TILE_W;
            if (unit < UNITS * out_quads && pixel < TILE && row < out_height
                && column < out_width) {
                int index = ((image * out_height + row) * out_width + column) * out_channels
                            + channel;
                float4 value = sums[i][j];
#if VECTOR
                PROJECT_EPILOGUE4(value, channel, index)
                STORE_REAL4(y, index, value);
#else
                float lanes[4] = {value.x, value.y, value.z, value.w};
                UNROLL for (int lane = 0; lane < 4; lane++)
                    if (channel + lane < out_channels) {
                        PROJECT_EPILOGUE(lanes[lane], channel + lane, index + lane)
                        STORE_REAL(y, index + lane, lanes[lane]);
                    }
#endif
            }
        }
    }
#endif
}
