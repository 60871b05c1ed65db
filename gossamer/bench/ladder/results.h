/* How the kernels of the ladder bound a convolution's result. The type VALUE is float or double. */

#pragma once

#include "dialect/common.h"

INLINE VALUE bounded(VALUE value, VALUE low, VALUE high)
{
    return value < low ? low : value > high ? high : value;
}
