/* Products of matrices in the shared memory of one work-group. Each work-item computes tiles of at
 * most 8 x 8 results. The sizes of the tiles are constants. With TF32, the functions
 * forward_product, gradient_tile and backward_product are those in batched_tensor_cores.h. */

#pragma once

#if !defined CONFIGURED && !defined THREADS
#define THREADS 128 /* work-items of the work-group */
#define TF32 0 /* 1: products are computed by tensor cores in TF32 */
#define SLOPE(a) ((a) * (1.0f - (a))) /* the derivative of the activation, from its result */
#endif

#include "dialect/common.h"
#include "ops/backprop/batched_places.h"

#if TF32
/* A warp computes ALONG x ACROSS tiles together. COLUMN is column n of tile number `tile`. */
#define ALONG 8
#define ACROSS 4
#define GRADIENT_PLACE place_in_warp
#define COLUMN(tile, tiles, n) (4 * (tile) + (n))
#else
#define ALONG 1
#define ACROSS 1
#define GRADIENT_PLACE place_of
/* COLUMN is column n of tile number `tile` of `tiles` tiles. The tiles take turns: each has the
 * next four columns. LOADED_COLUMN is for loads of four columns, where n is a multiple of 4. It is
 * COLUMN, but moved back if necessary so that the load does not exceed the rows of `columns`
 * columns. */
#define COLUMN(tile, tiles, n) ((n) / 4 * 4 * (tiles) + 4 * (tile) + (n) % 4)
#define LOADED_COLUMN(tile, tiles, n, columns)                                     \
    ((n) == 0 ? COLUMN(tile, tiles, n)                                             \
              : LESSER(COLUMN(tile, tiles, n), CEIL_DIV(columns, 4) * 4 - 4))
#endif

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

/* Loads four floats to an array. */
INLINE void load4(float *to, const SHARED_POINTER float *from)
{
    float4 four = SHARED_LOAD4(from);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
}

/* Sets the sums of a tile of rows x columns results to 0. */
INLINE void clear_tile(float sum[8][8], int rows, int columns)
{
    UNROLL for (int m = 0; m < rows; m++)
        UNROLL for (int n = 0; n < columns; n++)
            sum[m][n] = 0.0f;
}

/* Offset of sum j of sample b of `rows` samples. The columns are divided into slices of `slice`
 * columns, and each slice is contiguous. If `slice` is `stride`, there is one slice. */
#define SUM_PLACE(b, j, stride, slice, rows)                                       \
    ((slice) == (stride) ? (b) * (stride) + (j)                                    \
                         : (j) / (slice) * ((rows) * (slice)) + (b) * (slice) + (j) % (slice))

/* Returns four neighbouring sums. Each sum has `parts` terms that are `size` floats apart. */
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

/* Adds up the `parts` arrays of `size` floats at `from`, and stores the sums at `to`. */
INLINE void add_parts(const SHARED_POINTER float *from, SHARED_POINTER float *to, int size,
                      int parts, int item)
{
    ROLLED for (int n = 4 * item; n < size; n += 4 * THREADS)
        SHARED_STORE4(to + n, sum_of_parts(from + n, size, parts));
}

/* Stores the results of gradient_tile at `to`, in rows of `stride` floats. */
INLINE void store_gradient_tile(float sum[8][8], SHARED_POINTER float *to, int stride, int inputs,
                                int units, Place place, int tiles_i, int tiles_j, int tile_i,
                                int tile_j)
{
    UNROLL for (int m = 0; m < tile_i; m++)
        UNROLL for (int n = 0; n < tile_j; n += 4) {
            int i = COLUMN(place.along, tiles_i, m), j = COLUMN(place.across, tiles_j, n);
            if (i < inputs && j < units)
                SHARED_STORE4(to + i * stride + j, MAKE4(sum[m][n], sum[m][n + 1], sum[m][n + 2],
                                                         sum[m][n + 3]));
        }
}

#if !TF32
/* sums[b][j] = sum over i of in[b][i] * weights[i][j]. Each sum is divided into `parts` parts. The
 * first parts of all sums form an array of `size` floats, which is followed by the array of the
 * second parts, and so on.
 *
 * rows: number of samples b.
 * length, stride: floats of a row of `in`, and of a row of `weights`. slice: see SUM_PLACE.
 * fours: number of inputs i, divided by 4. units: number of units j.
 * tile_b, tile_j: sizes of a tile; tile_b divides `rows`, and tile_j is a multiple of 4. */
