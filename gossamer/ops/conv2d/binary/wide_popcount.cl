/* Convolution of signs on CPUs: a work-group is one work-item. For PIXELS output pixels and
 * LANES = 8 * VECTORS output channels, the work-item counts the pairs of an input and a weight that
 * differ in sign. A vector holds one 64-bit word of weights for each of eight output channels. The
 * words of the input are broadcast to vectors one by one. Nothing is staged in shared memory.
 *
 * panels: the signs of the weights. The output channels of a group are divided into blocks of
 * LANES. Each block has a panel: for each tap and each word of input channels, one word for each
 * output channel of the block.
 * masks: for each group, words whose bits are 1 for the group's channels.
 * outside: the words that are read in place of pixels outside of the image.
 * plane: number of output pixels of an image. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define PIXELS 4 /* output pixels of a work-item */
#define VECTORS 4 /* vectors of 8 output channels of a work-item, a multiple of 4 */
/* number of planes of the inputs. One plane holds inputs of -1 and 1: a bit is 1 if the input is 1.
 * Two planes hold inputs of -1, 0 and 1: a bit of plane 0 is 1 if the input is not 0, and a bit of
 * plane 1 is 1 if the input is 1 */
#define PLANES 1
#define OUTPUT_PLANES 1 /* planes of the packed output, 1 or 2; 0 if no output is packed */
#define FLOATS 0 /* 1: floats are written; a packed output is then the second result */
#define THRESHOLDS 1 /* 1: integer thresholds replace the epilogue */
#define MASKED 0 /* 1: words have channels of several groups */
/* 1: pixels outside of the image are zeros, inputs have one plane, and products with these
 * pixels are not counted */
#define SKIP_OUTSIDE 0
#define OUT_HALVES 2 /* 32-bit parts of a word of the output */
/* 1 if y and the epilogue's tensor operands are NHWC, 0 if they are NCHW */
#define OUT_NHWC 0
#endif

#include "dialect/common.h"
#include "ops/epilogue.h"

#define LANES (8 * VECTORS)

#if OUT_NHWC
#define OUT_INDEX(pixel, channel) ((pixel) * out_channels + (channel))
#else
#define OUT_INDEX(pixel, channel) \
    (((pixel) / plane * out_channels + (channel)) * plane + (pixel) % plane)
#endif

/* the result whose sign becomes a bit of the packed output */
#if FLOATS
#define VOTED second
#else
#define VOTED result
#endif

/* Counts the ones of each word of a vector. Compilers recognise this sequence of operations and use
 * the processor's instruction that counts ones in a vector; they would split popcount() of a vector
 * into scalar instructions. */
INLINE ulong8 ones_of(ulong8 x)
{
    x = x - (x >> 1 & 0x5555555555555555UL);
    x = (x & 0x3333333333333333UL) + (x >> 2 & 0x3333333333333333UL);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0FUL;
    return x * 0x0101010101010101UL >> 56;
}

