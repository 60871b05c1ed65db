/* Back-propagation with one launch per step and all data on the device. The steps of an update
 * compute the outputs of every layer and the errors of every hidden layer, and change every layer's
 * weights and biases. In the publication that per_step.py names, these are kernels 9 and 10
 * (outputs), 11 (errors), and 12 and 13 (changes).
 *
 * `units` holds the outputs of all units except the inputs, layer after layer. The dimensions of
 * `units` are [network][sample of the batch][unit]. The units' errors follow at the offset
 * `errors`, in the same order. The ids of a work-group are (unit or block of THREADS units, sample
 * of the batch, network).
 *
 * `source` is the offset of a layer's inputs among the units of a sample. A negative `source` means
 * that the inputs are in the data. `target` is the offset of the layer's units.
 *
 * Each build contains one kernel: FORWARD, SOFTMAX_ERRORS, HIDDEN_ERRORS, UPDATE or
 * COUNT_UPDATES. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define THREADS 64 /* work-items of a work-group, a power of two */
/* the kernel of this build; the others are SOFTMAX_ERRORS, HIDDEN_ERRORS, UPDATE and
 * COUNT_UPDATES */
#define FORWARD 1
#define WEIGHTED 0 /* 1: the loss and the errors of each row are multiplied by the row's weight */
#define ADAM 0 /* 1: Adam updates the parameters */
#define NEW_1 0.1f /* share of a new gradient in Adam's mean of the gradients */
#define NEW_2 0.001f /* share of a new square in Adam's mean of the squared gradients */
#define LOG_BETA_1 -0.1053605f /* logarithm of 1 - NEW_1 */
#define LOG_BETA_2 -0.0010005f /* logarithm of 1 - NEW_2 */
#define EPSILON 1e-8f /* the number that Adam adds to each square root */
#define ACTIVATE(z) SIGMOID(z) /* the activation of hidden units */
#define SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE, given its result a */
#define ACTIVATE_OUTPUT(z) SIGMOID(z) /* the activation of outputs */
#define OUTPUT_SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE_OUTPUT, given result a */
#define SOFTMAX 0 /* 1: the outputs are the softmax of their sums */
#endif

#include "dialect/common.h"

/* Writes the sum or the maximum of the values of all work-items to tree[0]. In each step,
 * neighbouring work-items access neighbouring floats. */
#define REDUCE(tree, value, COMBINE)                                       \
    tree[item] = value;                                                    \
    BARRIER();                                                             \
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {              \
        if (item < stride)                                                 \
            tree[item] = COMBINE(tree[item], tree[item + stride]);         \
        BARRIER();                                                         \
    }
#define SUM(a, b) ((a) + (b))

/* Copies the parameters from `before` to `after`. Training then changes `after` in place. `before`
 * and `after` may be the same memory. */
KERNEL void carry(const GLOBAL float *before, GLOBAL float *after, int count)
{
    int i = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (i < count)
        after[i] = before[i];
}

/* A work-group computes the output of one unit, and in the last layer also the unit's error. The
 * work-items add up the weighted inputs in a tree. */
#ifdef FORWARD
KERNEL WORK_GROUP_OF(THREADS) void forward(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT targets,
    const GLOBAL int *RESTRICT order, const GLOBAL float *RESTRICT parameters,
#if WEIGHTED
    const GLOBAL float *RESTRICT sample_weights,
#endif
    GLOBAL float *units, int samples, int first, int parameter_count, int batch, int width,
    int errors, int weights, int inputs, int source, int target, int last)
{
    SHARED float tree[THREADS];
    int item = LOCAL_ID(0), unit = GROUP_ID(0), network = GROUP_ID(2);
    int state = (network * batch + GROUP_ID(1)) * width;
    int row = order[network * samples + first + GROUP_ID(1)];
    const GLOBAL float *from = source < 0 ? x + row * inputs : units + state + source;
    const GLOBAL float *weight = parameters + network * parameter_count + weights;
    float sum = 0.0f;
    for (int i = item; i < inputs; i += THREADS)
        sum = FMA(weight[unit * inputs + i], from[i], sum);
    REDUCE(tree, sum, SUM)
    if (item == 0) {
        float z = tree[0] + weight[GROUP_COUNT(0) * inputs + unit];
        float y;
        if (last) {
            y = ACTIVATE_OUTPUT(z);
            float error = (y - targets[row * GROUP_COUNT(0) + unit]) * OUTPUT_SLOPE(y);
#if WEIGHTED
            error *= sample_weights[row];
#endif
            units[errors + state + target + unit] = error;
        } else {
            y = ACTIVATE(z);
        }
        units[state + target + unit] = y;
    }
}
#endif

#ifdef SOFTMAX_ERRORS
/* Computes the errors and the losses of the softmax from the last layer's sums. Each work-group
 * processes one sample. */
KERNEL WORK_GROUP_OF(THREADS) void softmax_errors(
    const GLOBAL float *RESTRICT targets, const GLOBAL int *RESTRICT order, GLOBAL float *units,
    GLOBAL float *RESTRICT losses, int samples, int first, int batch, int width, int errors,
    int outputs, int target)
{
    SHARED float tree[THREADS];
    int item = LOCAL_ID(0), network = GROUP_ID(2);
    int sample = network * samples + first + GROUP_ID(1);
    GLOBAL float *z = units + (network * batch + GROUP_ID(1)) * width + target;
    const GLOBAL float *t = targets + order[sample] * outputs;
    float largest = -INFINITY, sum = 0.0f, wanted = 0.0f, loss = 0.0f;
    for (int k = item; k < outputs; k += THREADS)
        largest = MAXIMUM(z[k], largest);
    REDUCE(tree, largest, MAXIMUM)
    largest = tree[0];
    BARRIER();
    for (int k = item; k < outputs; k += THREADS) {
        sum += exp(z[k] - largest);
        wanted += t[k];
    }
    REDUCE(tree, sum, SUM)
    sum = tree[0];
    BARRIER();
    REDUCE(tree, wanted, SUM)
    wanted = tree[0];
    BARRIER();
    for (int k = item; k < outputs; k += THREADS) {
        z[errors + k] = exp(z[k] - largest) / sum * wanted - t[k];
        loss += t[k] * (log(sum) + largest - z[k]);
    }
    REDUCE(tree, loss, SUM)
    if (item == 0)
        losses[sample] = tree[0];
}

