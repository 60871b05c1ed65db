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
 * The means and both products are sums of columns (column_sums.h).
 *
 * weights: the weights of one work-group after another. They are the first product's weights for
 * the work-group's channels, as (channels, SQUEEZED_ROW) with zeros beyond SQUEEZED, and then the
 * second product's weights for the same channels, as (SQUEEZED, channels). The channel operands of
 * both epilogues follow, as float32: rows of SQUEEZED_ROW floats for the first product's results, and
 * then rows of one float for each of the work-group's channels. share: 1 / pixels. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: x, y and weights are 16-bit floats; 0: they are 32-bit floats */
#define WIDTH 8 /* channels of a word of 16 bytes */
#define WORDS 9 /* words of a pixel; pixels are WORDS * WIDTH channels apart */
#define CHANNELS 72 /* channels of the image; the last work-group may have padding beyond them */
#define SQUEEZED 6 /* results of the first product */
#define SLICE_WORDS 2 /* words of a pixel that a work-group computes */
#define CLUSTER 2 /* work-groups of a cluster */
#define WARPS 8 /* warps of a work-group */
#define READS 3 /* words of the image that a work-item reads; some read one word less */
#define HELD 1 /* 1: shared memory can hold a work-group's words of an image; 0: it cannot */
/* floats in shared memory between the end of the weights and the words of the image (see HELD) */
#define HELD_AT 2220
#define CONSTANT_WORDS 0 /* words of a work-group's channel operands */
#define SQUEEZE_OPERANDS /* declares the operands of the epilogue of the first product */
#define SQUEEZE_EPILOGUE(value, channel, index) /* applies the epilogue of the first product */
#define EXCITE_OPERANDS /* declares the operands of the epilogue of the second product */
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
#include "mma/ring.h"
#include "ops/fused/column_sums.h"

#define THREADS (32 * WARPS)
#define SLICE (SLICE_WORDS * WIDTH)
/* pixels that a work-group reads at once, with one word per work-item */
#define PIXELS (THREADS / SLICE_WORDS)
/* words that a work-item reads before it waits for the first of them: up to 8 */
#define AT_ONCE CEIL_DIV(READS, CEIL_DIV(READS, 8))
/* results of the first product, and columns of zeros so that columns can be loaded by fours */
#define SQUEEZED_ROW (CEIL_DIV(SQUEEZED, 4) * 4)
#define MATRIX_WORDS ((SQUEEZED_ROW + SQUEEZED) * SLICE_WORDS)
#define WEIGHT_WORDS (MATRIX_WORDS + CONSTANT_WORDS)
#define BARRIER_FLOATS 4 /* room for the barrier that counts the partial sums that have arrived */

