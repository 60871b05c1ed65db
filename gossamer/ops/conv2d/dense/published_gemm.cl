/* The published matrix product: `C = A * B` for each member of a batch. The matrices are row-major.
 *
 * A work-group computes 64 rows by 64 columns of `C`. The work-group copies a tile of `A` (64 rows
 * by TILE_K) and a tile of `B` (TILE_K by 64 columns) to shared memory. Each of the 16 by 8
 * work-items then adds 8 rows by 4 columns of the tiles' product to sums in registers. The tiles
 * advance along the depth.
 *
 * The rows of a work-item are 8 apart, and the rows of the tile of `A` are padded. Neighbouring
 * work-items therefore read from different banks. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_K 16 /* depth of the tiles, a multiple of 4 */
#define A_VECTOR 1 /* numbers of a row of `A` that are read at once, 4 or 1 */
#define B_VECTOR 1 /* numbers of a row of `B` or `C` that are read or written at once, 4 or 1 */
#endif

#include "dialect/common.h"

#define TILE 64
#define THREADS_X 16
#define THREADS_Y 8
#define THREADS (THREADS_X * THREADS_Y)
#define A_STRIDE (TILE_K + 4)

/* A_UNIT: the type of A_VECTOR numbers of `A`. B_UNIT: the type of B_VECTOR numbers of `B`. */
#if A_VECTOR == 4
#define LOAD_A(row, k) LOAD4(a + (row) * depth + (k))
#define A_UNIT float4
#define A_ZERO MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define STORE_A(pointer, value) SHARED_STORE4(pointer, value)
#else
#define LOAD_A(row, k) a[(row) * depth + (k)]
#define A_UNIT float
#define A_ZERO 0.0f
#define STORE_A(pointer, value) *(pointer) = (value)
#endif

#if B_VECTOR == 4
#define LOAD_B(k, column) LOAD4(b + (k) * columns + (column))
#define B_UNIT float4
#define B_ZERO MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#define STORE_B(pointer, value) SHARED_STORE4(pointer, value)
#else
#define LOAD_B(k, column) b[(k) * columns + (column)]
#define B_UNIT float
#define B_ZERO 0.0f
#define STORE_B(pointer, value) *(pointer) = (value)
#endif

#define ADD_PRODUCTS(row, factor, b_row)                 \
    sum[row].x = FMA(factor, (b_row).x, sum[row].x);     \
    sum[row].y = FMA(factor, (b_row).y, sum[row].y);     \
    sum[row].z = FMA(factor, (b_row).z, sum[row].z);     \
    sum[row].w = FMA(factor, (b_row).w, sum[row].w);

/* a_members: number of matrices `A`. Member i of the batch reads matrix `A` number i % a_members.
 * Each member has its own matrices `B` and `C`. */
KERNEL LAUNCH_BOUNDS(THREADS, 1) void published_gemm(
    const GLOBAL float *RESTRICT a, const GLOBAL float *RESTRICT b, GLOBAL float *RESTRICT c,
    int rows, int columns, int depth, int a_members)
{
    SHARED ALIGNED(16) float a_tile[TILE * A_STRIDE];
    SHARED ALIGNED(16) float b_tile[TILE_K * TILE];

    int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * THREADS_X + x;
    int first_column = GROUP_ID(0) * TILE, first_row = GROUP_ID(1) * TILE, member = GROUP_ID(2);
    a += member % a_members * rows * depth;
    b += member * depth * columns;
    c += member * rows * columns;

    float4 sum[8];
    UNROLL for (int i = 0; i < 8; i++)
        sum[i] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);

    for (int first_k = 0; first_k < depth; first_k += TILE_K) {
        UNROLL for (int i = 0; i < TILE * TILE_K / A_VECTOR / THREADS; i++) {
            int unit = item + i * THREADS;
            int row = unit / (TILE_K / A_VECTOR), k = unit % (TILE_K / A_VECTOR) * A_VECTOR;
            A_UNIT value = A_ZERO;
            if (first_row + row < rows && first_k + k < depth)
                value = LOAD_A(first_row + row, first_k + k);
            STORE_A(a_tile + row * A_STRIDE + k, value);
        }
        UNROLL for (int i = 0; i < TILE_K * TILE / B_VECTOR / THREADS; i++) {
            int unit = item + i * THREADS;
            int k = unit / (TILE / B_VECTOR), column = unit % (TILE / B_VECTOR) * B_VECTOR;
            B_UNIT value = B_ZERO;
            if (first_k + k < depth && first_column + column < columns)
                value = LOAD_B(first_k + k, first_column + column);
            STORE_B(b_tile + k * TILE + column, value);
        }
        BARRIER();
        UNROLL for (int k = 0; k < TILE_K; k += 4) {
            float4 b_rows[4];
            UNROLL for (int j = 0; j < 4; j++)
                b_rows[j] = SHARED_LOAD4(b_tile + (k + j) * TILE + x * 4);
            UNROLL for (int i = 0; i < 8; i++) {
                float4 factors = SHARED_LOAD4(a_tile + (y + i * THREADS_Y) * A_STRIDE + k);
                ADD_PRODUCTS(i, factors.x, b_rows[0])
                ADD_PRODUCTS(i, factors.y, b_rows[1])
                ADD_PRODUCTS(i, factors.z, b_rows[2])
                ADD_PRODUCTS(i, factors.w, b_rows[3])
            }
        }
        BARRIER();
    }

    int column = first_column + x * 4;
    UNROLL for (int i = 0; i < 8; i++) {
        int row = first_row + y + i * THREADS_Y;
        if (row < rows) {
            GLOBAL float *target = c + row * columns + column;
#if B_VECTOR == 4
            if (column < columns)
                STORE4(target, sum[i]);
#else
            if (column < columns)
                target[0] = sum[i].x;
            if (column + 1 < columns)
                target[1] = sum[i].y;
            if (column + 2 < columns)
                target[2] = sum[i].z;
            if (column + 3 < columns)
                target[3] = sum[i].w;
#endif
        }
    }
}
