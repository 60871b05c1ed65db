/* Writes the im2col matrix of a convolution. For every output pixel, the matrix has the inputs at
 * the taps of the filter.
 *
 * ORDER is the order of dimensions in memory:
 *   NCHW_ORDER   x (image, channel, row, column); matrix (image, channel, r, s, pixel)
 *   NHWC_ORDER   x (image, row, column, channel); matrix (image, pixel, group, r, s, channel)
 *   CHWN_ORDER   x (channel, row, column, image); matrix (channel, r, s, pixel, image)
 * UNIT_BYTES is the size of the unit that is copied at a time. A unit is an element, or, in NHWC
 * and CHWN, 4 or 16 bytes of neighbours along the innermost dimension. The size of the innermost
 * dimension and all strides are in units.
 *
 * A work-item copies one unit of one pixel for every tap. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ORDER 0 /* order of dimensions in memory: NCHW_ORDER 0, NHWC_ORDER 1 or CHWN_ORDER 2 */
/* bytes that are copied at a time: an element, or 4 or 16 bytes of neighbours along the
 * innermost dimension */
#define UNIT_BYTES 4
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

#define NCHW_ORDER 0
#define NHWC_ORDER 1
#define CHWN_ORDER 2

#if UNIT_BYTES == 16
#define UNIT float4
#define ZERO_UNIT MAKE4(0.0f, 0.0f, 0.0f, 0.0f)
#elif UNIT_BYTES == 4
#define UNIT uint
#define ZERO_UNIT 0
#else
#define UNIT unsigned short
#define ZERO_UNIT 0
#endif

KERNEL void im2col(
    const GLOBAL UNIT *x, GLOBAL UNIT *RESTRICT matrix, int items,
    DIVISOR(inner), DIVISOR(middle), DIVISOR(out_width), DIVISOR(group_channels),
    int height, int width, int kernel_height, int kernel_width,
    int stride_y, int stride_x, int pad_top, int pad_left, int dilation_y, int dilation_x,
    int x_image, int x_channel, int x_row, int x_column,
    int to_image, int to_pixel, int to_group, int to_channel, int to_tap)
{
    pdl_trigger_and_wait();
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int rest = (int)QUOTIENT(item, inner);
        int innermost = item - rest * inner;
        int outermost = (int)QUOTIENT(rest, middle);
        int between = rest - outermost * middle;
#if ORDER == NCHW_ORDER
        int image = outermost, channel = between, pixel = innermost;
#elif ORDER == NHWC_ORDER
        int image = outermost, pixel = between, channel = innermost;
#else
        int channel = outermost, pixel = between, image = innermost;
#endif
        int group = (int)QUOTIENT(channel, group_channels);
        int target = image * to_image + pixel * to_pixel + group * to_group
            + (channel - group * group_channels) * to_channel;

        int out_y = (int)QUOTIENT(pixel, out_width);
        int out_x = pixel - out_y * out_width;
        int top = out_y * stride_y - pad_top, left = out_x * stride_x - pad_left;
        int source = image * x_image + channel * x_channel;
        for (int r = 0; r < kernel_height; r++) {
            int y = top + r * dilation_y;
            for (int s = 0; s < kernel_width; s++) {
                int z = left + s * dilation_x;
                UNIT value = ZERO_UNIT;
                if ((uint)y < (uint)height && (uint)z < (uint)width)
                    value = x[source + y * x_row + z * x_column];
                matrix[target] = value;
                target += to_tap;
            }
        }
    }
}
