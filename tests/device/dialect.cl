/* Uses every macro of the dialect once. */

#include "dialect/common.h"

CONSTANT_TABLE float weights[4] = {1.0f, 2.0f, 3.0f, 4.0f};

INLINE float weigh(int index, float value)
{
    return weights[index % 4] * value;
}

INLINE float total(SHARED_POINTER const float *values, int count)
{
    float sum = ZERO;
    UNROLL
    for (int i = 0; i < 4; ++i)
        if (i < count)
            sum += values[i];
    return sum;
}

/* Each work-group reverses its 64 numbers and weights them; work-item 0 also writes a report. */
KERNEL LAUNCH_BOUNDS(64, 1)
void every_word(GLOBAL const float *RESTRICT in, GLOBAL float *RESTRICT out,
                GLOBAL uint *report, int count, float scale
                DYNAMIC_SHARED_PARAMETER(float4, scratch4))
{
    DYNAMIC_SHARED(float4, scratch4)
    SHARED_POINTER float *scratch = (SHARED_POINTER float *)scratch4;
    SHARED ALIGNED(16) float tile[64];
    SHARED uint votes;
    int item = LOCAL_ID(0);
    int first = GROUP_ID(0) * LOCAL_SIZE(0);

    if (item == 0)
        votes = 0;
    if (item < 16) {
        float4 four = LOAD4(in + first + 4 * item);
        SHARED_STORE4(tile + 4 * item, MAKE4(four.w, four.z, four.y, four.x));
    }
    BARRIER();
    scratch[63 - item] = FMA(tile[item ^ 3], scale, ZERO);
    if (item % 3 == 0 && item < 32)
        ATOMIC_OR(&votes, 1u << item);
    BARRIER();
    if (item < 16) {
        float4 four = SHARED_LOAD4(scratch + 4 * item);
        four.x = weigh(0, four.x);
        four.y = weigh(1, four.y);
        four.z = weigh(2, four.z);
        four.w = weigh(3, four.w);
        if (first + 4 * item + 3 < count)
            STORE4(out + first + 4 * item, four);
    }
    if (item == 0) {
        GLOBAL uint *mine = report + 4 * GROUP_ID(0);
        mine[0] = POPCOUNT(votes);
        mine[1] = (uint)GROUP_COUNT(0) + CEIL_DIV(count, 64);
        mine[2] = (uint)total(tile, 2);
        mine[3] = (uint)MAXIMUM(3.0f, MINIMUM(SIGMOID(0.0f), ONE));
    }
}

/* Doubles 16-bit floats. */
KERNEL void double_halves(GLOBAL const HALF *RESTRICT in, GLOBAL HALF *RESTRICT out, int count)
{
    int i = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (i < count)
        STORE_HALF(out, i, 2.0f * LOAD_HALF(in, i));
}

/* Doubles 16-bit or 32-bit floats, four at a time; those from index `count` on become 0. */
KERNEL void double_reals(GLOBAL const REAL *RESTRICT in, GLOBAL REAL *RESTRICT out, int count,
                         int size)
{
    int i = 4 * (GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0));
    if (i < size) {
        FETCHED_REAL4 fetched = ZERO_REAL4;
        FETCHED_REAL first = 0;
        if (i < count) {
            fetched = FETCH_REAL4(in, i);
            first = FETCH_REAL(in, i);
        }
        float4 value = REAL_VALUE4(fetched);
        STORE_REAL4(out, i, MAKE4(value.x + REAL_VALUE(first), 2.0f * value.y, 2.0f * value.z,
                                  value.w));
        value = LOAD_REAL4(out, i);
        STORE_REAL(out, i + 3, value.w + LOAD_REAL(out, i + 3));
    }
}

/* In a work-group of 96, the first warp and the two others reverse their numbers separately. */
KERNEL LAUNCH_BOUNDS(96, 1)
void parts(GLOBAL const float *RESTRICT in, GLOBAL float *RESTRICT out, GLOBAL uint *ballots)
{
    SHARED float numbers[96];
    VOTES(votes, 3)
    int item = LOCAL_ID(0);
    float mine = 0.0f;
    uint ballot;
    numbers[item] = in[item];
    BARRIER();
    if (PART(item < 32)) {
        for (int turn = 0; turn < 3; turn++) {
            if (item < 32)
                mine = numbers[31 - item];
            WARP_BARRIER();
            if (item < 32)
                numbers[item] = 2.0f * mine;
            WARP_BARRIER();
        }
    }
    if (PART(item >= 32)) {
        if (item >= 32)
            mine = numbers[127 - item];
        PART_BARRIER(1, 64);
        if (item >= 32)
            numbers[item] = SIGMOID(mine);
    }
    BARRIER();
    out[item] = numbers[item ^ 1];
    GLOBAL_BARRIER();
    BALLOT(ballot, votes, out[item ^ 1] > 0.75f);
    ballots[item] = ballot;
}

/* Each warp votes on each of three limits; counts gets the ones of 64 bits. */
KERNEL LAUNCH_BOUNDS(64, 1)
void voted(GLOBAL const float *RESTRICT in, GLOBAL uint *votes, GLOBAL int *counts)
{
    SHARED uint words[6];
    int item = LOCAL_ID(0);
    if (item < 6)
        words[item] = 0;
    BARRIER();
    for (int limit = 0; limit < 3; limit++)
        VOTE_OR(words, item / 32 * 3 + limit, in[item] > (float)limit);
    BARRIER();
    if (item < 6)
        votes[item] = words[item];
    counts[item] = (int)POPCOUNT64(((ulong)words[item % 6] << 32) + 5);
}

/* The larger of two numbers, then the smaller one. */
KERNEL void ordered(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *out, int count)
{
    int i = LOCAL_ID(0);
    if (i < count) {
        out[i] = MAXIMUM(a[i], b[i]);
        out[count + i] = MINIMUM(a[i], b[i]);
    }
}

/* Adds the product of two float4 to a third one, and then a multiple of the first one. */
KERNEL void add_products(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *sums)
{
    float4 sum = LOAD4(sums), left = LOAD4(a);
    ADD_PRODUCT4(sum, left, LOAD4(b));
    ADD_SCALED4(sum, b[1], left);
    STORE4(sums, sum);
}
