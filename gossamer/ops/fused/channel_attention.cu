/* A squeeze-and-excite layer: the mean of each channel over the image, two small matrix products
 * that turn the means into one gate per channel, and the arithmetic that scales each element by the
 * gate of its channel. x and y are NHWC.
 *
 * A cluster of work-groups computes an image. Each work-group computes SLICE_WORDS words of 16
 * bytes of every pixel, in five steps:
 * 1. It copies its weights to shared memory, while the previous kernel may still run.
 * 2. It reads its words and computes the means of its channels. If HELD, it keeps the words in
 *    shared memory.
 * 3. For each result of the first product, it computes the partial sum over its own channels, and
 *    sends this partial sum to the other work-groups. It then adds up the partial sums of all
 *    work-groups.
 * 4. It computes the second product for its own channels. The results are their gates.
 * 5. It scales its words. If not HELD, it reads them again.
 *
 * weights: the weights of one work-group after another. They are the first product's weights for
 * the work-group's channels, as (SQUEEZED, channels), and then the second product's weights for the
 * same channels, in the same shape. share: 1 / pixels. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: x, y and weights are 16-bit floats; 0: they are 32-bit floats */
#define WIDTH 8 /* channels of a word of 16 bytes */
#define WORDS 9 /* words of a pixel; pixels are WORDS * WIDTH channels apart */
#define CHANNELS 72 /* channels of the image; the last work-group may have padding beyond them */
#define SQUEEZED 6 /* results of the first product */
#define SLICE_WORDS 2 /* words of a pixel that a work-group computes */
#define CLUSTER 2 /* work-groups of a cluster */
#define WARPS 8 /* warps of a work-group */
#define HELD 1 /* 1: shared memory can hold a work-group's words of an image; 0: it cannot */
/* floats in shared memory between the end of the weights and the words of the image (see HELD) */
#define HELD_AT 2116
#define SQUEEZE_EPILOGUE_PARAMETERS /* parameters of the epilogue of the first product */
#define SQUEEZE_EPILOGUE(value, channel, index) /* applies the epilogue of the first product */
#define EXCITE_EPILOGUE_PARAMETERS /* parameters of the epilogue of the second product */
#define EXCITE_EPILOGUE(value, channel, index) /* applies the epilogue of the second product */
#define SCALE_PARAMETERS /* kernel parameters of the scaling: its tensor operands */
/* scales a result by its channel's gate */
#define SCALE_EPILOGUE(value, channel, index) { value = value * scale_operand0[channel]; }
#define SCALE_EPILOGUE4(value, channel, index) /* scales four results by their channels' gates */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ptx/cluster.h"
#include "ptx/shfl.h"
#include "ops/fused/squeeze_excite.h"

#define THREADS (32 * WARPS)
#define SLICE (SLICE_WORDS * WIDTH)
/* pixels that a work-group reads at once, with one word per work-item */
#define PIXELS (THREADS / SLICE_WORDS)
#define WEIGHT_WORDS (2 * SQUEEZED * SLICE_WORDS)

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(THREADS, 1) void channel_attention(
    const uint4 *x, const uint4 *RESTRICT weights, uint4 *RESTRICT y, int pixels,
    float share SQUEEZE_EPILOGUE_PARAMETERS EXCITE_EPILOGUE_PARAMETERS SCALE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    const REAL *squeeze = (const REAL *)memory, *excite = squeeze + SQUEEZED * SLICE;
    float *sums = (float *)(memory + WEIGHT_WORDS);
    float *gates = sums + THREADS * WIDTH, *squeezed = gates + SLICE, *parts = squeezed + SQUEEZED;
    uint4 *held = (uint4 *)(sums + HELD_AT);
    const float *scale_operand0 = gates;
    int item = LOCAL_ID(0), rank = GROUP_ID(0), first_word = rank * SLICE_WORDS;
    uint lane = (uint)item % 32, warp = (uint)item / 32;
    pdl_trigger();
    CLUSTER_ARRIVE();
    for (int i = item; i < WEIGHT_WORDS; i += THREADS)
        cp_async_16(shared_address(memory + i), weights + rank * WEIGHT_WORDS + i, 16);
    cp_async_commit_group();
    pdl_wait();

    long long image = (long long)GROUP_ID(1) * pixels * WORDS;
    int word = item % SLICE_WORDS, start = item / SLICE_WORDS;
    bool exists = start < PIXELS && first_word + word < WORDS;
    const uint4 *source = x + image + first_word + word;
    float totals[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++)
        totals[i] = 0.0f;
    if (exists)
        UNROLL_BY(4) for (int pixel = start; pixel < pixels; pixel += PIXELS) {
            uint4 found = source[(long long)pixel * WORDS];
            if (HELD)
                held[pixel * SLICE_WORDS + word] = found;
            UNROLL for (int i = 0; i < WIDTH; i++)
                totals[i] += LOAD_REAL((const REAL *)&found, i);
        }
    UNROLL for (int i = 0; i < WIDTH; i++)
        sums[item * WIDTH + i] = totals[i];
    cp_async_wait_group<0>();
    BARRIER();

    for (int channel = warp; channel < SLICE; channel += WARPS) {
        float total = 0.0f;
        for (int row = lane; row < PIXELS; row += 32)
            total += sums[row * SLICE + channel];
        total = warp_sum(total, lane);
        if (lane == 0)
            gates[channel] = total * share;
    }
    BARRIER();
    CLUSTER_WAIT();
    for (int number = warp; number < SQUEEZED; number += WARPS) {
        float sum = 0.0f;
        UNROLL for (int first = 0; first < SLICE; first += 32) {
            int channel = first + (int)lane;
            if (channel < SLICE)
                sum = FMA(gates[channel], LOAD_REAL(squeeze, number * SLICE + channel), sum);
        }
        give_part(parts, sum, number, rank, lane);
    }
    CLUSTER_BARRIER();
    for (int number = item; number < SQUEEZED; number += THREADS) {
        float sum = sum_of_parts(parts, number);
        SQUEEZE_EPILOGUE(sum, number, 0)
        squeezed[number] = sum;
    }
    BARRIER();
    for (int own = item; own < SLICE; own += THREADS) {
        int channel = rank * SLICE + own;
        float gate = gate_sum(squeezed, excite, SLICE, own);
        if (channel < CHANNELS) {
            EXCITE_EPILOGUE(gate, channel, 0)
            gates[own] = gate;
        }
    }
    BARRIER();
    if (exists)
        UNROLL_BY(4) for (int pixel = start; pixel < pixels; pixel += PIXELS) {
            long long position = image + (long long)pixel * WORDS + first_word + word;
            uint4 found = HELD ? held[pixel * SLICE_WORDS + word] : x[position], made;
            UNROLL for (int i = 0; i < WIDTH; i++) {
                float value = LOAD_REAL((const REAL *)&found, i);
                SCALE_EPILOGUE(value, word * WIDTH + i, position * WIDTH + i)
                STORE_REAL((REAL *)&made, i, value);
            }
            y[position] = made;
        }
}
