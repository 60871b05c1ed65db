/* A product for large matrices: y[i, j] = epilogue(sum over k of x[i, k] * weight[k, j]), all row-major.
 *
 * A work-group computes TILE_M rows by TILE_N columns and a work-item WORK_M by WORK_N of them, from
 * tiles of TILE_K values of k in shared memory that are filled one step ahead. A warp is LANES_M by
 * LANES_N work-items. Neighbouring work-groups compute tiles of STRIPE rows of tiles, so that what
 * they read is in the L2 cache.
 *
 * The tile of x is transposed on its way into shared memory. Where four numbers of a row are written,
 * SWIZZLE moves their column by their k, so that the writes of a warp fall in different banks; a
 * column is read from where it was written.
 *
 * BLOCKS_PER_UNIT work-groups must fit a multiprocessor at once, which bounds the registers.
 *
 * CHECKED    0 where rows, columns and depth are multiples of the tile's, so that no bounds are
 *            checked
 * FRAGMENTS  2: a work-item reads the numbers of the next k before it multiplies those of this one
 * SNAKE      1: every second row of a work-item's results is computed from its end */

#define WORK_GROUP_SIZE (TILE_M / WORK_M * (TILE_N / WORK_N))
#define LANES_M (32 / LANES_N)
#define WARPS_N (TILE_N / (LANES_N * WORK_N))
#define TILE_WORDS (TILE_K * (TILE_M + TILE_N))
#define X_LOADS (TILE_M * TILE_K / 4 / WORK_GROUP_SIZE)
#define WEIGHT_LOADS (TILE_N * TILE_K / 4 / WORK_GROUP_SIZE)
#define STRIPE 8

#define X_ROW(unit) ((unit) / (TILE_K / 4))
#define X_K(unit) ((unit) % (TILE_K / 4) * 4)
#define WEIGHT_K(unit) ((unit) / (TILE_N / 4))
#define WEIGHT_COLUMN(unit) ((unit) % (TILE_N / 4) * 4)

#define SWIZZLE(k) ((k) / 4 * (32 / (TILE_K / 4)) & 31)
#define LANE_BITS (4 * LANES_M - 1)
#define X_AT(k, i)                                                      \
    ((k) * TILE_M + warp_row + (lane_row ^ (SWIZZLE(k) & LANE_BITS))    \
     + (((i) * LANES_M) ^ (SWIZZLE(k) & ~LANE_BITS)))

#define FETCH(fetched_k)                                                                      \
    UNROLL for (int i = 0; i < X_LOADS; i++) {                                                \
        int unit = item + i * WORK_GROUP_SIZE;                                                \
        if (!CHECKED || (first_row + X_ROW(unit) < rows && (fetched_k) + X_K(unit) < depth))  \
            x_next[i] = LOAD4(x_from + X_ROW(unit) * depth + X_K(unit));                      \
        else                                                                                  \
            x_next[i] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                                        \
    }                                                                                         \
    UNROLL for (int i = 0; i < WEIGHT_LOADS; i++) {                                           \
        int unit = item + i * WORK_GROUP_SIZE;                                                \
        if (!CHECKED || (first_column + WEIGHT_COLUMN(unit) < columns                         \
                         && (fetched_k) + WEIGHT_K(unit) < depth))                            \
            weight_next[i] = LOAD4(weight_from + WEIGHT_K(unit) * columns                     \
                                   + WEIGHT_COLUMN(unit));                                    \
        else                                                                                  \
            weight_next[i] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                                   \
    }                                                                                         \
    x_from += TILE_K;                                                                         \
    weight_from += TILE_K * columns;

#define STORE_TILE(tile)                                                                      \
    UNROLL for (int i = 0; i < X_LOADS; i++) {                                                \
        int unit = item + i * WORK_GROUP_SIZE;                                                \
        SHARED_POINTER float *to = (tile) + X_K(unit) * TILE_M                                \
            + (X_ROW(unit) ^ SWIZZLE(X_K(unit)));                                             \
        to[0] = x_next[i].x;                                                                  \
        to[TILE_M] = x_next[i].y;                                                             \
        to[2 * TILE_M] = x_next[i].z;                                                         \
        to[3 * TILE_M] = x_next[i].w;                                                         \
    }                                                                                         \
    UNROLL for (int i = 0; i < WEIGHT_LOADS; i++)                                             \
        SHARED_STORE4((tile) + TILE_K * TILE_M + (item + i * WORK_GROUP_SIZE) * 4,            \
                      weight_next[i]);

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

#define MULTIPLY(fragment)                                                                    \
    UNROLL for (int i = 0; i < WORK_M; i++)                                                   \
        UNROLL for (int n = 0; n < WORK_N; n++) {                                             \
            int j = SNAKE && i % 2 ? WORK_N - 1 - n : n;                                      \
            sum[i][j] = FMA(of_x[fragment][i], of_weight[fragment][j], sum[i][j]);            \
        }

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void large_gemm(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT weight, GLOBAL float *RESTRICT y,
    int rows, int columns, int depth EPILOGUE_PARAMETERS)
{
    SHARED ALIGNED(16) float tiles[2 * TILE_WORDS];

    int item = LOCAL_ID(0), warp = item / 32, lane = item % 32;
    int tiles_m = CEIL_DIV(rows, TILE_M), tiles_n = CEIL_DIV(columns, TILE_N);
    int stripe = GROUP_ID(0) / (STRIPE * tiles_n), in_stripe = GROUP_ID(0) % (STRIPE * tiles_n);
    int high = tiles_m - stripe * STRIPE < STRIPE ? tiles_m - stripe * STRIPE : STRIPE;
    int first_row = (stripe * STRIPE + in_stripe % high) * TILE_M;
    int first_column = in_stripe / high * TILE_N;
    const GLOBAL float *x_from = x + first_row * depth;
    const GLOBAL float *weight_from = weight + first_column;

    int warp_row = warp / WARPS_N * (LANES_M * WORK_M), lane_row = lane / LANES_N * 4;
    int column = warp % WARPS_N * (LANES_N * WORK_N) + lane % LANES_N * 4;

    float sum[WORK_M][WORK_N];
    UNROLL for (int i = 0; i < WORK_M; i++)
        UNROLL for (int j = 0; j < WORK_N; j++)
            sum[i][j] = 0.0f;
    float4 x_next[X_LOADS], weight_next[WEIGHT_LOADS];
    float of_x[2][WORK_M], of_weight[2][WORK_N];

    FETCH(0)
    STORE_TILE(tiles)
    BARRIER();
    int current = 0;
    for (int next_k = TILE_K; ; next_k += TILE_K) {
        if (next_k < depth) {
            FETCH(next_k)
        }
        const SHARED_POINTER float *tile = tiles + current;
#if FRAGMENTS == 2
        READ(0, 0)
        UNROLL for (int k = 0; k < TILE_K; k += 2) {
            READ(1, k + 1)
            MULTIPLY(0)
            if (k + 2 < TILE_K) {
                READ(0, k + 2)
            }
            MULTIPLY(1)
        }
#else
        UNROLL for (int k = 0; k < TILE_K; k++) {
            READ(0, k)
            MULTIPLY(0)
        }
#endif
        if (next_k >= depth)
            break;
        current = TILE_WORDS - current;
        STORE_TILE(tiles + current)
        BARRIER();
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
