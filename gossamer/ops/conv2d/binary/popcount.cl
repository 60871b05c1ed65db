/* Convolution of signs by XOR and popcount of words.
 *
 * A work-group computes TILE_M output channels of a tile of PATCHES_Y * WORK_H rows by
 * PATCHES_X * WORK_W columns of output pixels. Shared memory holds the work-group's input
 * words, CHUNK words of each pixel at a time. A work-item computes one channel of WORK_H * WORK_W
 * output pixels. The work-items of a warp compute 32 consecutive channels. They read the same input
 * words, and their votes form 32 output bits. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WORD_BITS 32 /* bits of a word, 32 or 64 */
/* number of planes of the inputs. One plane holds inputs of -1 and 1: a bit is 1 if the input is 1.
 * Two planes hold inputs of -1, 0 and 1: a bit of plane 0 is 1 if the input is not 0, and a bit of
 * plane 1 is 1 if the input is 1 */
#define PLANES 1
#define OUTPUT_PLANES 1 /* planes of the packed output, 1 or 2; 0 if no output is packed */
#define FLOATS 0 /* 1: floats are written; a packed output is then the second result */
#define THRESHOLDS 1 /* 1: integer thresholds replace the epilogue */
#define MASKED 0 /* 1: words have channels of several groups */
#define PADDING 0 /* value of pixels outside of the image: -1, 0 or 1 */
#define TAKE_BACK 0 /* 1: zeros outside of the image are computed as -1, and corrected at the end */
#define CHUNK 2 /* words of a pixel that shared memory holds at once */
#define TILE_M 32 /* output channels of a work-group, a multiple of 32 */
#define PATCHES_Y 2 /* work-items of a channel over the height of the tile */
#define PATCHES_X 2 /* work-items of a channel over the width of the tile */
#define WORK_H 2 /* rows of outputs of a work-item */
#define WORK_W 2 /* columns of outputs of a work-item */
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define STRIDE_Y 1 /* rows from a window to the next */
#define STRIDE_X 1 /* columns from a window to the next */
#define DILATION_Y 1 /* rows from a tap to the next */
#define DILATION_X 1 /* columns from a tap to the next */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

#if WORD_BITS == 32
#define WORD uint
#define ONES(x) POPCOUNT(x)
#else
#define WORD ulong
#define ONES(x) (int)POPCOUNT64(x)
#endif

/* a word whose first `bits` bits are 1 */
#define WORD_OF(bits) ((bits) >= WORD_BITS ? ~(WORD)0 : ((WORD)1 << (bits)) - 1)

#define HALVES_OF_A_WORD (WORD_BITS / 32) /* 32-bit parts of a word */
#define WORK_GROUP_SIZE (TILE_M * PATCHES_Y * PATCHES_X)
#define TILE_H (PATCHES_Y * WORK_H)
#define TILE_W (PATCHES_X * WORK_W)
/* input pixels in shared memory: their rows, their columns and their number */
#define STAGED_H ((TILE_H - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define STAGED_W ((TILE_W - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)
#define STAGED (STAGED_H * STAGED_W)
#define HALF_WORDS (TILE_M / 32) /* 32-bit parts of the packed channels of one output pixel */
#define VOTE_WORDS (HALF_WORDS * TILE_H * TILE_W * OUTPUT_PLANES)

/* With 16 results or more per work-item, the loops over taps are not unrolled. Unrolled loops would
 * load the inputs of several taps ahead, and the registers have no room for these inputs. */
#if WORK_H * WORK_W < 16
#define UNROLL_TAPS UNROLL
#else
#define UNROLL_TAPS _Pragma("unroll 1")
#endif

/* the result whose sign becomes a bit of the packed output */
#if FLOATS
#define VOTED second
#else
#define VOTED result
#endif

/* index of a result in a tensor of floats: the output or a run-time operand of the epilogue */
#define INDEX(row, column) \
    (image * stride_n + channel * stride_c + (row) * stride_h + (column) * stride_w)

KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void popcount_conv(
    const GLOBAL WORD *x, const GLOBAL WORD *RESTRICT weights,
    const GLOBAL WORD *RESTRICT masks, const GLOBAL int *RESTRICT first_words,
    const GLOBAL int *RESTRICT tap_sums, const GLOBAL float *RESTRICT alphas,
    const GLOBAL int *RESTRICT thresholds, GLOBAL float *RESTRICT y, GLOBAL uint *RESTRICT packed,
    int depth, int channels, int in_words, int group_words, int group_channels, int out_channels,
    int out_words, int height, int width, int out_height, int out_width, int pad_top, int pad_left,
    int tiles_m, int tiles_y, int tiles_x, int from_n, int from_c, int from_h, int from_w,
    int stride_n, int stride_c, int stride_h, int stride_w, int to_n, int to_c, int to_h, int to_w
    EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED WORD staged[CHUNK * STAGED];
#if PLANES == 2
    SHARED WORD staged_nonzero[CHUNK * STAGED];
    SHARED int nonzeros[STAGED];
#endif
#if OUTPUT_PLANES
    SHARED uint votes[VOTE_WORDS];
#endif
    int item = LOCAL_ID(0);
    int lane = item % TILE_M, patch = item / TILE_M;
    int first_row = patch / PATCHES_X * WORK_H, first_column = patch % PATCHES_X * WORK_W;

    int tile = GROUP_ID(0);
    int tile_m = tile % tiles_m;
    tile /= tiles_m;
    int tile_x = tile % tiles_x * TILE_W;
    tile /= tiles_x;
    int tile_y = tile % tiles_y * TILE_H;
    int image = tile / tiles_y;
    /* tiles_m is the number of tiles of channels in all groups, and each group has the same number
     * of tiles. A convolution with only one group may have one more tile, which only writes
     * zeros to the last word. */
    int tiles_of_group = CEIL_DIV(group_channels, TILE_M);
    int group = MINIMUM(tile_m / tiles_of_group, out_channels / group_channels - 1);
    int tile_channel = (tile_m - group * tiles_of_group) * TILE_M;
    int in_group = tile_channel + lane;
    int is_channel = in_group < group_channels;
    int channel = group * group_channels + MINIMUM(in_group, group_channels - 1);
    int first_word = first_words[group];

    int different[WORK_H][WORK_W];
    UNROLL for (int i = 0; i < WORK_H; i++)
        UNROLL for (int j = 0; j < WORK_W; j++)
            different[i][j] = 0;
#if PADDING
    WORD last_word = WORD_OF(channels - (in_words - 1) * WORD_BITS);
#endif

    for (int chunk = 0; chunk < group_words; chunk += CHUNK) {
        BARRIER();
        for (int index = item; index < CHUNK * STAGED; index += WORK_GROUP_SIZE) {
            int k = index / STAGED, pixel = index % STAGED;
            int row = tile_y * STRIDE_Y - pad_top + pixel / STAGED_W;
            int column = tile_x * STRIDE_X - pad_left + pixel % STAGED_W;
            int is_inside = (uint)row < (uint)height && (uint)column < (uint)width;
            int word = first_word + chunk + k;
            int is_word = chunk + k < group_words && word < in_words;
            INT64 place = (INT64)image * from_n + word * from_c + row * from_h + column * from_w;
            WORD signs = is_word && is_inside ? x[place + PLANES - 1] : 0;
#if PADDING
            WORD outside = !is_word || is_inside ? 0 : word == in_words - 1 ? last_word : ~(WORD)0;
#if PADDING > 0
            signs |= outside;
#endif
#endif
#if MASKED
            WORD mask = chunk + k < group_words ? masks[group * group_words + chunk + k] : 0;
            signs &= mask;
#endif
            staged[index] = signs;
#if PLANES == 2
            WORD nonzero = is_word && is_inside ? x[place] : 0;
#if PADDING
            nonzero |= outside;
#endif
#if MASKED
            nonzero &= mask;
#endif
            staged_nonzero[index] = nonzero;
#endif
        }
        BARRIER();
#if PLANES == 2
        for (int pixel = item; pixel < STAGED; pixel += WORK_GROUP_SIZE) {
            int nonzero_of_chunk = 0;
            for (int k = 0; k < CHUNK; k++)
                nonzero_of_chunk += ONES(staged_nonzero[k * STAGED + pixel]);
            nonzeros[pixel] = chunk ? nonzeros[pixel] + nonzero_of_chunk : nonzero_of_chunk;
        }
#endif
        int words = MINIMUM(CHUNK, group_words - chunk);
        for (int k = 0; k < words; k++) {
            UNROLL_TAPS for (int r = 0; r < KERNEL_H; r++) {
                int row = k * STAGED + (first_row * STRIDE_Y + r * DILATION_Y) * STAGED_W
                    + first_column * STRIDE_X;
                UNROLL_TAPS for (int s = 0; s < KERNEL_W; s++) {
                    WORD weight = weights[(INT64)(((chunk + k) * KERNEL_H + r) * KERNEL_W + s)
                                          * out_channels + channel];
                    UNROLL for (int i = 0; i < WORK_H; i++)
                        UNROLL for (int j = 0; j < WORK_W; j++) {
                            int place = row + i * STRIDE_Y * STAGED_W + j * STRIDE_X
                                + s * DILATION_X;
                            WORD unlike = staged[place] ^ weight;
#if PLANES == 2
                            unlike &= staged_nonzero[place];
#endif
                            different[i][j] += ONES(unlike);
                        }
                }
            }
        }
    }

#if OUTPUT_PLANES
    for (int vote = item; vote < VOTE_WORDS; vote += WORK_GROUP_SIZE)
        votes[vote] = 0;
#endif
    BARRIER();
    UNROLL for (int i = 0; i < WORK_H; i++)
        UNROLL for (int j = 0; j < WORK_W; j++) {
            int row = tile_y + first_row + i, column = tile_x + first_column + j;
            int is_output = is_channel && row < out_height && column < out_width;
#if PLANES == 2
            int sum = -2 * different[i][j];
            UNROLL_TAPS for (int r = 0; r < KERNEL_H; r++)
                UNROLL_TAPS for (int s = 0; s < KERNEL_W; s++)
                    sum += nonzeros[((first_row + i) * STRIDE_Y + r * DILATION_Y) * STAGED_W
                                    + (first_column + j) * STRIDE_X + s * DILATION_X];
#else
            int sum = depth - 2 * different[i][j];
#if TAKE_BACK
            /* Bits outside of the image are 0 and count as -1. Each tap outside of the image has
             * therefore subtracted the sum of its weights' signs. This sum is added back here. */
            int top = row * STRIDE_Y - pad_top, left = column * STRIDE_X - pad_left;
            if (top < 0 || left < 0 || top + (KERNEL_H - 1) * DILATION_Y >= height
                || left + (KERNEL_W - 1) * DILATION_X >= width)
                for (int r = 0; r < KERNEL_H; r++)
                    for (int s = 0; s < KERNEL_W; s++)
                        if ((uint)(top + r * DILATION_Y) >= (uint)height
                            || (uint)(left + s * DILATION_X) >= (uint)width)
                            sum += tap_sums[(r * KERNEL_W + s) * out_channels + channel];
#endif
#endif
#if THRESHOLDS
            int result = ((sum >= thresholds[channel])
                          + (sum >= thresholds[out_channels + channel]) - 1)
                * thresholds[2 * out_channels + channel];
#else
            float result = (float)sum * alphas[channel];
#if FLOATS && OUTPUT_PLANES
            float second = 0.0f;
            if (is_output)
                EPILOGUE2(result, second, channel, INDEX(row, column))
#else
            if (is_output)
                EPILOGUE(result, channel, INDEX(row, column))
#endif
#endif
#if OUTPUT_PLANES
            int pixel = (first_row + i) * TILE_W + first_column + j;
            int vote = (lane / 32 * TILE_H * TILE_W + pixel) * OUTPUT_PLANES;
            VOTE_OR(votes, vote + OUTPUT_PLANES - 1, is_output && VOTED > 0);
#if OUTPUT_PLANES == 2
            VOTE_OR(votes, vote, is_output && VOTED != 0);
#endif
#endif
#if FLOATS
            if (is_output)
                y[INDEX(row, column)] = (float)result;
#endif
        }

#if OUTPUT_PLANES
    BARRIER();
    /* a word of 64 bits is two halves; the first half has the lower channels */
    int first_part = (group * group_channels + tile_channel) / 32;
    int end_part = group == out_channels / group_channels - 1
        ? out_words * HALVES_OF_A_WORD : (group + 1) * group_channels / 32;
    for (int vote = item; vote < VOTE_WORDS; vote += WORK_GROUP_SIZE) {
        int plane = vote % OUTPUT_PLANES, pixel = vote / OUTPUT_PLANES % (TILE_H * TILE_W);
        int part = first_part + vote / (TILE_H * TILE_W * OUTPUT_PLANES);
        int row = tile_y + pixel / TILE_W, column = tile_x + pixel % TILE_W;
        if (part < end_part && row < out_height && column < out_width) {
            INT64 place = (INT64)image * to_n + part / HALVES_OF_A_WORD * to_c + row * to_h
                + column * to_w;
            packed[place + plane * HALVES_OF_A_WORD + part % HALVES_OF_A_WORD] = votes[vote];
        }
    }
#endif
}
