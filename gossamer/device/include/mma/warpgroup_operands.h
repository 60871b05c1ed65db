/* The text and the operands of wgmma instructions (sm_90a) for each width. The width is the number
 * of lines of the right operand. sums[j] holds a lane's four sums for lines 8 j to 8 j + 7.
 *
 * WGMMA_TEXT(form, width) is the text of an instruction, and WGMMA_SUMS(width) are its outputs. The
 * inputs depend on the form:
 *
 *   WGMMA_SS       float16: "l"(left), "l"(right), "r"(adds)
 *   WGMMA_RS       float16, or TF32 if HALVES is 0: "r" for four registers of the left operand,
 *                  "l"(right)
 *   WGMMA_SPARSE   float16, 2:4 sparse on the left: "l"(left), "l"(right), "r"(indices),
 *                  "n"(selector)
 *   WGMMA_BITS     bits: "r" for four registers of the left operand, "l"(right), "r"(adds)
 *
 * left, right: matrix descriptors. adds: 1 adds the products to the sums; 0 overwrites the sums.
 * Forms without `adds` add. */

#pragma once

#include "dialect/common.h"

#ifndef WGMMA_SUM
#define WGMMA_SUM(j, i) "+f"(sums[j][i]) /* a sum as an operand of the instruction */
#endif

#define WGMMA_TEXT(form, width) WGMMA_WIDTH(form, width)
#define WGMMA_WIDTH(form, width) WGMMA_##width(form)
#define WGMMA_SUMS(width) WGMMA_SUMS_OF(width)
#define WGMMA_SUMS_OF(width) SUMS_##width

/* The text of a form. n: the width. sums: the sums' names. a to f: the names of the inputs. */
#define WGMMA_CALL(op, n, type, sums, inputs, adds)                                  \
    "{ .reg .pred p; setp.ne.b32 p, " adds ", 0; wgmma.mma_async" op ".sync.aligned" \
    ".m64n" #n type " {" sums "}, " inputs "; }"
#define WGMMA_FOUR(a, b, c, d) "{" a ", " b ", " c ", " d "}, "
#define WGMMA_SS(n, sums, a, b, c, d, e, f) \
    WGMMA_CALL("", n, "k16.f32.f16.f16", sums, a ", " b ", p, 1, 1, 0, 0", c)
#if HALVES
#define WGMMA_RS(n, sums, a, b, c, d, e, f) \
    WGMMA_CALL("", n, "k16.f32.f16.f16", sums, WGMMA_FOUR(a, b, c, d) e ", p, 1, 1, 0", "1")
#else
#define WGMMA_RS(n, sums, a, b, c, d, e, f) \
    WGMMA_CALL("", n, "k8.f32.tf32.tf32", sums, WGMMA_FOUR(a, b, c, d) e ", p, 1, 1", "1")
#endif
#define WGMMA_SPARSE(n, sums, a, b, c, d, e, f)   \
    WGMMA_CALL(".sp", n, "k32.f32.f16.f16", sums, \
               a ", " b ", " c ", " d ", p, 1, 1, 0, 0", "1")
#define WGMMA_BITS(n, sums, a, b, c, d, e, f) \
    WGMMA_CALL("", n, "k256.s32.b1.b1.and.popc", sums, WGMMA_FOUR(a, b, c, d) e ", p", f)

#define REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_32 REGISTERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_48 REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_64 REGISTERS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_96 \
    REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_128 \
    REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_160 \
    REGISTERS_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_192 \
    REGISTERS_160 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_224                                                                        \
    REGISTERS_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108" \
    ", %109, %110, %111"
#define REGISTERS_256                                                                          \
    REGISTERS_224 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123" \
    ", %124, %125, %126, %127"

#define WGMMA_SUMS_4(j) WGMMA_SUM(j, 0), WGMMA_SUM(j, 1), WGMMA_SUM(j, 2), WGMMA_SUM(j, 3)
#define WGMMA_SUMS_8(j) WGMMA_SUMS_4(j), WGMMA_SUMS_4(j + 1)
#define WGMMA_SUMS_16(j) WGMMA_SUMS_8(j), WGMMA_SUMS_8(j + 2)
#define SUMS_16 WGMMA_SUMS_8(0)
#define SUMS_32 SUMS_16, WGMMA_SUMS_8(2)
#define SUMS_48 SUMS_32, WGMMA_SUMS_8(4)
#define SUMS_64 SUMS_48, WGMMA_SUMS_8(6)
#define SUMS_96 SUMS_64, WGMMA_SUMS_16(8)
#define SUMS_128 SUMS_96, WGMMA_SUMS_16(12)
#define SUMS_160 SUMS_128, WGMMA_SUMS_16(16)
#define SUMS_192 SUMS_160, WGMMA_SUMS_16(20)
#define SUMS_224 SUMS_192, WGMMA_SUMS_16(24)
#define SUMS_256 SUMS_224, WGMMA_SUMS_16(28)

/* The text of a form for one width. */
#define WGMMA_16(form) form(16, REGISTERS_16, "%8", "%9", "%10", "%11", "%12", "%13")
#define WGMMA_32(form) form(32, REGISTERS_32, "%16", "%17", "%18", "%19", "%20", "%21")
#define WGMMA_48(form) form(48, REGISTERS_48, "%24", "%25", "%26", "%27", "%28", "%29")
#define WGMMA_64(form) form(64, REGISTERS_64, "%32", "%33", "%34", "%35", "%36", "%37")
#define WGMMA_96(form) form(96, REGISTERS_96, "%48", "%49", "%50", "%51", "%52", "%53")
#define WGMMA_128(form) form(128, REGISTERS_128, "%64", "%65", "%66", "%67", "%68", "%69")
#define WGMMA_160(form) form(160, REGISTERS_160, "%80", "%81", "%82", "%83", "%84", "%85")
#define WGMMA_192(form) form(192, REGISTERS_192, "%96", "%97", "%98", "%99", "%100", "%101")
#define WGMMA_224(form) form(224, REGISTERS_224, "%112", "%113", "%114", "%115", "%116", "%117")
#define WGMMA_256(form) form(256, REGISTERS_256, "%128", "%129", "%130", "%131", "%132", "%133")

/* Returns the matrix descriptor of an operand of wgmma at an address in shared memory. The operand
 * has lines of 128 bytes with the 128-byte swizzle. The swizzle repeats every eight lines (1024
 * bytes). */
[[maybe_unused]] INLINE ulong matrix_descriptor(uint address)
{
    return (ulong)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
