#include "dialect/common.h"
#include "results.h"

/* The padding pass of rungs 1 and 2: copies images into larger images with zeros around them.
 * A work-item writes one value of the result. Tensors are NCHW. */
KERNEL void pads(const GLOBAL VALUE *RESTRICT x, GLOBAL VALUE *RESTRICT padded, int items,
                 int height, int width, int padded_height, int padded_width, int top, int left)
{
    int item = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (item < items) {
        int column = item % padded_width - left;
        int row = item / padded_width % padded_height - top;
        int plane = item / padded_width / padded_height;
        VALUE value = ZERO;
        if (row >= 0 && row < height && column >= 0 && column < width)
            value = x[(plane * height + row) * width + column];
        padded[item] = value;
    }
}
