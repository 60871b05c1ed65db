/* Batch norm with the mean and the variance of its own input, in two kernels. The input is (outer,
 * channels, inner) in memory, and `count` is the number of elements of a channel, outer * inner.
 *
 * The first kernel writes `statistics` (3, channels): the mean as computed in float32, the rest
 * (the exact mean minus the computed mean), and gamma divided by the standard deviation. The second
 * kernel subtracts first the mean and then the rest from x. If the mean is far from 0 and x is
 * close to the mean, x - mean is exact in float32. Subtracting the rest then gives an accurate
 * difference. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WORK_GROUP_SIZE 256 /* work-items of a work-group, a power of two */
#define STORED 0 /* 1: the new stored mean and variance are outputs, too */
#endif

#include "dialect/common.h"

/* Declares `total`: the sum of `value` over the work-items of the work-group. */
#define ADD_UP(total, value)                                                   \
    partial[item] = value;                                                     \
    BARRIER();                                                                 \
    for (int half_ = WORK_GROUP_SIZE / 2; half_ > 0; half_ /= 2) {             \
        if (item < half_)                                                      \
            partial[item] += partial[item + half_];                            \
        BARRIER();                                                             \
    }                                                                          \
    float total = partial[0];                                                  \
    BARRIER();

/* A work-group computes the mean and the variance of a channel over the whole batch. The rest is
 * the average of x - mean, which would be 0 if the mean were exact. The variance is the average of
 * the squares of x - mean, minus the square of the rest. */
KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void mean_variance(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT gamma,
    GLOBAL float *RESTRICT statistics, int channels, int count, DIVISOR(inner), float epsilon
#if STORED
    , const GLOBAL float *RESTRICT stored_mean, const GLOBAL float *RESTRICT stored_variance,
    GLOBAL float *RESTRICT new_mean, GLOBAL float *RESTRICT new_variance, float momentum,
    float share
#endif
)
{
    SHARED float partial[WORK_GROUP_SIZE];
    int item = LOCAL_ID(0), channel = GROUP_ID(0);
    const GLOBAL float *row = x + channel * inner;
    int apart = channels * inner; /* distance between images in elements */

    float sum = 0.0f;
    for (int index = item; index < count; index += WORK_GROUP_SIZE) {
        int image = (int)QUOTIENT(index, inner);
        sum += row[image * apart + (index - image * inner)];
    }
    ADD_UP(total, sum)
    float mean = total / (float)count;

    float differences = 0.0f, squares = 0.0f;
    for (int index = item; index < count; index += WORK_GROUP_SIZE) {
        int image = (int)QUOTIENT(index, inner);
        float difference = row[image * apart + (index - image * inner)] - mean;
        differences += difference;
        squares = FMA(difference, difference, squares);
    }
    ADD_UP(total_difference, differences)
    ADD_UP(total_square, squares)
    float rest = total_difference / (float)count;
    float variance = MAXIMUM(total_square / (float)count - rest * rest, 0.0f);
    if (item == 0) {
        statistics[channel] = mean;
        statistics[channels + channel] = rest;
        statistics[2 * channels + channel] = gamma[channel] / sqrt(variance + epsilon);
#if STORED
        new_mean[channel] = momentum * stored_mean[channel] + share * (mean + rest);
        new_variance[channel] = momentum * stored_variance[channel] + share * variance;
#endif
    }
}

/* A work-item normalises one element. */
KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void normalise(
    const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT y,
    const GLOBAL float *RESTRICT statistics, const GLOBAL float *RESTRICT beta, int elements,
    DIVISOR(channels), DIVISOR(inner))
{
    int index = GROUP_ID(0) * WORK_GROUP_SIZE + LOCAL_ID(0);
    if (index < elements) {
        int plane = (int)QUOTIENT(index, inner);
        int channel = plane - (int)QUOTIENT(plane, channels) * channels;
        float difference = x[index] - statistics[channel] - statistics[channels + channel];
        y[index] = FMA(difference, statistics[2 * channels + channel], beta[channel]);
    }
}
