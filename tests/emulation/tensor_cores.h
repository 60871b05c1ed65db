/* Tensor cores' products for shim.h: what the lanes of a warp hold meets in memory. Which lane and
 * register holds which element is as the PTX ISA says of mma.m16n8k16 (.f16) and .m16n8k8 (.tf32). */

#pragma once

#include "shim.h"

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* Of the eight bytes of both words, the four that the selector's digits number. */
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

namespace emulation {

struct Registers {
    unsigned a[4], b[2];
};

static float element(unsigned bits, int half, bool halves)
{
    if (halves)
        return half_bits_to_float((unsigned short)(bits >> 16 * half));
    return __int_as_float((int)(bits & ~0x1fffu));
}

/* c += A B, A of 16 rows, B of 8 columns; between them 16 float16 or 8 TF32. */
static void multiply(bool halves, float &c0, float &c1, float &c2, float &c3, unsigned a0,
                     unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                     const char *file, int line)
{
    __shared__ Registers held[32][32];
    int number = (item().z * group_size.y + item().y) * group_size.x + item().x;
    int lane = number % 32;
    Registers *warp = held[number / 32];
    warp[lane] = {{a0, a1, a2, a3}, {b0, b1}};
    wait_for_warp(file, line);
    float *sums[4] = {&c0, &c1, &c2, &c3};
    for (int r = 0; r < 4; r++) {
        int row = lane / 4 + 8 * (r / 2), column = lane % 4 * 2 + r % 2;
        for (int k = 0; k < (halves ? 16 : 8); k++) {
            int quarter = halves ? k % 8 / 2 : k % 4, upper = k / (halves ? 8 : 4);
            *sums[r] += element(warp[row % 8 * 4 + quarter].a[row / 8 + 2 * upper], k % 2, halves)
                        * element(warp[column * 4 + quarter].b[upper], k % 2, halves);
        }
    }
    wait_for_warp(file, line);
}

} // namespace emulation
