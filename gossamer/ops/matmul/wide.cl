/* Batched matrix products, c = a @ b, on processors; c is row-major. A work-group has one work-item,
 * which holds the sums of ROWS rows by 16 * VECTORS columns in vector registers. Shared memory is
 * not used: the rows of `b` are read in order, and each element of `a` is broadcast to a vector.
 * The matrix `b` is row-major. In `a`, rows have the stride a_row, and columns the stride a_k. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ROWS 6 /* rows of a tile */
#define VECTORS 2 /* a tile has 16 * VECTORS columns */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "batch.h"

#define LANES (16 * VECTORS)

KERNEL LAUNCH_BOUNDS(1, 1)
void wide_matmul(const GLOBAL float *a, const GLOBAL float *b,
                 GLOBAL float *RESTRICT c, int rows, int columns, int inner, int a_row, int a_k,
                 BATCH_PARAMETERS)
{
    pdl_trigger_and_wait();
    uint down = (uint)CEIL_DIV(rows, ROWS), across = (uint)CEIL_DIV(columns, LANES);
    uint number = (uint)GROUP_ID(0);
    int row0 = (int)(number % down) * ROWS;
    number /= down;
    int column0 = (int)(number % across) * LANES;
    number /= across;
    BATCH(number)
    FLOAT16 sum[ROWS][VECTORS];
    const GLOBAL float *from[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++) {
        /* beyond the last row, the last row is computed again, and its results are not stored */
        from[i] = a + (size_t)(row0 + i < rows ? row0 + i : rows - 1) * a_row;
        UNROLL for (int j = 0; j < VECTORS; j++)
            sum[i][j] = ZERO16;
    }
    b += column0;
    int there = columns - column0;
    for (int k = 0; k < inner; k++) {
        FLOAT16 right[VECTORS];
        if (there >= LANES)
            UNROLL for (int j = 0; j < VECTORS; j++)
                right[j] = LOAD16(b + 16 * j);
        else
            UNROLL for (int j = 0; j < VECTORS; j++) {
                float lanes[16];
                UNROLL for (int lane = 0; lane < 16; lane++)
                    lanes[lane] = 16 * j + lane < there ? b[16 * j + lane] : 0.0f;
                right[j] = LOAD16(lanes);
            }
        b += columns;
        UNROLL for (int i = 0; i < ROWS; i++) {
            float value = from[i][(size_t)k * a_k];
            UNROLL for (int j = 0; j < VECTORS; j++)
                sum[i][j] = FMA16(value, right[j], sum[i][j]);
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++)
        if (row0 + i < rows)
            UNROLL for (int j = 0; j < VECTORS; j++) {
                float lanes[16];
                STORE16(lanes, sum[i][j]);
                for (int lane = 0; lane < 16 && 16 * j + lane < there; lane++)
                    c[(size_t)(row0 + i) * columns + column0 + 16 * j + lane] = lanes[lane];
            }
}
