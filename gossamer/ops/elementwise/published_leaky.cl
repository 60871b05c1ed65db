#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WORK_GROUP_SIZE 256 /* work-items of a work-group */
#endif

#include "dialect/common.h"

/* The leaky ReLU: a work-item computes one element. */
KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void leaky_relu(
    const GLOBAL float *RESTRICT x, GLOBAL float *RESTRICT y, int elements, float slope)
{
    int index = GROUP_ID(0) * WORK_GROUP_SIZE + LOCAL_ID(0);
    if (index < elements) {
        float value = x[index];
        y[index] = value >= 0.0f ? value : slope * value;
    }
}
