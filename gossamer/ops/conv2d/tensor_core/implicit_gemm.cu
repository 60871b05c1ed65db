/* Convolution as a matrix product on tensor cores. The left matrix, output pixels by K, is never
 * stored: its values are copied from the input while tiles are filled (implicit im2col). The axis K
 * runs over the taps and, for each tap, over the input channels of a group.
 *
 *   y[pixel, m] = sum over k of x[pixel, k] * weight[k, m]
 *
 * A work-group computes one tile after the other. Asynchronous copies fill the slots of shared
 * memory ahead of the multiplications, and go on to the next tile before the current tile ends.
 * implicit_gemm_tile.h defines tiles, stages, slots, lines, pieces, steps and blocks. In TF32 the
 * inputs are rounded in registers.
 *
 * With WGMMA, warpgroups multiply operands in shared memory; in TF32, the pixels are in registers.
 * COPY_WARPS further warps do nothing but copy. Tensor cores see copied lines only after a fence,
 * and a fence waits for all copies of the work-item that executes the fence. Therefore the warps
 * that multiply cannot also copy. The slots are a ring (mma/ring.h).
 *
 * Without WGMMA, each warp copies lines, and loads the lines that it multiplies from shared memory
 * to registers. With clusters, one more barrier completes when the sums of all holders have arrived
 * (partial_sums.h).
 *
 * With KEEPS_WEIGHTS, all tiles of a work-group have the same output channels. The weights of these
 * channels stay in shared memory, after the slots. The slots then hold only lines of pixels.
 * KEEPS_WEIGHTS needs a short K, because shared memory holds the weights of all stages.
 *
 * With NORMALISED, each pixel's values count as normalised: the mean is subtracted from each, and
 * they are divided by the deviation, the square root of variance + epsilon. The values themselves
 * are multiplied, and each sum is changed afterwards:
 *
 *   y[pixel, m] = (sum - mean * sum of the weights of m) / deviation + shift of m
 *
 * of_channels has the sum of the weights and the shift of each output channel (row_moments.h).
 *
 * With SECOND, the epilogue has two results, y and `second`.
 *
 * x and y begin at the elements x_first and y_first of their buffers. y is NHWC; its pixels are
 * y_channels elements apart. y_channels exceeds the number of output channels if y is a part of a
 * larger tensor. The same holds for `second`, and for all tensor operands of the epilogue, which
 * begin at operand_first. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
/* 1: an output reads one pixel, whose values are adjacent in x. 0: k_table has an entry for every
 * AT_ONCE values along K. The entry has the offset of these values in x from the window's corner,
 * and their position in the window as row << 16 | column. */
#define POINTWISE 1
#define AT_ONCE 8 /* neighbouring values of x that are copied at once: 4, 8 or 16 bytes */
#define LOADS 0 /* 1: values of x are loaded one by one, not copied; AT_ONCE is 1 */
/* 1: neighbouring work-items gather neighbouring pixels; 0: they gather neighbouring pieces */
#define PIXELS_FIRST 0
#define OUT_VECTOR 8 /* output channels that are stored at once: VECTOR, 4, 2 or 1 */
#define BLOCKS_PER_UNIT 1 /* work-groups that a multiprocessor should hold at once */
#define NORMALISED 0 /* 1: the values of each pixel are normalised; POINTWISE is then 1, HOLDERS 1 */
#define SECOND 0 /* 1: the epilogue has two results */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "ptx/mbarrier.h"
#include "ptx/wgmma.h"
#include "mma/neighbours.h"
#include "mma/ring.h"
#include "mma/warp.h"
#include "ops/epilogue.h"
#include "implicit_gemm_tile.h"
#include "multiply_stage.h"
#include "partial_sums.h"
#include "row_moments.h"

#define COPIES (VECTOR / AT_ONCE) /* copies of a piece */
/* Number of lanes that arrive at the barrier when a warp releases a slot: one if only wgmma reads
 * the slot, all if lanes load from the slot. */
#define RELEASING_LANES (HALVES && !STAGED ? 1 : 32)
#if NORMALISED
#define FURTHER_PARAMETERS , const float *RESTRICT of_channels, float mean_share, float epsilon
#elif SECOND
#define FURTHER_PARAMETERS , REAL *RESTRICT second, int second_first, int second_channels
#else
#define FURTHER_PARAMETERS
#endif
/* LANE_CHANNELS: distance in channels from a lane's first output channel to the next lane's first
 * output channel. CHANNEL(v): distance from a lane's first output channel to its channel v. If
 * fewer than four channels are stored at once, the pairs of channels of four lanes are adjacent. */