KERNEL LAUNCH_BOUNDS(1, 1) void wide_popcount(
    const GLOBAL ulong *RESTRICT x, const GLOBAL ulong *RESTRICT panels,
    const GLOBAL ulong *RESTRICT masks, const GLOBAL int *RESTRICT first_words,
    const GLOBAL ulong *RESTRICT outside, const GLOBAL float *RESTRICT alphas,
    const GLOBAL int *RESTRICT thresholds, GLOBAL float *RESTRICT y, GLOBAL uint *RESTRICT packed,
    int pixels, int channels, int in_words, int group_words, int group_channels, int out_channels,
    int out_words, int height, int width, int out_width, int plane, int kernel_height,
    int kernel_width, int stride_y, int stride_x, int pad_top, int pad_left, int dilation_y,
    int dilation_x, int blocks, int x_image, int x_word, int x_row, int x_column
    EPILOGUE_PARAMETERS)
{
    int pixel_blocks = CEIL_DIV(pixels, PIXELS);
    int block = GROUP_ID(0) / pixel_blocks, group = GROUP_ID(1);
    int first_pixel = (GROUP_ID(0) - block * pixel_blocks) * PIXELS;
    int first_word = first_words[group];
    /* for the last groups, the input may have fewer than group_words words left */
    int words = MINIMUM(group_words, in_words - first_word);
    const GLOBAL ulong *panel = panels
        + (size_t)(group * blocks + block) * kernel_height * kernel_width * group_words * LANES;

    ulong8 different[PIXELS][VECTORS];
    /* for each pixel: the number of products whose input is not 0 */
    int products[PIXELS];
    int image[PIXELS], row[PIXELS], column[PIXELS];
    UNROLL for (int i = 0; i < PIXELS; i++) {
        /* beyond the last pixel, the last pixel is computed again, but not stored */
        int pixel = MINIMUM(first_pixel + i, pixels - 1);
        image[i] = pixel / plane * x_image + first_word * x_word;
        row[i] = pixel % plane / out_width * stride_y - pad_top;
        column[i] = pixel % plane % out_width * stride_x - pad_left;
        products[i] = 0;
        UNROLL for (int j = 0; j < VECTORS; j++)
            different[i][j] = (ulong8)(0);
    }

    for (int r = 0; r < kernel_height; r++)
        for (int s = 0; s < kernel_width; s++) {
            /* for each output pixel: the input word to read next, and the distance from one word of
             * the input pixel to the next */
            const GLOBAL ulong *from[PIXELS];
            int apart[PIXELS];
#if SKIP_OUTSIDE
            ulong counted[PIXELS];
#endif
            UNROLL for (int i = 0; i < PIXELS; i++) {
                int in_row = row[i] + r * dilation_y, in_column = column[i] + s * dilation_x;
                int inside = (uint)in_row < (uint)height && (uint)in_column < (uint)width;
                from[i] = inside ? x + (image[i] + in_row * x_row + in_column * x_column)
                                 : outside + first_word * PLANES;
                apart[i] = inside ? x_word : PLANES;
#if SKIP_OUTSIDE
                counted[i] = inside ? ~0UL : 0;
                products[i] += inside ? channels : 0;
#elif PLANES == 1
                products[i] += channels;
#endif
            }
            for (int k = 0; k < words; k++) {
                ulong8 weights[VECTORS];
                UNROLL for (int j = 0; j < VECTORS; j++)
                    weights[j] = vload8(j, panel);
                panel += LANES;
                UNROLL for (int i = 0; i < PIXELS; i++) {
                    ulong signs = from[i][PLANES - 1];
#if PLANES == 2
                    ulong nonzero = from[i][0];
#if MASKED
                    nonzero &= masks[group * group_words + k];
#endif
                    products[i] += (int)popcount(nonzero);
#elif MASKED
                    signs &= masks[group * group_words + k];
#endif
                    from[i] += apart[i];
                    UNROLL for (int j = 0; j < VECTORS; j++) {
                        ulong8 unlike = weights[j] ^ signs;
#if PLANES == 2
                        unlike &= nonzero;
#elif SKIP_OUTSIDE
                        unlike &= counted[i];
#endif
                        different[i][j] += ones_of(unlike);
                    }
                }
            }
            panel += (group_words - words) * LANES;
        }

    UNROLL for (int i = 0; i < PIXELS; i++)
        if (first_pixel + i < pixels) {
            int pixel = first_pixel + i;
            ulong counts[LANES];
            UNROLL for (int j = 0; j < VECTORS; j++)
                vstore8(different[i][j], j, counts);
            for (int part = 0; part < LANES / 32; part++) {
                int in_group = block * LANES + 32 * part;
                int lanes = MINIMUM(32, group_channels - in_group);
                uint signs = 0, nonzero = 0;
                for (int lane = 0; lane < lanes; lane++) {
                    int channel = group * group_channels + in_group + lane;
                    int sum = products[i] - 2 * (int)counts[32 * part + lane];
#if FLOATS || !THRESHOLDS
                    int index = OUT_INDEX(pixel, channel);
#endif
#if THRESHOLDS
                    int result = ((sum >= thresholds[channel])
                                  + (sum >= thresholds[out_channels + channel]) - 1)
                        * thresholds[2 * out_channels + channel];
#else
                    float result = (float)sum * alphas[channel];
#if FLOATS && OUTPUT_PLANES
                    float second;
                    EPILOGUE2(result, second, channel, index)
#else
                    EPILOGUE(result, channel, index)
#endif
#endif
#if FLOATS
                    y[index] = (float)result;
#endif
#if OUTPUT_PLANES
                    signs |= (uint)(VOTED > 0) << lane;
                    nonzero |= (uint)(VOTED != 0) << lane;
#endif
                }
#if OUTPUT_PLANES
                int target = (group * group_channels + in_group) / 32;
                /* some lanes of the last block may belong to no word of the output */
                if (lanes > 0 || (GROUP_COUNT(1) == 1 && target < out_words * OUT_HALVES)) {
                    size_t place = ((size_t)(pixel / plane * out_words + target / OUT_HALVES) * plane
                                    + pixel % plane) * OUTPUT_PLANES * OUT_HALVES
                        + target % OUT_HALVES;
                    packed[place + (OUTPUT_PLANES - 1) * OUT_HALVES] = signs;
#if OUTPUT_PLANES == 2
                    packed[place] = nonzero;
#endif
                }
#endif
            }
        }
}
