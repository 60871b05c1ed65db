/* Lines of 128 bytes in shared memory, as ldmatrix and wgmma read them. A line is eight pieces of 16
 * bytes. Piece p of line l is stored as piece p ^ l % 8 of the line, so that the same pieces of
 * eight lines are in different banks (the 128-byte swizzle of wgmma). A step is 32 bytes of K, two
 * pieces of each line: one instruction of the tensor cores. */

#pragma once

#include "dialect/common.h"
#include "ptx/ldmatrix.h"

#define LINE 128
#define BARRIERS_BYTES 1024 /* room for barriers before the first line */

/* Eight lines, aligned together. */
struct ALIGNED(1024) Lines {
    uint4 pieces[64];
};

/* Returns the bytes from the first line to a piece. */
template <class Number> INLINE Number piece_offset(Number line, Number piece)
{
    return line * LINE + ((piece ^ line % 8) << 4);
}

/* Loads a step of 16 lines, `line` lines after those of the address: that of the lane's piece of the
 * first step. As the left operand of mma this is piece lane / 16 of line lane % 16; as two right
 * operands it is piece lane / 8 % 2 of line lane / 16 * 8 + lane % 8. */
[[maybe_unused]] INLINE uint4 load_step(uint address, int step, int line)
{
    return ldmatrix_x4((address ^ (uint)step << 5) + line * LINE);
}