#if OUT_VECTOR > 2
#define LANE_CHANNELS VECTOR
#define CHANNEL(v) (v)
#else
#define LANE_CHANNELS 2
#define CHANNEL(v) ((v) / 2 * 8 + (v) % 2)
#endif
/* The first row of the window of a pixel that does not exist: so far outside of the image that all
 * taps of the window are outside, too. */
#define FAR_OUTSIDE (-0x4000)

/* the line and the piece that copy number `unit` of a stage fills */
#define UNIT_LINE(unit) (PIXELS_FIRST ? (unit) % TILE_P : (unit) / 8)
#define UNIT_PIECE(unit) (PIXELS_FIRST ? (unit) / TILE_P : (unit) % 8)

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void implicit_gemm(
    const REAL *x, const uint4 *RESTRICT weight, REAL *RESTRICT y,
    const int2 *RESTRICT k_table, int tiles, DIVISOR(tiles_m), int pixels, int out_channels,
    int weight_lines, int depth, int stages, int height, int width, DIVISOR(plane),
    DIVISOR(out_width), int stride_y, int stride_x, int pad_top, int pad_left, int x_image,
    int x_row, int x_column, int x_group, int x_first, int y_first, int y_channels,
    int operand_first, int operand_channels FURTHER_PARAMETERS EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Lines, shared_memory)
    Lines *memory = shared_memory + HAS_BARRIERS; /* behind the barriers */
    uint slots = shared_address(memory);
    int item = LOCAL_ID(0);
    uint lane = (uint)item % 32, warp = (uint)item / 32;
    [[maybe_unused]] uint warp_m = warp % WARPS_M, warp_p = warp / WARPS_M % WARPS_P,
                          warp_k = warp / (WARPS_M * WARPS_P);
    int copier = WGMMA ? item - 32 * WARPS : item;
    int rank = GROUP_ID(0) % CLUSTER, group = GROUP_ID(1);
    int first_tile = GROUP_ID(0) / CLUSTER, tile_step = GROUP_COUNT(0) / CLUSTER;
    int start = stages * rank / CLUSTER, stop = stages * (rank + 1) / CLUSTER;
    pdl_trigger();
    [[maybe_unused]] ulong *summed = (ulong *)shared_memory;
    Ring<SLOTS> filling = ring_at<SLOTS>(summed + 1), reading = filling;
#if HAS_BARRIERS
    if (item == 0) {
        if (CLUSTER > 1)
            init_once(summed, received_bytes(rank));
#if WGMMA
        init_ring(filling, COPIERS + 1, WARPS * RELEASING_LANES);
#endif
        fence_mbarrier_init();
    }
    CLUSTER_ARRIVE();
    if (WGMMA)
        BARRIER();
#endif
    int pieces = CEIL_DIV(depth, VECTOR);
    x += x_first + group * x_group;
    weight += (size_t)group * stages * weight_lines * 8;

    int base[X_LOADS];
#if !POINTWISE
    int top[X_LOADS], left[X_LOADS];
