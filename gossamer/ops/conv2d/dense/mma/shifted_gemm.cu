/* Convolution with windows of stride 1 as one matrix product for each tap, all of which read the
 * same pixels in shared memory, shifted (sm_90a, float16 with float32 sums).
 *
 *   y[place, m] = sum over taps, k of x[place + shift of the tap, k] * weight[tap, k, m]
 *
 * The images lie behind one another as places: `pitch` places a row, `image_places` an image, with
 * the pads between rows and images, where zeros are copied. The pads at the right of a row are
 * those at the left of the next one. An output has the place of its window's first pixel, so a tap
 * (r, s) of all outputs is r * pitch + s places further. Places without an output are computed
 * like others and not stored.
 *
 * A unit is the places of one product of a warpgroup, four warps. A work-group takes a range of
 * units, in tiles of up to TILE_UNITS, and OUT_PART output channels. For each slice of SLICE input
 * channels it copies the places of a tile and those that the last tap reads, a run, to one of RUNS
 * slots, two or more. The weights of a tap and a slice are a stage. They come in slots as well, or
 * are kept where all stages have a slot.
 *
 * WARPGROUPS groups multiply, each up to UNITS units of a tile. Of four more warps one copies
 * weights and the others copy runs. A barrier for each slot says that it was filled, another that
 * it was multiplied. With ORDERED, two groups multiply one after the other, and each stores its
 * results while the other one multiplies; the weights are kept then.
 *
 * The work-groups of a cluster have the same output channels: each copies its share of a stage to
 * all of them. The weights are not kept then.
 *
 * TURNED 0: the rows of a product are 64 places, its TILE_M columns output channels. Otherwise the
 * rows are 64 output channels and the columns TILE_M places, so that less is read from shared
 * memory for a layer of few channels; TURNED groups have other channels of the same places. A warp
 * then turns its sums in shared memory, TURN_PLACES at a time, to store neighbouring channels.
 *
 * A place of a run has CHUNKS pieces of 8 channels. LINES 0: all places of a chunk lie side by
 * side, the next chunk an odd number of pieces behind, so that copies of a place are to different
 * banks. LINES 1: a place is a line of 128 bytes, whose piece p is stored at p ^ line % 8.
 *
 * KEEPS_WEIGHTS     1: each stage has its own slot and is copied once
 * WEIGHT_SLOTS      slots for stages, where they are not kept
 * MULTIPLIER_REGISTERS, COPIER_REGISTERS   registers of a work-item that multiplies, or copies */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: operands are float16 */
#define TILE_M 64 /* output channels of a product; with TURNED its places */
#define TURNED 0 /* 0: the rows of a product are places; otherwise the warpgroups along the channels */
#define WARPGROUPS 2 /* warpgroups that multiply */
#define UNITS 1 /* units of a tile that a warpgroup multiplies, at most */
#define SLICE 64 /* input channels that are copied at once */
#define RUNS 2 /* slots for runs */
#define WEIGHT_SLOTS 0 /* slots for stages, where they are not kept */
#define KEEPS_WEIGHTS 1 /* 1: each stage has its own slot and is copied once */
#define ORDERED 0 /* 1: two warpgroups multiply one after the other */
#define LINES 0 /* 1: a place is a line of 128 bytes; 0: the places of a chunk lie side by side */
#define CLUSTER 1 /* work-groups of a cluster */
#define COPIER_REGISTERS 40 /* registers of a work-item that copies */
#define MULTIPLIER_REGISTERS 232 /* registers of a work-item that multiplies */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/mbarrier.h"
#include "ptx/wgmma.h"
#include "mma/warpgroup.h"
#include "ops/epilogue.h"

