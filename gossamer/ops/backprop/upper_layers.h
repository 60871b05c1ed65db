/* The upper layers of a network and the biases of its first layer, in the shared memory of one
 * work-group. The functions compute the units' outputs and errors for a sample, and change weights
 * and biases.
 *
 * Layer l has sizes[l] inputs and sizes[l + 1] units. The weights of layers l >= 1 are stored input
 * by input: a row has the weights of one input. Rows of weights, and a sample's outputs and errors,
 * are padded with zeros to multiples of 4. One more float per row of weights makes the row's length
 * odd, so that work-items access the weights along and across rows without bank conflicts. */

#pragma once

#if !defined CONFIGURED && !defined LAYERS
#define LAYERS 2 /* layers of weights */
#define SIZES 64, 32, 10 /* units of each layer, inputs first */
#define OUTPUTS 10 /* units of the last layer */
#define WIDTH 44 /* units of a sample, padded; it is also the offset from a bias to its velocity */
#define VELOCITY 0 /* 1: momentum is used */
#define UNIT_AT 0, 32 /* for each layer, the offset of its units among the units of a sample */
/* for each layer l >= 1, the offset of its weights in shared memory, in floats */
#define WEIGHT_AT 0, 512
/* for each layer, the offset of its parameters among the network's parameters; the last element is
 * the number of parameters of the network */
#define PARAMETER_AT 0, 2080, 2410
/* offset in shared memory, in floats, of the units' outputs; consecutive samples use two buffers */
#define OUT_AT 0
#define ERROR_AT 88 /* offset of the units' errors, likewise, in floats */
#define TERM_AT 88 /* offset of the terms of the losses, in floats */
#define TARGET_AT 100 /* offset of the targets of two samples, in floats */
#define EXPONENTIAL_AT 124 /* offset of the softmax's exponentials, in floats */
#define PARTIAL_AT 136 /* offset of partial sums, in floats */
#define BIAS_AT 264 /* offset of the biases, in floats */
#define UPPER_VELOCITY 416 /* offset from a weight to its velocity, in floats */
#define THREADS 128 /* work-items of the work-group */
/* 1: no layer has more than 32 units. One warp then computes the upper layers' outputs and errors,
 * and the other warps only wait for the end of this work. */
#define NARROW 1
#define ACTIVATE(z) SIGMOID(z) /* the activation of hidden units */
#define SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE, given its result a */
#define ACTIVATE_OUTPUT(z) SIGMOID(z) /* the activation of outputs */
#define OUTPUT_SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE_OUTPUT, given result a */
#define SOFTMAX 0 /* 1: the outputs are the softmax of their sums */
#endif

#include "dialect/common.h"

CONSTANT_TABLE int sizes[] = {SIZES};
CONSTANT_TABLE int unit_at[] = {UNIT_AT};
CONSTANT_TABLE int weight_at[] = {WEIGHT_AT};
CONSTANT_TABLE int parameter_at[] = {PARAMETER_AT};

#define PADDED(count) (CEIL_DIV(count, 4) * 4)
#define ROW(units) (PADDED(units) + 1)
#define PARAMETERS (parameter_at[LAYERS])
#define AT_LEAST_1(n) ((n) > 1 ? (n) : 1)
#define LESSER(a, b) ((a) < (b) ? (a) : (b))

#if NARROW
#define UPPER_BARRIER() WARP_BARRIER()
#define SPLITS_OF(inputs, units) 1
#else
#define UPPER_BARRIER() BARRIER()
#define SPLITS_OF(inputs, units) AT_LEAST_1(LESSER(THREADS / (units), CEIL_DIV(inputs, 16)))
#endif

/* Whether a work-item fetches the next sample. If NARROW is 1, only the warps without work in the
 * upper layers fetch, unless there is only one warp. */
#define IS_FETCHER (item >= FIRST_FETCHER)
#define FIRST_FETCHER (NARROW && THREADS > 32 ? 32 : 0)
#define FETCHERS (THREADS - FIRST_FETCHER)

/* Changes a parameter by its gradient and by weight decay. */
#if VELOCITY
#define APPLY(parameter, velocity, gradient, decay)                                  \
    {                                                                                \
        (velocity) = FMA(momentum, velocity, FMA(decay, parameter, gradient));       \
        (parameter) = FMA(-rate, velocity, parameter);                               \
    }
#else
#define APPLY(parameter, velocity, gradient, decay)                                  \
    (parameter) = FMA(-rate, gradient, (1.0f - rate * (decay)) * (parameter));
#endif

