#include "dialect/common.h"
#include "results.h"

/* The convolution of rung 1: a work-item computes all channels of an output pixel, one after
 * another. The input lies in memory with its padding. Tensors are NCHW, weights (M, C/groups, R,
 * S). */
KERNEL void pixels(const GLOBAL VALUE *RESTRICT x, const GLOBAL VALUE *RESTRICT weight,
                   const GLOBAL VALUE *RESTRICT bias, GLOBAL VALUE *RESTRICT y, int items,
                   VALUE low, VALUE high, int channels, int height, int width, int out_channels,
                   int out_height, int out_width, int group_channels, int group_outputs,
                   int kernel_h, int kernel_w, int stride_y, int stride_x, int dilation_y,
                   int dilation_x)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int column = item % out_width;
        int row = item / out_width % out_height;
        int image = item / out_width / out_height;
        for (int m = 0; m < out_channels; m++) {
            int first = image * channels + m / group_outputs * group_channels;
            VALUE sum = bias[m];
            for (int c = 0; c < group_channels; c++)
                for (int r = 0; r < kernel_h; r++)
                    for (int s = 0; s < kernel_w; s++)
                        sum += x[((first + c) * height + row * stride_y + r * dilation_y) * width
                                 + column * stride_x + s * dilation_x]
                               * weight[((m * group_channels + c) * kernel_h + r) * kernel_w + s];
            y[((image * out_channels + m) * out_height + row) * out_width + column] =
                bounded(sum, low, high);
        }
    }
}
