/* The skeleton of element-wise kernels; fused.py generates what differs:
 * VALUE        the type of the arithmetic
 * VECTOR       consecutive elements of the output a work-item: 1 or 4
 * PARAMETERS   operand pointers a<i>, output pointers y<i>, sizes and strides of what is walked
 * COORDINATES  the offsets o<i> of operands that are not read at the output's own index
 * LOADS        VALUE v<i>[VECTOR] of each operand
 * COMPUTE      the results r<i>[k] from v<i>[k]
 * RESULTS      declares r<i>
 * STORES       writes the results at `index` */

KERNEL void elementwise(PARAMETERS, int count)
{
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
