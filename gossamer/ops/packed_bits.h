/* Macros with which kernels write the bits of values to packed words, in parts of 32 bits. */

#pragma once

#if !defined CONFIGURED && !defined TARGET_PLANES
/* number of planes: one for the values -1 and 1, two for the values -1, 0 and 1. A bit of the last
 * plane is 1 if the value is 1. With two planes, a bit of the first plane is 1 if the value is not
 * 0 */
#define TARGET_PLANES 1
#define TARGET_PARTS 1 /* 32-bit parts of a word, 1 or 2 */
#endif

#include "dialect/common.h"

/* A number of four bits, one for each component of a float4. A bit is 1 if the comparison, such as
 * `> 0.0f`, holds for the component. */
#define FOUR_BITS(four, comparison) \
    ((uint)((four).x comparison) | (uint)((four).y comparison) << 1 \
     | (uint)((four).z comparison) << 2 | (uint)((four).w comparison) << 3)

/* Writes 32 bits of each plane to `target`. at: index of the part in the first plane. */
#if TARGET_PLANES == 2
#define STORE_PLANES(at, nonzero, positive) { \
    target[at] = nonzero; \
    target[(at) + TARGET_PARTS] = positive; \
}
#else
#define STORE_PLANES(at, nonzero, positive) target[at] = positive;
#endif
