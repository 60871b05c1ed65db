/* Convolution with windows of stride 1 as one matrix product for each tap, on the tensor cores for
 * 2:4 sparse weights (sm_90a, float16 with float32 sums). All products read the same pixels in
 * shared memory, shifted by the tap.
 *
 *   y[m, place] = sum over taps, k of weight[tap, m, k] * x[k, place + shift of the tap]
 *
 * runs.h explains places, runs and slots. Weights are the left operand, of which tensor cores read
 * two of each four neighbours along k, and places are the right one.
 *
 * A work-group computes PART_CHANNELS output channels, a part, of a range of places, in tiles of up
 * to TILE_PLACES places. Of the WARPGROUPS warpgroups that multiply, each computes 64 channels of
 * TILE_N places. There are four more warps: one copies weights, and three copy runs.
 *
 * A stage is the weights of a part for one tap and one slice of SLICE input channels. A part may
 * have no stage for a tap and a slice, where all these weights are zero, or two of them, where some
 * four neighbours have more than two weights that are not zero: the second stage has the others.
 * The stages of a slice follow one another. Stage s of all parts is before stage s + 1 of all parts
 * in memory. The slots for stages are a ring of WEIGHT_SLOTS slots with two barriers each, like
 * slots for runs. A stage consists of, in bytes:
 *   4096 for each 64 channels: values as [step of 32 channels][half of 8 values][channel][value]
 *   512 for each 64 channels: a word for each work-item of a warpgroup, which wgmma_sparse explains
 *   16: row and column of the tap in the first word; its sign bit says that the slice ends here
 *
 * Results are transposed through shared memory, so that a work-item stores 8 channels of a place at
 * once. The results of a tile are stored while the next tile is multiplied, a few places for each
 * stage, as products of all multiprocessors end at about the same time. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_N 64 /* places of a product: a multiple of 32 from 64 to 256 */
#define CHANNEL_WARPGROUPS 2 /* warpgroups that compute different channels of the same places */
#define PLACE_WARPGROUPS 1 /* warpgroups that compute different places of the same channels */
#define WEIGHT_SLOTS 4 /* slots for stages */
#define COPIER_REGISTERS 56 /* registers of a work-item that copies */
#define MULTIPLIER_REGISTERS 224 /* registers of a work-item that multiplies */
#endif

#define SLICE 64 /* input channels that are copied at once */

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/mbarrier.h"
#include "ptx/stmatrix.h"
#include "ptx/wgmma.h"
#include "mma/warp.h"
#include "mma/warpgroup_sparse.h"
#include "ops/conv2d/shifted/runs.h"
#include "ops/epilogue.h"

#define WARPGROUPS (CHANNEL_WARPGROUPS * PLACE_WARPGROUPS)
#define WORK_GROUP_SIZE (128 * (WARPGROUPS + 1))
#define PART_CHANNELS (64 * CHANNEL_WARPGROUPS)
#define TILE_PLACES (TILE_N * PLACE_WARPGROUPS)
#define VALUES_BYTES (4096 * CHANNEL_WARPGROUPS)
#define STAGE_BYTES (VALUES_BYTES + 512 * CHANNEL_WARPGROUPS + 16)
/* a warpgroup's results, and for two tiles the indices at which they are stored */
#define RESULT_BYTES (TILE_N * (128 + 2 * 4))
#define STORES (TILE_N / 16) /* rounds in which a warpgroup stores its results */
#define BARRIERS_BYTES 1024

struct ALIGNED(1024) Memory {
    uint4 pieces[64];
};

/* The state of a warpgroup that multiplies: where in shared memory runs and weights lie, their
 * barriers, the slots that it reads next, and how often it has used all slots (phase). slice: the
 * slice of the next stage. starts, ends: whether that stage is the first, or the last, one of the
 * slice. left, right: the matrix descriptors of the stage. */
struct Multiplier {
    const char *memory;
    uint runs, weights, channel_group, place_group;
    int run_bytes, slices, pitch;
    ulong *run_filled, *run_read, *weights_filled, *weights_read;
    int run_slot, weight_slot;
    uint run_phase, weight_phase;
    int slice;
    bool starts, ends;
    ulong left, right;
};

/* The results of a warpgroup's last tile in shared memory, as lines of 128 bytes, and for each line
 * the index of its first channel in y, or -1 where it has no output. round: the round of stores
 * that is next; STORES where all were stored. y: the output at the work-item's first channel; null
 * where this channel does not exist. */
struct Results {
    const char *lines;
    const int *index_of;
    HALF *y;
    int round;
};

/* Stores the results of up to `rounds` more rounds, each of 16 places. */
template <int rounds> INLINE void store_results(Results &its)
{
    UNROLL for (int i = 0; i < rounds; i++)
        if (its.round < STORES) {
            int item = LOCAL_ID(0) % 128, line = its.round * 16 + item / 8;
            int index = its.index_of[line];
            uint4 piece = *(const uint4 *)(its.lines + line * 128 + ((item % 8 ^ line % 8) << 4));
            if (its.y && index >= 0)
                *(uint4 *)(its.y + index) = piece;
            its.round++;
        }
}

