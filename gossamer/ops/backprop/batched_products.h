/* Matrix products in the shared memory of one work-group. A work-item computes tiles of at most
 * 8 x 8 results. Tile sizes are compile-time constants. */

#pragma once

#if !defined CONFIGURED && !defined ROWS
#define THREADS 128 /* work-items of the work-group */
#define ROWS 8 /* samples */
#define SLOPE(a) ((a) * (1.0f - (a))) /* derivative of the activation whose result is a */
#endif

#include "dialect/common.h"

/* COLUMN is the matrix column of a tile's column n: groups of four columns go to the `tiles` tiles
 * in turn. LOADED_COLUMN is COLUMN for multiples n of 4, clamped to the last group of `columns`
 * columns. */
#define COLUMN(tile, tiles, n) ((n) / 4 * 4 * (tiles) + 4 * (tile) + (n) % 4)
#define LOADED_COLUMN(tile, tiles, n, columns)                                     \
    ((n) == 0 ? COLUMN(tile, tiles, n)                                             \
              : LESSER(COLUMN(tile, tiles, n), CEIL_DIV(columns, 4) * 4 - 4))

#define LESSER(a, b) ((a) < (b) ? (a) : (b))

/* ROLLED loops are not unrolled, and BY_FOUR loops are unrolled by four. This limits registers to
 * the values of one or four iterations. */
#ifdef __CUDACC__
#define ROLLED UNROLL_BY(1)
#define BY_FOUR UNROLL_BY(4)
#else
#define ROLLED
#define BY_FOUR
#endif

/* Makes the compiler assume that a variable changes here. Values that depend on the variable are
 * then recomputed, and do not occupy registers from step to step. */
#ifdef __CUDACC__
#define HIDE(variable) asm volatile("" : "+r"(variable))
#else
#define HIDE(variable)
#endif

/* Index of tile t along the samples (place_along) and along the columns (place_across). Strips of
 * TALL tiles along the samples are numbered one after another. Within a strip, the index along the
 * samples varies fastest, so that the tiles of a warp share samples and columns. */
#define TALL 8
INLINE int place_along(int t, int tiles_b, int tiles_j)
{
    int strip = t / (TALL * tiles_j), tall = LESSER(TALL, tiles_b - strip * TALL);
    return strip * TALL + (t - strip * TALL * tiles_j) % tall;
}
INLINE int place_across(int t, int tiles_b, int tiles_j)
{
    int strip = t / (TALL * tiles_j), tall = LESSER(TALL, tiles_b - strip * TALL);
    return (t - strip * TALL * tiles_j) / tall;
}

/* Loads four floats to an array. */
INLINE void load4(float *to, const SHARED_POINTER float *from)
{
    float4 four = SHARED_LOAD4(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
}

/* Sets the sums of a tile to 0. */
INLINE void clear_tile(float sum[8][8], int rows, int columns)
{
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int n = 0; n < columns; n++)
            sum[m][n] = 0.0f;
}

/* Offset of sum j of sample b. The columns are divided into slices of `slice` columns, and each
 * slice is contiguous. If `slice` is `stride`, there is one slice. */
#define SUM_PLACE(b, j, stride, slice)                                             \
    ((slice) == (stride) ? (b) * (stride) + (j)                                    \
                         : (j) / (slice) * (ROWS * (slice)) + (b) * (slice) + (j) % (slice))

/* sums[b][j] = sum over i of in[b][i] * weights[i][j]. The sum over i is split into `parts` partial
 * sums, stored in consecutive arrays of `size` floats. If `add` is nonzero, the products are added
 * to the stored sums.
 *
 * length, stride: row strides of `in` and of `weights`, in floats. slice: see SUM_PLACE.
 * fours: number of inputs i, divided by 4. units: number of units j.
 * tile_b, tile_j: samples and units of a tile; tile_b divides ROWS, tile_j is a multiple of 4. */
INLINE void forward_product(const SHARED_POINTER float *in, int length,
                            const SHARED_POINTER float *weights, int stride,
                            SHARED_POINTER float *sums, int slice, int size, int fours, int units,
                            int tile_b, int tile_j, int parts, int add, int item)
{
    const int tiles_b = ROWS / tile_b, tiles_j = CEIL_DIV(units, tile_j), tiles = tiles_b * tiles_j;
    ROLLED for (int t = item; t < tiles * parts; t += THREADS) {
        int part = t / tiles, first_b = place_along(t % tiles, tiles_b, tiles_j);
        int place = place_across(t % tiles, tiles_b, tiles_j);
        SHARED_POINTER float *to = sums + part * size;
        float sum[8][8];
        UNROLL for (int m = 0; m < tile_b; m++)
            UNROLL for (int n = 0; n < tile_j; n += 4) {
                if (add && COLUMN(place, tiles_j, n) < units)
                    load4(&sum[m][n], to + SUM_PLACE(first_b + m * tiles_b,
                                                     COLUMN(place, tiles_j, n), stride, slice));
                else
                    sum[m][n] = sum[m][n + 1] = sum[m][n + 2] = sum[m][n + 3] = 0.0f;
            }
        ROLLED for (int four = part; four < fours; four += parts) {
            float a[8][4];
            UNROLL for (int m = 0; m < tile_b; m++)
                load4(a[m], in + (first_b + m * tiles_b) * length + 4 * four);
            UNROLL for (int k = 0; k < 4; k++) {
                float w[8];
                UNROLL for (int n = 0; n < tile_j; n += 4)
                    load4(w + n, weights + (4 * four + k) * stride
                                 + LOADED_COLUMN(place, tiles_j, n, units));
                UNROLL for (int m = 0; m < tile_b; m++)
                    UNROLL for (int n = 0; n < tile_j; n++)
                        sum[m][n] = FMA(a[m][k], w[n], sum[m][n]);
            }
        }
        UNROLL for (int m = 0; m < tile_b; m++)
            UNROLL for (int n = 0; n < tile_j; n += 4)
                if (COLUMN(place, tiles_j, n) < units)
                    SHARED_STORE4(to + SUM_PLACE(first_b + m * tiles_b, COLUMN(place, tiles_j, n),
                                                 stride, slice),
                                  MAKE4(sum[m][n], sum[m][n + 1], sum[m][n + 2], sum[m][n + 3]));
    }
}

