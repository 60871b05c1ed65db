/* Padding of up to six dimensions, outermost first. Each dimension has four parameters: the size n
 * of the output, the size m of the input, the stride s of the input in elements, and the number
 * `before` of elements that are added before the input. If `before` is negative, the input is
 * cropped. The output is contiguous.
 *
 * CONSTANT, REFLECT or EDGE is defined, and determines how the pads are filled. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ELEMENT int /* type of the elements */
#define RANK 4 /* number of dimensions, 2, 4 or 6: the last RANK of the dimensions 0 to 5 */
#define CONSTANT 1 /* the pads are filled with the parameter `value` */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#define DIMENSION(d) , DIVISOR(n##d), int m##d, int s##d, int before##d

/* Converts i, the output index minus `before`, to the index of the input element that is copied.
 * With CONSTANT, i is not changed, and `inside` becomes 0 if there is no such element. */
#if defined(CONSTANT)
#define LOOK(i, m) inside = inside && i >= 0 && i < m;
#elif defined(REFLECT)
#define LOOK(i, m) i = i < 0 ? -i : i; i = i >= m ? 2 * (m - 1) - i : i;
#else
#define LOOK(i, m) i = i < 0 ? 0 : i >= m ? m - 1 : i;
#endif

/* Divides `rest` by the output size of dimension d. The remainder is the output index along d.
 * Advances `from` to the matching input element along d. */
#define WALK(d) { \
    uint next = QUOTIENT(rest, n##d); \
    int i = (int)(rest - next * (uint)n##d) - before##d; \
    rest = next; \
    LOOK(i, m##d) \
    from += i * s##d; \
}

KERNEL void pad(const GLOBAL ELEMENT *source, GLOBAL ELEMENT *RESTRICT target, int count
#ifdef CONSTANT
                , ELEMENT value
#endif
#if RANK > 4
                DIMENSION(0) DIMENSION(1)
#endif
#if RANK > 2
                DIMENSION(2) DIMENSION(3)
#endif
                DIMENSION(4) DIMENSION(5))
{
    pdl_trigger_and_wait();
    uint index = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (index < (uint)count) {
        uint rest = index;
        int from = 0;
#ifdef CONSTANT
        int inside = 1;
#endif
        WALK(5)
        WALK(4)
#if RANK > 2
        WALK(3)
        WALK(2)
#endif
#if RANK > 4
        WALK(1)
        WALK(0)
#endif
#ifdef CONSTANT
        target[index] = inside ? source[from] : value;
#else
        target[index] = source[from];
#endif
    }
}
