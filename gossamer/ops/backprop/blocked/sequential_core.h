/* The sequential core of exact blocking (see pipeline.h). In the core, one warp trains a network
 * with one hidden layer, sample by sample.
 *
 * Each sample has a record in shared memory. The core reads from the record
 *   - the sums of the hidden units, computed with older weights (RECORD_BASE),
 *   - the coefficients by which this sample's update changes the sums of the REACH next samples
 *     (RECORD_COEFFICIENT),
 *   - the targets (RECORD_TARGET), and the decay from this sample to the end of the block
 *     (RECORD_FACTOR).
 * The core writes the terms of the loss (RECORD_TERM) and delta (RECORD_DELTA) to the record.
 * delta[j] times an input is the change of the weight from this input to hidden unit j. A
 * coefficient times delta is the change of a later sample's sums. These changes are added up in
 * `pending`. */

#pragma once

#if !defined CONFIGURED && !defined HIDDEN
#define HIDDEN 32 /* hidden units */
#define OUTPUTS 10 /* outputs */
#define BLOCK 8 /* records of a block */
#define REACH 16 /* number of later samples whose sums a delta changes, a multiple of 4 */
#define STRIDE 32 /* hidden units, padded */
#define PARTS 1 /* OpenCL: number of work-items that share an output's weights; CUDA: see SPLIT */
#define SHARE 32 /* OpenCL: weights of each of these work-items, a multiple of 4 */
#define HIDDEN_AT 1728 /* offset in shared memory, in floats, of the hidden units' outputs */
#define ERROR_AT 1760 /* offset of the outputs' errors, in floats */
#define PART_SUM_AT 1772 /* offset of the outputs' partial sums, in floats */
#define SUMS_AT 1784 /* offset of the outputs' sums, in floats */
#define EXPONENTIALS_AT 1796 /* offset of the softmax's exponentials, in floats */
#define ACTIVATE(z) SIGMOID(z) /* the activation of hidden units */
#define SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE, given its result a */
#define ACTIVATE_OUTPUT(z) SIGMOID(z) /* the activation of outputs */
#define OUTPUT_SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE_OUTPUT, given result a */
#define SOFTMAX 0 /* 1: the outputs are the softmax of their sums */
#endif

#include "dialect/common.h"

#ifdef POCL_DEVICE_ADDRESS_BITS
/* PoCL takes four times as long to build the kernels with unrolled loops as without */
#undef UNROLL
#define UNROLL
#endif

/* SPLIT work-items share the weights of an output, and each has PORTION weights. In CUDA, SPLIT can
 * be larger than PARTS, because there the work-items exchange partial sums without shared memory.
 *
 * KEEP_IN_REGISTER makes the compiler keep a number in a register, and with it the addresses that
 * are computed from this number. Without the macro, the compiler reads the start address of shared
 * memory again for each address, which takes 25 cycles. */
#ifdef __OPENCL_C_VERSION__
#define SPLIT PARTS
#define PORTION SHARE
#define KEEP_IN_REGISTER(number)
#else
#define SPLIT LESSER(LESSER(32 / OUTPUTS, CEIL_DIV(HIDDEN, 4)), 3)
#define PORTION PADDED(CEIL_DIV(HIDDEN, SPLIT))
#define KEEP_IN_REGISTER(number) asm volatile("" : "+r"(number));
#endif

#define PADDED(count) (CEIL_DIV(count, 4) * 4)
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define UNITS_PER_ITEM CEIL_DIV(HIDDEN, 32) /* hidden units of a work-item, 32 apart */

/* The offsets of the parts of a record, and the size of a record, in floats. */
#define RECORD_COEFFICIENT 0
#define RECORD_TARGET REACH
#define RECORD_BASE (RECORD_TARGET + PADDED(OUTPUTS))
#define RECORD_TERM (RECORD_BASE + STRIDE)
#define RECORD_DELTA (RECORD_TERM + PADDED(OUTPUTS))
#define RECORD_FACTOR (RECORD_DELTA + STRIDE)
#define RECORD (RECORD_FACTOR + 4)

