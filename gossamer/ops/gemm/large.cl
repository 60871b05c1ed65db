/* A product of large row-major matrices:
 *
 *   y[i, j] = epilogue(sum over k of x[i, k] * weight[k, j])
 *
 * A work-group computes a tile of TILE_M rows by TILE_N columns. Each work-item computes WORK_M
 * rows by WORK_N columns of this tile. A warp is LANES_M by LANES_N work-items. Operands are staged
 * in shared memory, ahead of their use, in tiles of TILE_K values of k. Neighbouring work-groups
 * compute neighbouring tiles within GROUP_SIZE_M rows of tiles, so that they find their operands in
 * the L2 cache.
 *
 * The tile of x is transposed when it is written to shared memory. SWIZZLE permutes the rows of x
 * within each k, so that a warp writes to different banks; reads apply the same permutation. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define TILE_M 128 /* rows of a tile */
#define TILE_N 128 /* columns of a tile */
#define TILE_K 16 /* depth of a tile */
#define WORK_M 8 /* rows of a tile that a work-item computes */
#define WORK_N 8 /* columns of a tile that a work-item computes */
#define LANES_N 8 /* work-items of a warp along the columns */
/* work-groups that must fit on a multiprocessor at once; this limits the registers per work-item */
#define BLOCKS_PER_UNIT 1
/* 1: bounds are checked; 0: they are not, because rows, columns and depth are multiples of the
 * tile's sizes */
#define CHECKED 1
/* number of tiles in shared memory. 2: the next tile is loaded to registers first. More than 2:
 * asynchronous copies fill all tiles except the current one (CUDA from sm_80 on). */
#define TILES 2
/* 1: a work-item reads the operands for the next k before it multiplies the operands for this k */
#define EARLY 1
#define COLUMNS 1 /* 1: a work-item's results are computed column by column; 0: row by row */
/* 1: every second column (or row) is computed in reverse, so that consecutive multiplications
 * share an operand */
#define SNAKE 1
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ops/epilogue.h"

#define WORK_GROUP_SIZE (TILE_M / WORK_M * (TILE_N / WORK_N))
#define LANES_M (32 / LANES_N)
#define WARPS_N (TILE_N / (LANES_N * WORK_N))
#define TILE_WORDS (TILE_K * (TILE_M + TILE_N))
#define WEIGHT_LOADS (TILE_N * TILE_K / 4 / WORK_GROUP_SIZE)
#define ASYNC (TILES > 2)
#define GROUP_SIZE_M 8 /* rows of tiles that a group of neighbouring work-groups computes */

/* TOGETHER: elements of x per copy. X_LOADS: copies of a work-item per tile. X_ROW(i), X_K and
 * X_PLACE(i): the row, the index k and the offset in the tile of copy i's first element. X_K is the
 * same for all copies of a work-item. */
#define TOGETHER (ASYNC ? 1 : 4)
#define X_LOADS (TILE_M * TILE_K / TOGETHER / WORK_GROUP_SIZE)
#define X_ROW(i) ((item + (i) * WORK_GROUP_SIZE) / (TILE_K / TOGETHER))
#define X_K (item % (TILE_K / TOGETHER) * TOGETHER)
#define X_PLACE(i) (X_K * TILE_M + (X_ROW(i) ^ SWIZZLE(X_K)))

/* Each copy of weights has four weights. WEIGHT_K(i), WEIGHT_COLUMN(i) and WEIGHT_PLACE(i): the
 * index k, the column and the offset in the tile of copy i's first weight. */
#define WEIGHT_UNIT(i) (item + (i) * WORK_GROUP_SIZE)
#define WEIGHT_K(i) (WEIGHT_UNIT(i) / (TILE_N / 4))
#define WEIGHT_COLUMN(i) (WEIGHT_UNIT(i) % (TILE_N / 4) * 4)
#define WEIGHT_PLACE(i) (TILE_K * TILE_M + WEIGHT_UNIT(i) * 4)

#define SWIZZLE(k) ((k) / TOGETHER * (32 / (TILE_K / TOGETHER)) & 31)
#define LANE_BITS (4 * LANES_M - 1)
/* The offset in a tile of x[i, k], where i is a row of this work-item, counted from 0. */
#define X_AT(k, i)                                                      \
    ((k) * TILE_M + warp_row + (lane_row ^ (SWIZZLE(k) & LANE_BITS))    \
     + (((i) * LANES_M) ^ (SWIZZLE(k) & ~LANE_BITS)))

#define X_INSIDE(i, first_k) \
    (!CHECKED || (first_row + X_ROW(i) < rows && (first_k) + X_K < depth))
