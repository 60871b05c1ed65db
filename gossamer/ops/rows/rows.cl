/* Row expressions: reductions of rows, and a result for each element or for each row. code.py
 * generates the macros of the arithmetic.
 *
 * LANES work-items compute a row together. A row is divided into pieces, which are distributed
 * round-robin among the work-items. A piece has VECTOR neighbouring elements of one row or, if WIDE
 * is more than 1, one element of each of WIDE neighbouring rows.
 *
 * Where rows are few or long, several work-groups compute a row together: CLUSTER work-groups that
 * exchange their sums through shared memory, or SPLITS work-groups in one launch per reduction and
 * one for the result.
 *
 * ACROSS: if it is defined, neighbouring work-items compute neighbouring rows. If not, they read
 *     neighbouring pieces of a row.
 * PASS: defined if there are several launches. Launch PASS stores the results of reduction PASS of
 *     each work-group, from which later launches compute the reduction of the whole row. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LANES 8 /* work-items that compute a row together */
#define ROWS 32 /* rows, or groups of WIDE rows, of a work-group of LANES * ROWS work-items */
#define VECTOR 8 /* elements of a piece: 8, 4 or 1 */
#define WIDE 1 /* rows that a work-item computes at once: VECTOR or 1 */
#define OF_ROW(k) 0 /* the row, 0 to WIDE - 1, of element k of a piece */
#define HELD 2 /* pieces that a work-item keeps in registers; 0: every phase loads all pieces */
#define REDUCTIONS 1
#define CLUSTER 1 /* work-groups of a cluster, which compute a row together */
#define SPLITS 1 /* work-groups that compute a row together in several launches */
/* the parameters: operand pointers a<i>, the output y, and sizes and strides */
#define PARAMETERS const GLOBAL HALF *a0, GLOBAL HALF *y
#define SIZES
#define ROW_VALUES int b0 = row * length; /* places of a row; loads of what a row shares */
#define HOLDERS FETCHED_HALVES h0[HELD]; /* declares the registers for pieces */
#define HOLD h0[h] = FETCH_HALVES(a0, b0 + i * VECTOR); /* loads a piece into registers */
/* Of each reduction and of the result: values of a row; loads of a piece; and the arithmetic for
 * element k, which computes the expression of that name. */
#define BEFORE_0
#define PIECE_0 VALUE v0[VECTOR]; SPREAD_HALVES(v0, h0[h]);
#define STEPS_0
#define VALUE_0 v0[k]
#define BEFORE_RESULT VALUE f[WIDE]; f[0] = ONE / total0[0];
#define PIECE_RESULT PIECE_0
#define STEPS_RESULT
#define VALUE_RESULT (v0[k] * f[0])
#define STORES STORE_HALVES(y, b0 + i * VECTOR, r);
#define BODY REDUCTION(0, ADD, ZERO) MEAN(0) RESULTS
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/griddepcontrol.h"

#define ADD(a, b) ((a) + (b))

/* Pieces of 16-bit (HALVES) and 32-bit floats (FLOATS). FETCH loads a piece without converting it,
 * SPREAD converts a fetched piece to an array of VALUE, and STORE stores such an array. */
#define SPREAD4(v, first, four) \
    v[first] = (four).x;        \
    v[first + 1] = (four).y;    \
    v[first + 2] = (four).z;    \
    v[first + 3] = (four).w;
#define FOUR_OF(v, first) MAKE4(v[first], v[first + 1], v[first + 2], v[first + 3])
#if VECTOR == 8
#define FETCHED_HALVES FETCHED_HALF8
#define FETCH_HALVES FETCH_HALF8
#define SPREAD_HALVES(v, piece)               \
    {                                         \
        float4 lower = LOWER_VALUE4(piece);   \
        float4 upper = UPPER_VALUE4(piece);   \
        SPREAD4(v, 0, lower)                  \
        SPREAD4(v, 4, upper)                  \
    }
