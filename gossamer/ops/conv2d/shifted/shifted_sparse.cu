/* Convolution as one matrix product for each tap, on the tensor cores for 2:4 sparse weights
 * (sm_90a, float16 with float32 sums). All products read the same pixels in shared memory, shifted
 * by the tap.
 *
 *   y[m, place] = sum over taps, k of weight[tap, m, k] * x[k, place + shift of the tap]
 *
 * runs.h explains places, runs and slots. The left operand holds weights: two of each four
 * neighbours along k are stored. The right operand holds places.
 *
 * A part is PART_CHANNELS output channels. A work-group computes a part for a range of places, in
 * tiles of up to TILE_PLACES places. WARPGROUPS warpgroups multiply; each computes 64 channels of
 * TILE_N places. Of the four other warps, one copies weights, and three copy runs.
 *
 * A stage is the weights of a part for one tap and one slice of SLICE input channels. If all these
 * weights are zero, the part may have no stage for the tap and the slice. If any four neighbours
 * have more than two nonzero weights, there are two stages: the second has the weights that do not
 * fit the first. The stages of a run follow one another. In device memory, stage s of all parts is
 * before stage s + 1 of all parts. In shared memory, stages have a ring of WEIGHT_SLOTS slots. The
 * contents of a stage, with their sizes in bytes, are:
 *   4096 for each 64 channels: values as [step of 32 channels][half of 8 values][channel][value]
 *   512 for each 64 channels: a word of indices for each work-item of a warpgroup (wgmma_sparse)
 *   16: a header. Only its first word is used. Bits 16 to 30 of this word are the rows of places by
 *       which the tap is shifted. Bits 0 to 15 are the columns of places by which the tap is
 *       shifted. Bit 31 is 1 in a run's last stage.
 *
 * Results are transposed through shared memory, so that a work-item stores 8 channels of a place at
 * once. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_N 64 /* places of a product: a multiple of 32 from 64 to 256 */
#define CHANNEL_WARPGROUPS 2 /* warpgroups that compute different channels of the same places */
#define PLACE_WARPGROUPS 1 /* warpgroups that compute different places of the same channels */
#define RUN_SLOTS 2 /* slots for runs */
#define WEIGHT_SLOTS 4 /* slots for stages */
#define COPIER_REGISTERS 56 /* registers of a work-item that copies */
#define MULTIPLIER_REGISTERS 224 /* registers of a work-item that multiplies */
#endif

#define SLICE 64 /* input channels that are copied at once */
#define WARPGROUPS (CHANNEL_WARPGROUPS * PLACE_WARPGROUPS)

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/mbarrier.h"
#include "ptx/stmatrix.h"
#include "ptx/wgmma.h"
#include "mma/ring.h"
#include "mma/warp.h"
#include "mma/warpgroup_sparse.h"
#include "ops/conv2d/shifted/runs.h"
#include "ops/epilogue.h"

#define PART_CHANNELS (64 * CHANNEL_WARPGROUPS)
#define TILE_PLACES (TILE_N * PLACE_WARPGROUPS)
#define VALUES_BYTES (4096 * CHANNEL_WARPGROUPS)
#define STAGE_BYTES (VALUES_BYTES + 512 * CHANNEL_WARPGROUPS + 16)
/* bytes of a warpgroup's results, and of the indices in y at which they are stored */
#define STORED_BYTES (TILE_N * (LINE + 4))

/* The state of a warpgroup that multiplies.
 * memory: the shared memory.
 * runs, weights: shared-memory addresses of the first slot for runs and of the first for stages.
 * channel_group: which 64 channels of the part the warpgroup computes.
 * place_group: which TILE_N places of a tile the warpgroup computes.
 * tile_runs: number of runs of a tile.
 * run_ring, stages: the slots that the warpgroup reads next.
 * runs_left: number of runs of the tile that have stages left.
 * starts: whether the next stage is the first of its run.
 * in_flight: whether products of the tile may still read the previous slots. */
struct Multiplier {
    const char *memory;
    uint runs, weights, channel_group, place_group;
    int run_bytes, tile_runs, pitch;
    Ring<RUN_SLOTS> run_ring;
    Ring<WEIGHT_SLOTS> stages;
    int runs_left;
    bool starts, in_flight;
};

/* Adds the products of the next stage to the sums of the warpgroup. Returns whether this stage is
 * the tile's last. On return, the products of this stage are in flight, and the products of the
 * previous stage have ended.
 * indices: receives the stage's word of indices. The products read this variable while they are in
 * flight.
 * others: the word of the previous stage. */
