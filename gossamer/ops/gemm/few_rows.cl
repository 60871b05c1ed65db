/* A matrix product with ROWS rows. Each work-group computes one column of the result from a
 * contiguous row of weights. The kernel is memory-bound: it reads every weight once. A piece is
 * VECTOR neighbouring weights. The pieces of a row of weights are distributed round-robin among the
 * work-items. A work-item reads its first HELD pieces while the previous kernel still runs. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ROWS 1 /* rows of the product */
#define WORK_GROUP_SIZE 128 /* work-items of a work-group, a power of two */
/* numbers that are loaded at once: 4 if the depth is a multiple of 4, else 1 */
#define VECTOR 4
#define HELD 4 /* pieces that a work-item reads while the previous kernel still runs */
#define ROUNDS 4 /* nonzero: results are rounded to 16-bit floats; 0: they are 32-bit floats */
#define HALVES 1 /* 1: x and the weights are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"
#include "ops/gemm/add_up.h"

#if VECTOR == 4
#define PIECE float4
#define NO_PIECE MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define LOAD_PIECE LOAD_REAL4
#define DOT(sum, a, b)            \
    sum = FMA((a).x, (b).x, sum); \
    sum = FMA((a).y, (b).y, sum); \
    sum = FMA((a).z, (b).z, sum); \
    sum = FMA((a).w, (b).w, sum);
#else
#define PIECE float
#define NO_PIECE 0.0f
#define LOAD_PIECE LOAD_REAL
#define DOT(sum, a, b) sum = FMA(a, b, sum);
#endif
#if ROUNDS
#define RESULT HALF
#define STORE_RESULT STORE_HALF
#else
#define RESULT float
#define STORE_RESULT(pointer, index, value) ((pointer)[index] = (value))
#endif
#define STEP (WORK_GROUP_SIZE * VECTOR)

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void few_rows(
    const GLOBAL REAL *x, const GLOBAL REAL *RESTRICT weight, GLOBAL RESULT *RESTRICT y,
    int columns, int depth EPILOGUE_PARAMETERS)
{
    SHARED float partial[ROWS * WORK_GROUP_SIZE];
    int item = LOCAL_ID(0);
    int channel = GROUP_ID(0);
    const GLOBAL REAL *own = weight + channel * depth;
    pdl_trigger();
    PIECE held[HELD];
    UNROLL for (int i = 0; i < HELD; i++) {
        int k = item * VECTOR + i * STEP;
        held[i] = NO_PIECE;
        if (k < depth)
            held[i] = LOAD_PIECE(own, k);
    }
    pdl_wait();

    float sum[ROWS];
    UNROLL for (int row = 0; row < ROWS; row++)
        sum[row] = 0.0f;
    UNROLL for (int i = 0; i < HELD; i++) {
        int k = item * VECTOR + i * STEP;
        if (k < depth)
            UNROLL for (int row = 0; row < ROWS; row++) {
                PIECE a = LOAD_PIECE(x + row * depth, k);
                DOT(sum[row], a, held[i])
            }
    }
    for (int k = item * VECTOR + HELD * STEP; k < depth; k += STEP) {
        PIECE w = LOAD_PIECE(own, k);
        UNROLL for (int row = 0; row < ROWS; row++) {
            PIECE a = LOAD_PIECE(x + row * depth, k);
            DOT(sum[row], a, w)
        }
    }
    add_up(partial, sum, item);
    if (item < ROWS) {
        float value = partial[item * WORK_GROUP_SIZE];
        int index = item * columns + channel;
        EPILOGUE(value, channel, index)
        STORE_RESULT(y, index, value);
    }
}
