/* Transposed convolution. Each work-item computes one output from all inputs that contribute to it.
 * The strides of input and output, in_n to out_x, are in elements. The weights are stored as
 * (group, r, s, c, m). Output channels m are innermost, so that work-items with neighbouring m read
 * neighbouring weights.
 *
 * CHANNELS_INNERMOST: if defined, work-items are numbered in the order (n, y, x, m); if not, in the
 * order (n, m, y, x). */

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL void conv_transpose2d(const GLOBAL float *source,
                             const GLOBAL float *RESTRICT weights,
                             const GLOBAL float *RESTRICT bias, GLOBAL float *RESTRICT target,
                             int count, int height, int width, int out_height, int out_width,
                             int group_in, int group_out, int groups,
                             int kernel_height, int kernel_width, int stride_y, int stride_x,
                             int top, int left, int dilation_y, int dilation_x, int has_bias,
                             int in_n, int in_c, int in_y, int in_x,
                             int out_n, int out_c, int out_y, int out_x)
{
    pdl_trigger_and_wait();
    uint rest = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (rest < (uint)count) {
        uint out_channels = (uint)(group_out * groups);
#ifdef CHANNELS_INNERMOST
        int m = (int)(rest % out_channels);
        rest /= out_channels;
#endif
        int x = (int)(rest % (uint)out_width);
        rest /= (uint)out_width;
        int y = (int)(rest % (uint)out_height);
        rest /= (uint)out_height;
#ifndef CHANNELS_INNERMOST
        int m = (int)(rest % out_channels);
        rest /= out_channels;
#endif
        int n = (int)rest;
        int group = m / group_out;
        const GLOBAL float *image = source + n * in_n + group * group_in * in_c;
        const GLOBAL float *weight = weights
            + (size_t)group * kernel_height * kernel_width * group_in * group_out
            + m % group_out;
        float total = has_bias ? bias[m] : 0.0f;
        for (int r = 0; r < kernel_height; r++) {
            int from_y = y + top - r * dilation_y;
            if (from_y < 0 || from_y % stride_y != 0 || from_y / stride_y >= height)
                continue;
            for (int s = 0; s < kernel_width; s++) {
                int from_x = x + left - s * dilation_x;
                if (from_x < 0 || from_x % stride_x != 0 || from_x / stride_x >= width)
                    continue;
                const GLOBAL float *place = image
                    + (from_y / stride_y) * in_y + (from_x / stride_x) * in_x;
                const GLOBAL float *tap = weight
                    + (size_t)(r * kernel_width + s) * group_in * group_out;
                for (int c = 0; c < group_in; c++)
                    total = FMA(place[c * in_c], tap[c * group_out], total);
            }
        }
        target[n * out_n + m * out_c + y * out_y + x * out_x] = total;
    }
}
