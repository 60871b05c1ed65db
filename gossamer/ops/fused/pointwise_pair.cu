/* Two 1x1 convolutions, where the second convolution reads the result of the first (sm_90a, float16
 * with float32 sums). Each convolution has an epilogue; the epilogue of the first may add a tensor.
 *
 *   wide[pixel, w] = first epilogue(sum over c of x[pixel, c] * first weight[w, c])
 *   y[pixel, m] = second epilogue(sum over w of wide[pixel, w] * second weight[m, w])
 *
 * Tiles of 128 pixels are distributed round-robin among the work-groups. A work-group computes one
 * slice (64 channels) of `wide` at a time. A slot in shared memory holds the slice, which is the
 * left operand of the second product. With ADDS, the slot first holds the same channels of the
 * added tensor. With WRITES_WIDE, the slice is also written to global memory. A stage is the
 * weights of a slice: the first convolution's weights that produce the slice, and the second
 * convolution's weights that multiply it.
 *
 * Two warpgroups multiply 64 pixels each. Of the four other warps, one copies weights, and three
 * copy pixels and the added tensor. All of them copy to slots in shared memory. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: operands are float16 */
#define TILE_M 64 /* output channels of a product */
#define CHANNELS 64 /* channels of x */
#define WIDE 256 /* channels of `wide` */
#define OUT_CHANNELS 64 /* channels of y */
#define ADDS 0 /* 1: the first epilogue adds a tensor */
#define ADDED x /* the kernel parameter of the added tensor */
#define WRITES_WIDE 1 /* 1: `wide` is written to global memory */
#define INPUTS 2 /* slots for pixels of x */
#define SLOTS 4 /* slots for slices */
#define WEIGHT_SLOTS 0 /* slots for stages; 0: each stage has its own slot and is copied once */
#define COPIER_REGISTERS 40 /* registers of a work-item that copies */
#define MULTIPLIER_REGISTERS 232 /* registers of a work-item that multiplies */
#define FIRST_EPILOGUE_PARAMETERS /* the operands of the first epilogue */
#define SECOND_EPILOGUE_PARAMETERS /* the operands of the second epilogue */
/* apply the first and the second epilogue to four neighbouring channels */
#define FIRST_EPILOGUE4(value, channel, index)
#define SECOND_EPILOGUE4(value, channel, index)
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/mbarrier.h"
#include "ptx/wgmma.h"
#include "mma/lines.h"
#include "mma/neighbours.h"
#include "mma/ring.h"
#include "mma/warpgroup.h"
#include "ops/epilogue.h"

