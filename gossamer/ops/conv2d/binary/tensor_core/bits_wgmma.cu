/* Convolution of signs on bit tensor cores. Warpgroups multiply by wgmma.
 *
 * A work-group keeps the weights of TILE_C channels in shared memory, for the whole inner product.
 * Each of its WARPGROUPS warpgroups computes tiles of 64 output pixels, one tile after the other.
 * Pixels are numbered through all images. Warpgroups do not wait for each other: while one
 * warpgroup writes its results, another multiplies. A warpgroup multiplies AT_ONCE steps in a
 * phase. Each warpgroup has STAGES buffers in shared memory, each for the input words of a phase.
 * The warpgroup copies the words of its windows to these buffers, and begins to copy the words of
 * its next tile before it has computed the current tile. With COPIERS, two additional warps per
 * warpgroup do nothing but these copies. With HALO, which needs COPIERS, each buffer holds all
 * inputs of a tile (halo.h).
 *
 * Channels are ordered so that a lane has TILE_C / 4 consecutive channels of a pixel, and can pack
 * their bits without data of other lanes. With EXCHANGES a warp reads and writes floats through
 * shared memory (exchange.h). */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_C 64 /* channels of a work-group: 64, 128 or 256 */
#define WARPGROUPS 2 /* warpgroups that multiply */
#define COPIERS 1 /* 1: two additional warps per warpgroup do nothing but copy */
#define STAGES 3 /* buffers in shared memory for the inputs of a warpgroup */
#define BLOCKS_PER_UNIT 1 /* work-groups that a multiprocessor should hold at once */
#define HALO 0 /* 1: a stage holds all inputs of a tile (halo.h), which needs COPIERS */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ptx/mbarrier.h"
#include "ptx/wgmma.h"
#include "mma/ring.h"
#include "ops/epilogue.h"
#include "bits.h"
#include "results.h"
#include "wgmma_bits.h"
#include "halo.h"
#include "exchange.h"

#define TILE_P 64
#define THREADS (128 * WARPGROUPS + (COPIERS ? 64 * WARPGROUPS : 0))
/* A line has one word of each pixel of the tile. LINE: bytes of a line. LINES: lines of a phase. */
#define LINE LINE_BYTES(TILE_P)
#define LINES (AT_ONCE * WORDS)
#if HALO
#define STAGE_BYTES (group_words * HALO_LINE)
#else
#define STAGE_BYTES (LINES * LINE)
#endif
/* LINES_AT_ONCE: lines that are copied at once for a warpgroup. TAPS: taps that a work-item loads
 * at once. */
#define LINES_AT_ONCE (COPIERS ? 1 : 2)
#define TAPS (LINES / LINES_AT_ONCE % 6 == 0 ? 6 : WORDS / 2)
/* 1: producer warps, which only copy and need few registers, give registers to the warps that
 * multiply 256 channels (setmaxnreg). */
#define MOVES_REGISTERS (COPIERS && TILE_C == 256)
#define CHANNELS_OF_LANE (TILE_C / 4)
/* The constants of the four lanes of a pixel begin in different banks. */
#define CONSTANT_PITCH (CHANNELS_OF_LANE + 4)
#define CONSTANT_BYTES (CONSTANT_CLASSES * 4 * CONSTANT_PITCH * 4)

/* Initialises the barriers, and starts the copies of weights.
 *
 * held: the address of the weights in shared memory.
 * barriers: a barrier for the weights of each phase.
 * rings: for each warpgroup, the barriers of the ring of its stages. */
