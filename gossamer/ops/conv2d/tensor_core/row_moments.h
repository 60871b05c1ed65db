/* The mean and the deviation of each pixel's values, for products of normalised pixels. The four
 * lanes that hold the sums of a row add up a quarter of the row's values each, and their squares.
 *
 * The lanes load the values from device memory a stage ahead. To read the slots is no faster, and
 * all lanes would then arrive at a barrier for each slot that they release. */

#pragma once

#include "ptx/shfl.h"
#include "implicit_gemm_tile.h"

/* Parts of a stage, of the rows lane / 4 and lane / 4 + 8 of each fragment; of each row, a lane has
 * pieces lane % 4 and lane % 4 + 4. */
struct RowParts {
    uint4 words[FRAGMENTS_P][2][2];
};

/* Sums of the values of these rows, and of their squares. */
struct Moments {
    float sums[FRAGMENTS_P][2], squares[FRAGMENTS_P][2];
};

/* Loads a lane's parts of a stage; parts outside of x become zeros. x: `pixels` rows of `depth`
 * values. first_pixel: the tile's first pixel. warp_p: index of the warp along the pixels. */
[[maybe_unused]] INLINE void load_parts(RowParts &parts, const REAL *x, int first_pixel, int pixels,
                                        int depth, int stage, [[maybe_unused]] uint warp,
                                        [[maybe_unused]] uint warp_p, uint lane)
{
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int part = 0; part < 2; part++) {
                int pixel = first_pixel + (int)(FRAGMENT_LINE(i) + half * 8 + lane / 4);
                int k = (stage * 8 + part * 4 + (int)lane % 4) * VECTOR;
                parts.words[i][half][part] = make_uint4(0, 0, 0, 0);
                if (pixel < pixels && k < depth)
                    parts.words[i][half][part] = *(const uint4 *)(x + pixel * depth + k);
            }
}

/* Adds the values of loaded parts to a lane's moments. */
[[maybe_unused]] INLINE void add_moments(Moments &moments, const RowParts &parts)
{
    UNROLL for (int i = 0; i < FRAGMENTS_P; i++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int part = 0; part < 2; part++) {
                const uint4 &words = parts.words[i][half][part];
                float4 lower = LOWER_VALUE4(words), upper = UPPER_VALUE4(words);
                float values[8] = { lower.x, lower.y, lower.z, lower.w,
                                    upper.x, upper.y, upper.z, upper.w };
                float &sum = moments.sums[i][half], &square = moments.squares[i][half];
                UNROLL for (int v = 0; v < 8; v++) {
                    sum += values[v];
                    square = FMA(values[v], values[v], square);
                }
            }
}

/* Returns a row's mean, and the reciprocal of its deviation.
 * sum, square: a lane's sum of values and of squares.
 * mean_share: the reciprocal of the number of values; 0 if the mean counts as 0. */
[[maybe_unused]] INLINE float2 norm_of(float sum, float square, int depth, float mean_share,
                                       float epsilon, uint lane)
{
    float mean = warp_sum<4>(sum, lane) * mean_share;
    float variance = warp_sum<4>(square, lane) / (float)depth - mean * mean;
    return make_float2(mean, 1.0f / sqrtf(MAXIMUM(variance, 0.0f) + epsilon));
}
