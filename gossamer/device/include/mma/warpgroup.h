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
#include "mma/warpgroup_operands.h"
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
                            ", " REGISTERS_64 ", " REGISTERS_80 ", " REGISTERS_96
                            ", " REGISTERS_112,
                            PIXELS(129, 130, 131, 132), "%128")
                 : SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16), SIXTEEN(20),
                   SIXTEEN(24), SIXTEEN(28)
                 : "l"(weights), PIXEL_OPERANDS(x));
#endif
}
