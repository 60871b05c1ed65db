/* A convolution of few input channels, such as a network's first convolution, and the maximum over
 * windows of its outputs. The outputs are never stored. The maxima are the results: y is float16,
 * NHWC.
 * The image is read in the format of the network's input (ops/image.h).
 *
 * A work-group of four warps computes OUT_PART channels of a tile of results. The work-group goes
 * down 64 columns of the convolution's outputs, one band at a time. A band has ROWS rows of
 * outputs: the rows that one row of results needs and that the previous row of results did not
 * need.
 *
 * Shared memory holds the image's rows under a band as lines of float16, in a ring. There is one
 * line for each row and channel. A line has 16 bytes for each of the 64 columns: the numbers of
 * this row and channel that are in the column's window. Numbers outside of the image or of the
 * window are zeros. A step multiplies 16 numbers, so its left operand is two lines. A copy of the
 * ring's first line follows the ring's last line, so that one step can read the last and the first
 * line as neighbours. A line of zeros follows the copy, for windows with an odd number of lines.
 *
 * A lane has sums of the same columns and channels in all rows. So it needs no data of other lanes
 * for the maximum over the rows. It writes this maximum to shared memory. The work-items then take
 * the maxima over columns from shared memory. The last SHARED_ROWS rows of a band are also in the
 * windows of the next row of results. While tensor cores multiply a band with wgmma, the warps take
 * the maxima over columns of the previous band, and store the next rows of the image as lines. A
 * warp loads the first channels of its first row one band earlier. */

#if !defined CONFIGURED && !defined HALVES
#define HALVES 1 /* 1: operands are float16 */
#endif
#if !defined CONFIGURED && !defined WGMMA
#define WGMMA 0 /* 1: the warps multiply together by wgmma (sm_90a); 0: each warp uses mma.sync */
#endif
#if !defined CONFIGURED && !defined CHANNELS
#define CHANNELS 3 /* channels of the image */
#define OUT_PART 32 /* output channels of a work-group */
#define KERNEL_H 3 /* rows of the convolution's window */
#define KERNEL_W 3 /* columns of the convolution's window */
#define STRIDE_Y 2 /* rows from a window to the next */
#define STRIDE_X 2 /* columns from a window to the next */
#define POOL_H 3 /* rows of the windows over which maxima are taken */
#define POOL_W 3 /* columns of the windows over which maxima are taken */
#define POOL_Y 2 /* rows from one of these windows to the next */
#define POOL_X 2 /* columns from one of these windows to the next */
/* rows of outputs of a band: POOL_Y if windows share rows, else POOL_H */
#define ROWS 2
#define SHARED_ROWS 1 /* rows of outputs that a window shares with the next window */
/* rows of the image in the ring: the rows under ROWS rows of outputs, and the next ADVANCE rows */
#define ROWS_HELD 9
/* 1: the weights include the bias of each channel. Lines then have a 1 after the numbers of a
 * window, and a window has at most 7 columns. */
#define FOLDED 0
/* the least result, as a pair of halves: 0 if the epilogue is folded and ends with ReLU, else minus
 * infinity */
#define LEAST 0xfc00fc00u
/* 1: the kernel computes the image from the network's input; 0: the network's input is the image */
#define MAKES_IMAGE 0
#endif

#include "dialect/common.h"
#include "mma/warp.h"
#include "mma/warpgroup.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "ptx/mbarrier.h"
#include "ptx/wgmma.h"
#include "ops/epilogue.h"
#include "ops/image.h"

#define WORK_GROUP_SIZE 128
#define WARPS 4
/* work-groups per multiprocessor: the largest number for which no registers are spilled */
#define BLOCKS_PER_UNIT (MAKES_IMAGE && !WGMMA ? 2 : 3)
#define LINE_WORDS 64 /* words of 16 bytes of a line, one for each column */
#define LINES (CHANNELS * KERNEL_H) /* lines of a window */
#define STEPS CEIL_DIV(LINES, 2)    /* steps, which multiply two lines each */
#define RING (CHANNELS * ROWS_HELD) /* lines of the ring */
#define ZERO_LINE (RING + 1)        /* index of the line of zeros */
#define WEIGHT_WORDS (2 * STEPS * OUT_PART) /* words of 16 bytes of the weights */
#define ADVANCE (POOL_Y * STRIDE_Y) /* rows of the image from one row of results to the next */
#define SPAN (ROWS_HELD - ADVANCE)  /* rows of the image under ROWS rows of outputs */
#define PAIRS CEIL_DIV(KERNEL_W, 2) /* pairs of numbers of a row of a window */
/* With a stride of at most 2, a lane loads two numbers of a column's window, and gets the other
 * numbers from the lanes that load them. With larger strides a lane loads all numbers of the
 * window. */