/* Waits for the run and the weights of the next stage, and reads its words. indices: receives the
 * word for wgmma. */
INLINE void prepare_stage(Multiplier &its, uint &indices)
{
    if (its.starts) {
        mbarrier_wait_parity(its.run_filled + its.run_slot, its.run_phase);
        fence_proxy_async();
    }
    mbarrier_wait_parity(its.weights_filled + its.weight_slot, its.weight_phase);
    uint weights = its.weights + its.weight_slot * STAGE_BYTES;
    const uint *words =
        (const uint *)(its.memory + (weights - shared_address(its.memory)) + VALUES_BYTES);
    indices = words[its.channel_group * 128 + LOCAL_ID(0) % 128];
    /* from lane 0, so that the compiler keeps descriptors in uniform registers */
    uint tap = __shfl_sync(0xffffffffu, words[128 * CHANNEL_WARPGROUPS], 0);
    int shift = (int)(tap >> 16 & 0x7fff) * its.pitch + (int)(tap & 0xffff);
    uint run = its.runs + its.run_slot * its.run_bytes + its.place_group * (TILE_N * 128);
    its.left = tile_descriptor(weights + its.channel_group * 4096, 64, 8);
    its.right = matrix_descriptor(run + shift * 128);
    its.ends = tap >> 31;
}

/* Adds the products of the next stage to the sums of the warpgroup, and returns whether it was the
 * tile's last one. These products are in flight then. indices: the stage's word for wgmma. other:
 * the word of the stage before, which becomes that of the stage after. first: whether the stage is
 * the tile's first one.
 *
 * A warp waits at wgmma with words of indices until that is executed. So the next stage is prepared
 * between the stage's two products, and the next product follows the second one at once. */
INLINE bool multiply_stage(float (&sums)[TILE_N / 8][4], Multiplier &its, Results &results,
                           uint &indices, uint &other, bool first)
{
    ulong left = its.left, right = its.right;
    wgmma_fence();
    wgmma_sparse<0>(sums, left, right, indices);
    wgmma_commit_group();

    wgmma_wait_group<1>(); /* for the stage before */
    /* the compiler does not know that wgmma reads the word until it ends */
    asm volatile("" : "+r"(other));
    if (!first) {
        /* every lane arrives, as every lane has read a word of the slot */
        mbarrier_arrive(its.weights_read + (its.weight_slot ? its.weight_slot : WEIGHT_SLOTS) - 1);
        if (its.starts)
            release(its.run_read + (its.run_slot ? its.run_slot : RUNS) - 1);
    }
    if (++its.weight_slot == WEIGHT_SLOTS) {
        its.weight_slot = 0;
        its.weight_phase++;
    }
    its.starts = its.ends;
    if (its.ends) {
        its.slice++;
        if (++its.run_slot == RUNS) {
            its.run_slot = 0;
            its.run_phase++;
        }
    }
    bool ended = its.slice == its.slices;
    if (!ended)
        prepare_stage(its, other);
    store_results<1>(results);

    wgmma_sparse<1>(sums, left + 128, right + 4, indices);
    wgmma_commit_group();
    return ended;
}

/* Adds the products of a tile to the sums of the warpgroup, and meanwhile stores the results of the
 * tile before. */
