#include "dialect/common.h"

KERNEL void self_check(GLOBAL float *values, int count)
{
    int i = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (i < count)
        values[i] = FMA(values[i], 2.0f, 1.0f);
}