/* UNPACK2 and UNPACK4 read neighbouring floats of shared memory into an array. */
#define UNPACK2(to, from)                                             \
    {                                                                 \
        float2 vector = *(const SHARED_POINTER float2 *)(from);       \
        (to)[0] = vector.x, (to)[1] = vector.y;                       \
    }
#define UNPACK4(to, from)                                             \
    {                                                                 \
        float4 vector = SHARED_LOAD4(from);                           \
        (to)[0] = vector.x, (to)[1] = vector.y;                       \
        (to)[2] = vector.z, (to)[3] = vector.w;                       \
    }

/* The registers of a work-item, which has a part of the weights of one output, and UNITS_PER_ITEM
 * hidden units. */
typedef struct {
    /* The upper layer's weights, stored twice. to_output: PORTION weights of the output, to compute
     * the output's sum. to_hidden: the weights from each hidden unit to all outputs, to compute the
     * unit's error. */
    float to_output[PORTION], to_hidden[UNITS_PER_ITEM][PADDED(OUTPUTS)];
    /* pending[u][d]: the change of unit u's sum for the d-th sample after the last one */
    float output_bias, bias[UNITS_PER_ITEM], pending[UNITS_PER_ITEM][REACH];
    /* bias_base: the biases before the previous block. This block's RECORD_BASE was computed with
     * the weights before the previous block, too. bias_start: the biases before this block. They
     * become bias_base in the next block. */
    float bias_base[UNITS_PER_ITEM], bias_start[UNITS_PER_ITEM];
    /* Values of the last sample, with which to_hidden and pending are still to be updated: the
     * changes of the outputs' biases, the deltas and outputs of the hidden units, the coefficients,
     * and the factor of the weight decay. */
    float changes[PADDED(OUTPUTS)], delta[UNITS_PER_ITEM], y[UNITS_PER_ITEM];
    float coefficient[REACH], last_keep;
    int output, part; /* the indices of the output and of the part of the output's weights */
    int origin; /* 0; it is added to addresses, to keep them in registers (KEEP_IN_REGISTER) */
} SequentialCore;

/* True if weight j of the last part is beyond the padded number of hidden units. */
#define LAST_PART_LACKS(j) (((SPLIT) - 1) * (PORTION) + (j) >= PADDED(HIDDEN))

/* Trains on the samples of a block.
 *
 * The time is the sum of the samples' latencies. While the warp waits for a result, it therefore
 * does work that this result does not need. It changes `to_output` while the errors are exchanged,
 * `to_hidden` during the next activation, and `pending` while the outputs of the hidden units are
 * exchanged.
 * Reads from shared memory on the critical path come first.
 *
 * record: the record of the first sample.
 * count: number of samples, at least one.
 * rate: learning rate.
 * keep: factor of the weight decay for one sample. */