#define COPY_WARPS 3 /* warps that copy runs */
#define WORK_GROUP_SIZE (128 * (WARPGROUPS + 1))
#define CHUNKS (SLICE / 8)
#define STEPS (SLICE / 16)
#define UNIT (TURNED ? TILE_M : 64)
#define OUT_PART (TURNED ? 64 * TURNED : TILE_M)
#define CHANNEL_GROUPS (TURNED ? TURNED : 1)          /* groups that share units */
#define PLACE_GROUPS (WARPGROUPS / CHANNEL_GROUPS)    /* groups with different units */
#define TILE_UNITS (PLACE_GROUPS * UNITS)
#define STAGE_BYTES (SLICE * OUT_PART * 2)
/* Work-groups of a cluster arrive at barriers of one another until their last tile. */
#if CLUSTER > 1
#define END_TOGETHER() CLUSTER_BARRIER()
#else
#define END_TOGETHER()
#endif
#define TURN_PLACES 32
#define TURN_PITCH 20 /* floats of a place: 16, and 4 so that writes are to different banks */
#define BARRIERS_BYTES 1024

/* Returns the descriptor of 8 channels by 8 lines at an address in shared memory, 128 bytes side by
 * side; the next 8 lines follow, and the next 8 channels are `pieces` of 16 bytes behind. */
INLINE ulong pieces_at(uint address, int pieces)
{
    return (ulong)(address >> 4 & 0x3fff) | (ulong)pieces << 16 | 8ull << 32;
}

/* Arrives at the barrier in the shared memory of a work-group of the cluster that corresponds to
 * one in the own. */
[[maybe_unused]] INLINE void mbarrier_arrive_cluster(ulong *barrier, int group)
{
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                 ::"r"(shared_address(barrier)), "r"(group) : "memory");
}

/* Copies bytes to the same place in the shared memory of the work-groups of the cluster whose bits
 * are set, where the barriers that correspond to `barrier` expect them. */
[[maybe_unused]] INLINE void cp_async_bulk_multicast(uint target, const void *source, int bytes,
                                                  ulong *barrier, ushort groups)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(target), "l"(source), "r"(bytes), "r"(shared_address(barrier)), "h"(groups)
                 : "memory");
}

struct ALIGNED(1024) Memory {
    uint4 pieces[64];
};

/* What a warpgroup that multiplies knows: where runs and weights lie, their barriers, and the slots
 * that it reads next, with how often all slots were used. */
struct Multiplier {
    uint runs, kept, group, place_group, channel_group;
    int run_bytes, run_pieces, slices, taps, kernel_w, pitch;
    ulong *run_filled, *run_read, *weights_filled, *weights_read, *may_multiply;
    int run_slot, weight_slot;
    uint run_phase, weight_phase;
};

/* Arrives at a barrier for the warp, and at those that correspond to it in `groups` work-groups of
 * the cluster. */
template <int groups = 1> INLINE void release(ulong *barrier)
{
    WARP_BARRIER();
    int lane = LOCAL_ID(0) % 32;
    if (groups > 1 && lane < groups)
        mbarrier_arrive_cluster(barrier, lane);
    else if (lane == 0)
        mbarrier_arrive(barrier);
}