#define WEIGHT_INSIDE(i, first_k) \
    (!CHECKED || (first_column + WEIGHT_COLUMN(i) < columns && (first_k) + WEIGHT_K(i) < depth))

/* Starts to fill a tile with the operands for k = first_k to first_k + TILE_K - 1. */
#if ASYNC
#define FETCH(tile, first_k)                                                                  \
    {                                                                                         \
        uint target = shared_address(tile);                                                   \
        UNROLL for (int i = 0; i < X_LOADS; i++) {                                            \
            int inside = X_INSIDE(i, first_k);                                                \
            cp_async_ca<4>(target + 4 * X_PLACE(i), inside ? x + x_index[i] : x, inside ? 4 : 0); \
            x_index[i] += TILE_K;                                                             \
        }                                                                                     \
        UNROLL for (int i = 0; i < WEIGHT_LOADS; i++) {                                       \
            int inside = WEIGHT_INSIDE(i, first_k);                                           \
            cp_async_16(target + 4 * WEIGHT_PLACE(i),                                       \
                        inside ? weight + weight_index[i] : weight, inside ? 16 : 0);       \
            weight_index[i] += weight_step;                                                   \
        }                                                                                     \
    }
#else
#define FETCH(tile, first_k)                                                                  \
    {                                                                                         \
        UNROLL for (int i = 0; i < X_LOADS; i++) {                                            \
            x_next[i] = X_INSIDE(i, first_k) ? LOAD4(x + x_index[i])                          \
                                             : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                 \
            x_index[i] += TILE_K;                                                             \
        }                                                                                     \
        UNROLL for (int i = 0; i < WEIGHT_LOADS; i++) {                                       \
            weight_next[i] = WEIGHT_INSIDE(i, first_k) ? LOAD4(weight + weight_index[i])      \
                                                       : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);       \
            weight_index[i] += weight_step;                                                   \
        }                                                                                     \
    }
/* Writes to a tile the elements that FETCH loaded into registers. */
#define STORE_TILE(tile)                                                                      \
    {                                                                                         \
        UNROLL for (int i = 0; i < X_LOADS; i++) {                                            \
            SHARED_POINTER float *to = (tile) + X_PLACE(i);                                   \
            to[0] = x_next[i].x;                                                              \
            to[TILE_M] = x_next[i].y;                                                         \
            to[2 * TILE_M] = x_next[i].z;                                                     \
            to[3 * TILE_M] = x_next[i].w;                                                     \
        }                                                                                     \
        UNROLL for (int i = 0; i < WEIGHT_LOADS; i++)                                         \
            SHARED_STORE4((tile) + WEIGHT_PLACE(i), weight_next[i]);                          \
    }
#endif

/* Makes the next tile the current one, and waits until the whole work-group can read it. */
#if ASYNC
#define NEXT_TILE()                                                                           \
    {                                                                                         \
        cp_async_wait_group<TILES - 2>();                                                         \
        BARRIER();                                                                            \
        tile = tile == tiles + (TILES - 1) * TILE_WORDS ? tiles : tile + TILE_WORDS;          \
    }
#else
#define NEXT_TILE()                                                                           \
    {                                                                                         \
        current = TILE_WORDS - current;                                                       \
        if (k + TILE_K < depth)                                                               \
            STORE_TILE(tiles + current)                                                       \
        BARRIER();                                                                            \
        tile = tiles + current;                                                               \
    }
#endif

/* Reads the operands of this work-item for index k of the current tile into registers. There are
 * two sets of registers, `fragment` 0 and 1. */
#define READ(fragment, k)                                                                     \
    UNROLL for (int i = 0; i < WORK_M; i += 4) {                                              \
        float4 four = SHARED_LOAD4(tile + X_AT(k, i));                                        \
        of_x[fragment][i] = four.x;                                                           \
        of_x[fragment][i + 1] = four.y;                                                       \
        of_x[fragment][i + 2] = four.z;                                                       \
        of_x[fragment][i + 3] = four.w;                                                       \
    }                                                                                         \
    UNROLL for (int j = 0; j < WORK_N; j += 4) {                                              \
        float4 four = SHARED_LOAD4(tile + TILE_K * TILE_M + (k) * TILE_N + column             \
                                   + j * LANES_N);                                            \
        of_weight[fragment][j] = four.x;                                                      \
        of_weight[fragment][j + 1] = four.y;                                                  \
        of_weight[fragment][j + 2] = four.z;                                                  \
        of_weight[fragment][j + 3] = four.w;                                                  \
    }

