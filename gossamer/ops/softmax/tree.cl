/* Softmax along the second dimension of a tensor (outer, length, inner). LANES work-items together
 * compute the maximum and the sum over `length` elements. Each work-item reduces every LANES-th
 * element.
 *
 * ACROSS: if defined, neighbouring work-items read neighbours along `inner`; if not, along
 *     `length`.
 * LOG: defined for the logarithm of the softmax. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LANES 64 /* work-items that compute a sum together */
#define COLUMNS 4 /* sums of a work-group, which has LANES * COLUMNS = 256 work-items */
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

/* Combines a variable by JOIN over the LANES work-items of a sum. In each of these work-items, the
 * variable is set to the result. `apart` is the distance in `partial` between neighbouring
 * work-items of a sum. */
#define JOIN_ALL(variable, JOIN) { \
    partial[LOCAL_ID(0)] = variable; \
    for (int reach = LANES / 2; reach > 0; reach /= 2) { \
        BARRIER(); \
        if (lane < reach) { \
            float other = partial[LOCAL_ID(0) + reach * apart]; \
            float mine = partial[LOCAL_ID(0)]; \
            partial[LOCAL_ID(0)] = JOIN(mine, other); \
        } \
    } \
    BARRIER(); \
    variable = partial[LOCAL_ID(0) - lane * apart]; \
    BARRIER(); \
}
#define SUM(a, b) ((a) + (b))

KERNEL LAUNCH_BOUNDS(256, 1)
void softmax(const GLOBAL REAL *source, GLOBAL REAL *RESTRICT target, int sums,
             int length, int inner)
{
    pdl_trigger_and_wait();
    SHARED float partial[256];
#ifdef ACROSS
    int column = LOCAL_ID(0) % COLUMNS, lane = LOCAL_ID(0) / COLUMNS, apart = COLUMNS;
#else
    int column = LOCAL_ID(0) / LANES, lane = LOCAL_ID(0) % LANES, apart = 1;
#endif
    uint which = (uint)GROUP_ID(0) * COLUMNS + (uint)column;
    int end = which < (uint)sums ? length : 0;
    size_t start = (size_t)(which / (uint)inner) * (size_t)(length * inner)
        + which % (uint)inner;
    float most = lane < end ? LOAD_REAL(source, start + (size_t)lane * inner) : -3.402823466e+38f;
    for (int i = lane + LANES; i < end; i += LANES) {
        float value = LOAD_REAL(source, start + (size_t)i * inner);
        most = MAXIMUM(most, value);
    }
    JOIN_ALL(most, MAXIMUM)
    float total = 0.0f;
    for (int i = lane; i < end; i += LANES)
        total += exp(LOAD_REAL(source, start + (size_t)i * inner) - most);
    JOIN_ALL(total, SUM)
#ifdef LOG
    float shift = log(total);
#endif
    for (int i = lane; i < end; i += LANES) {
        size_t place = start + (size_t)i * inner;
#ifdef LOG
        STORE_REAL(target, place, LOAD_REAL(source, place) - most - shift);
#else
        STORE_REAL(target, place, exp(LOAD_REAL(source, place) - most) / total);
#endif
    }
}
