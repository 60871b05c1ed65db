/* Computes output[outer, i, inner] = data[outer, indices[i], inner]. Negative indices count from
 * the end; out-of-range indices take the nearest slice. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ELEMENT float /* type of the elements */
#define INDEX int /* type of the indices */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL void gather(const GLOBAL ELEMENT *RESTRICT data, const GLOBAL INDEX *RESTRICT indices,
                   GLOBAL ELEMENT *RESTRICT target, int count, int length,
                   DIVISOR(taken), DIVISOR(inner))
{
    pdl_trigger_and_wait();
    uint index = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (index < (uint)count) {
        uint slice = QUOTIENT(index, inner);
        int i = (int)(index - slice * (uint)inner);
        int outer = (int)QUOTIENT(slice, taken);
        INDEX place = indices[slice - (uint)(outer * taken)];
        place = place < 0 ? place + length : place;
        place = place < 0 ? 0 : place >= length ? length - 1 : place;
        target[index] = data[(outer * length + (int)place) * inner + i];
    }
}
