/* The template of element-wise kernels. fused.py generates the macros below. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define VALUE float /* the type of the arithmetic */
#define VECTOR 1 /* consecutive outputs that a work-item computes, 1 or 4 */
/* the parameters: operand pointers a<i>, output pointers y<i>, sizes, and operands' offsets and
 * strides */
#define PARAMETERS const GLOBAL float *a0, GLOBAL float *y0
/* computes o<i>, the position of the element to load, for each operand that needs strides or an
 * offset */
#define COORDINATES
#define LOADS VALUE v0[VECTOR]; v0[0] = a0[index]; /* loads each operand into v<i>[VECTOR] */
#define RESULTS VALUE r0[VECTOR]; /* declares r<i> */
#define COMPUTE r0[k] = v0[k]; /* computes the results r<i>[k] from v<i>[k] */
#define STORES y0[index] = r0[0]; /* stores the results */
#endif

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
