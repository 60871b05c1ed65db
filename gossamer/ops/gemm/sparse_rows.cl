/* A matrix product of ROWS rows with weights in CSR. Each work-group computes one column of the
 * result. The nonzero weights of the column are distributed round-robin among the work-items. The
 * kernel is memory-bound. It reads each nonzero weight, and the weight's index along the depth
 * (`place`), only once. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ROWS 1 /* rows of the product */
#define WORK_GROUP_SIZE 128 /* work-items of a work-group, a power of two */
#define INDEX int /* type of the indices along the depth */
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"
#include "ops/gemm/add_up.h"

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void sparse_rows(
    const GLOBAL REAL *x, const GLOBAL int *RESTRICT starts,
    const GLOBAL INDEX *RESTRICT places, const GLOBAL float *RESTRICT values,
    GLOBAL REAL *RESTRICT y, int columns, int depth EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED float partial[ROWS * WORK_GROUP_SIZE];
    int item = LOCAL_ID(0);
    int channel = GROUP_ID(0);

    float sum[ROWS];
    UNROLL for (int row = 0; row < ROWS; row++)
        sum[row] = 0.0f;
    int end = starts[channel + 1];
    for (int j = starts[channel] + item; j < end; j += WORK_GROUP_SIZE) {
        float value = values[j];
        int place = places[j];
        UNROLL for (int row = 0; row < ROWS; row++)
            sum[row] = FMA(value, LOAD_REAL(x, row * depth + place), sum[row]);
    }
    add_up(partial, sum, item);
    if (item < ROWS) {
        float value = partial[item * WORK_GROUP_SIZE];
        int index = item * columns + channel;
        EPILOGUE(value, channel, index)
        STORE_REAL(y, index, value);
    }
}