#define LOAD_FLOATS(v, pointer, index)              \
    {                                               \
        float4 lower = LOAD4((pointer) + (index));  \
        float4 upper = LOAD4((pointer) + (index) + 4); \
        SPREAD4(v, 0, lower)                        \
        SPREAD4(v, 4, upper)                        \
    }
#define STORE_HALVES(pointer, index, v) STORE_HALF8(pointer, index, FOUR_OF(v, 0), FOUR_OF(v, 4))
#define STORE_FLOATS(pointer, index, v)          \
    STORE4((pointer) + (index), FOUR_OF(v, 0)); \
    STORE4((pointer) + (index) + 4, FOUR_OF(v, 4))
#elif VECTOR == 4
#define FETCHED_HALVES FETCHED_HALF4
#define FETCH_HALVES FETCH_HALF4
#define SPREAD_HALVES(v, piece)             \
    {                                       \
        float4 four = HALF_VALUE4(piece);   \
        SPREAD4(v, 0, four)                 \
    }
#define FETCHED_FLOATS float4
#define FETCH_FLOATS(pointer, index) LOAD4((pointer) + (index))
#define SPREAD_FLOATS(v, piece) SPREAD4(v, 0, piece)
#define LOAD_FLOATS(v, pointer, index)             \
    {                                              \
        float4 four = LOAD4((pointer) + (index));  \
        SPREAD4(v, 0, four)                        \
    }
#define STORE_HALVES(pointer, index, v) STORE_HALF4(pointer, index, FOUR_OF(v, 0))
#define STORE_FLOATS(pointer, index, v) STORE4((pointer) + (index), FOUR_OF(v, 0))
#else
#define FETCHED_HALVES FETCHED_HALF
#define FETCH_HALVES FETCH_HALF
#define SPREAD_HALVES(v, piece) v[0] = HALF_VALUE(piece);
#define FETCHED_FLOATS float
#define FETCH_FLOATS(pointer, index) ((pointer)[index])
#define SPREAD_FLOATS(v, piece) v[0] = (piece);
#define LOAD_FLOATS(v, pointer, index) v[0] = (pointer)[index];
#define STORE_HALVES(pointer, index, v) STORE_HALF(pointer, index, v[0])
#define STORE_FLOATS(pointer, index, v) ((pointer)[index] = v[0])
#endif
#define LOAD_HALVES(v, pointer, index) SPREAD_HALVES(v, FETCH_HALVES(pointer, index))

#ifdef ACROSS
#define ROW_OF_BLOCK (LOCAL_ID(0) % ROWS)
#define LANE (LOCAL_ID(0) / ROWS)
#define APART ROWS /* distance between neighbouring work-items of a row */
#else
#define ROW_OF_BLOCK (LOCAL_ID(0) / LANES)
#define LANE (LOCAL_ID(0) % LANES)
#define APART 1 /* distance between neighbouring work-items of a row */
#endif

/* Executes the statement for each piece of the work-item; `i` is the index of the piece. */
#if HELD
#define EACH_PIECE(statement)               \
    UNROLL for (int h = 0; h < HELD; h++) { \
        int i = begin + h * LANES;          \
        if (i < end) {                      \
            statement                       \
        }                                   \
    }
#define FETCH_ALL EACH_PIECE(HOLD)
#else
#define EACH_PIECE(statement)                     \
    for (int i = begin; i < end; i += LANES) {    \
        statement                                 \
    }
#define FETCH_ALL
#endif

/* Joins totals[WIDE] over the work-items of a row. In each of these work-items, the array is set to
 * the result. IN_WARP is the number of work-items of a row that belong to one warp. */
#ifdef __CUDACC__
#ifdef ACROSS
#define IN_WARP (ROWS < 32 ? 32 / ROWS : 1)
#else
#define IN_WARP (LANES < 32 ? LANES : 32)
#endif
#define UNITS (LANES / IN_WARP) /* warps that compute a row together */
#if CLUSTER > 1
#define JOINED_VALUES DYNAMIC_SHARED(VALUE, values)
#define JOINED(k, unit) \
    values[REDUCTIONS * CLUSTER * WIDE * ROWS + ((k) * UNITS + (unit)) * ROWS + ROW_OF_BLOCK]