using Means = ColumnSums<THREADS, PIXELS, SLICE>;
using Squeeze = ColumnSums<THREADS, SLICE, SQUEEZED_ROW>;
using Excite = ColumnSums<THREADS, SQUEEZED, SLICE>;
#define PARTIAL_SUMS (4 * (Means::units > Squeeze::units ? Means::units : Squeeze::units))

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(THREADS, 1) void channel_attention(
    const uint4 *x, const uint4 *RESTRICT weights, uint4 *RESTRICT y, int pixels,
    float share SCALE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    const REAL *squeeze = (const REAL *)memory, *excite = squeeze + SLICE * SQUEEZED_ROW;
    [[maybe_unused]] const float *constants = (const float *)(memory + MATRIX_WORDS);
    SQUEEZE_OPERANDS
    EXCITE_OPERANDS
    float *sums = (float *)(memory + WEIGHT_WORDS), *partial = sums + THREADS * WIDTH;
    float *parts = partial + PARTIAL_SUMS, *gates = parts + CLUSTER * SQUEEZED_ROW;
    [[maybe_unused]] ulong *arrived = (ulong *)(gates + SLICE);
    float *squeezed = gates + SLICE + BARRIER_FLOATS;
    uint4 *held = (uint4 *)(sums + HELD_AT);
    const float *scale_operand0 = gates;
    int item = LOCAL_ID(0), rank = GROUP_ID(0), first_word = rank * SLICE_WORDS;
    pdl_trigger();
    if constexpr (CLUSTER > 1) {
        if (item == 0) {
            init_once(arrived, CLUSTER * SQUEEZED_ROW * 4);
            fence_mbarrier_init();
        }
    }
    CLUSTER_ARRIVE();
    ONCE_EACH for (int i = item; i < WEIGHT_WORDS; i += THREADS)
        cp_async_16(shared_address(memory + i), weights + rank * WEIGHT_WORDS + i, 16);
    cp_async_commit_group();
    pdl_wait();

    long long image = (long long)GROUP_ID(1) * pixels * WORDS;
    int word = item % SLICE_WORDS, start = item / SLICE_WORDS;
    bool exists = start < PIXELS && start < pixels && first_word + word < WORDS;
    const uint4 *source = x + image + first_word + word;
    float totals[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++)
        totals[i] = 0.0f;
    if (exists)
        ONCE_EACH for (int first = 0; first < READS; first += AT_ONCE) {
            /* no condition where a word is sure to exist: predicates are few */
            uint4 found[AT_ONCE];
            UNROLL for (int i = 0; i < AT_ONCE; i++) {
                int pixel = start + (first + i) * PIXELS;
                found[i] = first + i < READS - 1 || pixel < pixels
                               ? source[(long long)pixel * WORDS] : make_uint4(0, 0, 0, 0);
            }
            UNROLL for (int i = 0; i < AT_ONCE; i++) {
                int pixel = start + (first + i) * PIXELS;
                if (HELD && (first + i < READS - 1 || pixel < pixels))
                    held[pixel * SLICE_WORDS + word] = found[i];
                UNROLL for (int j = 0; j < WIDTH; j++)
                    totals[j] += LOAD_REAL((const REAL *)(found + i), j);
            }
        }
    UNROLL for (int i = 0; i < WIDTH; i++)
        sums[item * WIDTH + i] = totals[i];
    cp_async_wait_group<0>();
    BARRIER();

    Means::add_rows(partial, item, [&](float4 &sum, int row, int channel) {
        ADD_SCALED4(sum, share, LOAD4(sums + row * SLICE + channel));
    });
    BARRIER();
    ONCE_EACH for (int channel = item; channel < SLICE; channel += THREADS)
        gates[channel] = Means::total(partial, channel);
    BARRIER();
    Squeeze::add_rows(partial, item, [&](float4 &sum, int channel, int number) {
        ADD_SCALED4(sum, gates[channel], LOAD_REAL4(squeeze, channel * SQUEEZED_ROW + number));
    });
    BARRIER();
    CLUSTER_WAIT();
    ONCE_EACH for (int number = item * 4; number < SQUEEZED; number += THREADS * 4) {
        float4 sum = Squeeze::total4(partial, number);
        float *part = parts + rank * SQUEEZED_ROW + number;
        if constexpr (CLUSTER > 1) {
            UNROLL for (int other = 0; other < CLUSTER; other++)
                st_async_cluster(shared_address(part), sum.x, sum.y, sum.z, sum.w, arrived, other);
        } else {
            STORE4(part, sum);
        }
    }
    /* a barrier of the cluster would wait for the stores and for all work-groups, and empty the L1
     * cache */
    if constexpr (CLUSTER > 1)
        wait_once(arrived);
    else
        BARRIER();
    ONCE_EACH for (int number = item; number < SQUEEZED; number += THREADS) {
        float sum = 0.0f;
        UNROLL for (int other = 0; other < CLUSTER; other++)
            sum += parts[other * SQUEEZED_ROW + number];
        SQUEEZE_EPILOGUE(sum, number, 0)
        squeezed[number] = sum;
    }
    BARRIER();
    Excite::add_rows(partial, item, [&](float4 &sum, int number, int channel) {
        ADD_SCALED4(sum, squeezed[number], LOAD_REAL4(excite, number * SLICE + channel));
    });
    BARRIER();
    ONCE_EACH for (int own = item; own < SLICE; own += THREADS) {
        float gate = Excite::total(partial, own);
        if (rank * SLICE + own < CHANNELS) {
            EXCITE_EPILOGUE(gate, own, 0)
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
