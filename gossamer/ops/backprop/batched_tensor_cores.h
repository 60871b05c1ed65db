/* Tensor cores compute the products of batched_products.h in TF32. The operands are rounded to 11
 * significant bits; sums are float32. A warp computes a tile of 16 or 32 rows and 8 to 32 columns.
 * The number of samples is a multiple of 8.
 *
 * The operands of mma.m16n8k8 consist of blocks of eight rows with eight terms of a sum. Lane n
 * holds terms n % 4 and n % 4 + 4 of row n / 4. Rows and terms may be loaded in any order, as long
 * as both operands have the same order of terms. In the order used here, each lane reads two or
 * four neighbouring words. Rows in shared memory are odd multiples of 4 words long, so lanes that
 * are served at the same time read different banks. */

#pragma once

#if !defined CONFIGURED && !defined TF32
#define TF32 0 /* 1: products are computed by tensor cores in TF32 */
#endif

#include "dialect/common.h"
#include "mma/warp.h"
#include "ops/backprop/batched_products.h"

#if TF32 && defined __CUDACC__

/* The row, of eight, that lane n reads. */
#define ROW_OF(n) (2 * ((n) / 4 % 4) + (n) / 16)
/* The column, of eight, of result 0 or 1 of lane n, if lanes read the rows of the second operand in
 * the order of ROW_OF. */
#define COLUMN_OF(n, result) ROW_OF(4 * (2 * ((n) % 4) + (result)))

INLINE uint tf32_of(float value)
{
    return round_to_tf32((uint)__float_as_int(value));
}

/* Loads four words, one for each of four fragments; zeros if `inside` is false. */
INLINE void load_fragments(uint (&to)[4], const float *from, bool inside)
{
    float4 four = inside ? SHARED_LOAD4(from) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
    to[0] = tf32_of(four.x);
    to[1] = tf32_of(four.y);
    to[2] = tf32_of(four.z);
    to[3] = tf32_of(four.w);
}

/* Loads two neighbouring terms of a sum; zeros if `inside` is false. */
INLINE void load_terms(uint &first, uint &second, const float *from, bool inside)
{
    float2 two = inside ? *(const float2 *)from : make_float2(0.0f, 0.0f);
    first = tf32_of(two.x);
    second = tf32_of(two.y);
}

INLINE uint4 fragment_of_rows(const float *upper, const float *lower, bool inside)
{
    uint4 fragment;
    load_terms(fragment.x, fragment.z, upper, inside);
    load_terms(fragment.y, fragment.w, lower, inside);
    return fragment;
}

/* As in batched_products.h. tile_b: 16 or 32. tile_j: 32. */
INLINE void forward_product(int rows, const float *in, int length, const float *weights,
                            int stride, float *sums, int slice, int size, int fours, int units,
                            int tile_b, int tile_j, int parts, int item)
{
    const int tiles_b = CEIL_DIV(rows, tile_b), tiles_j = CEIL_DIV(units, tile_j);
    const int lane = item % 32, terms = 2 * (lane % 4);
    ROLLED for (int t = item / 32; t < tiles_b * tiles_j * parts; t += THREADS / 32) {
        int part = t / (tiles_b * tiles_j);
        int first_b = t % tiles_b * tile_b, first_j = t / tiles_b % tiles_j * tile_j;
        int column = LESSER(first_j + lane / 4 * 4, CEIL_DIV(units, 4) * 4 - 4);
        const float *of_row[4];
        float sum[2][4][4];
        UNROLL for (int m = 0; m < tile_b / 8; m++)
            of_row[m] = in + LESSER(first_b + 8 * m + ROW_OF(lane), rows - 1) * length + terms;
        UNROLL for (int n = 0; n < 32; n++)
            sum[n / 16][n / 4 % 4][n % 4] = 0.0f;
        ROLLED for (int step = part; step < CEIL_DIV(fours, 2); step += parts) {
            bool inside = fours % 2 == 0 || 8 * step + terms < 4 * fours;
            uint lower[4], upper[4];
            load_fragments(lower, weights + (8 * step + terms) * stride + column, inside);
            load_fragments(upper, weights + (8 * step + terms + 1) * stride + column, inside);
            UNROLL for (int m = 0; m < tile_b / 16; m++) {
                uint4 a = fragment_of_rows(of_row[2 * m] + 8 * step, of_row[2 * m + 1] + 8 * step,
                                           inside);
                UNROLL for (int n = 0; n < 4; n++)
                    mma_sync(sum[m][n], a, lower[n], upper[n]);
            }
        }
        UNROLL for (int m = 0; m < tile_b / 8; m++)
            UNROLL for (int n = 0; n < 2; n++) {
                int b = first_b + 8 * m + ROW_OF(lane), j = first_j + 4 * terms + 4 * n;
                if (b < rows && j < units) {
                    float *to = sums + part * size + SUM_PLACE(b, j, stride, slice, rows),
                          four[4];
                    UNROLL for (int k = 0; k < 4; k++)
                        four[k] = sum[m / 2][k][m % 2 * 2 + n];
                    SHARED_STORE4(to, MAKE4(four[0], four[1], four[2], four[3]));
                }
            }
    }
}

