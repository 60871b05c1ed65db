/* BATCH(number) moves the pointers `a`, `b` and `c` to the matrices of product `number`. There are
 * up to three batch dimensions, outermost first: n0 to n2 are their sizes, p0 to p2 the strides of
 * `a`, q0 to q2 the strides of `b`. Broadcast dimensions have stride 0. `c` is contiguous. */

#pragma once

#include "dialect/common.h"

#define BATCH_PARAMETERS \
    int n0, int p0, int q0, int n1, int p1, int q1, int n2, int p2, int q2

#define WALK(d) { \
    int i = (int)(left % (uint)n##d); \
    left /= (uint)n##d; \
    a += (size_t)i * p##d; \
    b += (size_t)i * q##d; \
}

#define BATCH(number) { \
    uint left = (number); \
    c += (size_t)left * rows * columns; \
    WALK(2) \
    WALK(1) \
    WALK(0) \
}
