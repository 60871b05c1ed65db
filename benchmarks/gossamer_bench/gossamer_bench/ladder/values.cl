#include "dialect/common.h"
#include "results.h"

/* The convolution from rung 2 on: a work-item computes one value of the output.
 *
 * From rung 3 on the output may have a border around each image, which the kernel writes as zeros.
 * The input lies in memory with its padding: `top` and `left` are the row and the column at
 * which the first window begins. Tensors are NCHW, weights (M, C/groups, R, S). */
KERNEL void values(const GLOBAL VALUE *RESTRICT x, const GLOBAL VALUE *RESTRICT weight,
                   const GLOBAL VALUE *RESTRICT bias, GLOBAL VALUE *RESTRICT y, int items,
                   VALUE low, VALUE high, int channels, int height, int width, int out_channels,
                   int out_height, int out_width, int group_channels, int group_outputs,
                   int kernel_h, int kernel_w, int stride_y, int stride_x, int dilation_y,
                   int dilation_x, int top, int left, int border)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int stored_width = out_width + 2 * border, stored_height = out_height + 2 * border;
        int column = item % stored_width - border;
        int row = item / stored_width % stored_height - border;
        int plane = item / stored_width / stored_height;
        VALUE value = ZERO;
        if (row >= 0 && row < out_height && column >= 0 && column < out_width) {
            int m = plane % out_channels;
            int first = plane / out_channels * channels + m / group_outputs * group_channels;
            VALUE sum = bias[m];
            for (int c = 0; c < group_channels; c++)
                for (int r = 0; r < kernel_h; r++)
                    for (int s = 0; s < kernel_w; s++)
                        sum += x[((first + c) * height + top + row * stride_y + r * dilation_y)
                                     * width
                                 + left + column * stride_x + s * dilation_x]
                               * weight[((m * group_channels + c) * kernel_h + r) * kernel_w + s];
            value = bounded(sum, low, high);
        }
        y[item] = value;
    }
}
