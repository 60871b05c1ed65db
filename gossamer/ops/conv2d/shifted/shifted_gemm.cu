/* Convolution as one matrix product for each tap. All products read the same pixels in shared
 * memory, shifted by the tap (sm_90a, float16 with float32 sums).
 *
 *   y[place, m] = sum over taps, k of x[place + shift of the tap, k] * weight[tap, k, m]
 *
 * runs.h explains places, runs and slots.
 *
 * A unit is 64 places, which are the rows of a product of a warpgroup (four warps). A work-group
 * computes TILE_M output channels of a range of units, in tiles of up to TILE_UNITS units. A stage
 * is the weights of one tap and one slice of SLICE input channels. The stages of a run follow one
 * another.
 *
 * WARPGROUPS warpgroups multiply; each multiplies up to UNITS units of a tile. Of the four other
 * warps, one copies weights, and three copy runs. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: operands are float16 */
#define TILE_M 64 /* output channels of a product */
#define WARPGROUPS 2 /* warpgroups that multiply */
#define UNITS 1 /* maximum number of units of a tile that a warpgroup multiplies */
#define SLICE 64 /* input channels that are copied at once */
#define RUN_SLOTS 2 /* slots for runs */
#define WEIGHT_SLOTS 0 /* slots for stages; 0: each stage has its own slot and is copied once */
#define COPIER_REGISTERS 56 /* registers of a work-item that copies */
#define MULTIPLIER_REGISTERS 224 /* registers of a work-item that multiplies */
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/mbarrier.h"
#include "ptx/wgmma.h"
#include "mma/neighbours.h"
#include "mma/ring.h"
#include "mma/warpgroup.h"
#include "ops/conv2d/shifted/runs.h"
#include "ops/epilogue.h"

#define STEPS (SLICE / 16)
#define UNIT 64
#define TILE_UNITS (WARPGROUPS * UNITS)
#define STAGE_BYTES (SLICE * TILE_M * 2)

typedef decltype(slots_at<WEIGHT_SLOTS>(nullptr, 0)) Stages;

/* The state of a warpgroup that multiplies.
 * runs, kept: shared-memory addresses of the first slot for runs and of the first slot for stages.
 * group: the warpgroup's number.
 * slices: number of slices; a tile has this many runs for each pair of remainders.
 * step_h, step_w: rows and columns of places from a tap to the next tap with the same remainder.
 * run_ring, stages: the slots that the warpgroup reads next. */
struct Multiplier {
    uint runs, kept, group;
    int run_bytes, run_pieces, slices, kernel_h, kernel_w, remainders_h, remainders_w;
    int step_h, step_w, pitch;
    Ring<RUN_SLOTS> run_ring;
    Stages stages;
};

/* Adds the products of a stage to the sums of the warpgroup's first `units` units. On return, these
 * products are in flight. The products of the previous stage have ended. The slots that no later
 * products read are released.
 * run: address of the warpgroup's first place in shared memory.
 * shift: by how many places the tap is shifted.
 * stage: the number of the stage in the tile.
 * starts: whether the stage is the first of its run. */
template <int units>
INLINE void multiply_stage(float (&sums)[UNITS][TILE_M / 8][4], Multiplier &its, uint run,
                           int shift, int stage, bool starts)
{
    consumer_wait(its.stages);
    ulong weights = tile_descriptor(its.kept + its.stages.slot * STAGE_BYTES, TILE_M, 8);
    start_products<units, STEPS>(
        sums, [&](int i, int step) {
            int place = i * (WARPGROUPS * UNIT) + shift;
            return LINES ? matrix_descriptor(run + place * LINE) + step * 2
                         : tile_descriptor(run + place * 16, its.run_pieces, 8)
                               + step * (2 * its.run_pieces);
        },
        [&](int, int step) { return weights + step * (2 * TILE_M); });
    if (stage > 0) {
        wgmma_wait_group<1>();
        release_previous<1>(its.stages);
        if (starts)
            release_previous<1>(its.run_ring);
    }
    advance(its.stages);
}