INLINE void forward_product(int rows, const SHARED_POINTER float *in, int length,
                            const SHARED_POINTER float *weights, int stride,
                            SHARED_POINTER float *sums, int slice, int size, int fours, int units,
                            int tile_b, int tile_j, int parts, int item)
{
    const int tiles_b = rows / tile_b, tiles_j = CEIL_DIV(units, tile_j);
    ROLLED for (int t = item; t < tiles_b * tiles_j * parts; t += THREADS) {
        Place place = place_of(t, tiles_b, tiles_j, parts);
        int first_b = place.along, tile = place.across;
        SHARED_POINTER float *to = sums + place.part * size;
        float sum[8][8];
        clear_tile(sum, tile_b, tile_j);
        ROLLED for (int four = place.part; four < fours; four += parts) {
            float a[8][4];
            UNROLL for (int m = 0; m < tile_b; m++)
                load4(a[m], in + (first_b + m * tiles_b) * length + 4 * four);
            UNROLL for (int k = 0; k < 4; k++) {
                float w[8];
                UNROLL for (int n = 0; n < tile_j; n += 4)
                    load4(w + n, weights + (4 * four + k) * stride
                                 + LOADED_COLUMN(tile, tiles_j, n, units));
                UNROLL for (int m = 0; m < tile_b; m++)
                    UNROLL for (int n = 0; n < tile_j; n++)
                        sum[m][n] = FMA(a[m][k], w[n], sum[m][n]);
            }
        }
        UNROLL for (int m = 0; m < tile_b; m++)
            UNROLL for (int n = 0; n < tile_j; n += 4)
                if (COLUMN(tile, tiles_j, n) < units)
                    SHARED_STORE4(to + SUM_PLACE(first_b + m * tiles_b, COLUMN(tile, tiles_j, n),
                                                 stride, slice, rows),
                                  MAKE4(sum[m][n], sum[m][n + 1], sum[m][n + 2], sum[m][n + 3]));
    }
}

/* Adds to sum[m][n] the products in[b][i] * errors[b][j] of some samples b, for input i = column m
 * and unit j = column n of a tile. The samples are b = place.part, place.part + parts, and so on,
 * below `rows`.
 *
 * length, stride: floats of a row of `in` and of `errors`.
 * inputs, units: numbers of inputs i and of units j.
 * place: the number of the tile along the inputs, its number across the units, and the first
 * sample.
 * tiles_i, tiles_j: numbers of tiles. tile_i, tile_j: numbers of inputs and units of a tile. */
INLINE void gradient_tile(int rows, float sum[8][8], const SHARED_POINTER float *in, int length,
                          const SHARED_POINTER float *errors, int stride, int inputs, int units,
                          Place place, int tiles_i, int tiles_j, int tile_i, int tile_j, int parts)
{
    const SHARED_POINTER float *next_in[2], *next_errors[2];
    UNROLL for (int m = 0; m < tile_i; m += 4)
        next_in[m / 4] = in + place.part * length + LOADED_COLUMN(place.along, tiles_i, m, inputs);
    UNROLL for (int n = 0; n < tile_j; n += 4)
        next_errors[n / 4] = errors + place.part * stride
                             + LOADED_COLUMN(place.across, tiles_j, n, units);
    ROLLED for (int b = place.part; b < rows; b += parts) {
        float a[8], error[8];
        UNROLL for (int m = 0; m < tile_i; m += 4) {
            load4(a + m, next_in[m / 4]);
            next_in[m / 4] += parts * length;
        }
        UNROLL for (int n = 0; n < tile_j; n += 4) {
            load4(error + n, next_errors[n / 4]);
            next_errors[n / 4] += parts * stride;
        }
        UNROLL for (int m = 0; m < tile_i; m++)
            UNROLL for (int n = 0; n < tile_j; n++)
                sum[m][n] = FMA(a[m], error[n], sum[m][n]);
    }
}

/* to[b][i] = SLOPE(in[b][i]) * (sum over j of errors[b][j] * weights[i][j]), and 0 for i >= units.
 *
 * rows: number of samples b. stride: row stride of `errors` and of `weights`, in floats. length,
 * to_stride: row strides of `in` and of `to`. fours: number of units j, divided by 4. inputs:
 * number of inputs i, padding included. units: number of inputs i without bias and padding.
 * tile_b, tile_i: samples and inputs of a tile; tile_b divides `rows`. */
INLINE void backward_product(int rows, const SHARED_POINTER float *errors,
                             const SHARED_POINTER float *weights, int stride,
                             const SHARED_POINTER float *in, int length,
                             SHARED_POINTER float *to, int to_stride, int fours, int inputs,
                             int units, int tile_b, int tile_i, int item)
{
    const int tiles_b = rows / tile_b, tiles_i = CEIL_DIV(inputs, tile_i);
    ROLLED for (int t = item; t < tiles_b * tiles_i; t += THREADS) {
        Place place = place_of(t, tiles_b, tiles_i, 1);
        int first_b = place.along, first_i = place.across;
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
#endif
