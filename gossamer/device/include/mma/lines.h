/* Lines of 128 bytes in shared memory, in the layout that ldmatrix and wgmma read. A line has eight
 * pieces of 16 bytes. Piece p of line l is stored in place p ^ (l % 8) of the line (the 128-byte
 * swizzle of wgmma). Pieces p of eight consecutive lines are therefore in different banks.
 *
 * A step is 32 bytes of K: two pieces of each line. An instruction for dense operands multiplies
 * one step. */

#pragma once

#include "dialect/common.h"
#include "ptx/ldmatrix.h"

#define LINE 128
#define BARRIERS_BYTES 1024 /* room for barriers before the first line */

/* Eight lines, aligned together. */
struct ALIGNED(1024) Lines {
    uint4 pieces[64];
};

/* Returns the offset of a piece from the start of line 0, in bytes. */
template <class Number> INLINE Number piece_offset(Number line, Number piece)
{
    return line * LINE + ((piece ^ line % 8) << 4);
}

/* Loads one step of 16 lines.
 * address: address of the lane's piece of step 0. For the left operand of mma, this is piece
 * lane / 16 of line lane % 16. For two right operands, it is piece lane / 8 % 2 of line
 * lane / 16 * 8 + lane % 8.
 * line: number of lines from the lines of `address` to the loaded lines, a multiple of 8. */
[[maybe_unused]] INLINE uint4 load_step(uint address, int step, int line)
{
    return ldmatrix_x4((address ^ (uint)step << 5) + line * LINE);
}
