/* Computes output[outer, i, inner] = data[outer, indices[i], inner]. Negative indices count from
 * the end; indices out of range are clamped. `length` is the size of the axis of `data`, and
 * `taken` is the number of indices.
 *
 * The output consists of rows of `row` elements. The first row begins at the element `first`. The
 * starts of consecutive rows are `pitch` elements apart. There are several rows if the output is a
 * slice of the channels of a larger tensor.
 *
 * PAIRED: may be defined for elements of 16 bits with inner == 1 and an even number of indices.
 *     Each work-item copies two neighbouring elements of the output; `count`, `row`, `first` and
 *     `pitch` are in units of two elements. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ELEMENT float /* type of the elements */
#define INDEX int /* type of the indices */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#define ROW_PARAMETERS DIVISOR(row), int first, int pitch

/* The offset in `target` of the output element `index`. */
#define TARGET(index) ((uint)first + QUOTIENT(index, row) * (uint)(pitch - row) + (index))

/* Returns the number of the slice that an index selects, from 0 to length - 1. Negative indices
 * count from the end; indices out of range are clamped. */
INLINE int place_of(INDEX place, int length)
{
    place = place < 0 ? place + length : place;
    return place < 0 ? 0 : place >= length ? length - 1 : (int)place;
}

#ifdef PAIRED
KERNEL void gather(const GLOBAL ELEMENT *data, const GLOBAL INDEX *indices,
                   GLOBAL uint *RESTRICT target, int count, int length,
                   DIVISOR(taken), DIVISOR(inner), ROW_PARAMETERS)
{
    pdl_trigger_and_wait();
    uint index = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (index < (uint)count) {
        int outer = (int)QUOTIENT(2 * index, taken);
        const GLOBAL INDEX *pair = indices + (2 * index - (uint)(outer * taken));
        const GLOBAL ELEMENT *source = data + outer * length;
        target[TARGET(index)] = (uint)source[place_of(pair[0], length)]
                                | (uint)source[place_of(pair[1], length)] << 16;
    }
}
#else
KERNEL void gather(const GLOBAL ELEMENT *data, const GLOBAL INDEX *indices,
                   GLOBAL ELEMENT *RESTRICT target, int count, int length,
                   DIVISOR(taken), DIVISOR(inner), ROW_PARAMETERS)
{
    pdl_trigger_and_wait();
    uint index = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (index < (uint)count) {
        uint slice = QUOTIENT(index, inner);
        int i = (int)(index - slice * (uint)inner);
        int outer = (int)QUOTIENT(slice, taken);
        int place = place_of(indices[slice - (uint)(outer * taken)], length);
        target[TARGET(index)] = data[(outer * length + place) * inner + i];
    }
}
#endif
