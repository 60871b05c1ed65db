/* Products of convolution_pool_mma.cu: 64 columns of a row of outputs by OUT_PART channels. In
 * sums[n], a lane has the sums of columns c and c + 8, where c is 16 * warp + lane / 4, and of
 * channels d and d + 1, where d is 8 * n + 2 * (lane % 4).
 *
 * A step covers 16 numbers of K: it multiplies two lines of the image by their weights. A line has
 * 16 bytes (8 numbers of K) for each of 64 columns. The weights of a line have 16 bytes for each
 * channel. */

#pragma once

#include "mma/warp.h"
#include "ptx/ldmatrix.h"
#include "ptx/wgmma.h"
#include "sizes.h"

#if WGMMA
#define SUMS_OF_TWO(n)                                                                            \
    "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3]), "+f"(sums[n + 1][0]), \
        "+f"(sums[n + 1][1]), "+f"(sums[n + 1][2]), "+f"(sums[n + 1][3])

/* Returns the matrix descriptor of an operand of a step. word: the address of the operand's first
 * word of 16 bytes; the words of all columns or channels follow one another, in tiles of 8. The
 * upper half of the step lies `upper` words further. */
INLINE ulong matrix_descriptor(uint word, uint upper)
{
    return (ulong)(word + (upper << 16)) | 8ull << 32;
}

/* Begins to multiply a step. adds: 0 where the sums begin with this step, otherwise 1. */
INLINE void wgmma_ss(float (&sums)[OUT_PART / 8][4], ulong columns, ulong weights, int adds)
{
#if OUT_PART == 64
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, "
                 "p, 1, 1, 0, 0; }"
                 : SUMS_OF_TWO(0), SUMS_OF_TWO(2), SUMS_OF_TWO(4), SUMS_OF_TWO(6)
                 : "l"(columns), "l"(weights), "r"(adds));
#elif OUT_PART == 48
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %26, 0; "
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23}, %24, %25, p, 1, 1, 0, 0; }"
                 : SUMS_OF_TWO(0), SUMS_OF_TWO(2), SUMS_OF_TWO(4)
                 : "l"(columns), "l"(weights), "r"(adds));
#elif OUT_PART == 32
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; "
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, "
                 "p, 1, 1, 0, 0; }"
                 : SUMS_OF_TWO(0), SUMS_OF_TWO(2)
                 : "l"(columns), "l"(weights), "r"(adds));
#else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; "
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0; }"
                 : SUMS_OF_TWO(0)
                 : "l"(columns), "l"(weights), "r"(adds));
#endif
}
#endif

/* Computes the products of ROWS rows of outputs; with wgmma, only begins to compute them. lines,
 * weights: the addresses of the lines and of the weights in shared memory. row_line: function that
 * returns the first line under the windows of an output row, as a number in the ring. */
template <typename RowLine>
INLINE void multiply_rows(float (&sums)[ROWS][OUT_PART / 8][4], uint lines, uint weights,
                          RowLine row_line, [[maybe_unused]] uint warp, [[maybe_unused]] uint lane)
{
    /* addresses in words of 16 bytes, which have 14 bits in a matrix descriptor */
    uint start = lines >> 4 & 0x3fff, end = start + RING * LINE_WORDS, first[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++)
        first[i] = start + row_line(i) * LINE_WORDS;
    auto line_of = [&](int i, int number) {
        uint word = first[i] + number * LINE_WORDS;
        return word >= end ? word - RING * LINE_WORDS : word;
    };
    /* words from a step's first line to its second line; where the window has no more lines, the
     * second line is the line of zeros */
    auto to_upper = [&](int step, uint word) {
        return step == STEPS - 1 && LINES % 2 ? start + ZERO_LINE * LINE_WORDS - word : LINE_WORDS;
    };
#if WGMMA
    wgmma_fence();
    UNROLL for (int step = 0; step < STEPS; step++) {
        ulong factors = matrix_descriptor((weights >> 4 & 0x3fff) + step * 2 * OUT_PART, OUT_PART);
        UNROLL for (int i = 0; i < ROWS; i++) {
            uint word = line_of(i, 2 * step);
            wgmma_ss(sums[i], matrix_descriptor(word, to_upper(step, word)), factors, step > 0);
        }
    }
    wgmma_commit_group();
#else
    UNROLL for (int i = 0; i < ROWS; i++)
        UNROLL for (int n = 0; n < OUT_PART / 8; n++)
            UNROLL for (int j = 0; j < 4; j++)
                sums[i][n][j] = 0.0f;
    uint column = warp * 16 + lane % 16, matrix = lane / 8;
    UNROLL for (int step = 0; step < STEPS; step++) {
        uint4 found[ROWS];
        UNROLL for (int i = 0; i < ROWS; i++) {
            uint word = line_of(i, 2 * step);
            uint upper = lane / 16 ? to_upper(step, word) : 0;
            found[i] = ldmatrix_x4(lines + (word - start + column + upper) * 16);
        }
        UNROLL for (int n = 0; n < OUT_PART / 8; n += 2) {
            /* where the number of groups of 8 channels is odd, the last group is loaded twice */
            uint eight = n + 1 < OUT_PART / 8 ? n + matrix / 2 : n;
            uint4 factors = ldmatrix_x4(
                weights + ((2 * step + matrix % 2) * OUT_PART + eight * 8 + lane % 8) * 16);
            UNROLL for (int i = 0; i < ROWS; i++) {
                mma_sync(sums[i][n], found[i], factors.x, factors.y);
                if (n + 1 < OUT_PART / 8)
                    mma_sync(sums[i][n + 1], found[i], factors.z, factors.w);
            }
        }
    }
#endif
}
