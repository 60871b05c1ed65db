/* Applies an epilogue to a finished result. In memory, the result is (outer, channels, inner). */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
/* 1: the epilogue is applied to zeros, and the old result is not read */
#define OF_ZEROS 0
#define WORK_GROUP_SIZE 256 /* work-items of a work-group */
/* number of consecutive elements that a work-item computes, 1 or 4; with 4, a float32 result must
 * be aligned to 16 bytes, and a float16 result to 8 bytes */
#define VECTOR 1
#define HALVES 1 /* 1: the result and the tensor operands are 16-bit floats; 0: 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void epilogue_pass(
    GLOBAL REAL *y, int items, DIVISOR(inner), DIVISOR(channels) EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    int item = GROUP_ID(0) * WORK_GROUP_SIZE + LOCAL_ID(0);
    if (item < items) {
        int index = item * VECTOR;
        int plane = (int)QUOTIENT(index, inner);
        int channel = plane - (int)QUOTIENT(plane, channels) * channels;
#if VECTOR == 4
        float4 value = OF_ZEROS ? MAKE4(0.0f, 0.0f, 0.0f, 0.0f) : LOAD_REAL4(y, index);
        EPILOGUE4(value, channel, index)
        STORE_REAL4(y, index, value);
#else
        float value = OF_ZEROS ? 0.0f : LOAD_REAL(y, index);
        EPILOGUE(value, channel, index)
        STORE_REAL(y, index, value);
#endif
    }
}