/* Input and unit of weight n of layer l, and the weight's offsets in shared and global memory. */
#define UPPER_I (n / sizes[l + 1])
#define UPPER_J (n % sizes[l + 1])
#define UPPER_SHARED_AT (weight_at[l] + UPPER_I * ROW(sizes[l + 1]) + UPPER_J)
#define UPPER_GLOBAL_AT (parameter_at[l] + UPPER_J * sizes[l] + UPPER_I)
/* Offsets of bias j of layer l in shared and in global memory. */
#define BIAS_SHARED_AT (BIAS_AT + unit_at[l] + j)
#define BIAS_GLOBAL_AT (parameter_at[l] + sizes[l] * sizes[l + 1] + j)

/* Returns the sum of weight[i * row] * in[i] over groups of four inputs i: groups start, start +
 * step, start + 2 * step, ... below `fours`. */
INLINE float weighted(SHARED_POINTER const float *weight, SHARED_POINTER const float *in, int fours,
                      int start, int step, int row)
{
    float4 sum = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int n = start; n < fours; n += step) {
        float4 four = SHARED_LOAD4(in + 4 * n);
        sum.x = FMA(weight[(4 * n) * row], four.x, sum.x);
        sum.y = FMA(weight[(4 * n + 1) * row], four.y, sum.y);
        sum.z = FMA(weight[(4 * n + 2) * row], four.z, sum.z);
        sum.w = FMA(weight[(4 * n + 3) * row], four.w, sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

INLINE void load_upper_layers(SHARED_POINTER float *pool, const GLOBAL float *before, int item)
{
    UNROLL for (int l = 0; l < LAYERS; l++) {
        for (int n = item; l > 0 && n < sizes[l] * sizes[l + 1]; n += THREADS) {
            pool[UPPER_SHARED_AT] = before[UPPER_GLOBAL_AT];
            if (VELOCITY)
                pool[UPPER_SHARED_AT + UPPER_VELOCITY] = before[PARAMETERS + UPPER_GLOBAL_AT];
        }
        for (int j = item; j < sizes[l + 1]; j += THREADS) {
            pool[BIAS_SHARED_AT] = before[BIAS_GLOBAL_AT];
            if (VELOCITY)
                pool[BIAS_SHARED_AT + WIDTH] = before[PARAMETERS + BIAS_GLOBAL_AT];
        }
    }
}

INLINE void store_upper_layers(SHARED_POINTER const float *pool, GLOBAL float *after, int item)
{
    UNROLL for (int l = 0; l < LAYERS; l++) {
        for (int n = item; l > 0 && n < sizes[l] * sizes[l + 1]; n += THREADS) {
            after[UPPER_GLOBAL_AT] = pool[UPPER_SHARED_AT];
            if (VELOCITY)
                after[PARAMETERS + UPPER_GLOBAL_AT] = pool[UPPER_SHARED_AT + UPPER_VELOCITY];
        }
        for (int j = item; j < sizes[l + 1]; j += THREADS) {
            after[BIAS_GLOBAL_AT] = pool[BIAS_SHARED_AT];
            if (VELOCITY)
                after[PARAMETERS + BIAS_GLOBAL_AT] = pool[BIAS_SHARED_AT + WIDTH];
        }
    }
}

/* Stores the output of unit j of layer l for a sample. In the last layer, also stores the unit's
 * error, and the unit's term of the loss.
 *
 * z: the unit's sum.
 * buffer: index of the sample's buffer, 0 or 1. */
INLINE void store_output(SHARED_POINTER float *pool, int l, int j, float z, int buffer)
{
    int unit = buffer * WIDTH + unit_at[l] + j;
    if (l < LAYERS - 1) {
        pool[OUT_AT + unit] = ACTIVATE(z);
    } else {
        float y = ACTIVATE_OUTPUT(z);
        float difference = y - pool[TARGET_AT + buffer * PADDED(OUTPUTS) + j];
        pool[OUT_AT + unit] = y;
        pool[ERROR_AT + unit] = difference * OUTPUT_SLOPE(y);
        pool[TERM_AT + buffer * PADDED(OUTPUTS) + j] = 0.5f * difference * difference;
    }
}

/* Computes the outputs and errors of the upper layers, and the errors of the first layer's units,
 * from the outputs of the first layer's units. Each step begins with a barrier: a warp barrier if
 * NARROW is 1, else a barrier of the work-group. The caller must place a barrier of the work-group
 * after the call. */
INLINE void backpropagate_upper_layers(SHARED_POINTER float *pool, int item, int buffer)
{
    SHARED_POINTER float *out = pool + OUT_AT + buffer * WIDTH;
    SHARED_POINTER float *error = pool + ERROR_AT + buffer * WIDTH;
    UNROLL for (int l = 1; l < LAYERS; l++) {
        int units = sizes[l + 1], fours = CEIL_DIV(sizes[l], 4), row = ROW(units);
        int splits = SPLITS_OF(sizes[l], units);
        SHARED_POINTER const float *weight = pool + weight_at[l], *in = out + unit_at[l - 1];
        UPPER_BARRIER();
#if !NARROW
        if (splits > 1)
            for (int n = item; n < units * splits; n += THREADS)
                pool[PARTIAL_AT + n] = weighted(weight + n % units, in, fours, n / units, splits,
                                                row);
        BARRIER();
#endif
        for (int j = item; j < units; j += THREADS) {
            float z = pool[BIAS_SHARED_AT];
            if (splits > 1)
                for (int s = 0; s < splits; s++)
                    z += pool[PARTIAL_AT + s * units + j];
            else
                z += weighted(weight + j, in, fours, 0, 1, row);
            store_output(pool, l, j, z, buffer);
        }
    }
#if SOFTMAX
    SHARED_POINTER const float *z = out + unit_at[LAYERS - 1];
    SHARED_POINTER const float *target = pool + TARGET_AT + buffer * PADDED(OUTPUTS);
    float largest = -INFINITY;
    UPPER_BARRIER();
    for (int k = 0; item < OUTPUTS && k < OUTPUTS; k++)
        largest = MAXIMUM(z[k], largest);
    for (int j = item; j < OUTPUTS; j += THREADS)
        pool[EXPONENTIAL_AT + j] = exp(z[j] - largest);
    UPPER_BARRIER();
    for (int j = item; j < OUTPUTS; j += THREADS) {
        float sum = 0.0f, target_sum = 0.0f;
        for (int k = 0; k < OUTPUTS; k++) {
            sum += pool[EXPONENTIAL_AT + k];
            target_sum += target[k];
        }
        error[unit_at[LAYERS - 1] + j] = pool[EXPONENTIAL_AT + j] / sum * target_sum - target[j];
        pool[TERM_AT + buffer * PADDED(OUTPUTS) + j] = target[j] * (log(sum) + largest - z[j]);
    }
#endif
    UNROLL for (int l = LAYERS - 1; l >= 1; l--) {
        UPPER_BARRIER();
        for (int i = item; i < sizes[l]; i += THREADS) {
            float y = out[unit_at[l - 1] + i];
            error[unit_at[l - 1] + i] =
                SLOPE(y) * weighted(pool + weight_at[l] + i * ROW(sizes[l + 1]),
                                    error + unit_at[l], CEIL_DIV(sizes[l + 1], 4), 0, 1, 1);
        }
    }
}

/* Changes weights and biases by the sample in a buffer, and writes its loss. */
INLINE void update_upper_layers(SHARED_POINTER float *pool, GLOBAL float *loss, int item,
                                int buffer, float rate, float momentum, float decay)
{
    SHARED_POINTER const float *out = pool + OUT_AT + buffer * WIDTH;
    SHARED_POINTER const float *error = pool + ERROR_AT + buffer * WIDTH;
    if (item == THREADS - 1) {
        float sum = 0.0f;
        for (int k = 0; k < OUTPUTS; k++)
            sum += pool[TERM_AT + buffer * PADDED(OUTPUTS) + k];
        *loss = sum;
    }
    UNROLL for (int l = 1; l < LAYERS; l++) {
        /* a work-item changes the weights of one unit, for every `splits`th group of four inputs */
        int units = sizes[l + 1], fours = CEIL_DIV(sizes[l], 4), row = ROW(units);
        int splits = AT_LEAST_1(LESSER(THREADS / units, fours));
        for (int n = item; n < units * splits; n += THREADS) {
            float unit_error = error[unit_at[l] + n % units];
            for (int i = n / units * 4; i < 4 * fours; i += 4 * splits) {
                SHARED_POINTER float *weight = pool + weight_at[l] + i * row + n % units;
                float4 four = SHARED_LOAD4(out + unit_at[l - 1] + i);
                float value[4] = {four.x, four.y, four.z, four.w};
                UNROLL for (int k = 0; k < 4; k++)
                    APPLY(weight[k * row], weight[k * row + UPPER_VELOCITY],
                          unit_error * value[k], decay)
            }
        }
    }
    UNROLL for (int l = 0; l < LAYERS; l++)
        for (int j = item; j < sizes[l + 1]; j += THREADS)
            APPLY(pool[BIAS_SHARED_AT], pool[BIAS_SHARED_AT + WIDTH], error[unit_at[l] + j], 0.0f)
}