INLINE void multiply_tile(float (&sums)[TILE_N / 8][4], Multiplier &its, Results &results)
{
    uint even = 0, odd = 0; /* words of two stages in turn */
    its.slice = 0;
    its.starts = true;
    prepare_stage(its, even);
    bool ended = multiply_stage(sums, its, results, even, odd, true);
    while (!ended && !multiply_stage(sums, its, results, odd, even, false))
        ended = multiply_stage(sums, its, results, even, odd, false);
    store_results<STORES>(results);
    wgmma_wait_group<0>();
    asm volatile("" : "+r"(even), "+r"(odd));
    mbarrier_arrive(its.weights_read + (its.weight_slot ? its.weight_slot : WEIGHT_SLOTS) - 1);
    release(its.run_read + (its.run_slot ? its.run_slot : RUNS) - 1);
}

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void shifted_sparse(
    const HALF *RESTRICT x, const uint4 *RESTRICT weight, const int *RESTRICT stage_counts,
    HALF *RESTRICT y, int eights, int slices, int out_channels,
    GEOMETRY_PARAMETERS EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Memory, memory)
    pdl_trigger();
    const Geometry geometry = GEOMETRY;
    int item = LOCAL_ID(0), part = GROUP_ID(1);
    /* from lane 0, so that the compiler knows that all lanes have the same number */
    uint warp = __shfl_sync(0xffffffffu, (uint)item / 32, 0);
    uint lane = (uint)item % 32, group = warp / 4;
    uint runs = shared_address(memory) + BARRIERS_BYTES;
    uint weights = runs + RUNS * run_bytes;
    ulong *run_filled = (ulong *)memory, *run_read = run_filled + RUNS;
    ulong *weights_filled = run_read + RUNS, *weights_read = weights_filled + WEIGHT_SLOTS;
    if (item == 0) {
        UNROLL for (int slot = 0; slot < RUNS; slot++) {
            mbarrier_init(run_filled + slot, 32 * COPY_WARPS);
            mbarrier_init(run_read + slot, 4 * WARPGROUPS);
        }
        UNROLL for (int slot = 0; slot < WEIGHT_SLOTS; slot++) {
            mbarrier_init(weights_filled + slot, 1);
            mbarrier_init(weights_read + slot, 128 * WARPGROUPS);
        }
        fence_mbarrier_init();
    }
    BARRIER();
    int ranges = GROUP_COUNT(0);
    int first = (int)((INT64)eights * GROUP_ID(0) / ranges) * 8;
    int last = (int)((INT64)eights * (GROUP_ID(0) + 1) / ranges) * 8;

    if (warp >= 4 * WARPGROUPS) {
        setmaxnreg_dec<COPIER_REGISTERS>();
        if (warp == 4 * WARPGROUPS && lane == 0) {
            int stages = stage_counts[part], slot = 0;
            uint phase = 0;
            for (int tile = first; tile < last; tile += TILE_PLACES) {
                const uint4 *source = weight + part * (STAGE_BYTES / 16);
                int stage = 0;
                do { /* a part has a stage at least, whose copy does not wait for their number */
                    if (phase > 0)
                        mbarrier_wait_parity(weights_read + slot, phase - 1);
                    mbarrier_arrive_expect_tx(weights_filled + slot, STAGE_BYTES);
                    cp_async_bulk(weights + slot * STAGE_BYTES, source, STAGE_BYTES,
                                  weights_filled + slot);
                    source += GROUP_COUNT(1) * (STAGE_BYTES / 16);
                    if (++slot == WEIGHT_SLOTS) {
                        slot = 0;
                        phase++;
                    }
                } while (++stage < stages);
            }
        }
        pdl_wait();
        if (warp > 4 * WARPGROUPS)
            copy_runs(x, geometry, item - 32 * (4 * WARPGROUPS + 1), first, last, TILE_PLACES,
                      slices, runs, run_filled, run_read);
        return;
    }
    setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    pdl_wait();

    uint channel_group = group % CHANNEL_WARPGROUPS, place_group = group / CHANNEL_WARPGROUPS;
    Multiplier its = {(const char *)memory, runs, weights, channel_group, place_group,
                      run_bytes, slices, pitch, run_filled, run_read, weights_filled,
                      weights_read, 0, 0, 0, 0, 0, true, false, 0, 0};
    uint lines = weights + WEIGHT_SLOTS * STAGE_BYTES + group * RESULT_BYTES;
    char *line_bytes = (char *)memory + (lines - shared_address(memory));
    int first_channel = part * PART_CHANNELS + (int)channel_group * 64;
    int stored_channel = first_channel + item % 8 * 8;
    /* the tables of two tiles in turn */
    int *tables = (int *)(line_bytes + TILE_N * 128), *index_of = tables;
    Results results = {line_bytes, index_of, stored_channel < out_channels ? y + stored_channel : 0,
                       STORES};
    for (int tile = first; tile < last; tile += TILE_PLACES) {
        int first_place = tile + (int)place_group * TILE_N;
        for (int i = item % 128; i < TILE_N; i += 128)
            index_of[i] = first_place + i < last ? output_index(geometry, first_place + i) : -1;
        float sums[TILE_N / 8][4] = {};
        multiply_tile(sums, its, results);

        /* waits until the results of the tile before have been read, and indices written */
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        UNROLL for (int half = 0; half < 2; half++) {
            int channel = first_channel + (int)(warp % 4 * 16 + lane / 4) + half * 8;
            channel = channel < out_channels ? channel : 0;
            UNROLL for (int j = 0; j < TILE_N / 8; j++)
                UNROLL for (int v = 0; v < 2; v++) {
                    [[maybe_unused]] int index = index_of[j * 8 + (int)lane % 4 * 2 + v];
                    EPILOGUE(sums[j][half * 2 + v], channel, (index < 0 ? y_first : index) + channel)
                }
        }
        UNROLL for (int j = 0; j < TILE_N / 8; j += 2) {
            int place = j * 8 + (int)(lane / 16 * 8 + lane % 8);
            int piece = (int)(warp % 4 * 2 + lane / 8 % 2);
            uint4 rounded = {two_halves(sums[j][0], sums[j][1]), two_halves(sums[j][2], sums[j][3]),
                             two_halves(sums[j + 1][0], sums[j + 1][1]),
                             two_halves(sums[j + 1][2], sums[j + 1][3])};
            stmatrix_x4_trans(lines + place * 128 + ((piece ^ place % 8) << 4), rounded);
        }
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        results.index_of = index_of;
        results.round = 0;
        index_of = index_of == tables ? tables + TILE_N : tables;
    }
    store_results<STORES>(results);
}
