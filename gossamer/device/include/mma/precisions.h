/* Multiplication on tensor cores in three precisions: float16, TF32 and float32. A warp multiplies
 * one tile, its fragments, or its share of the steps of a stage. Operands are loaded as words of 16
 * bytes. */

#pragma once

#if !defined CONFIGURED && !defined TF32
#define TF32 0 /* if HALVES is 0: 1 multiplies floats as TF32, 0 as float32 */
#endif

#include "dialect/common.h"
#include "mma/warp.h"

#if HALVES || TF32
typedef uint4 Pixels;
typedef uint4 Weights;

/* Converts loaded numbers to operands. Floats are rounded to TF32. */
INLINE uint4 as_operands(const uint4 &words)
{
    return rounded_operands(words);
}

/* Returns packed numbers as operands. Packing has already rounded floats to TF32. */
[[maybe_unused]] INLINE uint4 packed_operands(const uint4 &words)
{
    return words;
}

/* Multiplies 16 rows by 8 of a fragment's 16 columns over one step of K, and adds the products to
 * `sum`. tile: 0 for the first 8 columns, 1 for the last 8. */
[[maybe_unused]] INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels,
                                           const Weights &weights, int tile)
{
    mma_sync(sum, pixels, tile ? weights.z : weights.x, tile ? weights.w : weights.y);
}
#else
/* Four floats, each split into two numbers: `upper` is the float rounded to the 11 significant bits
 * of TF32, and `lower` is the remainder. */
struct Operands {
    uint4 upper, lower;
};
typedef Operands Pixels;
typedef Operands Weights;

/* Sets `upper` to a float rounded to 11 significant bits, and `lower` to the remainder. All three
 * are passed as bits. */
INLINE void split(uint value, uint &upper, uint &lower)
{
    upper = (value + 0x1000u) & ~0x1fffu;
    lower = (uint)__float_as_int(__int_as_float((int)value) - __int_as_float((int)upper));
}

INLINE Operands as_operands(const uint4 &words)
{
    Operands split_words;
    split(words.x, split_words.upper.x, split_words.lower.x);
    split(words.y, split_words.upper.y, split_words.lower.y);
    split(words.z, split_words.upper.z, split_words.lower.z);
    split(words.w, split_words.upper.w, split_words.lower.w);
    return split_words;
}

[[maybe_unused]] INLINE Operands packed_operands(const uint4 &words)
{
    return as_operands(words);
}

/* Multiplies a tile as in the other precisions, but adds three of the four products of upper and
 * lower numbers. The product of the two lower numbers is left out, because it is below 2^-22 of the
 * whole product. Tensor cores truncate sums. They therefore sum only the products of this step, and
 * ordinary additions add the result to `sum`. */
[[maybe_unused]] INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels,
                                           const Weights &weights, int tile)
{
    const uint4 &upper = weights.upper, &lower = weights.lower;
    float of_step[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma_sync(of_step, pixels.lower, tile ? upper.z : upper.x, tile ? upper.w : upper.y);
    mma_sync(of_step, pixels.upper, tile ? lower.z : lower.x, tile ? lower.w : lower.y);
    mma_sync(of_step, pixels.upper, tile ? upper.z : upper.x, tile ? upper.w : upper.y);
    UNROLL for (int i = 0; i < 4; i++)
        sum[i] += of_step[i];
}
#endif

/* Multiplies `rows` fragments of 16 rows by `columns` fragments of 16 columns over one step of K.
 * left, right: functions that load the operand of the fragment with a given number. */
template <int rows, int columns, class Left, class Right>
INLINE void multiply_fragments(float (&sums)[rows][2 * columns][4], Left left, Right right)
{
    Pixels of_rows[rows];
    Weights of_columns[columns];
    UNROLL for (int i = 0; i < rows; i++)
        of_rows[i] = left(i);
    UNROLL for (int j = 0; j < columns; j++)
        of_columns[j] = right(j);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < 2 * columns; j++)
            multiply_tile(sums[i][j], of_rows[i], of_columns[j / 2], j % 2);
}

/* Multiplies a warp's share of the steps of a stage. `warps` warps take the steps in turn. steps:
 * number of steps of a full stage. left: number of steps of K from this stage on; the last stage
 * may have fewer than `steps`. warp: number of this warp, from 0. multiply: function that
 * multiplies the step with a given number. */
template <int steps, int warps, class Multiply>
INLINE void share_steps(int left, int warp, Multiply multiply)
{
    if (left >= steps) {
        UNROLL for (int step = 0; step < steps; step += warps)
            multiply(step + warp);
    } else {
        _Pragma("unroll 1") for (int step = warp; step < left; step += warps)
            multiply(step);
    }
}
