/* Element-wise arithmetic on elements that are gathered from several tensors.
 * gather_expression.py generates the macros below. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WORK_GROUP_SIZE 256 /* work-items of a work-group */
#define ITEMS 1 /* elements that a work-item computes */
/* the parameters: inputs x<i>, constants a<i>, and the output y */
#define PARAMETERS const GLOBAL float *x0, GLOBAL float *RESTRICT y
#define GATHER VALUE r = x0[index]; /* computes r, the element of the output at `index` */
#define STORE y[index] = r; /* stores r */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL WORK_GROUP_OF(WORK_GROUP_SIZE) void gather_expression(PARAMETERS, int count)
{
    pdl_trigger_and_wait();
    uint first = (uint)GROUP_ID(0) * (WORK_GROUP_SIZE * ITEMS) + (uint)LOCAL_ID(0);
    UNROLL
    for (int k = 0; k < ITEMS; k++) {
        uint place = first + (uint)k * WORK_GROUP_SIZE;
        if (place < (uint)count) {
            int index = (int)place;
            GATHER
            STORE
        }
    }
}