#else
#define JOINED_VALUES SHARED VALUE joined[WIDE][UNITS * ROWS];
#define JOINED(k, unit) joined[k][(unit) * ROWS + ROW_OF_BLOCK]
#endif
#define JOIN_UP(totals, JOIN)                                                        \
    UNROLL for (int step = IN_WARP / 2; step > 0; step /= 2)                         \
        UNROLL for (int k = 0; k < WIDE; k++) {                                      \
            VALUE other = __shfl_sync(0xffffffffu, totals[k],                        \
                                      (LOCAL_ID(0) % 32) ^ (step * APART));          \
            totals[k] = JOIN(totals[k], other);                                      \
        }                                                                            \
    if (UNITS > 1) {                                                                 \
        if (LANE % IN_WARP == 0)                                                     \
            UNROLL for (int k = 0; k < WIDE; k++)                                    \
                JOINED(k, LANE / IN_WARP) = totals[k];                               \
        BARRIER();                                                                   \
        UNROLL for (int k = 0; k < WIDE; k++) {                                      \
            totals[k] = JOINED(k, 0);                                                \
            for (int unit = 1; unit < UNITS; unit++)                                 \
                totals[k] = JOIN(totals[k], JOINED(k, unit));                        \
        }                                                                            \
        BARRIER();                                                                   \
    }
#else
#define JOINED_VALUES SHARED VALUE joined[WIDE][LANES * ROWS];
#define JOIN_UP(totals, JOIN)                                                           \
    for (int k = 0; k < WIDE; k++)                                                      \
        joined[k][LOCAL_ID(0)] = totals[k];                                             \
    for (int reach = LANES / 2; reach > 0; reach /= 2) {                                \
        BARRIER();                                                                      \
        if (LANE < reach)                                                               \
            for (int k = 0; k < WIDE; k++) {                                            \
                VALUE mine = joined[k][LOCAL_ID(0)];                                    \
                VALUE other = joined[k][LOCAL_ID(0) + reach * APART];                   \
                joined[k][LOCAL_ID(0)] = JOIN(mine, other);                             \
            }                                                                           \
    }                                                                                   \
    BARRIER();                                                                          \
    for (int k = 0; k < WIDE; k++)                                                      \
        totals[k] = joined[k][LOCAL_ID(0) - LANE * APART];                              \
    BARRIER();
#endif

/* Joins totals[WIDE] over the work-groups of a cluster. Each reduction has its own memory, so that no
 * work-group writes to memory from which another one still reads. */
#if CLUSTER > 1
#define CLUSTERED(p, group, k) \
    values[(((p) * CLUSTER + (group)) * WIDE + (k)) * ROWS + ROW_OF_BLOCK]
#define JOIN_CLUSTER(p, totals, JOIN)                                     \
    if ((p) == 0)                                                         \
        CLUSTER_WAIT();                                                   \
    if (LANE < CLUSTER)                                                   \
        UNROLL for (int k = 0; k < WIDE; k++)                             \
            *map_cluster(&CLUSTERED(p, part, k), LANE) = totals[k];       \
    WARP_BARRIER();                                                       \
    CLUSTER_BARRIER();                                                    \
    UNROLL for (int k = 0; k < WIDE; k++) {                               \
        totals[k] = CLUSTERED(p, 0, k);                                   \
        UNROLL for (int other = 1; other < CLUSTER; other++)              \
            totals[k] = JOIN(totals[k], CLUSTERED(p, other, k));          \
    }
#else
#define JOIN_CLUSTER(p, totals, JOIN)
#endif

/* Computes total<p>[WIDE], the results of reduction p over the pieces of the work-group or, in a
 * cluster, over the whole row. Each of the VECTOR elements of a piece has its own sum, so that
 * additions do not wait for each other. */
