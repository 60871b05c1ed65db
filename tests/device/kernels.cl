#include "dialect/common.h"

KERNEL void arguments(GLOBAL float *out, int a, float b, uchar c, short d, uint e, float f,
                      GLOBAL const float *absent)
{
    out[0] = a;
    out[1] = b;
    out[2] = c;
    out[3] = d;
    out[4] = e;
    out[5] = absent ? -1.0f : f;
}

/* Writes each work-item's position, where the work-group's index counts first. */
KERNEL void positions(GLOBAL int *out)
{
    int group = (GROUP_ID(2) * GROUP_COUNT(1) + GROUP_ID(1)) * GROUP_COUNT(0) + GROUP_ID(0);
    int item = (LOCAL_ID(2) * LOCAL_SIZE(1) + LOCAL_ID(1)) * LOCAL_SIZE(0) + LOCAL_ID(0);
    int place = group * LOCAL_SIZE(0) * LOCAL_SIZE(1) * LOCAL_SIZE(2) + item;
    out[place] = place;
}

KERNEL void reverse(GLOBAL float *values, int count DYNAMIC_SHARED_PARAMETER(float, scratch))
{
    DYNAMIC_SHARED(float, scratch)
    for (int i = LOCAL_ID(0); i < count; i += LOCAL_SIZE(0))
        scratch[count - 1 - i] = values[i];
    BARRIER();
    for (int i = LOCAL_ID(0); i < count; i += LOCAL_SIZE(0))
        values[i] = scratch[i];
}
