/* Batched row-major matrix products, c = a @ b, by tiles in shared memory.
 * A work-group of 256 work-items computes TILE x TILE results, and a work-item EACH x EACH results,
 * where EACH = TILE / 16. The results of a work-item are 16 rows or 16 columns apart, so that
 * neighbouring work-items read neighbouring words. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE 64 /* rows and columns of a tile of results, a multiple of 16 */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "batch.h"

#define DEPTH 16
#define EACH (TILE / 16)

KERNEL LAUNCH_BOUNDS(256, 2)
void matmul(const GLOBAL float *RESTRICT a, const GLOBAL float *RESTRICT b,
            GLOBAL float *RESTRICT c, int rows, int columns, int inner, BATCH_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED float tile_a[DEPTH][TILE + 1];
    SHARED float tile_b[DEPTH][TILE];
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
            int k = (part + item) % DEPTH, row = (part + item) / DEPTH;
            tile_a[k][row] = row0 + row < rows && k0 + k < inner
                ? a[(size_t)(row0 + row) * inner + k0 + k] : 0.0f;
        }
        UNROLL
        for (int part = 0; part < TILE * DEPTH; part += 256) {
            int column = (part + item) % TILE, k = (part + item) / TILE;
            tile_b[k][column] = column0 + column < columns && k0 + k < inner
                ? b[(size_t)(k0 + k) * columns + column0 + column] : 0.0f;
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