#define REDUCTION(p, JOIN, neutral)                                  \
    VALUE total##p[WIDE];                                            \
    {                                                                \
        VALUE parts[VECTOR];                                         \
        UNROLL for (int k = 0; k < VECTOR; k++)                      \
            parts[k] = neutral;                                      \
        BEFORE_##p                                                   \
        EACH_PIECE(PIECE_##p                                         \
            UNROLL for (int k = 0; k < VECTOR; k++) {                \
                STEPS_##p                                            \
                VALUE value = VALUE_##p;                             \
                parts[k] = JOIN(parts[k], value);                    \
            })                                                       \
        UNROLL for (int k = 0; k < WIDE; k++)                        \
            total##p[k] = parts[k];                                  \
        UNROLL for (int k = WIDE; k < VECTOR; k++)                   \
            total##p[0] = JOIN(total##p[0], parts[k]);               \
        JOIN_UP(total##p, JOIN)                                      \
        JOIN_CLUSTER(p, total##p, JOIN)                              \
    }

/* Turns the sum of reduction p into the mean. */
#define MEAN(p)                             \
    UNROLL for (int k = 0; k < WIDE; k++)   \
        total##p[k] /= (VALUE)length;

#ifdef PASS
#define PARTIALS_PARAMETER , GLOBAL VALUE *partials
#define PARTIAL(p, split, k) partials[(((p) * SPLITS + (split)) * rows + row) * WIDE + (k)]
/* Stores the results of reduction p over the pieces of the work-group. */
#define KEEP(p)                                     \
    if (exists && LANE == 0)                        \
        UNROLL for (int k = 0; k < WIDE; k++)       \
            PARTIAL(p, part, k) = total##p[k];
/* Computes total<p>[WIDE] from the results that an earlier launch stored. */
#define FINISHED(p, JOIN, neutral)                                     \
    VALUE total##p[WIDE];                                              \
    UNROLL for (int k = 0; k < WIDE; k++)                              \
        total##p[k] = neutral;                                         \
    for (int other = LANE; other < SPLITS; other += LANES)             \
        UNROLL for (int k = 0; k < WIDE; k++) {                        \
            VALUE value = PARTIAL(p, other, k);                        \
            total##p[k] = JOIN(total##p[k], value);                    \
        }                                                              \
    JOIN_UP(total##p, JOIN)
#else
#define PARTIALS_PARAMETER
#endif

#ifdef PER_ROW
#define RESULTS                                     \
    BEFORE_RESULT                                   \
    if (exists && LANE == 0 && part == 0) {         \
        UNROLL for (int k = 0; k < WIDE; k++) {     \
            STEPS_RESULT                            \
            VALUE r = VALUE_RESULT;                 \
            STORES                                  \
        }                                           \
    }
#else
#define RESULTS                                        \
    BEFORE_RESULT                                      \
    EACH_PIECE(PIECE_RESULT                            \
        VALUE r[VECTOR];                               \
        UNROLL for (int k = 0; k < VECTOR; k++) {      \
            STEPS_RESULT                               \
            r[k] = VALUE_RESULT;                       \
        }                                              \
        STORES)
#endif

#define PARTS (CLUSTER * SPLITS) /* work-groups that compute a row together */

/* the pieces of the work-item, from `begin` to `end` */
#if defined PER_ROW && defined PASS && PASS == REDUCTIONS
#define RANGE /* no pieces are loaded */
#else
#define RANGE                              \
    int share = CEIL_DIV(pieces, PARTS);   \
    int begin = part * share + LANE;       \
    int end = exists ? MINIMUM(pieces, (part + 1) * share) : 0;
#endif

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(LANES * ROWS, 1)
void row_expression(PARAMETERS PARTIALS_PARAMETER, int rows, int length, int pieces SIZES)
{
    CLUSTER_ARRIVE();
    pdl_trigger_and_wait();
    JOINED_VALUES
    int part = GROUP_ID(0) % PARTS;
    for (int block = GROUP_ID(0) / PARTS; block < CEIL_DIV(rows, ROWS);
         block += GROUP_COUNT(0) / PARTS) {
        int row = block * ROWS + ROW_OF_BLOCK;
        int exists = row < rows;
        RANGE
        row = exists ? row : 0;
        ROW_VALUES
        HOLDERS
        FETCH_ALL
        BODY
    }
}