/* As in batched_products.h. A warp computes 32 x 32 results, and each of its work-items has 4 x 8
 * of them in `sum`; see place_in_warp. */
INLINE void gradient_tile(int rows, float sum[8][8], const float *in, int length,
                          const float *errors, int stride, int inputs, int units, Place place,
                          int tiles_i, int tiles_j, int tile_i, int tile_j, int parts)
{
    const int terms = place.across % 8, row = place.along % 8;
    const float *columns_in = in + LESSER(4 * place.along, CEIL_DIV(inputs, 4) * 4 - 4);
    const float *columns_errors = errors + LESSER(4 * (place.across - terms + row),
                                                  CEIL_DIV(units, 4) * 4 - 4);
    float of_fragment[2][4][4];
    UNROLL for (int n = 0; n < 32; n++)
        of_fragment[n / 16][n / 4 % 4][n % 4] = 0.0f;
    ROLLED for (int step = place.part; step < rows / 8; step += parts) {
        int b = 8 * step + terms;
        uint lower_in[4], upper_in[4], lower[4], upper[4];
        load_fragments(lower_in, columns_in + b * length, true);
        load_fragments(upper_in, columns_in + (b + 1) * length, true);
        load_fragments(lower, columns_errors + b * stride, true);
        load_fragments(upper, columns_errors + (b + 1) * stride, true);
        UNROLL for (int m = 0; m < 2; m++)
            UNROLL for (int n = 0; n < 4; n++)
                mma_sync(of_fragment[m][n],
                         make_uint4(lower_in[2 * m], lower_in[2 * m + 1], upper_in[2 * m],
                                    upper_in[2 * m + 1]), lower[n], upper[n]);
    }
    UNROLL for (int m = 0; m < 4; m++)
        UNROLL for (int n = 0; n < 8; n++)
            sum[m][n] += of_fragment[m / 2][n % 4][m % 2 * 2 + n / 4];
}

/* As in batched_products.h. tile_b: 16. tile_i: 8, 16 or 32. */
INLINE void backward_product(int rows, const float *errors, const float *weights, int stride,
                             const float *in, int length, float *to, int to_stride, int fours,
                             int inputs, int units, int tile_b, int tile_i, int item)
{
    const int tiles_b = CEIL_DIV(rows, tile_b), tiles_i = CEIL_DIV(inputs, tile_i);
    const int lane = item % 32, terms = 2 * (lane % 4);
    ROLLED for (int t = item / 32; t < tiles_b * tiles_i; t += THREADS / 32) {
        int first_b = t % tiles_b * tile_b, first_i = t / tiles_b * tile_i;
        const float *of_row[2], *inputs_of[4];
        float sum[4][4];
        UNROLL for (int m = 0; m < 2; m++)
            of_row[m] = errors + LESSER(first_b + 8 * m + ROW_OF(lane), rows - 1) * stride + terms;
        UNROLL for (int n = 0; n < tile_i / 8; n++) {
            inputs_of[n] = weights + LESSER(first_i + 8 * n + ROW_OF(lane), inputs - 1) * stride
                           + terms;
            sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
        }
        ROLLED for (int step = 0; step < CEIL_DIV(fours, 2); step++) {
            bool inside = fours % 2 == 0 || 8 * step + terms < 4 * fours;
            uint4 a = fragment_of_rows(of_row[0] + 8 * step, of_row[1] + 8 * step, inside);
            UNROLL for (int n = 0; n < tile_i / 8; n++) {
                uint first, second;
                load_terms(first, second, inputs_of[n] + 8 * step, inside);
                mma_sync(sum[n], a, first, second);
            }
        }
        UNROLL for (int n = 0; n < tile_i / 8; n++)
            UNROLL for (int k = 0; k < 4; k++) {
                int b = first_b + k / 2 * 8 + ROW_OF(lane);
                int i = first_i + 8 * n + COLUMN_OF(lane, k % 2);
                if (b < rows && i < inputs)
                    to[b * to_stride + i] = i < units ? sum[n][k] * SLOPE(in[b * length + i])
                                                      : 0.0f;
            }
    }
}
#endif
