/* Loads inputs to shared memory and registers, for the kernels on bit tensor cores. results.h
 * computes outputs from sums.
 *
 * Tensor cores multiply bits: the product of two bits is 1 if both bits are 1. A step is 256
 * bits of an inner product, or WORDS words of a pixel's window. With inputs of one bit, where a bit
 * 1 stands for 1 and a bit 0 for -1, the sum for a pixel and a channel is
 *
 *     4 ones(x & w) - 2 ones(x) - (the sum of the signs of the weights inside of the image).
 *
 * Here x are the bits of the inputs, w the bits of the weights, and ones() counts the bits that are
 * 1. Bits of x outside of the image are 0, so the first two terms need no correction there. With
 * inputs of two bits a word is multiplied twice: first the inputs that are 1 by the weights that
 * are 1, then the inputs that are -1 by the weights that are -1. The ones of both products count
 * the pairs of equal signs; in all other pairs whose input is not 0, the signs differ. The sum is
 *
 *     2 ones - (the number of inputs that are not 0).
 *
 * In both cases the kernels first compute 2 ones - counted. `ones` is the number of ones of all
 * products. `counted` is ones(x) with inputs of one bit, and the number of inputs that are not 0
 * with inputs of two bits. `counted` is the same for all channels. */

#pragma once

#if !defined CONFIGURED && !defined WORD_BITS
#define WORD_BITS 64 /* bits of a word, 32 or 64 */
/* number of planes of the inputs. One plane holds inputs of -1 and 1: a bit is 1 if the input is 1.
 * Two planes hold inputs of -1, 0 and 1: a bit of plane 0 is 1 if the input is not 0, and a bit of
 * plane 1 is 1 if the input is 1 */
#define PLANES 1
#define AT_ONCE 3 /* steps that a warp multiplies between two barriers */
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"

#define WORDS (256 / WORD_BITS)
#define WORD_BYTES (WORD_BITS / 8)
/* Bytes of one word of each plane of a pixel; these words are adjacent. */
#define PLACE_BYTES (WORD_BYTES * PLANES)
/* Bytes of a line, which has one word of each pixel of a tile. 32 bytes of padding let the next
 * line begin 8 banks further on. */
#define LINE_BYTES(pixels) ((pixels) * PLACE_BYTES + 32)

/* Starts an asynchronous copy of a word of each plane, or of zeros if size is 0. */
INLINE void copy_word(uint target, const uchar *source, int size)
{
#if PLACE_BYTES < 16
    cp_async_ca<PLACE_BYTES>(target, source, size);
#else
    cp_async_16(target, source, size);
#endif
}

/* The input with its sizes, and the first word of the group of channels that the work-group
 * reads. */
struct Source {
    const uchar *x;
    int first_word, words, height, width, stride_y, stride_x, pad_top, pad_left;
};

/* The window of an output pixel: the number of its first word in the input, its first row and its
 * first column. */
struct Window {
    int word, row, column;
};

/* The image of an output pixel, and the pixel's row and column in the output. */
struct Position {
    int image, row, column;
};

INLINE Window window_of(const Source &source, const Position &position)
{
    int row = position.row * source.stride_y - source.pad_top;
    int column = position.column * source.stride_x - source.pad_left;
    int line = (position.image * source.words + source.first_word) * source.height + row;
    return {line * source.width + column, row, column};
}

/* Starts the copy of one word of a window.
 *
 * tap.x: words from the window's first word to this word.
 * tap.y: rows (upper 16 bits) and columns (lower 16 bits) from the window's first pixel. Taps that
 * only fill up the last step have a row outside of any image. */
[[maybe_unused]] INLINE void copy_tap(uint target, const Source &source, const Window &window, const int2 &tap)
{
    bool inside = ((uint)(window.row + (tap.y >> 16)) < (uint)source.height)
                  & ((uint)(window.column + (tap.y & 0xffff)) < (uint)source.width);
    copy_word(target, source.x + (inside ? (INT64)(window.word + tap.x) * PLACE_BYTES : 0),
              inside ? PLACE_BYTES : 0);
}

/* A lane's bits of one step of a pixel, as the instruction's operand: 32 bits of the lower half and
 * 32 bits of the upper half of the step. With two planes a word is multiplied twice, and each of
 * the two products has its own bits. */
struct Operand {
    uint low[PLANES], high[PLANES];
};

/* Returns how many inputs of an operand are counted: with one plane the inputs that are 1, with
 * two planes the inputs that are not 0. */
INLINE int counted_in(const Operand &operand)
{
    int ones = 0;
    UNROLL for (int plane = 0; plane < PLANES; plane++)
        ones += POPCOUNT(operand.low[plane]) + POPCOUNT(operand.high[plane]);
    return ones;
}

/* Loads a lane's bits of a pixel's step. words: address of the pixel's word in line `lane % 4` of
 * the step (each line has one word of every pixel). With words of 64 bits, a lane loads the two
 * halves of one word. With words of 32 bits, a lane loads two words; the second word is four lines
 * after the first. */
INLINE Operand load_operand(const uchar *words, int line_bytes)
{
    Operand operand;
#if PLANES == 1
#if WORD_BITS == 64
    uint2 word = *(const uint2 *)words;
    operand.low[0] = word.x;
    operand.high[0] = word.y;
#else
    operand.low[0] = *(const uint *)words;
    operand.high[0] = *(const uint *)(words + 4 * line_bytes);
#endif
#else
#if WORD_BITS == 64
    uint4 word = *(const uint4 *)words;
    uint low = word.x, high = word.y;
    operand.low[0] = word.z;
    operand.high[0] = word.w;
#else
    uint2 lower = *(const uint2 *)words, upper = *(const uint2 *)(words + 4 * line_bytes);
    uint low = lower.x, high = upper.x;
    operand.low[0] = lower.y;
    operand.high[0] = upper.y;
#endif
    operand.low[1] = low & ~operand.low[0];
    operand.high[1] = high & ~operand.high[0];
#endif
    return operand;
}