/* Adds the products of a tile to the sums of so many units of the warpgroup. */
template <int units> INLINE void multiply_tile(float (&sums)[UNITS][TILE_M / 8][4], Multiplier &its)
{
    ulong *last_run = its.run_read;
    [[maybe_unused]] ulong *last_weights = its.weights_read;
    for (int slice = 0; slice < its.slices; slice++) {
        mbarrier_wait_parity(its.run_filled + its.run_slot, its.run_phase);
        fence_proxy_async();
        uint run = its.runs + its.run_slot * its.run_bytes
                   + its.place_group * (UNIT * (LINES ? 128 : 16));
        int shift = 0, tap_column = 0;
        for (int tap = 0; tap < its.taps; tap++) {
            int slot = KEEPS_WEIGHTS ? slice * its.taps + tap : its.weight_slot;
            mbarrier_wait_parity(its.weights_filled + slot, KEEPS_WEIGHTS ? 0 : its.weight_phase);
            ulong weights = pieces_at(its.kept + slot * STAGE_BYTES + its.channel_group * (64 * 16),
                                      OUT_PART);
            wgmma_fence();
            UNROLL for (int i = 0; i < units; i++) {
#if LINES
                ulong lines = matrix_descriptor(run + (i * (PLACE_GROUPS * UNIT) + shift) * 128);
                int step_pieces = 2;
#else
                ulong lines = pieces_at(run + (i * (PLACE_GROUPS * UNIT) + shift) * 16,
                                        its.run_pieces);
                int step_pieces = 2 * its.run_pieces;
#endif
                UNROLL for (int step = 0; step < STEPS; step++) {
                    ulong some_places = lines + step * step_pieces;
                    ulong some_weights = weights + step * (2 * OUT_PART);
#if TURNED
                    wgmma_ss(sums[i], some_weights, some_places);
#else
                    wgmma_ss(sums[i], some_places, some_weights);
#endif
                }
            }
            wgmma_commit_group();
            if (slice + tap > 0) {
                wgmma_wait_group<1>();
#if !KEEPS_WEIGHTS
                release<CLUSTER>(last_weights);
#endif
                if (tap == 0)
                    release(last_run);
            }
#if !KEEPS_WEIGHTS
            last_weights = its.weights_read + its.weight_slot;
            if (++its.weight_slot == WEIGHT_SLOTS) {
                its.weight_slot = 0;
                its.weight_phase++;
            }
#endif
            shift++;
            if (++tap_column == its.kernel_w) {
                tap_column = 0;
                shift += its.pitch - its.kernel_w;
            }
        }
        last_run = its.run_read + its.run_slot;
        if (++its.run_slot == RUNS) {
            its.run_slot = 0;
            its.run_phase++;
        }
    }
#if ORDERED
    release(its.may_multiply + (its.group ^ 1));
#endif
    wgmma_wait_group<0>();
#if !KEEPS_WEIGHTS
    release<CLUSTER>(last_weights);
#endif
    release(last_run);
}

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void shifted_gemm(
    const HALF *RESTRICT x, const uint4 *RESTRICT weight, HALF *RESTRICT y, int units, int places,
    DIVISOR(image_places), DIVISOR(pitch), int kernel_w, int taps, int slices, int halo,
    int run_pieces, int run_bytes, int channels, int out_channels, int height, int width,
    int out_height, int out_width, int pad_top, int pad_left, int x_image, int x_row, int x_column,
    int x_first, int y_first, int y_channels EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Memory, memory)
    pdl_trigger();
    int item = LOCAL_ID(0), stages = slices * taps;
    uint lane = (uint)item % 32, warp = (uint)item / 32, group = warp / 4;
    uint runs = shared_address(memory) + BARRIERS_BYTES;
    uint kept = runs + RUNS * run_bytes;
    int weight_slots = KEEPS_WEIGHTS ? stages : WEIGHT_SLOTS;
    ulong *run_filled = (ulong *)memory, *run_read = run_filled + RUNS;
    ulong *may_multiply = run_read + RUNS, *weights_filled = may_multiply + 2;
    [[maybe_unused]] ulong *weights_read = weights_filled + weight_slots;
    if (item == 0) {
        UNROLL for (int slot = 0; slot < RUNS; slot++) {
            mbarrier_init(run_filled + slot, 32 * COPY_WARPS);
            mbarrier_init(run_read + slot, 4 * WARPGROUPS);
        }
        mbarrier_init(may_multiply, 4);
        mbarrier_init(may_multiply + 1, 4);
        for (int slot = 0; slot < weight_slots; slot++) {
            mbarrier_init(weights_filled + slot, 1);
            if (!KEEPS_WEIGHTS)
                mbarrier_init(weights_read + slot, 4 * WARPGROUPS * CLUSTER);
        }
        fence_mbarrier_init();
    }
    CLUSTER_BARRIER();
    int first_m = GROUP_ID(1) * OUT_PART, ranges = GROUP_COUNT(0);
    int first_unit = (int)((INT64)units * GROUP_ID(0) / ranges);
    int last_unit = (int)((INT64)units * (GROUP_ID(0) + 1) / ranges);
    /* a cluster has as many tiles in each work-group */
    int most_units = CLUSTER > 1 ? CEIL_DIV(units, ranges) : last_unit - first_unit;
    int end_unit = first_unit + most_units;

    if (warp >= 4 * WARPGROUPS) {
        setmaxnreg_dec<COPIER_REGISTERS>();
        if (warp == 4 * WARPGROUPS && lane == 0) {
            const uint4 *source = weight + (size_t)GROUP_ID(1) * stages * (STAGE_BYTES / 16);
#if KEEPS_WEIGHTS
            for (int stage = 0; stage < stages; stage++) {
                mbarrier_arrive_expect_tx(weights_filled + stage, STAGE_BYTES);
                cp_async_bulk(kept + stage * STAGE_BYTES, source + stage * (STAGE_BYTES / 16),
                           STAGE_BYTES, weights_filled + stage);
            }
#else
            int slot = 0;
            uint phase = 0;
            for (int unit = first_unit; unit < end_unit; unit += TILE_UNITS)
                for (int stage = 0; stage < stages; stage++) {
                    if (phase > 0)
                        mbarrier_wait_parity(weights_read + slot, phase - 1);
                    mbarrier_arrive_expect_tx(weights_filled + slot, STAGE_BYTES);
#if CLUSTER > 1
                    int first = GROUP_ID(0) % CLUSTER * (STAGE_BYTES / CLUSTER);
                    cp_async_bulk_multicast(kept + slot * STAGE_BYTES + first,
                                         source + (stage * STAGE_BYTES + first) / 16,
                                         STAGE_BYTES / CLUSTER, weights_filled + slot,
                                         (ushort)((1 << CLUSTER) - 1));
#else
                    cp_async_bulk(kept + slot * STAGE_BYTES, source + stage * (STAGE_BYTES / 16),
                               STAGE_BYTES, weights_filled + slot);
#endif
                    if (++slot == WEIGHT_SLOTS) {
                        slot = 0;
                        phase++;
                    }
                }
#endif
        }
        pdl_wait();
        if (warp == 4 * WARPGROUPS) {
            END_TOGETHER();
            return;
        }
        int copier = item - 32 * (4 * WARPGROUPS + 1), slot = 0;
        uint phase = 0;
        for (int unit = first_unit; unit < end_unit; unit += TILE_UNITS) {
            int units_here = last_unit - unit < TILE_UNITS ? last_unit - unit : TILE_UNITS;
            int pieces = units_here > 0 ? (units_here * UNIT + halo) * CHUNKS : 0;
            for (int slice = 0; slice < slices; slice++) {
                if (phase > 0)
                    mbarrier_wait_parity(run_read + slot, phase - 1);
                uint run = runs + slot * run_bytes;
                UNROLL_BY(2) for (int piece = copier; piece < pieces; piece += 32 * COPY_WARPS) {
                    int line = piece / CHUNKS, chunk = piece % CHUNKS, place = unit * UNIT + line;
                    int image = (int)QUOTIENT(place, image_places);
                    int in_image = place - image * image_places;
                    int row = (int)QUOTIENT(in_image, pitch);
                    int column = in_image - row * pitch - pad_left;
                    int channel = slice * SLICE + chunk * 8;
                    row -= pad_top;
                    bool inside = (uint)row < (uint)height && (uint)column < (uint)width
                                  && place < places && channel < channels;
                    int from = x_first + image * x_image + row * x_row + column * x_column
                               + channel;
                    uint to = LINES ? line * 128 + ((chunk ^ line % 8) << 4)
                                    : (chunk * run_pieces + line) << 4;
                    cp_async_16(run + to, x + (inside ? from : 0), inside ? 16 : 0);
                }
                cp_async_mbarrier_arrive(run_filled + slot);
                if (++slot == RUNS) {
                    slot = 0;
                    phase++;
                }
            }
        }
        END_TOGETHER();
        return;
    }
    setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    pdl_wait();

    Multiplier its = {runs, kept, group, group / CHANNEL_GROUPS, group % CHANNEL_GROUPS, run_bytes,
                      run_pieces, slices, taps, kernel_w, pitch, run_filled, run_read,
                      weights_filled, weights_read, may_multiply, 0, 0, 0, 0};
    /* Returns the index of a place's first channel in y, or -1 where it has no output. */
    auto index_of = [&](int place) {
        int image = (int)QUOTIENT(place, image_places), in_image = place - image * image_places;
        int row = (int)QUOTIENT(in_image, pitch), column = in_image - row * pitch;
        bool stored = place < places && row < out_height && column < out_width;
        int pixel = (image * out_height + row) * out_width + column;
        return stored ? y_first + pixel * y_channels : -1;
    };
    auto store = [&](float4 lower, float4 upper, int index, int channel) {
        bool stored = index >= 0 && channel < out_channels;
        channel = channel < out_channels ? channel : 0;
        int at = (stored ? index : y_first) + channel;
        EPILOGUE4(lower, channel, at)
        EPILOGUE4(upper, channel + 4, at + 4)
        if (stored)
            STORE_HALF8(y, at, lower, upper);
    };
    int tile = 0;
    for (int unit = first_unit; unit < end_unit; unit += TILE_UNITS, tile++) {
        /* the groups have units in turn, so that few units are shared out evenly */
        int left = last_unit - unit - (int)its.place_group;
        int own_units = left <= 0                          ? 0
                        : left > PLACE_GROUPS * (UNITS - 1) ? UNITS
                                                            : CEIL_DIV(left, PLACE_GROUPS);
        float sums[UNITS][TILE_M / 8][4] = {};
#if ORDERED
        if (group + tile > 0)
            mbarrier_wait_parity(may_multiply + group, group ? tile : tile - 1);
#endif
        if (own_units == UNITS)
            multiply_tile<UNITS>(sums, its);
#if UNITS > 2
        else if (own_units == 3)
            multiply_tile<3>(sums, its);
        else if (own_units == 2)
            multiply_tile<2>(sums, its);
#endif
#if UNITS > 1
        else if (own_units == 1)
            multiply_tile<1>(sums, its);
#endif
        else
            multiply_tile<0>(sums, its);

#if TURNED
        /* a lane stores 8 neighbouring channels of a place, the next lane the warp's other 8 */
        int channel = first_m + (int)its.channel_group * 64 + (int)(warp % 4 * 16 + lane % 2 * 8);
        float *turned = (float *)((char *)memory + BARRIERS_BYTES + RUNS * run_bytes
                                  + weight_slots * STAGE_BYTES)
                        + warp * (TURN_PLACES * TURN_PITCH);
        UNROLL for (int i = 0; i < UNITS; i++)
            UNROLL for (int part = 0; part < TILE_M / TURN_PLACES; part++) {
                if (i >= own_units)
                    break;
                WARP_BARRIER();
                UNROLL for (int j = 0; j < TURN_PLACES / 8; j++)
                    UNROLL for (int r = 0; r < 4; r++)
                        turned[(j * 8 + lane % 4 * 2 + r % 2) * TURN_PITCH + lane / 4 + r / 2 * 8]
                            = sums[i][part * (TURN_PLACES / 8) + j][r];
                WARP_BARRIER();
                UNROLL for (int pass = 0; pass < TURN_PLACES / 16; pass++) {
                    int line = pass * 16 + (int)lane / 2;
                    const float *from = turned + line * TURN_PITCH + lane % 2 * 8;
                    int place = (unit + (int)its.place_group + i * PLACE_GROUPS) * UNIT
                                + part * TURN_PLACES + line;
                    store(LOAD4(from), LOAD4(from + 4), index_of(place), channel);
                }
            }
#else
        int index[UNITS][2];
        UNROLL for (int i = 0; i < UNITS; i++)
            UNROLL for (int half = 0; half < 2; half++) {
                int place = (unit + (int)group + i * WARPGROUPS) * UNIT
                            + (int)(warp % 4 * 16 + lane / 4) + half * 8;
                index[i][half] = i < own_units ? index_of(place) : -1;
            }
        /* block by block, so that a lane loads the constants of its channels once */
        UNROLL for (int block = 0; block < TILE_M / 32; block++)
            UNROLL for (int i = 0; i < UNITS; i++)
                UNROLL for (int half = 0; half < 2; half++) {
                    float values[8];
                    UNROLL for (int v = 0; v < 8; v++)
                        values[v] = sums[i][block * 4 + v / 2][half * 2 + v % 2];
                    store(MAKE4(values[0], values[1], values[2], values[3]),
                          MAKE4(values[4], values[5], values[6], values[7]), index[i][half],
                          first_m + block * 32 + (int)lane % 4 * 8);
                }
#endif
    }
    END_TOGETHER();
}