INLINE void run_sequential_core(SHARED_POINTER float *pool, SHARED_POINTER float *record,
                                SequentialCore *core, int item, int count, float rate, float keep)
{
    SHARED_POINTER float *hidden = pool + core->origin + HIDDEN_AT;
    SHARED_POINTER float *error = pool + core->origin + ERROR_AT;
    int output = core->output, part = core->part;
    int share = part < SPLIT ? part * PORTION : 0;
    /* values of the current sample: the hidden units' sums, and the output's inputs and target */
    float sum[UNITS_PER_ITEM], in[PORTION], target = 0.0f;

/* RECORD_BASE of hidden unit item + 32 u. Work-items without such a unit read the last element. */
#define BASE(record, u) (record)[RECORD_BASE + LESSER(item + 32 * (u), STRIDE - 1)]

    if (item < 32) {
        UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++) {
            core->bias_base[u] = core->bias_start[u];
            core->bias_start[u] = core->bias[u];
            sum[u] = core->bias_base[u] + BASE(record, u)
                     + FMA(core->coefficient[0], core->delta[u], core->pending[u][1]);
        }
        target = record[RECORD_TARGET + output];
    }
    int s = 0;
    do {
        SHARED_POINTER float *following = record + (s + 1 < count ? RECORD : 0);
        float next[UNITS_PER_ITEM], next_target = 0.0f, change = 0.0f, z = 0.0f;
        if (item < 32)
            UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++) {
                float last_y = core->y[u];
                core->y[u] = ACTIVATE(sum[u]);
                if (item + 32 * u < HIDDEN)
                    hidden[item + 32 * u] = core->y[u];
                UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
                    core->to_hidden[u][k] =
                        FMA(core->changes[k], last_y, core->last_keep * core->to_hidden[u][k]);
            }
        WARP_BARRIER();
        if (item < 32) {
            float sums[4] = {part == 0 ? core->output_bias : 0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL for (int j = 0; j < PORTION; j += 4) {
                /* inputs beyond the hidden units have no effect: their weights are and stay 0 */
                UNPACK4(in + j, hidden + LESSER(share + j, PADDED(HIDDEN) - 4))
                UNROLL for (int k = 0; k < 4; k++)
                    sums[k] = FMA(core->to_output[j + k], in[j + k], sums[k]);
            }
            z = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++)
                UNROLL for (int d = 0; d < REACH - 1; d++)
                    core->pending[u][d] =
                        FMA(core->coefficient[d], core->delta[u], core->pending[u][d + 1]);
            UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++)
                next[u] = core->bias_base[u] + BASE(following, u) + core->pending[u][1];
            UNPACK4(core->coefficient, record + RECORD_COEFFICIENT)
            next_target = following[RECORD_TARGET + output];
        }
#ifndef __OPENCL_C_VERSION__
        if (SPLIT > 1) {
            /* all work-items of an output add in the same order, and so get the same sum */
            float part_sum_of_lane = z;
            z = __shfl_sync(0xffffffffu, part_sum_of_lane, output);
            UNROLL for (int p = 1; p < SPLIT; p++)
                z += __shfl_sync(0xffffffffu, part_sum_of_lane, p * OUTPUTS + output);
        }
#elif SPLIT > 1
        SHARED_POINTER float *part_sum = pool + PART_SUM_AT;
        if (item < OUTPUTS * SPLIT)
            part_sum[item] = z;
        WARP_BARRIER();
        if (item < 32) {
            z = 0.0f;
            UNROLL for (int p = 0; p < SPLIT; p++)
                z += part_sum[p * OUTPUTS + output];
        }
#endif
/* `change` is an output's error times -rate: the change of the output's bias. */
#if SOFTMAX
        SHARED_POINTER float *sums = pool + SUMS_AT, *exponentials = pool + EXPONENTIALS_AT;
        if (item < OUTPUTS)
            sums[item] = z;
        WARP_BARRIER();
        float largest = -INFINITY, exponential = 0.0f, total = 0.0f, target_sum = 0.0f;
        if (item < 32) {
            UNROLL for (int k = 0; k < OUTPUTS; k++)
                largest = MAXIMUM(sums[k], largest);
            exponential = exp(z - largest);
        }
        if (item < OUTPUTS)
            exponentials[item] = exponential;
        WARP_BARRIER();
        if (item < 32) {
            UNROLL for (int k = 0; k < OUTPUTS; k++) {
                total += exponentials[k];
                target_sum += record[RECORD_TARGET + k];
            }
            change = rate * (target - exponential / total * target_sum);
        }
#define TERM (target * (log(total) + largest - z))
#else
        float out = ACTIVATE_OUTPUT(z);
        change = FMA(-rate, out, rate * target) * OUTPUT_SLOPE(out);