#define OUTER (COLUMNS ? WORK_N : WORK_M)
#define INNER (COLUMNS ? WORK_M : WORK_N)
/* Adds the products of one set of registers to the work-item's results. */
#define MULTIPLY(fragment)                                                                    \
    UNROLL for (int outer = 0; outer < OUTER; outer++)                                        \
        UNROLL for (int n = 0; n < INNER; n++) {                                              \
            int inner = SNAKE && outer % 2 ? INNER - 1 - n : n;                               \
            int i = COLUMNS ? inner : outer, j = COLUMNS ? outer : inner;                     \
            sum[i][j] = FMA(of_x[fragment][i], of_weight[fragment][j], sum[i][j]);            \
        }

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void large_gemm(
    const GLOBAL float *x, const GLOBAL float *RESTRICT weight, GLOBAL float *RESTRICT y,
    int rows, int columns, int depth EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED ALIGNED(16) float tiles[TILES * TILE_WORDS];

    int item = LOCAL_ID(0), warp = item / 32, lane = item % 32;
    int tiles_m = CEIL_DIV(rows, TILE_M), tiles_n = CEIL_DIV(columns, TILE_N);
    int tile_group = GROUP_ID(0) / (GROUP_SIZE_M * tiles_n);
    int in_group = GROUP_ID(0) % (GROUP_SIZE_M * tiles_n);
    int tiles_left = tiles_m - tile_group * GROUP_SIZE_M;
    int high = tiles_left < GROUP_SIZE_M ? tiles_left : GROUP_SIZE_M;
    int first_row = (tile_group * GROUP_SIZE_M + in_group % high) * TILE_M;
    int first_column = in_group / high * TILE_N;

    int weight_step = TILE_K * columns;
    int x_index[X_LOADS], weight_index[WEIGHT_LOADS];
    UNROLL for (int i = 0; i < X_LOADS; i++)
        x_index[i] = (first_row + X_ROW(i)) * depth + X_K;
    UNROLL for (int i = 0; i < WEIGHT_LOADS; i++)
        weight_index[i] = WEIGHT_K(i) * columns + first_column + WEIGHT_COLUMN(i);

    int warp_row = warp / WARPS_N * (LANES_M * WORK_M), lane_row = lane / LANES_N * 4;
    int column = warp % WARPS_N * (LANES_N * WORK_N) + lane % LANES_N * 4;

    float sum[WORK_M][WORK_N];
    UNROLL for (int i = 0; i < WORK_M; i++)
        UNROLL for (int j = 0; j < WORK_N; j++)
            sum[i][j] = 0.0f;
    float of_x[2][WORK_M], of_weight[2][WORK_N];

    const SHARED_POINTER float *tile = tiles;
#if ASYNC
    SHARED_POINTER float *filled = tiles;
    UNROLL for (int ahead = 0; ahead < TILES - 1; ahead++) {
        if (ahead * TILE_K < depth)
            FETCH(filled, ahead * TILE_K)
        cp_async_commit_group();
        filled += TILE_WORDS;
    }
    cp_async_wait_group<TILES - 2>();
#else
    float4 x_next[X_LOADS], weight_next[WEIGHT_LOADS];
    int current = 0;
    FETCH(tiles, 0)
    STORE_TILE(tiles)
#endif
    BARRIER();
#if EARLY
    READ(0, 0)
#endif
    for (int k = 0; k < depth; k += TILE_K) {
#if ASYNC
        if (k + (TILES - 1) * TILE_K < depth)
            FETCH(filled, k + (TILES - 1) * TILE_K)
        cp_async_commit_group();
        filled = filled == tiles + (TILES - 1) * TILE_WORDS ? tiles : filled + TILE_WORDS;
#else
        if (k + TILE_K < depth)
            FETCH(tiles, k + TILE_K)
#endif
#if EARLY
        UNROLL for (int in_tile = 0; in_tile < TILE_K; in_tile += 2) {
            READ(1, in_tile + 1)
            MULTIPLY(0)
            if (in_tile + 2 == TILE_K)
                NEXT_TILE()
            READ(0, (in_tile + 2) % TILE_K)
            MULTIPLY(1)
        }
#else
        UNROLL for (int in_tile = 0; in_tile < TILE_K; in_tile++) {
            READ(0, in_tile)
            MULTIPLY(0)
        }
        NEXT_TILE()
#endif
    }

    UNROLL for (int i = 0; i < WORK_M; i++) {
        int row = first_row + warp_row + lane_row + i / 4 * (4 * LANES_M) + i % 4;
        UNROLL for (int j = 0; j < WORK_N; j += 4) {
            int channel = first_column + column + j * LANES_N;
            if (!CHECKED || (row < rows && channel < columns)) {
                int index = row * columns + channel;
                float4 value = MAKE4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
                EPILOGUE4(value, channel, index)
                STORE4(y + index, value);
            }
        }
    }
}
