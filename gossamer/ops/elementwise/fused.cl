/* The frame of element-wise kernels. fused.py generates these macros:
 * VALUE        the type of the arithmetic
 * VECTOR       number of consecutive outputs that a work-item computes, 1 or 4
 * PARAMETERS   operand pointers a<i>, output pointers y<i>, sizes, and strides of operands
 * COORDINATES  computes offsets o<i> of operands that lie otherwise than the output
 * LOADS        loads each operand to VALUE v<i>[VECTOR]
 * COMPUTE      computes the results r<i>[k] from v<i>[k]
 * RESULTS      declares r<i>
 * STORES       writes the results at `index` */

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL void elementwise(PARAMETERS, int count)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        uint index = item * VECTOR;
        COORDINATES
        LOADS
        RESULTS
        UNROLL
        for (int k = 0; k < VECTOR; k++) {
            COMPUTE
        }
        STORES
    }
}