#endif
    int copied_pixel, copied_m;
    auto find_lines = [&](int tile) {
        int tile_p = (int)QUOTIENT(tile, tiles_m);
        copied_m = (tile - tile_p * tiles_m) * TILE_M;
        copied_pixel = tile_p * TILE_P;
        UNROLL for (int i = 0; i < X_LOADS; i++) {
            int pixel = copied_pixel + UNIT_LINE(copier + i * COPIERS);
            int image = (int)QUOTIENT(pixel, plane), in_image = pixel - image * plane;
            int out_row = (int)QUOTIENT(in_image, out_width);
            int row = out_row * stride_y - pad_top;
            int column = (in_image - out_row * out_width) * stride_x - pad_left;
            base[i] = image * x_image + row * x_row + column * x_column;
#if POINTWISE
            base[i] = pixel < pixels ? base[i] : -1;
#else
            top[i] = pixel < pixels ? row : FAR_OUTSIDE;
            left[i] = column;
#endif
        }
    };

    auto copy_lines = [&](int target, int stage) {
        UNROLL for (int i = 0; i < X_LOADS; i++) {
            int unit = copier + i * COPIERS;
            int line = UNIT_LINE(unit), piece = UNIT_PIECE(unit);
            int k_piece = stage * 8 + piece;
            /* mma multiplies no steps after the last piece, so these steps are not copied */
            if (WGMMA || k_piece / 2 * 2 < pieces) {
                int to = target + piece_offset(line, piece);
#if !LOADS
                /* unrolled by 2 only, because the addresses of four copies take more registers */
                UNROLL_BY(2) for (int copy = 0; copy < COPIES; copy++) {
                    /* copies of neighbouring lines begin with parts in different banks */
                    int part = copy ^ line % COPIES, bytes = 16 / COPIES;
                    int k = (k_piece * COPIES + part) * AT_ONCE;
                    uint there = slots + to + part * bytes;
#if POINTWISE
                    bool inside = base[i] >= 0 && k < depth;
                    const REAL *from = x + (inside ? base[i] + k : 0);
#else
                    int2 entry = k_table[k / AT_ONCE];
                    bool inside = (uint)(top[i] + (entry.y >> 16)) < (uint)height
                                  && (uint)(left[i] + (entry.y & 0xffff)) < (uint)width;
                    const REAL *from = x + (inside ? base[i] + entry.x : 0);
#endif
                    if constexpr (POINTWISE && COPIES == 1)
                        cp_async_16(there, from, inside ? 16 : 0);
                    else
                        cp_async_ca<16 / COPIES>(there, from, inside ? bytes : 0);
                }
#else
                union {
                    REAL values[VECTOR];
                    uint4 piece;
                } gathered;
                UNROLL for (int v = 0; v < VECTOR; v++) {
                    int k = k_piece * VECTOR + v;
                    gathered.values[v] = 0;
#if POINTWISE
                    if (base[i] >= 0 && k < depth)
                        gathered.values[v] = x[base[i] + k];
#else
                    int2 entry = k_table[k];
                    if ((uint)(top[i] + (entry.y >> 16)) < (uint)height
                        && (uint)(left[i] + (entry.y & 0xffff)) < (uint)width)
                        gathered.values[v] = x[base[i] + entry.x];
#endif
                }
                *(uint4 *)((char *)memory + to) = gathered.piece;
#endif
            }
        }
    };

    [[maybe_unused]] auto copy_weights = [&](uint target, int stage) {
        const uint4 *source = weight + (stage * weight_lines + copied_m) * 8;
        UNROLL for (int unit = copier; unit < TILE_M * 8; unit += COPIERS)
            if (copied_m + unit / 8 < weight_lines)
                cp_async_16(target + unit * 16, source + unit, 16);
    };

#if STAGED
    const REAL *operand = STAGED_OPERAND + operand_first + group * out_channels;
    auto copy_operand = [&](int target, int stage) {
        UNROLL for (int unit = copier; unit < OPERAND_ROWS * OPERAND_PIECES; unit += COPIERS) {
            int row = unit / OPERAND_PIECES, piece = unit % OPERAND_PIECES;
            int pixel = copied_pixel + stage * OPERAND_ROWS + row;
            int m = copied_m + piece * VECTOR;
            bool inside = pixel < pixels && m < out_channels;
            cp_async_16(slots + target + OPERAND_PLACE(row, piece) * 16,
                        operand + (inside ? pixel * operand_channels + m : 0), inside ? 16 : 0);
        }
    };
#endif

    /* Number of stages of the first tile whose weights are copied before this kernel waits for the
     * kernel that writes x. This is possible because no kernel writes weights. */
    int early_stages = KEEPS_WEIGHTS ? 0 : (stop - start < LEAD ? stop - start : LEAD);

    /* copy_stage copies the next stage, of this tile or of a later tile. */
    int copied_tile = start < stop ? first_tile : tiles, copied_stage = start;
    auto copy_stage = [&]() {
        int target = filling.slot * SLOT_BYTES;
#if STAGED
        if (copied_stage >= stop)
            copy_operand(target, copied_stage - stop);
        else
#endif
        {
            copy_lines(target, copied_stage);
#if !WGMMA && !KEEPS_WEIGHTS
            if (early_stages > 0)
                early_stages--;
            else
                copy_weights(slots + target + TILE_P * LINE, copied_stage);
#endif
        }
    };
    auto next_stage = [&]() {
        advance(filling);
        if (++copied_stage == stop + OPERAND_STAGES) {
            copied_stage = start;
            copied_tile += tile_step;
            find_lines(copied_tile < tiles ? copied_tile : first_tile);
        }
    };
