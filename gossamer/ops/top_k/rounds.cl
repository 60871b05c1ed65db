/* The `count` largest elements of each row in descending order, and their indices in the row
 * (places). Rows are along the second dimension of a tensor (outer, length, inner). Each round
 * finds one element: the one that follows the previous round's element in the order. LANES
 * work-items search a row together. Each work-item reads every LANES-th element.
 *
 * ACROSS: if defined, neighbouring work-items read neighbours along `inner`; if not, along
 *     `length`.
 * SMALLEST: defined for the smallest elements in ascending order.
 * NAN_FIRST: if defined, NaN precedes all numbers; if not, NaN follows all numbers.
 * LAST: if defined, the highest place comes first among equal elements; if not, the lowest place.
 * PLACES_ONLY: defined if only the places are written, not the elements. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define VALUE float /* the type of the elements */
#define LANES 64 /* work-items of a row */
#define COLUMNS 4 /* rows of a work-group, which has LANES * COLUMNS = 256 work-items */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#ifdef SMALLEST
#define IN_ORDER(a, b) ((a) < (b))
#else
#define IN_ORDER(a, b) ((a) > (b))
#endif
#ifdef NAN_FIRST
#define ABOVE(a, b) (IN_ORDER(a, b) || ((a) != (a) && (b) == (b)))
#else
#define ABOVE(a, b) (IN_ORDER(a, b) || ((a) == (a) && (b) != (b)))
#endif
#ifdef LAST
#define NEARER(place_a, place_b) ((place_a) > (place_b))
#else
#define NEARER(place_a, place_b) ((place_a) < (place_b))
#endif
#define BEFORE(a, place_a, b, place_b) \
    (ABOVE(a, b) || (!ABOVE(b, a) && NEARER(place_a, place_b)))

KERNEL LAUNCH_BOUNDS(256, 1)
void top_k(const GLOBAL VALUE *source,
#ifndef PLACES_ONLY
           GLOBAL VALUE *RESTRICT target,
#endif
           GLOBAL INT64 *RESTRICT target_places, int rows, int length, int inner, int count)
{
    pdl_trigger_and_wait();
    SHARED VALUE values[256];
    SHARED int places[256];
    /* `apart` is the distance in shared memory between neighbouring work-items of one row */
#ifdef ACROSS
    int column = LOCAL_ID(0) % COLUMNS, lane = LOCAL_ID(0) / COLUMNS, apart = COLUMNS;
#else
    int column = LOCAL_ID(0) / LANES, lane = LOCAL_ID(0) % LANES, apart = 1;
#endif
    uint row = (uint)GROUP_ID(0) * COLUMNS + (uint)column;
    int end = row < (uint)rows ? length : 0;
    uint outer = row / (uint)inner, i = row % (uint)inner;
    size_t start = (size_t)outer * (size_t)length * (size_t)inner + i;
    size_t to = (size_t)outer * (size_t)count * (size_t)inner + i;
    VALUE last = ZERO;
    int last_place = -1;
    for (int round = 0; round < count; round++) {
        VALUE best = ZERO;
        int place = -1;
        for (int j = lane; j < end; j += LANES) {
            VALUE value = source[start + (size_t)j * (size_t)inner];
            if ((round == 0 || BEFORE(last, last_place, value, j))
                && (place < 0 || BEFORE(value, j, best, place))) {
                best = value;
                place = j;
            }
        }
        values[LOCAL_ID(0)] = best;
        places[LOCAL_ID(0)] = place;
        for (int reach = LANES / 2; reach > 0; reach /= 2) {
            BARRIER();
            if (lane < reach) {
                int other = LOCAL_ID(0) + reach * apart, mine = LOCAL_ID(0);
                if (places[other] >= 0 && (places[mine] < 0 || BEFORE(
                        values[other], places[other], values[mine], places[mine]))) {
                    values[mine] = values[other];
                    places[mine] = places[other];
                }
            }
        }
        BARRIER();
        last = values[LOCAL_ID(0) - lane * apart];
        last_place = places[LOCAL_ID(0) - lane * apart];
        BARRIER();
        if (lane == 0 && end > 0) {
            size_t at = to + (size_t)round * (size_t)inner;
#ifndef PLACES_ONLY
            target[at] = last;
#endif
            target_places[at] = last_place;
        }
    }
}
