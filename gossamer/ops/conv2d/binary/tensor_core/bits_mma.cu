/* Convolution of signs on bit tensor cores. Warps load both operands from shared memory to
 * registers.
 *
 * A work-group computes WARPS_P * TILES_P * 16 output pixels, numbered through all images, and
 * WARPS_C * TILES_C * 8 channels. The warps form WARPS_K sets of WARPS_P * WARPS_C warps. The
 * outputs are divided among the warps of a set. The steps of the inner products are divided among
 * the sets, and the sums of all sets are added at the end. A phase is the span between two
 * barriers. In a phase, each set multiplies AT_ONCE steps. Channels are ordered so that a lane has
 * 2 * TILES_C consecutive channels of a pixel, and can pack their bits without data of other
 * lanes. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WARPS_P 1 /* warps along the pixels of a tile */
#define WARPS_C 2 /* warps along the channels of a tile */
#define WARPS_K 1 /* sets of warps, each for a part of the steps of every inner product */
#define TILES_P 1 /* tiles of 16 pixels of a warp */
#define TILES_C 4 /* tiles of 8 channels of a warp */
#define STAGES 3 /* buffers in shared memory, each for the operands of a phase */
#define BLOCKS_PER_UNIT 1 /* work-groups that a multiprocessor should hold at once */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ops/epilogue.h"
#include "bits.h"
#include "results.h"

#define TILE_P (WARPS_P * TILES_P * 16)
#define TILE_C (WARPS_C * TILES_C * 8)
#define WARPS_OF_PART (WARPS_P * WARPS_C) /* warps of a set */
#define THREADS (32 * WARPS_OF_PART * WARPS_K)
/* A line has one word of each pixel of a tile. LINE: bytes of a line. LINES: lines of a stage. */
#define LINE LINE_BYTES(TILE_P)
#define LINES (AT_ONCE * WARPS_K * WORDS)
/* LINES_AT_ONCE: lines that a work-group copies at once. LINE_TURNS: number of such copies for a
 * stage. */
#define LINES_AT_ONCE (THREADS / TILE_P)
#define LINE_TURNS CEIL_DIV(LINES, LINES_AT_ONCE)
/* TAPS: taps that a work-item loads at once. TAPS_AHEAD: 1 if a work-item loads taps one phase
 * before it copies the words of these taps. */
#define TAPS (LINE_TURNS < 4 ? LINE_TURNS : 4)
#define TAPS_AHEAD (LINE_TURNS <= 4)
/* Numbers of 16-byte pieces of weights: STEP_PIECES for one step and the channels of a warp,
 * STAGE_PIECES for a stage and all channels, PIECES_A_WORK_ITEM for the share of a work-item. */
#define STEP_PIECES (PLANES * TILES_C * 16)
#define STAGE_PIECES (AT_ONCE * WARPS_K * WARPS_C * STEP_PIECES)
#define PIECES_A_WORK_ITEM CEIL_DIV(STAGE_PIECES, THREADS)
#define INPUT_BYTES (LINES * LINE)
#define STAGE_BYTES (INPUT_BYTES + STAGE_PIECES * 16)
#define CONSTANTS (CONSTANT_CLASSES * TILE_C)
#define SUMS (TILES_P * TILES_C * 4) /* sums that a lane holds */

/* mma.sync.m16n8k256: multiplies 16 pixels by 8 channels over 256 bits and adds the number of ones
 * to sum. A lane holds the sums of channels 2 (lane % 4) and 2 (lane % 4) + 1, for pixels lane / 4
 * and lane / 4 + 8. */
