/* Layer norm, or RMS norm, along the second dimension of a tensor (outer, length, inner). A row has
 * `length` elements with a stride of `inner`. Each row is divided into pieces of VECTOR
 * neighbouring elements. The pieces are distributed round-robin among LANES work-items. The
 * variance is computed as the mean square of the centred values. The mean square of the values,
 * minus the square of their mean, would lose digits, because both numbers can be large.
 *
 * STRIDED: defined if `inner` is more than 1. If it is defined, VECTOR is 1, and neighbouring
 *     work-items read neighbouring rows. If not, they read neighbouring pieces of a row.
 * CENTRED: defined if the mean is subtracted, as in a layer norm. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LANES 8 /* work-items that normalise a row together */
#define ROWS 32 /* rows of a work-group, which has LANES * ROWS = 256 work-items */
#define VECTOR 8 /* elements of a piece: 8 (of 16-bit floats only), 4 or 1 */
#define HELD 2 /* pieces that a work-item keeps in registers; 0: every pass loads all pieces */
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are 32-bit floats */
#define CENTRED
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#ifdef STRIDED
#define ROW_OF_BLOCK (LOCAL_ID(0) % ROWS)
#define LANE (LOCAL_ID(0) / ROWS)
#define APART ROWS /* distance between neighbouring work-items of a row */
#else
#define ROW_OF_BLOCK (LOCAL_ID(0) / LANES)
#define LANE (LOCAL_ID(0) % LANES)
#define APART 1 /* distance between neighbouring work-items of a row */
#endif

INLINE float sum4(float4 v)
{
    return (v.x + v.y) + (v.z + v.w);
}

INLINE float square(float value, float mean)
{
    return (value - mean) * (value - mean);
}

INLINE float squares4(float4 v, float mean)
{
    float x = v.x - mean, y = v.y - mean, z = v.z - mean, w = v.w - mean;
    return FMA(x, x, y * y) + FMA(z, z, w * w);
}

INLINE float4 normalised4(float4 v, float mean, float factor, float4 scale, float4 bias)
{
    return MAKE4(FMA((v.x - mean) * factor, scale.x, bias.x),
                 FMA((v.y - mean) * factor, scale.y, bias.y),
                 FMA((v.z - mean) * factor, scale.z, bias.z),
                 FMA((v.w - mean) * factor, scale.w, bias.w));
}

#define NORMALISED4(values, i) \
    normalised4(values, mean, factor, LOAD4(scale + (i)), LOAD4(bias + (i)))

#if VECTOR == 8
#define PIECE FETCHED_HALF8
#define FETCH_PIECE(i) FETCH_HALF8(source, start + (i))
#define SUM_OF(piece) (sum4(LOWER_VALUE4(piece)) + sum4(UPPER_VALUE4(piece)))
#define SQUARES_OF(piece) \
    (squares4(LOWER_VALUE4(piece), mean) + squares4(UPPER_VALUE4(piece), mean))
#define STORE_PIECE(i, piece)                                             \
    STORE_HALF8(target, start + (i), NORMALISED4(LOWER_VALUE4(piece), i), \
                NORMALISED4(UPPER_VALUE4(piece), (i) + 4))
#elif VECTOR == 4
#define PIECE FETCHED_REAL4
#define FETCH_PIECE(i) FETCH_REAL4(source, start + (i))
#define SUM_OF(piece) sum4(REAL_VALUE4(piece))
#define SQUARES_OF(piece) squares4(REAL_VALUE4(piece), mean)
#define STORE_PIECE(i, piece) \
    STORE_REAL4(target, start + (i), NORMALISED4(REAL_VALUE4(piece), i))
#else
#define PIECE FETCHED_REAL
#define FETCH_PIECE(i) FETCH_REAL(source, start + (i) * inner)
#define SUM_OF(piece) REAL_VALUE(piece)
#define SQUARES_OF(piece) square(REAL_VALUE(piece), mean)
#define STORE_PIECE(i, piece)               \
    STORE_REAL(target, start + (i) * inner, \
               FMA((REAL_VALUE(piece) - mean) * factor, scale[i], bias[i]))
#endif

/* Executes the statement for each piece of the work-item. In the statement, `i` is the index of the
 * piece's first element in the row. */
#if HELD
#define EACH_PIECE(statement)                \
    UNROLL for (int h = 0; h < HELD; h++) {  \
        int i = (LANE + h * LANES) * VECTOR; \
        if (i < end) {                       \
            statement                        \
        }                                    \
    }
#define HELD_PIECE(i) held[h]
#else
#define EACH_PIECE(statement)                                   \
    for (int i = LANE * VECTOR; i < end; i += LANES * VECTOR) { \
        statement                                               \
    }
#define HELD_PIECE(i) FETCH_PIECE(i)
#endif

/* Adds up a variable over the work-items of a row. In each of these work-items, the variable is set
 * to the sum. */
#if defined(__CUDACC__) && LANES <= 32 && !defined(STRIDED)
#define PARTIAL_SUMS
#define ADD_UP(variable)                                   \
    UNROLL for (int step = LANES / 2; step > 0; step /= 2) \
        variable += __shfl_sync(0xffffffffu, variable, (LOCAL_ID(0) % 32) ^ step);
#else
#define PARTIAL_SUMS SHARED float partial[LANES * ROWS];
#define ADD_UP(variable)                                                  \
    partial[LOCAL_ID(0)] = variable;                                      \
    for (int reach = LANES / 2; reach > 0; reach /= 2) {                  \
        BARRIER();                                                        \
        if (LANE < reach)                                                 \
            partial[LOCAL_ID(0)] += partial[LOCAL_ID(0) + reach * APART]; \
    }                                                                     \
    BARRIER();                                                            \
    variable = partial[LOCAL_ID(0) - LANE * APART];                       \
    BARRIER();
#endif

KERNEL LAUNCH_BOUNDS(LANES * ROWS, 1)
void layer_norm(const GLOBAL REAL *source, const GLOBAL float *RESTRICT scale,
                const GLOBAL float *RESTRICT bias, GLOBAL REAL *RESTRICT target, int rows,
                int length, int inner, float epsilon)
{
    pdl_trigger_and_wait();
    PARTIAL_SUMS
    for (int block = GROUP_ID(0); block < CEIL_DIV(rows, ROWS); block += GROUP_COUNT(0)) {
        int row = block * ROWS + ROW_OF_BLOCK;
        int end = row < rows ? length : 0;
#ifdef STRIDED
        int start = row / inner * (length * inner) + row % inner;
#else
        int start = row * length;
#endif
#if HELD
        PIECE held[HELD];
        EACH_PIECE(held[h] = FETCH_PIECE(i);)
#endif
#ifdef CENTRED
        float mean = 0.0f;
        EACH_PIECE(mean += SUM_OF(HELD_PIECE(i));)
        ADD_UP(mean)
        mean /= (float)length;
#else
        const float mean = 0.0f;
#endif
        float squares = 0.0f;
        EACH_PIECE(PIECE piece = HELD_PIECE(i); squares += SQUARES_OF(piece);)
        ADD_UP(squares)
        float factor = 1.0f / sqrt(squares / (float)length + epsilon);
        EACH_PIECE(PIECE piece = HELD_PIECE(i); STORE_PIECE(i, piece);)
    }
}