#define TILE 128
#define WORK_GROUP_SIZE 384
#define COPIERS 96 /* work-items that copy pixels */
#define SLICES (WIDE / 64) /* slices of `wide` */
#define INPUT_BYTES (TILE * CHANNELS * 2)
#define SLOT_BYTES (TILE * LINE)
#define GROUP_BYTES (64 * LINE) /* bytes of 64 lines */
#define FIRST_BYTES (64 * CHANNELS * 2) /* bytes of the first convolution's weights in a stage */
#define STAGE_BYTES (FIRST_BYTES + 64 * OUT_CHANNELS * 2)
#define PARTS (OUT_CHANNELS / 64) /* parts of y, each of 64 channels */

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void pointwise_pair(
    const HALF *x, const uint4 *RESTRICT weights, HALF *RESTRICT wide, HALF *RESTRICT y,
    int pixels FIRST_EPILOGUE_PARAMETERS SECOND_EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Lines, memory)
    pdl_trigger();
    int item = LOCAL_ID(0), tiles = CEIL_DIV(pixels, TILE), first_tile = GROUP_ID(0);
    int step_tiles = GROUP_COUNT(0);
    uint lane = (uint)item % 32, warp = (uint)item / 32, group = warp / 4;
    uint inputs = shared_address(memory) + BARRIERS_BYTES, slots = inputs + INPUTS * INPUT_BYTES;
    uint stages = slots + SLOTS * SLOT_BYTES;
    ulong *barriers = (ulong *)memory;
    Ring<INPUTS> input = ring_at<INPUTS>(barriers);
    Ring<SLOTS> slot = ring_at<SLOTS>(barriers + 2 * INPUTS);
    barriers += 2 * (INPUTS + SLOTS);
    auto stage = slots_at<WEIGHT_SLOTS>(barriers, SLICES);
    if (item == 0) {
        init_ring(input, COPIERS, 8);
        init_ring(slot, COPIERS, 256);
        init_ring(stage, 1, 8);
        fence_mbarrier_init();
    }
    BARRIER();

    if (warp >= 8) {
        setmaxnreg_dec<COPIER_REGISTERS>();
        if (warp == 8) {
            if (lane == 0)
                for (int tile = first_tile; tile < (WEIGHT_SLOTS ? tiles : first_tile + 1);
                     tile += step_tiles)
                    copy_parts<STAGE_BYTES>(stage, stages, weights, STAGE_BYTES / 16, SLICES);
            pdl_wait();
            return;
        }
        pdl_wait();
        int copier = item - 32 * 9;
        /* Copies channels `channel` to `channel` + 63 of a tile's pixels, as lines. */
        auto copy_lines = [&](uint target, const HALF *from, int tile, int channels, int channel) {
            UNROLL_BY(2) for (int vector = copier; vector < TILE * 8; vector += COPIERS) {
                int line = vector / 8, chunk = vector % 8, pixel = tile * TILE + line;
                int at = pixel < pixels ? pixel * channels + channel + chunk * 8 : 0;
                cp_async_16(target + piece_offset(line, chunk), from + at, pixel < pixels ? 16 : 0);
            }
        };
        for (int tile = first_tile; tile < tiles; tile += step_tiles) {
            producer_acquire(input);
            for (int channel = 0; channel < CHANNELS; channel += 64)
                copy_lines(inputs + input.slot * INPUT_BYTES + channel / 64 * SLOT_BYTES, x, tile,
                           CHANNELS, channel);
            cp_async_mbarrier_arrive(filled_barrier(input));
            advance(input);
#if ADDS
            for (int slice = 0; slice < SLICES; slice++) {
                producer_acquire(slot);
                copy_lines(slots + slot.slot * SLOT_BYTES, ADDED, tile, WIDE, slice * 64);
                cp_async_mbarrier_arrive(filled_barrier(slot));
                advance(slot);
            }
#endif
        }
        return;
    }
    setmaxnreg_inc<MULTIPLIER_REGISTERS>();
    pdl_wait();

    for (int tile = first_tile; tile < tiles; tile += step_tiles) {
        int first_line = (int)(group * 64 + warp % 4 * 16 + lane / 4);
        int first_pixel = tile * TILE + first_line;
        float results[PARTS][8][4] = {};
        consumer_wait(input);
        fence_proxy_async();
        uint own = inputs + input.slot * INPUT_BYTES + group * GROUP_BYTES;
        rewind(stage);
        for (int slice = 0; slice < SLICES; slice++) {
            uint kept = stages + stage.slot * STAGE_BYTES;
            consumer_wait(stage);
            float sums[1][8][4] = {};
            start_products<1, CHANNELS / 16>(
                sums, [&](int, int step) {
                    return matrix_descriptor(own + step / 4 * SLOT_BYTES) + step % 4 * 2;
                },
                [&](int, int step) { return tile_descriptor(kept, 64, 8) + step * 128; });
            wgmma_wait_group<0>();
            if (slice > 0) {
                if (ADDS)
                    release_previous<32>(slot); /* every lane wrote to the slot */
                release_previous<1>(stage);
            }
            if (slice == SLICES - 1) {
                advance(input);
                release_previous<1>(input);
            }
            if (ADDS)
                consumer_wait(slot);
            /* of each 32 channels, a lane takes 8 neighbouring channels */
            HALF *numbers = (HALF *)((char *)memory + BARRIERS_BYTES + INPUTS * INPUT_BYTES
                                     + slot.slot * SLOT_BYTES);
            {
#if ADDS
                const HALF *ADDED = numbers;
#endif
                UNROLL for (int block = 0; block < 2; block++)
                    UNROLL for (int half = 0; half < 2; half++) {
                        int line = first_line + half * 8, vector = block * 4 + (int)lane % 4;
                        int at = line * 64 + (vector ^ line % 8) * 8;
                        int pixel = first_pixel + half * 8;
                        int channel = slice * 64 + vector * 8;
                        float values[8];
                        take_neighbours(values, sums[0] + block * 4, half);
                        in_fours(values, [&](float4 &four, int v) {
                            FIRST_EPILOGUE4(four, channel + v, at + v)
                        });
                        store_neighbours(numbers + at, values);
                        if (WRITES_WIDE && pixel < pixels)
                            store_neighbours(wide + (pixel * WIDE + channel), values);
                    }
            }
            fence_proxy_async();
            warpgroup_barrier(group);
            uint lines = slots + slot.slot * SLOT_BYTES + group * GROUP_BYTES;
            start_products<PARTS, 4>(
                results, [&](int, int step) { return matrix_descriptor(lines) + step * 2; },
                [&](int part, int step) {
                    return tile_descriptor(kept + FIRST_BYTES + part * GROUP_BYTES, 64, 8)
                           + step * 128;
                });
            advance(slot);
            advance(stage);
        }
        wgmma_wait_group<0>();
        if (ADDS)
            release_previous<32>(slot);
        release_previous<1>(stage);
        UNROLL for (int part = 0; part < PARTS; part++)
            UNROLL for (int block = 0; block < 2; block++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int pixel = first_pixel + half * 8;
                    int channel = part * 64 + block * 32 + (int)lane % 4 * 8;
                    int at = pixel * OUT_CHANNELS + channel;
                    store_sums<8>(y + at, pixel < pixels, results[part] + block * 4, half,
                                  [&](float (&values)[8]) {
                                      in_fours(values, [&](float4 &four, int v) {
                                          SECOND_EPILOGUE4(four, channel + v, at + v)
                                      });
                                  });
                }
    }
}