#if WGMMA
    if (warp >= WARPS) {
        setmaxnreg_dec<COPIER_REGISTERS>();
        find_lines(first_tile);
        if constexpr (KEEPS_WEIGHTS)
            _Pragma("unroll 1") for (int stage = start; stage < stop; stage++)
                copy_weights(slots + SLOTS * SLOT_BYTES + (stage - start) * (TILE_M * LINE), stage);
        auto start_weights = [&](int slot, int stage) {
            int lines = weight_lines - copied_m < TILE_M ? weight_lines - copied_m : TILE_M;
            start_bulk_copy(slots + slot * SLOT_BYTES + TILE_P * LINE,
                            weight + (stage * weight_lines + copied_m) * 8, lines * LINE,
                            filling.filled + slot);
        };
        if (copier == 0)
            for (int ahead = 0; ahead < early_stages; ahead++)
                start_weights(ahead, start + ahead);
        pdl_wait();
        while (copied_tile < tiles) {
            producer_acquire(filling);
            if (copier == 0) {
                if (early_stages > 0)
                    early_stages--;
                else if (!KEEPS_WEIGHTS && copied_stage < stop)
                    start_weights(filling.slot, copied_stage);
                else
                    mbarrier_arrive(filled_barrier(filling));
            }
            copy_stage();
            cp_async_mbarrier_arrive(filled_barrier(filling));
            next_stage();
        }
        return;
    }
    setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    pdl_wait();
#else
    auto copy_ahead = [&]() {
        if (copied_tile < tiles) {
            copy_stage();
            next_stage();
        }
        cp_async_commit_group();
    };
#endif

    /* Applies the epilogue to the sums of one pixel for the VECTOR output channels of a lane, and
     * stores the results. staged: index of the first channel's staged operand in shared memory.
     * Only the store is conditional, so that loads for other sums need not wait for a branch. */
    auto store = [&](float (&values)[VECTOR], int pixel, int m, [[maybe_unused]] int staged) {
#if STAGED
        const REAL *STAGED_OPERAND = (const REAL *)memory;
#endif
        UNROLL for (int v = 0; v < VECTOR; v += OUT_VECTOR) {
            int of_group = m + CHANNEL(v);
            bool inside = pixel < pixels && of_group < out_channels;
            int channel = group * out_channels + (of_group < out_channels ? of_group : 0);
            int its_pixel = inside ? pixel : 0, index = y_first + its_pixel * y_channels + channel;
            [[maybe_unused]] int operand_index =
                STAGED ? staged : operand_first + its_pixel * operand_channels + channel;
            float stored[OUT_VECTOR];
            UNROLL for (int i = 0; i < OUT_VECTOR; i++)
                stored[i] = values[v + i];
#if SECOND
            float others[OUT_VECTOR];
            EPILOGUE2_OF(OUT_VECTOR, channel, operand_index)(stored, others);
            if (inside)
                store_neighbours(second + second_first + its_pixel * second_channels + channel,
                                 others);
#else
            EPILOGUE_OF(OUT_VECTOR, channel, operand_index)(stored);
#endif
            if (inside)
                store_neighbours(y + index, stored);
        }
    };

    [[maybe_unused]] uint kept = slots + SLOTS * SLOT_BYTES;
#if !WGMMA
    find_lines(first_tile);
    if constexpr (KEEPS_WEIGHTS)
        _Pragma("unroll 1") for (int stage = start; stage < stop; stage++)
            copy_weights(kept + (stage - start) * (TILE_M * LINE), stage);
    _Pragma("unroll 1") for (int ahead = 0; ahead < early_stages; ahead++)
        copy_weights(slots + ahead * SLOT_BYTES + TILE_P * LINE, start + ahead);
    pdl_wait();
    _Pragma("unroll 1") for (int ahead = 0; ahead < LEAD; ahead++)
        copy_ahead();
