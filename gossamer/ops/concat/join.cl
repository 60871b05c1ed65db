/* Writes tensors side by side: a row of the target consists of one row of each source, in order.
 * There are up to four sources. A row of a source has `size` elements. The first row of a tensor
 * begins at the tensor's element `first`, and each further row begins `pitch` elements later.
 *
 * `width` is the sum of the sizes, and `count` the number of elements of all sources. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ELEMENT int /* type of the elements */
#define SOURCES 2 /* number of sources, 1 to 4 */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#define SOURCE(n) \
    , const GLOBAL ELEMENT *source##n, int size##n, int first##n, int pitch##n

/* If `column` lies in source n, copies the element and returns from the kernel. Else subtracts the
 * size of source n from `column`, so that `column` is relative to the next source. */
#define FROM(n)                                                       \
    if (column < size##n) {                                           \
        target[to] = source##n[first##n + row * pitch##n + column];   \
        return;                                                       \
    }                                                                 \
    column -= size##n;

KERNEL void join(GLOBAL ELEMENT *RESTRICT target, int count, DIVISOR(width), int pitch, int first
                 SOURCE(0)
#if SOURCES > 1
                 SOURCE(1)
#endif
#if SOURCES > 2
                 SOURCE(2)
#endif
#if SOURCES > 3
                 SOURCE(3)
#endif
)
{
    pdl_trigger_and_wait();
    uint index = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (index >= (uint)count)
        return;
    int row = (int)QUOTIENT(index, width), column = (int)index - row * width;
    int to = row * pitch + first + column;
    FROM(0)
#if SOURCES > 1
    FROM(1)
#endif
#if SOURCES > 2
    FROM(2)
#endif
#if SOURCES > 3
    FROM(3)
#endif
}