#define EXCHANGES (STRIDE_X <= 2)
#define BEYOND (EXCHANGES ? 2 * (PAIRS - 1) / STRIDE_X : 0) /* columns loaded after the 64 */
#define ROUNDS (2 + (BEYOND > 0)) /* rounds in which the 32 lanes of a warp load a row's columns */
#define NUMBERS (EXCHANGES ? 2 : 2 * PAIRS) /* numbers that a lane loads of a column's window */
#define CHANNELS_AT_ONCE (EXCHANGES ? CHANNELS : 1) /* channels that a lane loads at once */
/* words of 4 bytes of a column of maxima, with padding so that columns begin in different banks */
#define COLUMN_WORDS (OUT_PART / 2 + (OUT_PART / 8 % 2 ? 0 : 4))
#define UNITS (OUT_PART / 8) /* groups of 8 output channels */

/* The products: 64 columns of a row of outputs by OUT_PART channels. Let c = 16 * warp + lane / 4
 * and d = 8 * n + 2 * (lane % 4). Then sums[i][n] of a lane holds four sums of row i: those of the
 * columns c and c + 8 in the channels d and d + 1.
 *
 * A step covers 16 numbers of K: it multiplies two lines of the image by their weights. A line has
 * 16 bytes (8 numbers of K) for each of 64 columns. The weights of a line have 16 bytes for each
 * channel. */

#if WGMMA
/* Returns the matrix descriptor of an operand of a step. word: the address of the operand's first
 * word of 16 bytes; the words of all columns or channels follow one another, in tiles of 8. upper:
 * number of words from the operand's first line to its second line. */
INLINE ulong step_descriptor(uint word, uint upper)
{
    return (ulong)(word + (upper << 16)) | 8ull << 32;
}
#endif

/* Computes the products of ROWS rows of outputs. With wgmma, it only starts the computation. lines,
 * weights: the addresses of the lines and of the weights in shared memory. row_line: function that
 * returns the first line under the windows of an output row, as an index in the ring. */
template <typename RowLine>
INLINE void multiply_rows(float (&sums)[ROWS][OUT_PART / 8][4], uint lines, uint weights,
                          RowLine row_line, [[maybe_unused]] uint warp, [[maybe_unused]] uint lane)
{
    /* addresses in words of 16 bytes, which have 14 bits in a matrix descriptor */
    uint start = lines >> 4 & 0x3fff, end = start + RING * LINE_WORDS, first[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++)
        first[i] = start + row_line(i) * LINE_WORDS;
    auto line_of = [&](int i, int number) {
        uint word = first[i] + number * LINE_WORDS;
        return word >= end ? word - RING * LINE_WORDS : word;
    };
    /* words from a step's first line to its second line; where the window has no more lines, the
     * second line is the line of zeros */
    auto to_upper = [&](int step, uint word) {
        return step == STEPS - 1 && LINES % 2 ? start + ZERO_LINE * LINE_WORDS - word : LINE_WORDS;
    };
#if WGMMA
    wgmma_fence();
    UNROLL for (int step = 0; step < STEPS; step++) {
        ulong factors = step_descriptor((weights >> 4 & 0x3fff) + step * 2 * OUT_PART, OUT_PART);
        UNROLL for (int i = 0; i < ROWS; i++) {
            uint word = line_of(i, 2 * step);
            wgmma(sums[i], step_descriptor(word, to_upper(step, word)), factors, step > 0);
        }
    }
    wgmma_commit_group();
#else
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int n = 0; n < OUT_PART / 8; n++)
            UNROLL for (int j = 0; j < 4; j++)
                sums[i][n][j] = 0.0f;
    uint column = warp * 16 + lane % 16, matrix = lane / 8;
    UNROLL for (int step = 0; step < STEPS; step++) {
        uint4 found[ROWS];
        UNROLL for (int i = 0; i < ROWS; i++) {
            uint word = line_of(i, 2 * step);
            uint upper = lane / 16 ? to_upper(step, word) : 0;
            found[i] = ldmatrix_x4(lines + (word - start + column + upper) * 16);
        }
        UNROLL for (int n = 0; n < OUT_PART / 8; n += 2) {
            /* if the number of groups of 8 channels is odd, the last group is loaded twice */
            uint eight = n + 1 < OUT_PART / 8 ? n + matrix / 2 : n;
            uint4 factors = ldmatrix_x4(
                weights + ((2 * step + matrix % 2) * OUT_PART + eight * 8 + lane % 8) * 16);
            UNROLL for (int i = 0; i < ROWS; i++) {
                mma_sync(sums[i][n], found[i], factors.x, factors.y);
                if (n + 1 < OUT_PART / 8)
                    mma_sync(sums[i][n + 1], found[i], factors.z, factors.w);
            }
        }
    }
