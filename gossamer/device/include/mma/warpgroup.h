/* Multiplication by the four warps of a warpgroup together, of two operands in shared memory, or,
 * in TF32, of pixels in registers and weights in shared memory (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined HALVES
#define HALVES 1 /* 1: operands are float16; 0: they are floats, which are read as TF32 */
#endif
#if !defined CONFIGURED && !defined TILE_M
#define TILE_M 64 /* lines of the right operand: 64, 96, 128, 160, 192 or 256 */
#endif

#include "dialect/common.h"
#include "ptx/wgmma.h"

#if HALVES
#define WGMMA_SHAPE(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "
#define WGMMA_OPTIONS "p, 1, 1, 0, 0;"
/* The operands of pixels in the text of the instruction, by their numbers, and in its operands. */
#define PIXELS(a, b, c, d) "%" #a
#define PIXEL_OPERANDS(x) "l"(x)
#else
#define WGMMA_SHAPE(n) "wgmma.mma_async.sync.aligned.m64n" #n "k8.f32.tf32.tf32 "
#define WGMMA_OPTIONS "p, 1, 1;"
#define PIXELS(a, b, c, d) "{%" #a ", %" #b ", %" #c ", %" #d "}"
#define PIXEL_OPERANDS(x) "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
#endif
#define WGMMA_TEXT(n, registers, x, weights)                                                           \
    "{ .reg .pred p; setp.eq.u32 p, 0, 0; " WGMMA_SHAPE(n) "{" registers "}, " x ", " weights ", " \
    WGMMA_OPTIONS " }"

/* The instruction's operands for the sums. The number in a macro's name is its first operand. */
#define REGISTERS_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_32 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_48 \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_64 \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_80 \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_96 \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, " \
    "%125, %126, %127"

/* A lane's sums as operands of the instruction: the four sums for 8 lines of the right operand
 * (FOUR), and the 16 sums for 32 lines (SIXTEEN). */
#define FOUR(j) "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])
#define SIXTEEN(j) FOUR(j), FOUR(j + 1), FOUR(j + 2), FOUR(j + 3)

/* Returns the matrix descriptor of an operand of wgmma at an address in shared memory: lines of 128
 * bytes with the 128-byte swizzle, which repeats every eight lines (1024 bytes). */
[[maybe_unused]] INLINE ulong matrix_descriptor(uint address)
{
    return (ulong)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#if HALVES
/* The matrix descriptor of 64 lines over one step of K. */
typedef ulong WarpgroupPixels;
#else
/* A lane's numbers of 16 lines over one step of K, in the order of mma. */
typedef uint4 WarpgroupPixels;
#endif

/* wgmma.mma_async: multiplies 64 lines of x with TILE_M lines of weights, of which there is the
 * matrix descriptor, over one step of K. Lane l of warp w gets sums of lines i and i + 8 of x,
 * where i is 16 * (w % 4) + l / 4: within 16 lines, a warp's lanes hold the sums in the order of
 * mma. */
[[maybe_unused]] INLINE void wgmma(float (&sums)[TILE_M / 8][4], const WarpgroupPixels &x,
                                   ulong weights)
{
#if TILE_M == 64
    asm volatile(WGMMA_TEXT(64, REGISTERS_0, PIXELS(33, 34, 35, 36), "%32")
                 : SIXTEEN(0), SIXTEEN(4)
                 : "l"(weights), PIXEL_OPERANDS(x));
#elif TILE_M == 96
    asm volatile(WGMMA_TEXT(96, REGISTERS_0 ", " REGISTERS_32, PIXELS(49, 50, 51, 52), "%48")
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8)
                 : "l"(weights), PIXEL_OPERANDS(x));
#elif TILE_M == 128
    asm volatile(WGMMA_TEXT(128, REGISTERS_0 ", " REGISTERS_32 ", " REGISTERS_48,
                            PIXELS(65, 66, 67, 68), "%64")
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12)
                 : "l"(weights), PIXEL_OPERANDS(x));
#elif TILE_M == 160
    asm volatile(WGMMA_TEXT(160, REGISTERS_0 ", " REGISTERS_32 ", " REGISTERS_48 ", " REGISTERS_64,
                            PIXELS(81, 82, 83, 84), "%80")
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16)
                 : "l"(weights), PIXEL_OPERANDS(x));
#elif TILE_M == 192
    asm volatile(WGMMA_TEXT(192, REGISTERS_0 ", " REGISTERS_32 ", " REGISTERS_48
                            ", " REGISTERS_64 ", " REGISTERS_80,
                            PIXELS(97, 98, 99, 100), "%96")
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16), SIXTEEN(20)
                 : "l"(weights), PIXEL_OPERANDS(x));
#elif TILE_M == 256
    asm volatile(WGMMA_TEXT(256, REGISTERS_0 ", " REGISTERS_32 ", " REGISTERS_48
                            ", " REGISTERS_64 ", " REGISTERS_80 ", " REGISTERS_96,
                            PIXELS(129, 130, 131, 132), "%128")
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16), SIXTEEN(20),
                   SIXTEEN(24), SIXTEEN(28)
                 : "l"(weights), PIXEL_OPERANDS(x));
#endif
}
