/* Adds up the sums of work-groups that share the K range of a product, and applies the epilogue.
 * `sums` has the shape (split, pixel, channel). y and the epilogue's tensor operands are NHWC or
 * NCHW. In NHWC, y begins at y_first, and a pixel has y_channels channels in memory. If y is a part
 * of a larger tensor, y_channels is the number of channels of the larger tensor. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define SPLIT_K 2 /* number of splits */
#define HALVES 1 /* 1: y and the epilogue's tensor operands are 16-bit floats */
#define OUT_NHWC 0 /* 1 if y is NHWC, 0 if it is NCHW */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"

KERNEL void split_sum(const GLOBAL float *sums, GLOBAL REAL *RESTRICT y, int results,
                      DIVISOR(channels), DIVISOR(plane), int y_first, int y_channels
                      EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < results) {
        int pixel = (int)QUOTIENT(item, channels), channel = item - pixel * channels;
        float value = sums[item];
        UNROLL for (int split = 1; split < SPLIT_K; split++)
            value += sums[split * results + item];
#if OUT_NHWC
        int index = y_first + pixel * y_channels + channel;
#else
        int image = (int)QUOTIENT(pixel, plane);
        int index = (image * channels + channel) * plane + (pixel - image * plane);
#endif
        EPILOGUE(value, channel, index)
        STORE_REAL(y, index, value);
    }
}