#endif
}

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void convolution_pool_mma(
    const IMAGE_TYPE *x, const uint4 *RESTRICT weights, HALF *RESTRICT y, int out_channels,
    int height, int width, int conv_height, int conv_width, int pool_height, int pool_width,
    int pad_top, int pad_left, int pool_top, int pool_left, int tiles_x, int tile_width,
    int tile_height GIVEN_EPILOGUE_PARAMETERS EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    uint4 *lines = memory + WEIGHT_WORDS;
    uint *maxima = (uint *)(lines + (ZERO_LINE + 1) * LINE_WORDS);
    int item = LOCAL_ID(0);
    uint lane = (uint)item % 32, warp = (uint)__shfl_sync(0xffffffffu, item / 32, 0);
    int part = GROUP_ID(0) / tiles_x, image = GROUP_ID(2);
    int first_x = (GROUP_ID(0) - part * tiles_x) * tile_width;
    int first_y = GROUP_ID(1) * tile_height;
    int last_y = first_y + tile_height < pool_height ? first_y + tile_height : pool_height;
    pdl_trigger();
    for (int i = item; i < WEIGHT_WORDS; i += WORK_GROUP_SIZE)
        cp_async_16(shared_address(memory + i), weights + part * WEIGHT_WORDS + i, 16);
    cp_async_commit_group();
    for (int i = item; i < LINE_WORDS; i += WORK_GROUP_SIZE)
        lines[ZERO_LINE * LINE_WORDS + i] = make_uint4(0, 0, 0, 0);
    pdl_wait();

    /* if windows share rows, the first band belongs to the row of results before the tile */
    int first_result = SHARED_ROWS ? first_y - 1 : first_y;
    int first_row = first_result * POOL_Y - pool_top + SHARED_ROWS;
    int first_column = first_x * POOL_X - pool_left;
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    int plane = height * width;
    int columns = tile_width < pool_width - first_x ? tile_width : pool_width - first_x;

    float numbers[CHANNELS_AT_ONCE][ROUNDS][NUMBERS];
    /* Loads the values of CHANNELS_AT_ONCE channels of a row, from `channel` on. number: index of
     * the row, counted from the tile's first row. */
    auto fetch = [&](int number, int channel) {
        int row = above + number;
        bool has_row = (uint)row < (uint)height;
        int start = (image * CHANNELS * height + row) * width;
        if (IMAGE_NHWC)
            start = (image * height + row) * width * CHANNELS;
        UNROLL for (int round = 0; round < ROUNDS; round++)
            UNROLL for (int i = 0; i < NUMBERS; i++) {
                int column = left + (round * 32 + (int)lane) * STRIDE_X + i;
                bool exists = has_row && (uint)column < (uint)width
                              && (round < 2 || (int)lane < BEYOND);
                UNROLL for (int c = 0; c < CHANNELS_AT_ONCE; c++) {
                    const IMAGE_TYPE *from = x + start + column * IMAGE_COLUMN
                                             + (channel + c) * IMAGE_CHANNEL(plane);
#if MAKES_IMAGE
                    LOAD_IMAGE(numbers[c][round][i], from, 0, channel + c, exists)
#else
                    numbers[c][round][i] = exists ? IMAGE_ELEMENT(from, 0) : 0.0f;
#endif
                }
            }
    };
    /* Stores the loaded numbers as lines, in which each column has the numbers of its window. */
    auto store_line = [&](int number, int channel) {
        UNROLL for (int c = 0; c < CHANNELS_AT_ONCE; c++) {
            uint words[ROUNDS][NUMBERS / 2];
            UNROLL for (int round = 0; round < ROUNDS; round++)
                UNROLL for (int i = 0; i < NUMBERS / 2; i++)
                    words[round][i] = two_halves(numbers[c][round][2 * i],
                                                 numbers[c][round][2 * i + 1]);
            int line = number % ROWS_HELD * CHANNELS + channel + c;
            UNROLL for (int round = 0; round < 2; round++) {
                uint window[4] = {};
                UNROLL for (int i = 0; i < PAIRS; i++) {
#if EXCHANGES
                    constexpr int last = ROUNDS - 1;
                    int distance = 2 * i / STRIDE_X;
                    uint from = (int)lane < distance ? words[round < last ? round + 1 : last][0]
                                                     : words[round][0];
                    window[i] = distance == 0 ? from
                                              : __shfl_sync(0xffffffffu, from, (lane + distance) % 32);
#else
                    window[i] = words[round][i];
#endif
                    if (2 * i + 1 >= KERNEL_W)
                        window[i] &= 0xffffu;
                }
                if (FOLDED)
                    window[3] = (window[3] & 0xffffu) | 0x3c000000u;
                uint4 word = make_uint4(window[0], window[1], window[2], window[3]);
                lines[line * LINE_WORDS + round * 32 + lane] = word;
                if (line == 0)
                    lines[RING * LINE_WORDS + round * 32 + lane] = word;
            }
        }
    };
    /* Loads some rows and stores them as lines. has_first: whether the first channels of this
     * warp's first row have been stored before. */
    auto copy_rows = [&](int from, int count, bool has_first) {
        _Pragma("unroll 1") for (int row = (int)warp; row < count; row += WARPS)
            _Pragma("unroll 1") for (int channel = 0; channel < CHANNELS;
                                     channel += CHANNELS_AT_ONCE)
                if (!has_first || row > (int)warp || channel > 0) {
                    fetch(from + row, channel);
                    store_line(from + row, channel);
                }
    };
    /* Takes the maxima over columns for a row of results and stores them. */
    auto pool = [&](int result) {
        for (int i = item; i < columns * UNITS; i += WORK_GROUP_SIZE) {
            int along = i / UNITS, unit = i % UNITS, column = first_x + along;
            uint4 best = make_uint4(LEAST, LEAST, LEAST, LEAST);
            UNROLL for (int tap = 0; tap < POOL_W; tap++) {
                /* a column that does not exist is replaced by another column of the window */
                int there = along * POOL_X + tap;
                there = there < -first_column ? -first_column : there;
                there = there < conv_width - first_column ? there : conv_width - first_column - 1;
                uint4 found = *(const uint4 *)(maxima + there * COLUMN_WORDS + unit * 4);
                best = make_uint4(larger_halves(best.x, found.x), larger_halves(best.y, found.y),
                                  larger_halves(best.z, found.z), larger_halves(best.w, found.w));
            }
            *(uint4 *)(y + ((image * pool_height + result) * pool_width + column) * out_channels
                           + part * OUT_PART + unit * 8) = best;
        }
    };

    copy_rows(0, SPAN, false);
    cp_async_wait_group<0>();
#if WGMMA
    fence_proxy_async();
#endif
    BARRIER();
    uint shared[2][OUT_PART / 8]; /* the maxima of rows that belong to the next window, too */
    UNROLL for (int half = 0; half < 2; half++)
        UNROLL for (int n = 0; n < OUT_PART / 8; n++)
            shared[half][n] = LEAST;
    bool has_row = (int)warp < ADVANCE; /* whether this warp loads a row one band ahead */
    if (has_row && first_result + 1 < last_y)
        fetch(SPAN + (int)warp, 0);
    _Pragma("unroll 1") for (int result = first_result; result < last_y; result++) {
        int band = result - first_result, next_row = band * ADVANCE + SPAN;
        bool has_next = result + 1 < last_y;
        float sums[ROWS][OUT_PART / 8][4];
        multiply_rows(sums, shared_address(lines), shared_address(memory), [&](int i) {
            return (band * ADVANCE + i * STRIDE_Y) % ROWS_HELD * CHANNELS;
        }, warp, lane);
        if (result > first_y)
            pool(result - 1);
        if (has_next && has_row)
            store_line(next_row + (int)warp, 0);
        if (has_next)
            copy_rows(next_row, ADVANCE, true);
        if (has_row && result + 2 < last_y)
            fetch(next_row + ADVANCE + (int)warp, 0);
#if WGMMA
        wgmma_wait_group<0>();
#endif
        uint best[2][OUT_PART / 8];
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int n = 0; n < OUT_PART / 8; n++) {
                best[half][n] = shared[half][n];
                shared[half][n] = LEAST;
            }
        UNROLL for (int i = 0; i < ROWS; i++) {
            int row = result * POOL_Y - pool_top + SHARED_ROWS + i;
            if ((uint)row < (uint)conv_height)
                UNROLL for (int n = 0; n < OUT_PART / 8; n++) {
                    [[maybe_unused]] int channel = part * OUT_PART + n * 8 + (int)lane % 4 * 2;
                    UNROLL for (int half = 0; half < 2; half++) {
                        float first = sums[i][n][2 * half], second = sums[i][n][2 * half + 1];
                        EPILOGUE(first, channel, 0)
                        EPILOGUE(second, channel + 1, 0)
                        uint both = two_halves(first, second);
                        best[half][n] = larger_halves(best[half][n], both);
                        if (i == ROWS - SHARED_ROWS)
                            shared[half][n] = both;
                        else if (i > ROWS - SHARED_ROWS)
                            shared[half][n] = larger_halves(shared[half][n], both);
                    }
                }
        }
        BARRIER();
        if (result >= first_y)
            UNROLL for (int half = 0; half < 2; half++)
                UNROLL for (int n = 0; n < OUT_PART / 8; n++)
                    maxima[(warp * 16 + lane / 4 + 8 * half) * COLUMN_WORDS + n * 4 + lane % 4] =
                        best[half][n];
#if WGMMA
        fence_proxy_async();
#endif
        BARRIER();
    }
    pool(last_y - 1);
}