#endif

/* A work-item computes the error of one hidden unit. */
#ifdef HIDDEN_ERRORS
KERNEL WORK_GROUP_OF(THREADS) void hidden_errors(
    const GLOBAL float *RESTRICT parameters, GLOBAL float *units, int parameter_count, int batch,
    int width, int errors, int weights, int inputs, int outputs, int source, int target)
{
    int i = GROUP_ID(0) * THREADS + LOCAL_ID(0), network = GROUP_ID(2);
    GLOBAL float *state = units + (network * batch + GROUP_ID(1)) * width;
    const GLOBAL float *weight = parameters + network * parameter_count + weights;
    if (i < inputs) {
        float sum = 0.0f;
        for (int k = 0; k < outputs; k++)
            sum = FMA(state[errors + target + k], weight[k * inputs + i], sum);
        state[errors + source + i] = sum * SLOPE(state[source + i]);
    }
}
#endif

/* A work-item changes one weight; the ids of its work-group are (unit, block of THREADS inputs,
 * network). A bias is the weight of an additional input, which is always 1.
 *
 * velocities: the offset from a parameter to its velocity, or 0 without velocities. With Adam, the
 * mean of a parameter's gradients is at this offset from the parameter, and the mean of the
 * squared gradients is at twice this offset. With Adam, the last parameter of a network is the
 * number of updates before this call.
 * made: number of updates in this call so far.
 * add_losses: 1 if the first work-group of each network writes the samples' losses. */
#ifdef UPDATE
KERNEL WORK_GROUP_OF(THREADS) void update(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT targets,
    const GLOBAL int *RESTRICT order, const GLOBAL float *RESTRICT settings,
    GLOBAL float *RESTRICT parameters,
#if WEIGHTED
    const GLOBAL float *RESTRICT sample_weights,
#endif
    const GLOBAL float *RESTRICT units, GLOBAL float *RESTRICT losses, int samples, int first,
    int count, int parameter_count, int batch, int width, int errors, int weights, int inputs,
    int source, int target, int velocities, int made, int add_losses)
{
    SHARED float tree[THREADS];
    int item = LOCAL_ID(0), unit = GROUP_ID(0), outputs = GROUP_COUNT(0), network = GROUP_ID(2);
    int i = GROUP_ID(1) * THREADS + item;
    const GLOBAL int *rows = order + network * samples + first;
    const GLOBAL float *state = units + network * batch * width;
    float rate = settings[network * 3], decay = settings[network * 3 + 2];
#if !ADAM
    float momentum = settings[network * 3 + 1];
#endif
    if (add_losses && unit == 0 && GROUP_ID(1) == 0)
        for (int b = 0; b < count; b++) {
            float loss = 0.0f;
            for (int k = item; k < outputs; k += THREADS) {
                float off = targets[rows[b] * outputs + k] - state[b * width + target + k];
                loss = FMA(0.5f * off, off, loss);
            }
            REDUCE(tree, loss, SUM)
#if WEIGHTED
            if (item == 0)
                tree[0] *= sample_weights[rows[b]];
#endif
            if (item == 0)
                losses[network * samples + first + b] = tree[0];
            BARRIER();
        }
    if (i <= inputs) {
        float gradient = 0.0f;
        for (int b = 0; b < count; b++) {
            float input = i == inputs  ? 1.0f
                          : source < 0 ? x[rows[b] * inputs + i]
                                       : state[b * width + source + i];
            gradient = FMA(state[errors + b * width + target + unit], input, gradient);
        }
        int slot = network * parameter_count + weights
                    + (i < inputs ? unit * inputs + i : outputs * inputs + unit);
        float weight = parameters[slot];
        float change = gradient / (float)count + (i < inputs ? decay * weight : 0.0f);
#if ADAM
        float updates = parameters[(network + 1) * parameter_count - 1] + (float)(made + 1);
        float mean = parameters[slot + velocities], square = parameters[slot + 2 * velocities];
        mean = FMA(NEW_1, change - mean, mean);
        square = FMA(NEW_2, FMA(change, change, -square), square);
        parameters[slot + velocities] = mean;
        parameters[slot + 2 * velocities] = square;
        /* expm1 gives 1 - beta^n without the cancellation of a subtraction */
        rate *= sqrt(-expm1(updates * LOG_BETA_2)) / -expm1(updates * LOG_BETA_1);
        change = mean / (sqrt(square) + EPSILON);
#else
        if (velocities) {
            change = FMA(momentum, parameters[slot + velocities], change);
            parameters[slot + velocities] = change;
        }
#endif
        parameters[slot] = FMA(-rate, change, weight);
    }
}
#endif

/* Adds a call's number of updates to Adam's count, the last parameter of each network. */
#ifdef COUNT_UPDATES
KERNEL void count_updates(GLOBAL float *parameters, int parameter_count, int updates)
{
    if (LOCAL_ID(0) == 0)
        parameters[(GROUP_ID(2) + 1) * parameter_count - 1] += (float)updates;
}
#endif
