/* Measures the rate at which a device computes: each work-item runs independent chains of
 * multiply-adds in registers. */

#define CHAINS 8
#define STEPS 16

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

/* The same on processors: a work-item is a work-group, and its chains are vectors. */
#define WIDE_CHAINS 12

KERNEL LAUNCH_BOUNDS(1, 1) void multiply_add_wide(GLOBAL float *result, const float factor,
                                                  const float term, const int rounds)
{
    const int item = GROUP_ID(0);
    FLOAT16 chain[WIDE_CHAINS], terms, sum = ZERO16;
    float numbers[16];
    UNROLL
    for (int lane = 0; lane < 16; ++lane)
        numbers[lane] = term;
    terms = LOAD16(numbers);
    UNROLL
    for (int c = 0; c < WIDE_CHAINS; ++c)
        chain[c] = FMA16((float)(item % 64 + c), terms, ZERO16);
    for (int round = 0; round < rounds; ++round) {
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            UNROLL
            for (int c = 0; c < WIDE_CHAINS; ++c)
                chain[c] = FMA16(factor, chain[c], terms);
        }
    }
    UNROLL
    for (int c = 0; c < WIDE_CHAINS; ++c)
        sum = FMA16(1.0f, chain[c], sum);
    STORE16(result + 16 * item, sum);
}
