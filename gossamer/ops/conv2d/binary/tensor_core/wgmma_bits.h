/* Products of a warpgroup on bit tensor cores: 64 pixels, whose words are in registers, by TILE_C
 * channels, whose weights are in shared memory (sm_90a). */

#pragma once

#if !defined CONFIGURED && !defined TILE_C
#define TILE_C 64 /* channels of a work-group: 64, 128 or 256 */
#endif

#include "dialect/common.h"
#include "ptx/wgmma.h"
#include "bits.h"

/* Bytes of the weights of a step, and number of sums that a lane holds. Each plane of the weights
 * has the lower and then the upper half of the step's bits. */
#define PLANE_BYTES (TILE_C * 32)
#define STEP_BYTES (PLANES * PLANE_BYTES)
#define SUMS (TILE_C / 2)

#define SUMS8(n)                                                                    \
    "+r"(sums[n]), "+r"(sums[n + 1]), "+r"(sums[n + 2]), "+r"(sums[n + 3]),         \
        "+r"(sums[n + 4]), "+r"(sums[n + 5]), "+r"(sums[n + 6]), "+r"(sums[n + 7])
#define SUMS32(n) SUMS8(n), SUMS8(n + 8), SUMS8(n + 16), SUMS8(n + 24)

/* wgmma.mma_async.k256: starts the multiplication of 64 pixels by TILE_C channels over 256 bits.
 * The numbers of ones are added to sums; where `adds` is 0 they replace the sums. Of each 8
 * channels a lane holds the sums of channels 2 (lane % 4) and 2 (lane % 4) + 1, for pixels lane / 4
 * and lane / 4 + 8 of its warp's 16 pixels. */
INLINE void wgmma_bits(int (&sums)[SUMS], uint upper_low, uint lower_low, uint upper_high,
                       uint lower_high, ulong weights, int adds)
{
#if TILE_C == 256
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; "
                 "wgmma.mma_async.sync.aligned.m64n256k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, {%128, %129, %130, %131}, %132, p; }"
                 : SUMS32(0), SUMS32(32), SUMS32(64), SUMS32(96)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
#elif TILE_C == 128
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, p; }"
                 : SUMS32(0), SUMS32(32)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
#else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p; }"
                 : SUMS32(0)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
#endif
}

/* Returns the matrix descriptor of weights: core matrices of 8 channels x 128 bits. The next
 * channels follow after 128 bytes, and the next bits after TILE_C * 16 bytes. */
INLINE ulong matrix_descriptor(uint address)
{
    return (ulong)(address >> 4) | (ulong)TILE_C << 16 | (ulong)(128 >> 4) << 32;
}

/* Starts the products of the steps of a phase, as one wgmma group. upper, lower: the operands of
 * the lane's two pixels. weights: the address of the weights of phase 0. The first product of phase
 * 0 sets the sums, and all other products are added to them. */
INLINE void multiply_steps(int (&sums)[SUMS], const Operand (&upper)[AT_ONCE],
                           const Operand (&lower)[AT_ONCE], uint weights, int phase)
{
    wgmma_fence();
    UNROLL for (int step = 0; step < AT_ONCE; step++)
        UNROLL for (int plane = 0; plane < PLANES; plane++)
            wgmma_bits(sums, upper[step].low[plane], lower[step].low[plane],
                       upper[step].high[plane], lower[step].high[plane],
                       matrix_descriptor(weights + (phase * AT_ONCE + step) * STEP_BYTES
                                         + plane * PLANE_BYTES),
                       phase + step + plane > 0);
    wgmma_commit_group();
}
