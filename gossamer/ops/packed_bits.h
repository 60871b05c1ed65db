/* How kernels write the bits of values to packed words, in parts of 32 bits. */

#pragma once

#if !defined CONFIGURED && !defined TARGET_PLANES
/* bits of a value: 1 for the values -1 and 1; 2 for the values -1, 0 and 1, where the first bit is
 * 1 for values other than 0 */
#define TARGET_PLANES 1
#define TARGET_PARTS 1 /* 32-bit parts of a word, 1 or 2 */
#endif

#include "dialect/common.h"

/* A number of four bits: each says whether a comparison, such as `> 0.0f`, holds for one of four
 * floats. */
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