INLINE void start_weights(uint held, const uchar *weights, ulong *barriers,
                          [[maybe_unused]] ulong *rings, int phases)
{
    for (int phase = 0; phase < phases; phase++)
        mbarrier_init(barriers + phase, 1);
    if (COPIERS)
        for (int group = 0; group < WARPGROUPS; group++)
            init_ring(ring_at<STAGES>(rings + group * (2 * STAGES)), 64, 128);
    fence_proxy_async();
    for (int phase = 0; phase < phases; phase++) {
        int first = phase * (AT_ONCE * STEP_BYTES);
        start_bulk_copy(held + first, weights + first, AT_ONCE * STEP_BYTES, barriers + phase);
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_PER_UNIT) void bits_wgmma(
    const uchar *x, const int2 *RESTRICT taps, const uchar *RESTRICT weights,
    const int *RESTRICT constants, const uchar *RESTRICT flips, const int *RESTRICT thresholds,
    const float *RESTRICT alphas, const int *RESTRICT classes, STORED *RESTRICT y,
    uchar *RESTRICT packed, int pixels, int phases, DIVISOR(out_pixels), DIVISOR(out_width),
    DIVISOR(tiles_c), int in_words, int group_words, int height, int width,
    int stride_y, int stride_x, int pad_top, int pad_left, int group_channels, int tile_channels,
    int out_channels, int out_words, int column_classes, int stride_n, int stride_c, int stride_h,
    int stride_w EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, pool)
#if HALO
    SHARED ALIGNED(16) uint zeros[4];
#endif
    /* because of the shuffle, the compiler knows that all lanes of a warp have the same number */
    int all_warps = __shfl_sync(0xffffffffu, LOCAL_ID(0) / 32, 0);
    bool copies = COPIERS && all_warps >= 4 * WARPGROUPS;
    int warpgroup = copies ? all_warps / 2 - 2 * WARPGROUPS : all_warps / 4;
    int item = LOCAL_ID(0) % (copies ? 64 : 128), lane = item % 32, warp = item / 32;
    int tile_c = GROUP_ID(1), group = (int)QUOTIENT(tile_c, tiles_c);
    /* shared memory contains, in this order: weights, inputs, exchanged floats, constants, taps, a
     * barrier for the weights of each phase, and for each warpgroup the barriers of its ring */
    int weight_bytes = phases * (AT_ONCE * STEP_BYTES);
    uchar *stages = (uchar *)pool + weight_bytes + warpgroup * (STAGES * STAGE_BYTES);
    uchar *behind_inputs = (uchar *)pool + weight_bytes + WARPGROUPS * STAGES * STAGE_BYTES;
#if EXCHANGES
    uchar *exchanged = behind_inputs + (warpgroup * 4 + warp) * EXCHANGE_BYTES;
    behind_inputs += WARPGROUPS * 4 * EXCHANGE_BYTES;
#endif
    [[maybe_unused]] int *own_constants = (int *)behind_inputs;
    int2 *own_taps = (int2 *)((uchar *)own_constants + CONSTANT_BYTES);
    uint held = shared_address(pool); /* the address of the weights */
    ulong *barriers = (ulong *)(own_taps + phases * LINES);

    ulong *rings = barriers + phases;
    Ring<STAGES> filling = ring_at<STAGES>(rings + warpgroup * (2 * STAGES)), reading = filling;
    pdl_trigger();
#if HALO
    if (LOCAL_ID(0) < 4)
        zeros[LOCAL_ID(0)] = 0;
#endif
    if (LOCAL_ID(0) == 0)
        start_weights(held, weights + (INT64)tile_c * weight_bytes, barriers, rings, phases);
    for (int number = LOCAL_ID(0); number < phases * LINES; number += THREADS)
        own_taps[number] = taps[number];
    for (int number = LOCAL_ID(0); number < CONSTANT_CLASSES * TILE_C; number += THREADS)
        own_constants[number / CHANNELS_OF_LANE * CONSTANT_PITCH + number % CHANNELS_OF_LANE] =
            constants[number / TILE_C * tile_channels + tile_c * TILE_C + number % TILE_C];
    BARRIER();
    pdl_wait();

    auto position_of = [&](int pixel) {
        int image = (int)QUOTIENT(pixel, out_pixels), rest = pixel - image * out_pixels;
        int row = (int)QUOTIENT(rest, out_width);
        return Position{image, row, rest - row * out_width};
    };
    const Source source = {x,        group * group_words, in_words, height,  width,
                           stride_y, stride_x,            pad_top,  pad_left};
    int tile = GROUP_ID(0) * WARPGROUPS + warpgroup, tile_step = GROUP_COUNT(0) * WARPGROUPS;
#if HALO
    int next_pixel = tile * TILE_P + item;
    auto copy_inputs = [&]() {
        copy_halo(shared_address(stages) + filling.slot * STAGE_BYTES, source,
                  position_of(next_pixel - item), group_words, (int)QUOTIENT(pixels, out_pixels),
                  item, 64);
        cp_async_mbarrier_arrive(filled_barrier(filling));
        advance(filling);
        next_pixel += tile_step * TILE_P;
    };
#else
    /* the next pixel and phase that this work-item copies, and the pixel's window */
    int next_pixel = tile * TILE_P + item % TILE_P, next_phase = 0;
    Window window;
    auto copy_inputs = [&]() {
        if (next_phase == 0) {
            window = window_of(source, position_of(next_pixel < pixels ? next_pixel : 0));
            if (next_pixel >= pixels)
                window.row = height;
        }
        if (next_pixel - item % TILE_P < pixels) {
            uint start = shared_address(stages) + filling.slot * STAGE_BYTES
                         + item % TILE_P * PLACE_BYTES + item / TILE_P * LINE;
            const int2 *phase_taps = own_taps + next_phase * LINES + item / TILE_P;
            UNROLL for (int first = 0; first < LINES / LINES_AT_ONCE; first += TAPS) {
                /* all taps are loaded before the first tap is used */
                int2 some[TAPS];
                UNROLL for (int i = 0; i < TAPS; i++)
                    some[i] = phase_taps[(first + i) * LINES_AT_ONCE];
                UNROLL for (int i = 0; i < TAPS; i++)
                    copy_tap(start + (first + i) * (LINES_AT_ONCE * LINE), source, window,
                             some[i]);
            }
        }
        if constexpr (COPIERS)
            cp_async_mbarrier_arrive(filled_barrier(filling)); /* once this work-item's copies are done */
        else
            cp_async_commit_group();
        advance(filling);
        if (++next_phase == phases) {
            next_phase = 0;
            next_pixel += tile_step * TILE_P;
        }
    };
#endif
    if (copies) {
        if constexpr (MOVES_REGISTERS)
            setmaxnreg_dec<40>();
        while (next_pixel - item % TILE_P < pixels) {
            producer_acquire(filling);
            copy_inputs();
        }
        cp_async_wait_all();
        return;
    }
    if constexpr (MOVES_REGISTERS)
        setmaxnreg_inc<232>();
    if constexpr (!COPIERS)
        for (int number = 0; number < STAGES - 1; number++)
            copy_inputs();

#if EXCHANGES
    STORED *results = (STORED *)(exchanged + lane / 4 * EXCHANGED_ROW + lane % 4 * LANE_PITCH);
#else
    STORED *results = y;
#endif
    const Target target = {results,   packed,    thresholds,             alphas,
                           classes,   out_channels, out_words,           out_pixels / out_width,
                           out_width, column_classes, stride_n, stride_c, stride_h, stride_w};
    int in_tiles = (tile_c * 4 + lane % 4) * CHANNELS_OF_LANE;
    int channel = in_tiles - group * (tiles_c * TILE_C) + group * group_channels;
    int end = (group + 1) * group_channels;
    Flips<CHANNELS_OF_LANE> own_flips = flips_of<CHANNELS_OF_LANE>(flips, in_tiles);
    bool is_first = true;
    for (; tile * TILE_P < pixels; tile += tile_step) {
        int sums[SUMS];
        int counted[2] = {};
        Place places[2];
#if EXCHANGES
        const Exchange exchange = {exchanged, tile * TILE_P + warp * 16, pixels,
                                   channel - lane % 4 * CHANNELS_OF_LANE, end, out_channels, lane};
#ifdef EXCHANGED_OPERAND
        load_exchanged(exchange, EXCHANGED_OPERAND);
#endif
#endif
#if HALO
        OwnWindow windows[2];
        Position first = position_of(tile * TILE_P);
        int corner = corner_of(source, first, window_of(source, first));
#endif
        UNROLL for (int half = 0; half < 2; half++) {
            int pixel = tile * TILE_P + warp * 16 + half * 8 + lane / 4;
            Position position = position_of(pixel < pixels ? pixel : 0);
            places[half] = place_of(target, position);
#if HALO
            Window window = window_of(source, position);
            windows[half].start = (corner_of(source, position, window) - corner) * PLACE_BYTES;
            windows[half].inside = pixel < pixels ? taps_inside(source, window) : 0;
#endif
        }
        Operand upper[2][AT_ONCE], lower[2][AT_ONCE];
        auto multiply_phase = [&](int phase, int buffer) {
            if constexpr (COPIERS) {
                if (!HALO || phase == 0)
                    consumer_wait(reading);
            } else {
                cp_async_wait_group<STAGES - 2>();
                /* this phase's words have arrived, and no warp reads the stage to be filled next */
                warpgroup_barrier(warpgroup);
            }
#if HALO
            const uchar *halo = stages + reading.slot * STAGE_BYTES;
            UNROLL for (int step = 0; step < AT_ONCE; step++) {
                /* the offset of the lane's word in the halo, and the number of the word's tap */
                int2 place = own_taps[(phase * AT_ONCE + step) * WORDS + lane % 4];
                upper[buffer][step] = load_from_halo(halo, windows[0], place, zeros);
                lower[buffer][step] = load_from_halo(halo, windows[1], place, zeros);
            }
#else
            const uchar *words = stages + reading.slot * STAGE_BYTES + lane % 4 * LINE
                                 + (warp * 16 + lane / 4) * PLACE_BYTES;
            UNROLL for (int step = 0; step < AT_ONCE; step++) {
                upper[buffer][step] = load_operand(words + step * WORDS * LINE, LINE);
                lower[buffer][step] = load_operand(words + step * WORDS * LINE + 8 * PLACE_BYTES,
                                                 LINE);
            }
#endif
            if (is_first)
                wait_once(barriers + phase);
            multiply_steps(sums, upper[buffer], lower[buffer], held, phase);
            if (!HALO || phase == phases - 1) {
                advance(reading);
                if constexpr (COPIERS)
                    release_previous<32>(reading);
            }
            if constexpr (!COPIERS)
                copy_inputs();
            UNROLL for (int step = 0; step < AT_ONCE; step++) {
                counted[0] += counted_in(upper[buffer][step]);
                counted[1] += counted_in(lower[buffer][step]);
            }
            /* After this wait the operands of the previous phase may be replaced. With two planes
             * the compiler lets no multiplication run while operands are computed, so the warpgroup
             * waits for all multiplications. */
            wgmma_wait_group<PLANES == 1>();
        };
        for (int phase = 0; phase < phases; phase += 2) {
            multiply_phase(phase, 0);
            if (phase + 1 < phases)
                multiply_phase(phase + 1, 1);
        }
        wgmma_wait_group<0>();
        is_first = false;
        int own[2][CHANNELS_OF_LANE];
        const int *added[2];
        int floats[2];
        bool exists[2];
        UNROLL for (int half = 0; half < 2; half++) {
            counted[half] += __shfl_xor_sync(0xffffffffu, counted[half], 1);
            counted[half] += __shfl_xor_sync(0xffffffffu, counted[half], 2);
            int pixel = tile * TILE_P + warp * 16 + half * 8 + lane / 4;
            exists[half] = pixel < pixels;
#if EXCHANGES
            floats[half] = half * 8 * EXCHANGED_ROW / (int)sizeof(STORED);
#else
            floats[half] = float_of(target, position_of(exists[half] ? pixel : 0), channel);
#endif
            int pixel_class = places[half].pixel_class;
            added[half] = CONSTANT_CLASSES
                              ? own_constants + (pixel_class * 4 + lane % 4) * CONSTANT_PITCH
                              : constants + pixel_class * tile_channels + in_tiles;
            UNROLL for (int n = 0; n < CHANNELS_OF_LANE; n++)
                own[half][n] = sums[n / 2 * 4 + half * 2 + n % 2];
        }
        {
#ifdef EXCHANGED_OPERAND
            /* Without COPIERS, if a tile has at least STAGES phases, the operand's copies are
             * already complete, because a wait within the phases covered them. In the other cases,
             * the warp waits here for all its copies, including the copies of later inputs. */
            if (COPIERS || phases < STAGES)
                cp_async_wait_all();
            WARP_BARRIER();
            const STORED *EXCHANGED_OPERAND = results;
#endif
            write_channels(own, counted, target, places, floats, exists, added, own_flips, channel,
                           end EPILOGUE_ARGUMENTS);
        }
#if EXCHANGES
        WARP_BARRIER();
#if FLOATS
        store_exchanged(exchange, y);
        WARP_BARRIER();
#endif
#endif
    }
    if constexpr (!COPIERS)
        cp_async_wait_group<0>();
    /* a warpgroup without a tile does not end before the requested weights have arrived */
    if (is_first)
        _Pragma("unroll 1") for (int phase = 0; phase < phases; phase++)
            wait_once(barriers + phase);
}
