/* Measures the rate at which a processor computes: each work-group has one work-item, whose
 * independent chains of multiply-adds are vectors in registers. */

#include "dialect/common.h"

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define CHAINS 12
#define STEPS 16
#endif

KERNEL LAUNCH_BOUNDS(1, 1) void multiply_add_wide(GLOBAL float *result, const float factor,
                                                  const float term, const int rounds)
{
    const int item = GROUP_ID(0);
    FLOAT16 chain[CHAINS], terms, sum = ZERO16;
    float numbers[16];
    UNROLL
    for (int lane = 0; lane < 16; ++lane)
        numbers[lane] = term;
    terms = LOAD16(numbers);
    UNROLL
    for (int c = 0; c < CHAINS; ++c)
        chain[c] = FMA16((float)(item % 64 + c), terms, ZERO16);
    for (int round = 0; round < rounds; ++round) {
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            UNROLL
            for (int c = 0; c < CHAINS; ++c)
                chain[c] = FMA16(factor, chain[c], terms);
        }
    }
    UNROLL
    for (int c = 0; c < CHAINS; ++c)
        sum = FMA16(1.0f, chain[c], sum);
    STORE16(result + 16 * item, sum);
}