/* Returns the sum of `parts` vectors of four floats that are `size` floats apart. */
INLINE float4 sum_of_parts(const SHARED_POINTER float *from, int size, int parts)
{
    float4 sum = SHARED_LOAD4(from);
    BY_FOUR for (int part = 1; part < parts; part++) {
        float4 more = SHARED_LOAD4(from + part * size);
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
    }
    return sum;
}

/* Adds up `parts` arrays of `size` floats. */
INLINE void add_parts(const SHARED_POINTER float *from, SHARED_POINTER float *to, int size,
                      int parts, int item)
{
    ROLLED for (int n = 4 * item; n < size; n += 4 * THREADS)
        SHARED_STORE4(to + n, sum_of_parts(from + n, size, parts));
}

/* sum[m][n] += sum over b of in[b][COLUMN(i, tiles_i, m)] * errors[b][COLUMN(j, tiles_j, n)], for
 * samples b = part, part + parts, ...
 *
 * length, stride: row strides of `in` and of `errors`, in floats.
 * inputs, units: sizes of the gradient. i, j: index of the tile along inputs and along units.
 * tiles_i, tiles_j: numbers of tiles. tile_i, tile_j: inputs and units of a tile. */
INLINE void gradient_tile(float sum[8][8], const SHARED_POINTER float *in, int length,
                          const SHARED_POINTER float *errors, int stride, int inputs, int units,
                          int i, int j, int tiles_i, int tiles_j, int tile_i, int tile_j, int parts,
                          int part)
{
    ROLLED for (int b = part; b < ROWS; b += parts) {
        float a[8], error[8];
        UNROLL for (int m = 0; m < tile_i; m += 4)
            load4(a + m, in + b * length + LOADED_COLUMN(i, tiles_i, m, inputs));
        UNROLL for (int n = 0; n < tile_j; n += 4)
            load4(error + n, errors + b * stride + LOADED_COLUMN(j, tiles_j, n, units));
        UNROLL for (int m = 0; m < tile_i; m++)
            UNROLL for (int n = 0; n < tile_j; n++)
                sum[m][n] = FMA(a[m], error[n], sum[m][n]);
    }
}

/* Stores the result of gradient_tile in rows of `stride` floats. */
INLINE void store_gradient_tile(float sum[8][8], SHARED_POINTER float *to, int stride, int inputs,
                                int units, int i, int j, int tiles_i, int tiles_j, int tile_i,
                                int tile_j, int parts)
{
    UNROLL for (int m = 0; m < tile_i; m++)
        UNROLL for (int n = 0; n < tile_j; n += 4)
            if (COLUMN(i, tiles_i, m) < inputs && COLUMN(j, tiles_j, n) < units)
                SHARED_STORE4(to + COLUMN(i, tiles_i, m) * stride + COLUMN(j, tiles_j, n),
                              MAKE4(sum[m][n], sum[m][n + 1], sum[m][n + 2], sum[m][n + 3]));
}

/* to[b][i] = SLOPE(in[b][i]) * sum over j of errors[b][j] * weights[i][j]; 0 for i >= units.
 *
 * stride: row stride of `errors` and of `weights`, in floats. length, to_stride: row strides of
 * `in` and of `to`. fours: number of units j, divided by 4. inputs: number of inputs i, padding
 * included. units: number of inputs i without bias and padding.
 * tile_b, tile_i: samples and inputs of a tile; tile_b divides ROWS. */
INLINE void backward_product(const SHARED_POINTER float *errors,
                             const SHARED_POINTER float *weights, int stride,
                             const SHARED_POINTER float *in, int length,
                             SHARED_POINTER float *to, int to_stride, int fours, int inputs,
                             int units, int tile_b, int tile_i, int item)
{
    const int tiles_b = ROWS / tile_b, tiles_i = CEIL_DIV(inputs, tile_i);
    ROLLED for (int t = item; t < tiles_b * tiles_i; t += THREADS) {
        int first_b = place_along(t, tiles_b, tiles_i);
        int first_i = place_across(t, tiles_b, tiles_i);
        float sum[8][8];
        clear_tile(sum, tile_b, tile_i);
        ROLLED for (int four = 0; four < fours; four++) {
            float a[8][4];
            UNROLL for (int m = 0; m < tile_b; m++)
                load4(a[m], errors + (first_b + m * tiles_b) * stride + 4 * four);
            UNROLL for (int n = 0; n < tile_i; n++) {
                float w[4];
                int i = first_i + n * tiles_i;
                load4(w, weights + (i < inputs ? i : inputs - 1) * stride + 4 * four);
                UNROLL for (int m = 0; m < tile_b; m++)
                    UNROLL for (int k = 0; k < 4; k++)
                        sum[m][n] = FMA(a[m][k], w[k], sum[m][n]);
            }
        }
        UNROLL for (int m = 0; m < tile_b; m++)
            UNROLL for (int n = 0; n < tile_i; n++) {
                int b = first_b + m * tiles_b, i = first_i + n * tiles_i;
                if (i < inputs)
                    to[b * to_stride + i] = i < units ? sum[m][n] * SLOPE(in[b * length + i])
                                                      : 0.0f;
            }
    }
}
