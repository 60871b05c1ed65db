/* The layers of the ladder that are no convolutions. These kernels are the same in all rungs: a
 * work-item computes one value of the output. Tensors are NCHW. */

#include "dialect/common.h"
#include "results.h"

/* The sum of two tensors. Inputs and output may have a border around each image; the kernel writes
 * the output's border as zeros. */
KERNEL void sum(const GLOBAL VALUE *RESTRICT a, const GLOBAL VALUE *RESTRICT b,
                GLOBAL VALUE *RESTRICT y, int items, int height, int width, int a_border,
                int b_border, int y_border)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int stored_width = width + 2 * y_border, stored_height = height + 2 * y_border;
        int column = item % stored_width - y_border;
        int row = item / stored_width % stored_height - y_border;
        int plane = item / stored_width / stored_height;
        VALUE value = ZERO;
        if (row >= 0 && row < height && column >= 0 && column < width)
            value = a[(plane * (height + 2 * a_border) + row + a_border) * (width + 2 * a_border)
                      + column + a_border]
                    + b[(plane * (height + 2 * b_border) + row + b_border)
                            * (width + 2 * b_border)
                        + column + b_border];
        y[item] = value;
    }
}

/* The mean of each channel over the image. The image may have a border in memory, which does not
 * count. */
KERNEL void mean(const GLOBAL VALUE *RESTRICT x, GLOBAL VALUE *RESTRICT y, int items, int height,
                 int width, int border)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        VALUE total = ZERO;
        for (int row = 0; row < height; row++)
            for (int column = 0; column < width; column++)
                total += x[(item * (height + 2 * border) + row + border) * (width + 2 * border)
                           + column + border];
        y[item] = total / (VALUE)(height * width);
    }
}

/* The product of the rows of x with a weight (M, K), plus a bias. */
KERNEL void product(const GLOBAL VALUE *RESTRICT x, const GLOBAL VALUE *RESTRICT weight,
                    const GLOBAL VALUE *RESTRICT bias, GLOBAL VALUE *RESTRICT y, int items,
                    int outputs, int depth)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int m = item % outputs;
        x += item / outputs * depth;
        weight += m * depth;
        VALUE total = bias[m];
        for (int k = 0; k < depth; k++)
            total += x[k] * weight[k];
        y[item] = total;
    }
}