INLINE void mma_bits(int (&sum)[4], uint upper_low, uint lower_low, uint upper_high,
                     uint lower_high, uint weight_low, uint weight_high)
{
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high), "r"(weight_low),
          "r"(weight_high));
}

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_PER_UNIT) void bits_mma(
    const uchar *x, const int2 *RESTRICT taps, const uint4 *RESTRICT weights,
    const int *RESTRICT constants, const uchar *RESTRICT flips, const int *RESTRICT thresholds,
    const float *RESTRICT alphas, const int *RESTRICT classes, STORED *RESTRICT y,
    uchar *RESTRICT packed, int pixels, int phases, DIVISOR(out_pixels), DIVISOR(out_width),
    DIVISOR(tiles_c), int in_words, int group_words, int height, int width,
    int stride_y, int stride_x, int pad_top, int pad_left, int group_channels, int tile_channels, int out_channels, int out_words, int column_classes,
    int stride_n, int stride_c, int stride_h, int stride_w EPILOGUE_PARAMETERS)
{
    SHARED int counts[TILE_P];
    SHARED Place places[TILE_P];
#if CONSTANT_CLASSES
    SHARED ALIGNED(16) int own_constants[CONSTANTS];
#endif
    DYNAMIC_SHARED(uint4, pool)
    int item = LOCAL_ID(0), lane = item % 32, warp = item / 32;
    int part = warp / WARPS_OF_PART;
    int warp_c = warp % WARPS_C, warp_p = warp % WARPS_OF_PART / WARPS_C;
    int tile_c = GROUP_ID(1), group = (int)QUOTIENT(tile_c, tiles_c);
    int first_pixel = GROUP_ID(0) * TILE_P;
    auto position_of = [&](int pixel) {
        int image = (int)QUOTIENT(pixel, out_pixels), rest = pixel - image * out_pixels;
        int row = (int)QUOTIENT(rest, out_width);
        return Position{image, row, rest - row * out_width};
    };

    /* each work-item copies the words of one pixel in lines that are LINES_AT_ONCE apart */
    int own_pixel = item % TILE_P, own_line = item / TILE_P;
    bool is_pixel = first_pixel + own_pixel < pixels;
    Position own_position = position_of(is_pixel ? first_pixel + own_pixel : 0);
    const Source source = {x,        group * group_words, in_words, height,  width,
                           stride_y, stride_x,            pad_top,  pad_left};
    Window window = window_of(source, own_position);
    if (!is_pixel)
        window.row = height;
    uint start = shared_address(pool);
    const uint4 *own_weights = weights + (INT64)tile_c * phases * STAGE_PIECES + item;
    auto load_taps = [&](int2 (&loaded)[TAPS], int number, int first) {
        UNROLL for (int i = 0; i < TAPS; i++) {
            int line = own_line + (first + i) * LINES_AT_ONCE;
            if (number < phases && line < LINES)
                loaded[i] = taps[number * LINES + line];
        }
    };
    auto copy_lines = [&](const int2 (&loaded)[TAPS], int first, uint held) {
        UNROLL for (int i = 0; i < TAPS; i++) {
            int line = own_line + (first + i) * LINES_AT_ONCE;
            if (LINES % (TAPS * LINES_AT_ONCE) == 0 || line < LINES)
                copy_tap(held + line * LINE + own_pixel * PLACE_BYTES, source, window,
                         loaded[i]);
        }
    };
    /* copy_weights and copy_inputs copy nothing if `number` is beyond the last phase */
    auto copy_weights = [&](int number, int stage) {
        if (number < phases) {
            uint held = start + stage * STAGE_BYTES + INPUT_BYTES;
            const uint4 *phase_weights = own_weights + number * STAGE_PIECES;
            UNROLL for (int i = 0; i < PIECES_A_WORK_ITEM; i++)
                if (STAGE_PIECES % THREADS == 0 || item + i * THREADS < STAGE_PIECES)
                    cp_async_16(held + (item + i * THREADS) * 16,
                                phase_weights + i * THREADS, 16);
        }
    };
    auto copy_inputs = [&](const int2 (&loaded)[TAPS], int number, int stage) {
        if (number < phases) {
            uint held = start + stage * STAGE_BYTES;
#if TAPS_AHEAD
            copy_lines(loaded, 0, held);
#else
            for (int first = 0; first < LINE_TURNS; first += TAPS) {
                int2 some[TAPS];
                load_taps(some, number, first);
                copy_lines(some, first, held);
            }
#endif
        }
        cp_async_commit_group();
    };

    pdl_trigger();
    int2 first_taps[STAGES - 1][TAPS] = {}, ahead[TAPS] = {};
#if TAPS_AHEAD
    UNROLL for (int number = 0; number < STAGES - 1; number++)
        load_taps(first_taps[number], number, 0);
    load_taps(ahead, STAGES - 1, 0);
#endif
#if CONSTANT_CLASSES
    for (int number = item; number < CONSTANTS / 4; number += THREADS)
        cp_async_16(shared_address(own_constants) + number * 16,
                    (const uint4 *)(constants + number / (TILE_C / 4) * tile_channels
                                    + tile_c * TILE_C) + number % (TILE_C / 4), 16);
#endif
    UNROLL for (int number = 0; number < STAGES - 1; number++)
        copy_weights(number, number);
    pdl_wait();
    UNROLL for (int number = 0; number < STAGES - 1; number++)
        copy_inputs(first_taps[number], number, number);

    const Target target = {y,         packed,    thresholds,             alphas,
                           classes,   out_channels, out_words,           out_pixels / out_width,
                           out_width, column_classes, stride_n, stride_c, stride_h, stride_w};
    if (item < TILE_P) {
        counts[item] = 0;
        places[item] = place_of(target, own_position);
    }

    int in_tile = (warp_c * 4 + lane % 4) * (2 * TILES_C);
    int in_tiles = tile_c * TILE_C + in_tile;
    Flips<2 * TILES_C> own_flips = flips_of<2 * TILES_C>(flips, in_tiles);
    int ones[TILES_P][TILES_C][4] = {};
    int counted[TILES_P][2] = {};
    int stage = 0;
    for (int phase = 0; phase < phases; phase++) {
        cp_async_wait_group<STAGES - 2>();
        /* this phase's words have arrived, and no warp still reads the stage that is filled next */
        BARRIER();
        int next_stage = stage == 0 ? STAGES - 1 : stage - 1;
        copy_weights(phase + STAGES - 1, next_stage);
        copy_inputs(ahead, phase + STAGES - 1, next_stage);
#if TAPS_AHEAD
        load_taps(ahead, phase + STAGES, 0);
#endif
        const uchar *held = (const uchar *)pool + stage * STAGE_BYTES;
        /* warps with the same pixels take turns, phase by phase, in counting the pixels' ones */
        bool counts_phase = phase % WARPS_C == warp_c;
        /* with two planes, the operands of two steps would not fit the registers at once */
        UNROLL_BY((PLANES == 1 ? AT_ONCE : 1)) for (int step = 0; step < AT_ONCE; step++) {
            int in_stage = part * AT_ONCE + step;
            const uchar *words = held + (in_stage * WORDS + lane % 4) * LINE
                                 + (warp_p * TILES_P * 16 + lane / 4) * PLACE_BYTES;
            const uint4 *pieces = (const uint4 *)(held + INPUT_BYTES)
                                  + (in_stage * WARPS_C + warp_c) * STEP_PIECES + lane;
            Operand upper[TILES_P], lower[TILES_P];
            UNROLL for (int tile = 0; tile < TILES_P; tile++) {
                const uchar *place = words + tile * 16 * PLACE_BYTES;
                upper[tile] = load_operand(place, LINE);
                lower[tile] = load_operand(place + 8 * PLACE_BYTES, LINE);
            }
            UNROLL for (int plane = 0; plane < PLANES; plane++)
                UNROLL for (int pair = 0; pair < TILES_C / 2; pair++) {
                    uint4 weight = pieces[(plane * (TILES_C / 2) + pair) * 32];
                    UNROLL for (int tile = 0; tile < TILES_P; tile++) {
                        mma_bits(ones[tile][2 * pair], upper[tile].low[plane],
                                 lower[tile].low[plane], upper[tile].high[plane],
                                 lower[tile].high[plane], weight.x, weight.y);
                        mma_bits(ones[tile][2 * pair + 1], upper[tile].low[plane],
                                 lower[tile].low[plane], upper[tile].high[plane],
                                 lower[tile].high[plane], weight.z, weight.w);
                    }
                }
            if (counts_phase)
                UNROLL for (int tile = 0; tile < TILES_P; tile++) {
                    counted[tile][0] += counted_in(upper[tile]);
                    counted[tile][1] += counted_in(lower[tile]);
                }
        }
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    cp_async_wait_group<0>();
    UNROLL for (int tile = 0; tile < TILES_P; tile++)
        UNROLL for (int half = 0; half < 2; half++)
            atomicAdd(counts + (warp_p * TILES_P + tile) * 16 + half * 8 + lane / 4,
                      counted[tile][half]);
    BARRIER();
#if WARPS_K > 1
    int *sums = (int *)pool + warp % WARPS_OF_PART * (SUMS * 32) + lane;
    if (part > 0)
        UNROLL for (int n = 0; n < SUMS; n++)
            sums[((part - 1) * WARPS_OF_PART * SUMS + n) * 32] =
                ones[n / (TILES_C * 4)][n / 4 % TILES_C][n % 4];
    BARRIER();
    if (part == 0)
        UNROLL for (int other = 0; other < WARPS_K - 1; other++)
            UNROLL for (int n = 0; n < SUMS; n++)
                ones[n / (TILES_C * 4)][n / 4 % TILES_C][n % 4] +=
                    sums[(other * WARPS_OF_PART * SUMS + n) * 32];
#endif

    int channel = in_tiles - group * (tiles_c * TILE_C) + group * group_channels;
    if (part == 0)
        UNROLL for (int tile = 0; tile < TILES_P; tile++)
            UNROLL for (int half = 0; half < 2; half++) {
                int row = (warp_p * TILES_P + tile) * 16 + half * 8 + lane / 4;
                if (first_pixel + row < pixels) {
                    Place place[1] = {places[row]};
#if CONSTANT_CLASSES
                    const int *added[1] = {own_constants + place[0].pixel_class * TILE_C + in_tile};
#else
                    const int *added[1] = {
                        constants + place[0].pixel_class * tile_channels + in_tiles};
#endif
                    int own[1][2 * TILES_C];
                    UNROLL for (int n = 0; n < 2 * TILES_C; n++)
                        own[0][n] = ones[tile][n / 2][half * 2 + n % 2];
                    write_channels(own, {counts[row]}, target, place,
                                   {float_of(target, position_of(first_pixel + row), channel)},
                                   {true}, added, own_flips,
                                   channel, (group + 1) * group_channels EPILOGUE_ARGUMENTS);
                }
            }
}
