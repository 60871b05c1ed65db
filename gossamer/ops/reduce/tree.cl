/* Reductions to a sum, mean or maximum. LANES work-items compute a result together. Each work-item
 * reduces every LANES-th element. A tree reduction in shared memory combines the values of these
 * work-items.
 *
 * There are four kept dimensions (sizes k, source strides p, target strides q) and four reduced
 * dimensions (sizes r, source strides e), outermost first. Unused dimensions come first and have
 * size 1. With SIMPLE only the last reduced dimension is used.
 *
 * VALUE: the type of the arithmetic, which is float if a tensor holds 16-bit floats.
 * MAX, MEAN: defined for the maximum or the mean. If neither is defined, the sum is computed.
 * ACROSS: defined if the innermost dimension is kept. With ACROSS, neighbouring work-items compute
 *     neighbouring results; without it, they reduce neighbouring elements of one result. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LANES 64 /* work-items that compute a result together */
#define COLUMNS 4 /* results of a work-group, which has LANES * COLUMNS = 256 work-items */
#define LEAST (-INFINITY) /* the smallest VALUE */
#define HALF_SOURCE 1 /* 1: the input holds 16-bit floats; 0: it holds VALUEs */
#define HALF_TARGET 1 /* 1: the result holds 16-bit floats; 0: it holds VALUEs */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#if HALF_SOURCE
#define SOURCE HALF
#define READ(place) LOAD_HALF(source, place)
#else
#define SOURCE VALUE
#define READ(place) source[place]
#endif
#if HALF_TARGET
#define TARGET HALF
#define WRITE(place, value) STORE_HALF(target, place, value)
#else
#define TARGET VALUE
#define WRITE(place, value) target[place] = value
#endif

/* JOIN combines two values. NEUTRAL is the neutral element of JOIN. */
#ifdef MAX
#define NEUTRAL ((VALUE)LEAST)
#define JOIN(a, b) MAXIMUM(a, b)
#else
#define NEUTRAL ZERO
#define JOIN(a, b) ((a) + (b))
#endif

#define KEPT(d) , DIVISOR(k##d), int p##d, int q##d
#define REDUCED(d) , DIVISOR(r##d), int e##d
/* Divides `rest` by the size of kept dimension d. The remainder is the index along d. Advances
 * `from` (in the input) and `to` (in the result) to this index. */
#define WALK_KEPT(d) { \
    uint next = QUOTIENT(rest, k##d); \
    int i = (int)(rest - next * (uint)k##d); \
    rest = next; \
    from += i * p##d; \
    to += i * q##d; \
}
/* Divides `left` by the size of reduced dimension d. The remainder is the index along d. Advances
 * `place` (in the input) to this index. */
#define WALK_REDUCED(d) { \
    uint next = QUOTIENT(left, r##d); \
    place += (int)(left - next * (uint)r##d) * e##d; \
    left = next; \
}

KERNEL LAUNCH_BOUNDS(256, 1)
void reduce(const GLOBAL SOURCE *source, GLOBAL TARGET *RESTRICT target, int results,
            int count KEPT(0) KEPT(1) KEPT(2) KEPT(3) REDUCED(0) REDUCED(1) REDUCED(2) REDUCED(3))
{
    pdl_trigger_and_wait();
    SHARED VALUE partial[256];
    /* `apart` is the distance in shared memory between neighbouring work-items of one result */
#ifdef ACROSS
    int column = LOCAL_ID(0) % COLUMNS, lane = LOCAL_ID(0) / COLUMNS, apart = COLUMNS;
#else
    int column = LOCAL_ID(0) / LANES, lane = LOCAL_ID(0) % LANES, apart = 1;
#endif
    uint rest = (uint)GROUP_ID(0) * COLUMNS + (uint)column;
    int exists = rest < (uint)results;
    int from = 0, to = 0;
    WALK_KEPT(3)
    WALK_KEPT(2)
    WALK_KEPT(1)
    WALK_KEPT(0)
    VALUE total = NEUTRAL;
    if (exists)
        for (int index = lane; index < count; index += LANES) {
#ifdef SIMPLE
            int place = from + index * e3;
#else
            int place = from;
            uint left = (uint)index;
            WALK_REDUCED(3)
            WALK_REDUCED(2)
            WALK_REDUCED(1)
            WALK_REDUCED(0)
#endif
            VALUE value = READ(place);
            total = JOIN(total, value);
        }
    partial[LOCAL_ID(0)] = total;
    for (int reach = LANES / 2; reach > 0; reach /= 2) {
        BARRIER();
        if (lane < reach) {
            VALUE other = partial[LOCAL_ID(0) + reach * apart];
            VALUE mine = partial[LOCAL_ID(0)];
            partial[LOCAL_ID(0)] = JOIN(mine, other);
        }
    }
    BARRIER();
    if (exists && lane == 0) {
        VALUE result = partial[LOCAL_ID(0)];
#ifdef MEAN
        result = result / (VALUE)count;
#endif
        WRITE(to, result);
    }
}
