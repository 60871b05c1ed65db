/* Measures the rate at which a device computes: each work-item runs independent chains of
 * multiply-adds in registers. */

#include "dialect/common.h"

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define CHAINS 8
#define STEPS 16
#endif

KERNEL void multiply_add(GLOBAL float *result, const float factor, const float term,
                         const int rounds)
{
    const int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    float chain[CHAINS];
    UNROLL
    for (int c = 0; c < CHAINS; ++c)
        chain[c] = (float)(item % 64 + c);
    for (int round = 0; round < rounds; ++round) {
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            UNROLL
            for (int c = 0; c < CHAINS; ++c)
                chain[c] = FMA(chain[c], factor, term);
        }
    }
    float sum = 0.0f;
    UNROLL
    for (int c = 0; c < CHAINS; ++c)
        sum += chain[c];
    result[item] = sum;
}
