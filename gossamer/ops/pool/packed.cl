/* The maximum over windows of packed values. The maximum of bits is their OR. Trits have two
 * planes: a bit of the first plane is 1 if the value is not 0, and a bit of the second plane is 1
 * if the value is 1. The maximum of trits is 1 if the OR of the second plane is 1. If the OR is 0,
 * the maximum is -1 if the AND of the first plane is 1, and 0 if the AND is 0.
 *
 * A tensor is (outer, height, width, PLANES) words; `outer` is the number of images times the
 * number of words that hold the channels of a pixel in one plane. A work-item computes PLANES words
 * of one output pixel. Every window has at least one pixel of the input. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WORD uint /* type of a word, uint or ulong */
#define PLANES 1 /* number of planes: 1 for bits, 2 for trits */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL void pool_packed(const GLOBAL WORD *source, GLOBAL WORD *RESTRICT target, int count,
                        int height, int width, DIVISOR(out_width), DIVISOR(out_height),
                        int kernel_height, int kernel_width, int stride_y, int stride_x,
                        int top, int left, int dilation_y, int dilation_x)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        uint line = QUOTIENT(item, out_width);
        int x0 = (int)(item - line * (uint)out_width) * stride_x - left;
        uint outer = QUOTIENT(line, out_height);
        int y0 = (int)(line - outer * (uint)out_height) * stride_y - top;
        const GLOBAL WORD *plane = source + (size_t)outer * (size_t)(height * width * PLANES);
        WORD positive = 0;
#if PLANES == 2
        WORD nonzero = ~(WORD)0;
#endif
        for (int r = 0; r < kernel_height; r++) {
            int y = y0 + r * dilation_y;
            for (int s = 0; s < kernel_width; s++) {
                int x = x0 + s * dilation_x;
                if (y >= 0 && y < height && x >= 0 && x < width) {
                    const GLOBAL WORD *words = plane + (y * width + x) * PLANES;
                    positive |= words[PLANES - 1];
#if PLANES == 2
                    nonzero &= words[0];
#endif
                }
            }
        }
        GLOBAL WORD *result = target + (size_t)item * PLANES;
#if PLANES == 2
        result[0] = nonzero | positive;
#endif
        result[PLANES - 1] = positive;
    }
}
