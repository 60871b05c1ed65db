#include "dialect/common.h"
#include "results.h"

/* The 1x1 convolution of rung 6, of stride 1 and one group: a work-item computes one value of the
 * output, without the loops over a window.
 *
 * Input and output may have a border around each image; the kernel writes the output's border as
 * zeros. Tensors are NCHW, weights (M, C). */
KERNEL void pointwise(const GLOBAL VALUE *RESTRICT x, const GLOBAL VALUE *RESTRICT weight,
                      const GLOBAL VALUE *RESTRICT bias, GLOBAL VALUE *RESTRICT y, int items,
                      VALUE low, VALUE high, int channels, int out_channels, int height, int width,
                      int x_border, int y_border)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int stored_width = width + 2 * y_border, stored_height = height + 2 * y_border;
        int column = item % stored_width - y_border;
        int row = item / stored_width % stored_height - y_border;
        int plane = item / stored_width / stored_height;
        VALUE value = ZERO;
        if (row >= 0 && row < height && column >= 0 && column < width) {
            int m = plane % out_channels;
            int x_width = width + 2 * x_border;
            int x_plane = (height + 2 * x_border) * x_width;
            x += plane / out_channels * channels * x_plane + (row + x_border) * x_width + column
                 + x_border;
            weight += m * channels;
            VALUE sum = bias[m];
            for (int c = 0; c < channels; c++)
                sum += x[c * x_plane] * weight[c];
            value = bounded(sum, low, high);
        }
        y[item] = value;
    }
}
