/* Kernels with faults that tools must find. */

#include "dialect/common.h"

KERNEL void race(GLOBAL int *values)
{
    values[0] = LOCAL_ID(0);
}

KERNEL void overrun(GLOBAL int *values)
{
    values[LOCAL_ID(0)] = 1;
}

/* Two warps exchange numbers, with the barrier that this needs or without it. */
KERNEL LAUNCH_BOUNDS(64, 1) void handed_over(GLOBAL int *values)
{
    SHARED int numbers[64];
    int item = LOCAL_ID(0);
    numbers[item] = item;
#if HAS_BARRIER
    PART_BARRIER(1, 64);
#endif
    values[item] = numbers[63 - item];
}

/* Neighbours of a warp exchange numbers. Without a second barrier
 * one can overwrite its number too early. */
KERNEL LAUNCH_BOUNDS(32, 1) void not_in_step(GLOBAL int *values)
{
    SHARED int numbers[32];
    int item = LOCAL_ID(0);
    numbers[item] = item;
    WARP_BARRIER();
    int other = numbers[item ^ 1];
#if HAS_BARRIER
    WARP_BARRIER();
#endif
    numbers[item] = other;
    values[item] = other;
}

/* Only the first warp reaches a barrier for both warps. */
KERNEL LAUNCH_BOUNDS(64, 1) void left_waiting(GLOBAL int *values)
{
    int item = LOCAL_ID(0);
    if (PART(item < 32))
        PART_BARRIER(1, 64);
    values[item] = item;
}

/* Only a part of a warp takes part in a ballot. */
KERNEL LAUNCH_BOUNDS(32, 1) void torn_warp(GLOBAL int *values)
{
    VOTES(votes, 1)
    uint ballot = 0;
    int item = LOCAL_ID(0);
    if (item < 20)
        BALLOT(ballot, votes, item % 2);
    values[item] = ballot;
}

/* Half of each of two warps reaches a barrier for 32 work-items. */
KERNEL LAUNCH_BOUNDS(64, 1) void torn_part(GLOBAL int *values)
{
    int item = LOCAL_ID(0);
    if (PART(item % 32 < 16))
        PART_BARRIER(1, 32);
    values[item] = item;
}

/* All work-items reach a barrier, but not the same one. */
KERNEL LAUNCH_BOUNDS(64, 1) void two_places(GLOBAL int *values)
{
    int item = LOCAL_ID(0);
    if (item < 32)
        BARRIER();
    else
        GLOBAL_BARRIER();
    values[item] = item;
}

/* Two warps reach the same barrier with different numbers of work-items. */
KERNEL LAUNCH_BOUNDS(96, 1) void miscounted(GLOBAL int *values)
{
    int item = LOCAL_ID(0);
    if (PART(item < 64)) {
        if (item < 32)
            PART_BARRIER(1, 64);
        else
            PART_BARRIER(1, 96);
    }
    values[item] = item;
}

/* Two work-groups write to the same addresses. */
KERNEL LAUNCH_BOUNDS(32, 1) void groups_race(GLOBAL int *values)
{
    BARRIER();
    values[LOCAL_ID(0)] = GROUP_ID(0);
}

KERNEL LAUNCH_BOUNDS(32, 1) void local_overrun(GLOBAL int *values)
{
    SHARED int numbers[32];
    int item = LOCAL_ID(0);
    numbers[item + 1] = item;
    BARRIER();
    values[item] = numbers[item];
}

KERNEL LAUNCH_BOUNDS(32, 1) void dynamic_overrun(
    GLOBAL int *values DYNAMIC_SHARED_PARAMETER(int, numbers))
{
    DYNAMIC_SHARED(int, numbers)
    int item = LOCAL_ID(0);
    numbers[item + 1] = item;
    BARRIER();
    values[item] = numbers[item];
}

/* A vector of four numbers is stored at an address that is not a multiple of 16. */
KERNEL void not_aligned(GLOBAL float *values)
{
    STORE4(values + 1 + 4 * LOCAL_ID(0), MAKE4(0.0f, 1.0f, 2.0f, 3.0f));
}

KERNEL LAUNCH_BOUNDS(32, 1) void unwritten(GLOBAL int *values)
{
    SHARED int numbers[32];
    values[LOCAL_ID(0)] = numbers[LOCAL_ID(0)];
}
