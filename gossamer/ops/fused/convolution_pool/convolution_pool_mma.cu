/* A convolution of few input channels, such as a network's first convolution, and the maximum over
 * windows of its outputs. The outputs are never stored. The maxima are the results: y is float16,
 * NHWC.
 * The image is read in the format of the network's input (ops/image.h).
 *
 * A work-group of four warps computes OUT_PART channels of a tile of results. The work-group goes
 * down 64 columns of the convolution's outputs, and computes a band of ROWS rows of outputs at a
 * time: the rows of outputs that a row of results needs and the previous row of results did not
 * need.
 *
 * Shared memory has the image's rows under a band in a ring, as float16: a line for each row and
 * channel. In a line, each of the 64 columns has 16 bytes with the numbers under its window.
 * Numbers outside of the image or of the window are zeros. So the left operand of a step of 16
 * numbers is two lines. After the ring's last line lies a copy of the ring's first line, so that
 * these two can be read as neighbours, too. After the copy lies a line of zeros, for windows of an
 * odd number of lines.
 *
 * A lane has the same columns and channels in all rows. The lane takes the maximum over the rows
 * and writes this maximum to shared memory, where the maximum over columns is taken. The last
 * SHARED_ROWS rows of a band belong to the next window, too. While tensor cores multiply a band
 * with wgmma, the warps take the maxima over columns of the previous band, and store the next rows
 * of the image as lines. A warp loads the first channels of one of these rows one band ahead. The
 * sizes are in sizes.h. */

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/mbarrier.h"
#include "mma/warp.h"
#include "ops/epilogue.h"
#include "ops/image.h"
#include "sizes.h"
#include "products.h"

/* Returns the larger of two numbers in each half, or NaN where one is NaN. */
INLINE uint larger_halves(uint a, uint b)
{
    uint result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
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

    /* where windows share rows, the first band belongs to the row of results before the tile */
    int first_result = SHARED_ROWS ? first_y - 1 : first_y;
    int first_row = first_result * POOL_Y - pool_top + SHARED_ROWS;
    int first_column = first_x * POOL_X - pool_left;
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    int plane = height * width;
    int columns = tile_width < pool_width - first_x ? tile_width : pool_width - first_x;

    float numbers[CHANNELS_AT_ONCE][ROUNDS][NUMBERS];
    /* Loads the values of CHANNELS_AT_ONCE channels of a row, from `channel` on. number: which row,
     * counted from the tile's first row. */
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
    auto place = [&](int number, int channel) {
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
                    place(from + row, channel);
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
            place(next_row + (int)warp, 0);
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