INLINE bool multiply_stage(float (&sums)[TILE_N / 8][4], Multiplier &its, uint &indices,
                           uint &others)
{
    if (its.starts) {
        consumer_wait(its.run_ring);
        fence_proxy_async();
    }
    consumer_wait(its.stages);
    uint run = its.runs + its.run_ring.slot * its.run_bytes + its.place_group * (TILE_N * LINE);
    uint weights = its.weights + its.stages.slot * STAGE_BYTES;
    const uint *words =
        (const uint *)(its.memory + (weights - shared_address(its.memory)) + VALUES_BYTES);
    indices = words[its.channel_group * 128 + LOCAL_ID(0) % 128];
    /* the word is taken from lane 0, so that the compiler keeps descriptors in uniform registers */
    uint tap = __shfl_sync(0xffffffffu, words[128 * CHANNEL_WARPGROUPS], 0);
    int shift = (int)(tap >> 16 & 0x7fff) * its.pitch + (int)(tap & 0xffff);
    ulong left = tile_descriptor(weights + its.channel_group * 4096, 64, 8);
    ulong right = matrix_descriptor(run + shift * LINE);
    wgmma_fence();
    wgmma_sparse<0>(sums, left, right, indices);
    wgmma_sparse<1>(sums, left + 128, right + 4, indices);
    wgmma_commit_group();
    wgmma_wait_group<1>();
    /* this use keeps the previous word in its register until wgmma has read it */
    asm volatile("" : "+r"(others));
    /* every lane arrives at the barrier, because every lane has read a word of the slot */
    if (its.in_flight) {
        release_previous<32>(its.stages);
        if (its.starts)
            release_previous<1>(its.run_ring);
    }
    its.in_flight = true;
    advance(its.stages);
    its.starts = tap >> 31;
    if (its.starts) {
        its.runs_left--;
        advance(its.run_ring);
    }
    return its.runs_left == 0;
}

/* Adds the products of a tile to the sums of the warpgroup. */
INLINE void multiply_tile(float (&sums)[TILE_N / 8][4], Multiplier &its)
{
    uint even = 0, odd = 0;
    its.runs_left = its.tile_runs;
    its.starts = true;
    its.in_flight = false;
    while (!multiply_stage(sums, its, even, odd) && !multiply_stage(sums, its, odd, even))
        ;
    wgmma_wait_group<0>();
    asm volatile("" : "+r"(even), "+r"(odd));
    release_previous<32>(its.stages);
    release_previous<1>(its.run_ring);
}

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void shifted_sparse(
    const HALF *x, const uint4 *RESTRICT weight, const int *RESTRICT stage_counts,
    HALF *RESTRICT y, int eights, int slices, int out_channels,
    GEOMETRY_PARAMETERS EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Lines, memory)
    pdl_trigger();
    const Geometry geometry = GEOMETRY;
    int item = LOCAL_ID(0), part = GROUP_ID(1);
    /* taken from lane 0, so that the compiler knows that all lanes have the same number */
    uint warp = __shfl_sync(0xffffffffu, (uint)item / 32, 0);
    uint lane = (uint)item % 32, group = warp / 4;
    uint runs = shared_address(memory) + BARRIERS_BYTES;
    uint weights = runs + RUN_SLOTS * run_bytes;
    Ring<RUN_SLOTS> run_ring = ring_at<RUN_SLOTS>((ulong *)memory);
    Ring<WEIGHT_SLOTS> stage_ring = ring_at<WEIGHT_SLOTS>((ulong *)memory + 2 * RUN_SLOTS);
    init_rings(run_ring, stage_ring, 128 * WARPGROUPS);
    int ranges = GROUP_COUNT(0);
    int first = (int)((INT64)eights * GROUP_ID(0) / ranges) * 8;
    int last = (int)((INT64)eights * (GROUP_ID(0) + 1) / ranges) * 8;

    if (warp >= 4 * WARPGROUPS) {
        auto copy_stages = [&]() {
            int stages = stage_counts[part];
            for (int tile = first; tile < last; tile += TILE_PLACES)
                copy_parts<STAGE_BYTES>(stage_ring, weights, weight + part * (STAGE_BYTES / 16),
                                        GROUP_COUNT(1) * (STAGE_BYTES / 16), stages);
        };
        copy_operands(warp, copy_stages, x, geometry, first, last, TILE_PLACES, slices, runs,
                      run_ring);
        return;
    }
    setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    pdl_wait();

    uint channel_group = group % CHANNEL_WARPGROUPS, place_group = group / CHANNEL_WARPGROUPS;
    Multiplier its = {(const char *)memory, runs, weights, channel_group, place_group,
                      run_bytes, remainders_h * remainders_w * slices, pitch, run_ring,
                      stage_ring, 0, true, false};
    uint results = weights + WEIGHT_SLOTS * STAGE_BYTES + group * STORED_BYTES;
    const char *result_bytes = (const char *)memory + (results - shared_address(memory));
    /* for each place, the index of its first channel in y, or -1 if the place has no output */
    int *index_of = (int *)(result_bytes + TILE_N * LINE);
    int first_channel = part * PART_CHANNELS + (int)channel_group * 64;
    for (int tile = first; tile < last; tile += TILE_PLACES) {
        int first_place = tile + (int)place_group * TILE_N;
        /* waits until the results of the previous tile have been read */
        warpgroup_barrier(group);
        for (int i = item % 128; i < TILE_N; i += 128)
            index_of[i] = first_place + i < last ? output_index(geometry, first_place + i) : -1;
        float sums[TILE_N / 8][4] = {};
        multiply_tile(sums, its);

        warpgroup_barrier(group);
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
            stmatrix_x4_trans(results + piece_offset(place, piece), rounded);
        }
        warpgroup_barrier(group);
        int channel = first_channel + item % 8 * 8;
        UNROLL_BY(4) for (int i = item % 128 / 8; i < TILE_N; i += 16) {
            if (index_of[i] >= 0 && channel < out_channels)
                *(uint4 *)(y + index_of[i] + channel) =
                    *(const uint4 *)(result_bytes + piece_offset(i, item % 8));
        }
    }
}
