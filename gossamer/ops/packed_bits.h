/* How kernels write the bits of values to packed words, in parts of 32 bits. */

#pragma once

#if !defined CONFIGURED && !defined TARGET_PLANES
/* number of planes. One plane holds the values -1 and 1. Two planes hold the values -1, 0 and 1; a
 * bit of the first plane is set where the value is not 0 */
#define TARGET_PLANES 1
#define TARGET_PARTS 1 /* 32-bit parts of a word, 1 or 2 */
#endif

#include "dialect/common.h"

/* A number of four bits. Each bit says whether a comparison, such as `> 0.0f`, holds for one of
 * four floats. */
#define FOUR_BITS(four, comparison) \
    ((uint)((four).x comparison) | (uint)((four).y comparison) << 1 \
     | (uint)((four).z comparison) << 2 | (uint)((four).w comparison) << 3)

/* Writes the planes of a 32-bit part of a word to `target`. */
#if TARGET_PLANES == 2
#define STORE_PLANES(at, nonzero, positive) { \
    target[at] = nonzero; \
    target[(at) + TARGET_PARTS] = positive; \
}
#else
#define STORE_PLANES(at, nonzero, positive) target[at] = positive;
#endif