/* Adds the products of a tile to the sums of the warpgroup's first `units` units. */
template <int units> INLINE void multiply_tile(float (&sums)[UNITS][TILE_M / 8][4], Multiplier &its)
{
    int stage = 0;
    rewind(its.stages);
    for (int slice = 0; slice < its.slices; slice++)
        for (int first_row = 0; first_row < its.remainders_h; first_row++)
            for (int first_column = 0; first_column < its.remainders_w; first_column++) {
                consumer_wait(its.run_ring);
                fence_proxy_async();
                uint run = its.runs + its.run_ring.slot * its.run_bytes
                           + its.group * (UNIT * (LINES ? LINE : 16));
                bool starts = true;
                int row_shift = 0;
                for (int row = first_row; row < its.kernel_h; row += its.remainders_h) {
                    int shift = row_shift;
                    for (int column = first_column; column < its.kernel_w;
                         column += its.remainders_w) {
                        multiply_stage<units>(sums, its, run, shift, stage++, starts);
                        starts = false;
                        shift += its.step_w;
                    }
                    row_shift += its.step_h * its.pitch;
                }
                advance(its.run_ring);
            }
    wgmma_wait_group<0>();
    release_previous<1>(its.stages);
    release_previous<1>(its.run_ring);
}

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void shifted_gemm(
    const HALF *x, const uint4 *RESTRICT weight, HALF *RESTRICT y, int units, int kernel_h,
    int kernel_w, int step_h, int step_w, int slices, int out_channels,
    GEOMETRY_PARAMETERS EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Lines, memory)
    pdl_trigger();
    int item = LOCAL_ID(0), stages = slices * kernel_h * kernel_w;
    const Geometry geometry = GEOMETRY;
    /* The warp's number is taken from lane 0, so the compiler knows that all lanes have the same
     * number. The compiler then uses uniform registers for all values that depend on this number.
     * wgmma reads its descriptors from uniform registers. */
    uint warp = __shfl_sync(0xffffffffu, (uint)item / 32, 0);
    uint lane = (uint)item % 32, group = warp / 4;
    uint runs = shared_address(memory) + BARRIERS_BYTES;
    uint kept = runs + RUN_SLOTS * run_bytes;
    Ring<RUN_SLOTS> run_ring = ring_at<RUN_SLOTS>((ulong *)memory);
    Stages stage_ring = slots_at<WEIGHT_SLOTS>((ulong *)memory + 2 * RUN_SLOTS, stages);
    init_rings(run_ring, stage_ring, 4 * WARPGROUPS);
    int first_m = GROUP_ID(1) * TILE_M, ranges = GROUP_COUNT(0);
    int first_unit = (int)((INT64)units * GROUP_ID(0) / ranges);
    int last_unit = (int)((INT64)units * (GROUP_ID(0) + 1) / ranges);

    if (warp >= 4 * WARPGROUPS) {
        auto copy_stages = [&]() {
            const uint4 *source = weight + (size_t)GROUP_ID(1) * stages * (STAGE_BYTES / 16);
            int copied_units = WEIGHT_SLOTS ? last_unit - first_unit : 1;
            for (int unit = 0; unit < copied_units; unit += TILE_UNITS)
                copy_parts<STAGE_BYTES>(stage_ring, kept, source, STAGE_BYTES / 16, stages);
        };
        copy_operands(warp, copy_stages, x, geometry, first_unit * UNIT, last_unit * UNIT,
                      TILE_UNITS * UNIT, slices, runs, run_ring);
        return;
    }
    setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    pdl_wait();

    Multiplier its = {runs, kept, group, run_bytes, run_pieces, slices, kernel_h, kernel_w,
                      remainders_h, remainders_w, step_h, step_w, pitch, run_ring, stage_ring};
    for (int unit = first_unit; unit < last_unit; unit += TILE_UNITS) {
        /* units are assigned to warpgroups in turn, so that even a few units are divided evenly */
        int left = last_unit - unit - (int)group;
        int own_units = left <= 0                        ? 0
                        : left > WARPGROUPS * (UNITS - 1) ? UNITS
                                                          : CEIL_DIV(left, WARPGROUPS);
        float sums[UNITS][TILE_M / 8][4] = {};
        if (own_units == UNITS)
            multiply_tile<UNITS>(sums, its);
#if UNITS > 1
        else if (own_units == 1)
            multiply_tile<1>(sums, its);
#endif
        else
            multiply_tile<0>(sums, its);

        int index[UNITS][2];
        UNROLL for (int i = 0; i < UNITS; i++)
            UNROLL for (int half = 0; half < 2; half++) {
                int place = (unit + (int)group + i * WARPGROUPS) * UNIT
                            + (int)(warp % 4 * 16 + lane / 4) + half * 8;
                index[i][half] = i < own_units ? output_index(geometry, place) : -1;
            }
        /* block by block, so that a lane loads the constants of its channels once */
        UNROLL for (int block = 0; block < TILE_M / 32; block++)
            UNROLL for (int i = 0; i < UNITS; i++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int channel = first_m + block * 32 + (int)lane % 4 * 8;
                    bool stored = index[i][half] >= 0 && channel < out_channels;
                    channel = channel < out_channels ? channel : 0;
                    int at = (stored ? index[i][half] : y_first) + channel;
                    store_sums<8>(y + at, stored, sums[i] + block * 4, half,
                                  EPILOGUE_OF(8, channel, at));
                }
    }
}
