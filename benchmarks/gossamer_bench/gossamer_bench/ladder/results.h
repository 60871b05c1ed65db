/* The bounds on a convolution's result, as the kernels of the ladder apply them. The type VALUE is
 * float or double. */

#pragma once

#include "dialect/common.h"

INLINE VALUE bounded(VALUE value, VALUE low, VALUE high)
{
    return value < low ? low : value > high ? high : value;
}
