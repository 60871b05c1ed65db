/* Products of warps by tensor cores, in three precisions: of a tile, of the fragments of a warp, and
 * of the steps of a stage. Operands are loaded as words of 16 bytes. */

#pragma once

#if !defined CONFIGURED && !defined TF32
#define TF32 0 /* where HALVES is 0: 1 multiplies floats as TF32, 0 as float32 */
#endif

#include "dialect/common.h"
#include "mma/warp.h"

#if HALVES || TF32
typedef uint4 Pixels;
typedef uint4 Weights;

/* Converts loaded numbers to operands: floats are rounded to TF32. */
INLINE uint4 as_operands(const uint4 &words)
{
    return rounded_operands(words);
}

/* Returns packed numbers as operands; floats were rounded to TF32 when they were packed. */
[[maybe_unused]] INLINE uint4 packed_operands(const uint4 &words)
{
    return words;
}

[[maybe_unused]] INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels,
                                           const Weights &weights, int tile)
{
    mma_sync(sum, pixels, tile ? weights.z : weights.x, tile ? weights.w : weights.y);
}
#else
/* Numbers, each as a sum of two: `upper` is the number rounded to the 11 significant bits of TF32,
 * and `lower` is the remainder. */
struct Operands {
    uint4 upper, lower;
};
typedef Operands Pixels;
typedef Operands Weights;

/* Splits a number into the number rounded to 11 significant bits and the remainder. */
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

/* Adds three of the four products of upper and lower numbers. The product of the two lower numbers
 * is left out, because it is below 2^-22 of the whole product. Tensor cores truncate their sums, so
 * they sum only the products of this step, and ordinary additions add the result to `sum`. */
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
 * left, right: functions that load a fragment's operand. */
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

/* Multiplies a warp's share of the steps of a stage, in which `warps` warps take turns. left: the
 * steps of K from this stage on; a stage has at most `steps`. multiply: function of a step. */
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
