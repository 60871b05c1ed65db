/* Batched matrix products, c = a @ b, by tiles in shared memory. The matrix `c` is row-major.
 * A work-group of 256 work-items computes TILE x TILE results, and a work-item EACH x EACH results,
 * where EACH = TILE / 16. The results of a work-item are 16 rows or 16 columns apart, so that
 * neighbouring work-items read neighbouring words. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE 64 /* rows and columns of a tile of results, a multiple of 16 */
#define A_BY_K 1 /* 1: each row of `a` is contiguous in memory; 0: each column is */
#define B_BY_K 0 /* 1: each column of `b` is contiguous in memory; 0: each row is */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "batch.h"

#define DEPTH 16
#define EACH (TILE / 16)
/* The indices of element `number` of a tile: the index along K, and the row of `a` or the column of
 * `b`. Neighbouring work-items load elements with successive numbers, which are neighbours in
 * memory. by_k: A_BY_K or B_BY_K. */
#define PLACE_OF_K(number, by_k) ((by_k) ? (number) % DEPTH : (number) / TILE)
#define PLACE_ACROSS(number, by_k) ((by_k) ? (number) / DEPTH : (number) % TILE)

KERNEL LAUNCH_BOUNDS(256, 2)
void matmul(const GLOBAL float *a, const GLOBAL float *b,
            GLOBAL float *RESTRICT c, int rows, int columns, int inner, int a_row, int a_k, int b_k,
            int b_column, BATCH_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED float tile_a[DEPTH][TILE + A_BY_K];
    SHARED float tile_b[DEPTH][TILE + B_BY_K];
    uint down = (uint)CEIL_DIV(rows, TILE), across = (uint)CEIL_DIV(columns, TILE);
    uint rest = (uint)GROUP_ID(0);
    int column0 = (int)(rest % across) * TILE;
    rest /= across;
    int row0 = (int)(rest % down) * TILE;
    rest /= down;
    BATCH(rest)
    int item = LOCAL_ID(0), x = item % 16, y = item / 16;
    float total[EACH][EACH];
    UNROLL
    for (int i = 0; i < EACH; i++) {
        UNROLL
        for (int j = 0; j < EACH; j++)
            total[i][j] = 0.0f;
    }
    for (int k0 = 0; k0 < inner; k0 += DEPTH) {
        UNROLL
        for (int part = 0; part < TILE * DEPTH; part += 256) {
            int k = PLACE_OF_K(part + item, A_BY_K), row = PLACE_ACROSS(part + item, A_BY_K);
            tile_a[k][row] = row0 + row < rows && k0 + k < inner
                ? a[(size_t)(row0 + row) * a_row + (size_t)(k0 + k) * a_k] : 0.0f;
        }
        UNROLL
        for (int part = 0; part < TILE * DEPTH; part += 256) {
            int k = PLACE_OF_K(part + item, B_BY_K), column = PLACE_ACROSS(part + item, B_BY_K);
            tile_b[k][column] = column0 + column < columns && k0 + k < inner
                ? b[(size_t)(k0 + k) * b_k + (size_t)(column0 + column) * b_column] : 0.0f;
        }
        BARRIER();
        UNROLL
        for (int k = 0; k < DEPTH; k++) {
            float left[EACH], right[EACH];
            UNROLL
            for (int i = 0; i < EACH; i++) {
                left[i] = tile_a[k][y + 16 * i];
                right[i] = tile_b[k][x + 16 * i];
            }
            UNROLL
            for (int i = 0; i < EACH; i++) {
                UNROLL
                for (int j = 0; j < EACH; j++)
                    total[i][j] = FMA(left[i], right[j], total[i][j]);
            }
        }
        BARRIER();
    }
    UNROLL
    for (int i = 0; i < EACH; i++) {
        UNROLL
        for (int j = 0; j < EACH; j++) {
            int row = row0 + y + 16 * i, column = column0 + x + 16 * j;
            if (row < rows && column < columns)
                c[(size_t)row * columns + column] = total[i][j];
        }
    }
}