#define TERM (0.5f * (out - target) * (out - target))
#endif
        if (item < OUTPUTS)
            error[item] = change;
        WARP_BARRIER();
        if (item < 32) {
            UNROLL for (int k = 0; k < OUTPUTS; k += 4)
                UNPACK4(core->changes + k, error + k)
            UNROLL for (int d = 4; d < REACH; d += 4)
                UNPACK4(core->coefficient + d, record + RECORD_COEFFICIENT + d)
            if (item < OUTPUTS)
                record[RECORD_TERM + item] = TERM;
            target = next_target;
            core->last_keep = keep;
            float last_part_change = part == SPLIT - 1 ? 0.0f : change;
            UNROLL for (int j = 0; j < PORTION; j++)
                core->to_output[j] = FMA(LAST_PART_LACKS(j) ? last_part_change : change, in[j],
                                        keep * core->to_output[j]);
            core->output_bias += change;
            UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++) {
                float partial_sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
                    partial_sums[k % 4] = FMA(core->to_hidden[u][k], core->changes[k],
                                              partial_sums[k % 4]);
                float steepness = SLOPE(core->y[u]);
                float error_sum = (partial_sums[0] + partial_sums[1])
                                  + (partial_sums[2] + partial_sums[3]);
                core->delta[u] = error_sum * steepness;
                sum[u] = FMA(core->coefficient[0] * steepness, error_sum, next[u]);
                core->bias[u] += core->delta[u];
                if (item + 32 * u < STRIDE)
                    record[RECORD_DELTA + item + 32 * u] =
                        keep == 1.0f ? core->delta[u] : core->delta[u] * record[RECORD_FACTOR];
            }
            record += RECORD;
        }
    } while (++s < count);
    for (int s = count; item < 32 && s < BLOCK; s++) {
        for (int j = item; j < STRIDE; j += 32)
            record[RECORD_DELTA + j] = 0.0f;
        record += RECORD;
    }
}

INLINE void load_sequential_core(SequentialCore *core, const GLOBAL float *biases,
                                 const GLOBAL float *upper, int item)
{
    core->output = item % OUTPUTS, core->part = item / OUTPUTS;
    core->origin = 0;
    KEEP_IN_REGISTER(core->origin)
    core->last_keep = 1.0f;
    UNROLL for (int k = 0; k < PORTION; k++) {
        int j = core->part * PORTION + k;
        core->to_output[k] =
            core->part < SPLIT && j < HIDDEN ? upper[core->output * HIDDEN + j] : 0.0f;
    }
    core->output_bias = upper[OUTPUTS * HIDDEN + core->output];
    UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
        core->changes[k] = 0.0f;
    UNROLL for (int d = 0; d < REACH; d++)
        core->coefficient[d] = 0.0f;
    UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++) {
        int j = item + 32 * u;
        UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
            core->to_hidden[u][k] = j < HIDDEN && k < OUTPUTS ? upper[k * HIDDEN + j] : 0.0f;
        core->bias[u] = j < HIDDEN ? biases[j] : 0.0f;
        core->bias_start[u] = core->bias[u];
        core->delta[u] = core->y[u] = 0.0f;
        UNROLL for (int d = 0; d < REACH; d++)
            core->pending[u][d] = 0.0f;
    }
}

INLINE void store_sequential_core(const SequentialCore *core, GLOBAL float *biases,
                                  GLOBAL float *upper, int item)
{
    UNROLL for (int k = 0; k < PORTION; k++) {
        int j = core->part * PORTION + k;
        if (core->part < SPLIT && j < HIDDEN)
            upper[core->output * HIDDEN + j] = core->to_output[k];
    }
    UNROLL for (int u = 0; u < UNITS_PER_ITEM; u++)
        if (item + 32 * u < HIDDEN)
            biases[item + 32 * u] = core->bias[u];
    if (item < OUTPUTS)
        upper[OUTPUTS * HIDDEN + item] = core->output_bias;
}