#endif
    for (int tile = first_tile; tile < tiles; tile += tile_step) {
        float sums[FRAGMENTS_P][FRAGMENTS_M][4] = {};
        int tile_p = (int)QUOTIENT(tile, tiles_m);
        int first_pixel = tile_p * TILE_P, first_m = (tile - tile_p * tiles_m) * TILE_M;
#if NORMALISED
        Moments moments = {};
        RowParts parts;
        load_parts(parts, x, first_pixel, pixels, depth, start, warp, warp_p, lane);
#endif
        for (int stage = start; stage < stop; stage++) {
            uint lines = slots + reading.slot * SLOT_BYTES;
            uint weights = KEEPS_WEIGHTS ? kept + (stage - start) * (TILE_M * LINE)
                                         : lines + TILE_P * LINE;
#if WGMMA
            consumer_wait(reading);
            fence_proxy_async();
#else
            cp_async_wait_group<LEAD - 1>();
            BARRIER();
            copy_ahead();
#endif
            multiply_stage(sums, lines, weights, CEIL_DIV(pieces, 2) - stage * STEPS, warp, lane);
#if NORMALISED
            add_moments(moments, parts);
            load_parts(parts, x, first_pixel, pixels, depth, stage + 1, warp, warp_p, lane);
#endif
#if WGMMA
            if (stage > start) {
                wgmma_wait_group<1>();
                release_previous<RELEASING_LANES>(reading);
            }
#endif
            advance(reading);
        }
#if WGMMA
        wgmma_wait_group<0>();
        if (start < stop)
            release_previous<RELEASING_LANES>(reading);
#endif

#if HOLDERS == 1
#if STAGED && WGMMA
        UNROLL for (int stage = 0; stage < OPERAND_STAGES; stage++)
            consumer_wait(reading, stage);
#elif STAGED
        cp_async_wait_group<LEAD - OPERAND_STAGES>();
        BARRIER();
#endif
        first_m += warp_m * (TILE_M / WARPS_M) + lane % 4 * LANE_CHANNELS;
#if NORMALISED
        float2 norms[FRAGMENTS_P][2];
        UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
            UNROLL for (int half = 0; half < 2; half++)
                norms[i][half] = norm_of(moments.sums[i][half], moments.squares[i][half], depth,
                                         mean_share, epsilon, lane);
#endif
        /* block by block, so that a lane loads the constants of its channels once */
        UNROLL for (int block = 0; block < BLOCKS; block++) {
#if NORMALISED
            float4 of_pairs[VECTOR / 2]; /* of two neighbouring channels each */
            UNROLL for (int v = 0; v < VECTOR; v += 2) {
                int channel = first_m + block * 4 * VECTOR + CHANNEL(v);
                of_pairs[v / 2] = LOAD4(of_channels + 2 * channel);
            }
#endif
            UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
                UNROLL for (int half = 0; half < 2; half++) {
                    float values[VECTOR];
                    take_neighbours(values, sums[i] + block * OF_BLOCK, half);
#if NORMALISED
                    float2 norm = norms[i][half];
                    UNROLL for (int v = 0; v < VECTOR; v += 2) {
                        float4 its = of_pairs[v / 2];
                        values[v] = FMA(values[v] - norm.x * its.x, norm.y, its.y);
                        values[v + 1] = FMA(values[v + 1] - norm.x * its.z, norm.y, its.w);
                    }
#endif
                    int row = (int)(FRAGMENT_LINE(i) + half * 8 + lane / 4), staged = 0;
#if STAGED
                    int piece = (int)(warp_m * BLOCKS + block) * 4 + (int)lane % 4;
                    int its_slot = (reading.slot + row / OPERAND_ROWS) % SLOTS;
                    staged = its_slot * (SLOT_BYTES / 16 * VECTOR)
                             + OPERAND_PLACE(row % OPERAND_ROWS, piece) * VECTOR;
#endif
                    store(values, first_pixel + row, first_m + block * 4 * VECTOR, staged);
                }
        }
#if STAGED && WGMMA
        UNROLL for (int stage = 0; stage < OPERAND_STAGES; stage++) {
            advance(reading);
            release_previous<RELEASING_LANES>(reading);
        }
#elif STAGED
        BARRIER();
        _Pragma("unroll 1") for (int stage = 0; stage < OPERAND_STAGES; stage++) {
            advance(reading);
            copy_ahead();
        }
#endif
#else
        float4 *partial = (float4 *)(memory + SLOTS * (SLOT_BYTES / 1024));
        CLUSTER_WAIT(); /* all work-groups of the cluster have started and can receive sums */
        give_sums(partial, summed, sums, rank * WARPS_K + (int)warp_k, warp, warp_m, warp_p, lane);
        if (CLUSTER > 1)
            wait_once(summed);
        else
            BARRIER();
        for (int share = (int)warp; share < SHARE; share += WARPS) {
            int set = share * CLUSTER + rank;
            float values[VECTOR] = {};
            add_parts(values, partial, share, lane);
            if (SUMS % CLUSTER == 0 || set < SUMS)
                store(values, first_pixel + set / (WARPS_M * BLOCKS) * 8 + (int)lane / 4,
                      first_m + set % (WARPS_M * BLOCKS) * 4 * VECTOR
                          + (int)lane % 4 * LANE_CHANNELS, 0);
        }
        if constexpr (CLUSTER == 1)
            BARRIER();
#endif
    }
}
