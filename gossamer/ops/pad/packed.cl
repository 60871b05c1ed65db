/* Pads the rows and columns of packed values with a constant; negative pads crop.
 *
 * A tensor is (images, words of channels, height, width, PLANES) words. A work-item writes PLANES
 * words of one output pixel. In added pixels, bits beyond the last channel are 0. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define WORD uint /* type of a word, uint or ulong */
#define WORD_BITS 32 /* bits of a word */
#define PLANES 1 /* number of planes: 1 for bits, 2 for trits */
#define POSITIVE 0 /* 1: the constant is larger than 0 */
#define NONZERO 1 /* 1: the constant is not 0 */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL void pad_packed(const GLOBAL WORD *source, GLOBAL WORD *RESTRICT target, int count,
                       int channels, int height, int width, DIVISOR(out_width),
                       DIVISOR(out_height), DIVISOR(words), int top, int left)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        uint line = QUOTIENT(item, out_width);
        int x = (int)(item - line * (uint)out_width) - left;
        uint outer = QUOTIENT(line, out_height);
        int y = (int)(line - outer * (uint)out_height) - top;
        GLOBAL WORD *result = target + (size_t)item * PLANES;
        if (x >= 0 && x < width && y >= 0 && y < height) {
            const GLOBAL WORD *words_of_pixel = source
                + (((size_t)outer * (size_t)height + (size_t)y) * (size_t)width + (size_t)x) * PLANES;
#if PLANES == 2
            result[1] = words_of_pixel[1];
#endif
            result[0] = words_of_pixel[0];
        } else {
            int remaining = channels - (int)(outer - QUOTIENT(outer, words) * (uint)words) * WORD_BITS;
            WORD all = remaining >= WORD_BITS ? ~(WORD)0 : ((WORD)1 << remaining) - 1;
#if PLANES == 2
            result[0] = NONZERO ? all : 0;
#endif
            result[PLANES - 1] = POSITIVE ? all : 0;
        }
    }
}
