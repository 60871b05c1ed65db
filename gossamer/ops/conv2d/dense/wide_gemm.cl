/* Convolution as a matrix product on CPUs. A work-group is one work-item. The work-item holds the
 * sums of PIXELS output pixels by 16 * VECTORS output channels in vector registers. No operand is
 * staged: weights are read in order, and each number of the input is broadcast to a vector.
 *
 * panels: the weights. The output channels of a group are divided into blocks of 16 * VECTORS. Each
 * block has a panel: for each tap and each input channel, one weight for each output channel of the
 * block.
 * zeros: a zero for each input channel of a group, read in place of pixels outside of the image.
 * plane: number of output pixels of an image.
 *
 * x and y begin at the elements x_first and y_first of their buffers. In NHWC, a pixel of y has
 * y_channels channels in memory. If y is a part of a larger tensor, y_channels is the number of
 * channels of the larger tensor. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define PIXELS 6 /* output pixels of a work-item */
#define VECTORS 2 /* vectors of 16 output channels of a work-item */
#define HALVES 1 /* 1: x, y, zeros and the epilogue's tensor operands are 16-bit floats */
#define IN_NHWC 1 /* 1 if x is NHWC, 0 if it is NCHW */
/* 1 if y and the epilogue's tensor operands are NHWC, 0 if they are NCHW */
#define OUT_NHWC 1
/* 4 if the output channels of a group are adjacent and their number is a multiple of 4, else 1 */
#define OUT_VECTOR 1
#endif

#include "dialect/common.h"
#include "ops/epilogue.h"

#define LANES (16 * VECTORS)

#if IN_NHWC
#define CHANNEL_OFFSET(c, i) (c)
#else
#define CHANNEL_OFFSET(c, i) ((c) * apart[i])
#endif

#if OUT_NHWC
#define OUT_INDEX(pixel, channel) (y_first + (pixel) * y_channels + (channel))
#else
#define OUT_INDEX(pixel, channel) \
    (((pixel) / plane * y_channels + (channel)) * plane + (pixel) % plane)
#endif

#if OUT_VECTOR == 4
#define STORE_LANES(lanes, first_m, pixel)                                        \
    for (int lane = 0; lane < 16 && (first_m) + lane < out_channels; lane += 4) { \
        int channel = group * out_channels + (first_m) + lane;                    \
        int index = OUT_INDEX(pixel, channel);                                    \
        float4 value = MAKE4((lanes)[lane], (lanes)[lane + 1], (lanes)[lane + 2], \
                             (lanes)[lane + 3]);                                  \
        EPILOGUE4(value, channel, index)                                          \
        STORE_REAL4(y, index, value);                                             \
    }
#else
#define STORE_LANES(lanes, first_m, pixel)                                        \
    for (int lane = 0; lane < 16 && (first_m) + lane < out_channels; lane++) {    \
        int channel = group * out_channels + (first_m) + lane;                    \
        int index = OUT_INDEX(pixel, channel);                                    \
        float value = (lanes)[lane];                                              \
        EPILOGUE(value, channel, index)                                           \
        STORE_REAL(y, index, value);                                              \
    }
#endif

KERNEL LAUNCH_BOUNDS(1, 1) void wide_gemm(
    const GLOBAL REAL *RESTRICT x, const GLOBAL float *RESTRICT panels, GLOBAL REAL *RESTRICT y,
    const GLOBAL REAL *RESTRICT zeros, int pixels, int channels, int out_channels,
    int y_first, int y_channels, int height, int width, int out_width, int plane, int kernel_height,
    int kernel_width, int stride_y, int stride_x, int pad_top, int pad_left, int dilation_y,
    int dilation_x, int x_first, int x_image, int x_channel, int x_row, int x_column
    EPILOGUE_PARAMETERS)
{
    int pixel_blocks = CEIL_DIV(pixels, PIXELS), blocks = CEIL_DIV(out_channels, LANES);
    int block = GROUP_ID(0) / pixel_blocks, group = GROUP_ID(1);
    int first_pixel = (GROUP_ID(0) - block * pixel_blocks) * PIXELS;
    x += x_first;
    const GLOBAL float *panel = panels
        + (size_t)(group * blocks + block) * kernel_height * kernel_width * channels * LANES;

    FLOAT16 sum[PIXELS][VECTORS];
    int image[PIXELS], row[PIXELS], column[PIXELS];
    UNROLL for (int i = 0; i < PIXELS; i++) {
        /* beyond the last pixel, the last pixel is computed again, but not stored */
        int pixel = first_pixel + i < pixels ? first_pixel + i : pixels - 1;
        image[i] = pixel / plane * x_image + group * channels * x_channel;
        row[i] = pixel % plane / out_width * stride_y - pad_top;
        column[i] = pixel % plane % out_width * stride_x - pad_left;
        UNROLL for (int j = 0; j < VECTORS; j++)
            sum[i][j] = ZERO16;
    }

    for (int r = 0; r < kernel_height; r++)
        for (int s = 0; s < kernel_width; s++) {
            const GLOBAL REAL *from[PIXELS];
#if !IN_NHWC
            int apart[PIXELS]; /* elements from one channel to the next */
#endif
            UNROLL for (int i = 0; i < PIXELS; i++) {
                int in_row = row[i] + r * dilation_y, in_column = column[i] + s * dilation_x;
                int inside = (uint)in_row < (uint)height && (uint)in_column < (uint)width;
                from[i] = inside ? x + (image[i] + in_row * x_row + in_column * x_column) : zeros;
#if !IN_NHWC
                apart[i] = inside ? x_channel : 0;
#endif
            }
            for (int c = 0; c < channels; c++) {
                FLOAT16 weights[VECTORS];
                UNROLL for (int j = 0; j < VECTORS; j++)
                    weights[j] = LOAD16(panel + 16 * j);
                panel += LANES;
                UNROLL for (int i = 0; i < PIXELS; i++) {
                    float value = LOAD_REAL(from[i], CHANNEL_OFFSET(c, i));
                    UNROLL for (int j = 0; j < VECTORS; j++)
                        sum[i][j] = FMA16(value, weights[j], sum[i][j]);
                }
            }
        }

    UNROLL for (int i = 0; i < PIXELS; i++)
        if (first_pixel + i < pixels)
            UNROLL for (int j = 0; j < VECTORS; j++) {
                float lanes[16];
                STORE16(lanes, sum[i][j]);
                STORE_LANES(lanes, block * LANES + 16 * j, first_pixel + i)
            }
}
