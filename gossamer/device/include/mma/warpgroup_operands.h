/* Parts of the text and of the operands of wgmma instructions (sm_90a). */

#pragma once

#include "dialect/common.h"

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
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define REGISTERS_112                                                                       \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
    "%126, %127"

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
