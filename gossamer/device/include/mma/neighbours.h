/* Neighbours are results of one lane that are adjacent in memory. These functions apply the
 * epilogue to neighbours, and store them. */

#pragma once

#include "dialect/common.h"
#include "mma/warp.h"

/* Copies `count` of a lane's sums in one row to `values`. tiles: the lane's four sums of each of
 * several successive tiles of 8 columns. The kernel orders the columns so that the results of these
 * sums are neighbours. half: 0 for the lane's first row, 1 for its second row. */
template <int count>
INLINE void take_neighbours(float (&values)[count], const float (*tiles)[4], int half)
{
    UNROLL for (int v = 0; v < count; v++)
        values[v] = tiles[v / 2][half * 2 + v % 2];
}

/* Applies `rewrite` to four values at a time, which is the width of EPILOGUE4. rewrite: function
 * that changes a float4 in place. Its second argument is the index of the float4's first value. */
template <int count, class Rewrite> INLINE void in_fours(float (&values)[count], Rewrite rewrite)
{
    UNROLL for (int v = 0; v + 3 < count; v += 4) {
        float4 four = MAKE4(values[v], values[v + 1], values[v + 2], values[v + 3]);
        rewrite(four, v);
        values[v] = four.x;
        values[v + 1] = four.y;
        values[v + 2] = four.z;
        values[v + 3] = four.w;
    }
}

/* A function that applies the epilogue (ops/epilogue.h) to `count` neighbours (8, 4, 2 or 1): four
 * at a time, or one at a time if `count` is below 4. channel, index: arguments of the epilogue for
 * the first neighbour. */
#define EPILOGUE_OF(count, channel, index)                  \
    [&](float (&values)[count]) {                           \
        in_fours(values, [&](float4 &four, int v) {         \
            EPILOGUE4(four, (channel) + v, (index) + v)     \
        });                                                 \
        UNROLL for (int v = 0; v < (count) % 4; v++) {      \
            EPILOGUE(values[v], (channel) + v, (index) + v) \
        }                                                   \
    }

/* A function that applies an epilogue with two results as EPILOGUE_OF does, and sets its second
 * argument to the second results. */
#define EPILOGUE2_OF(count, channel, index)                                 \
    [&](float (&values)[count], float (&others)[count]) {                   \
        in_fours(values, [&](float4 &four, int v) {                         \
            float4 other;                                                   \
            EPILOGUE2_4(four, other, (channel) + v, (index) + v)            \
            others[v] = other.x;                                            \
            others[v + 1] = other.y;                                        \
            others[v + 2] = other.z;                                        \
            others[v + 3] = other.w;                                        \
        });                                                                 \
        UNROLL for (int v = 0; v < (count) % 4; v++) {                      \
            EPILOGUE2(values[v], others[v], (channel) + v, (index) + v)     \
        }                                                                   \
    }

/* Stores `count` values: 8, 4, 2 or 1 as 16-bit floats, or 4, 2 or 1 as floats. The address must be
 * a multiple of the number of stored bytes. */
template <class Real, int count> INLINE void store_neighbours(Real *to, const float (&values)[count])
{
    auto four = [&](int v) {
        return MAKE4(values[v], values[v + 1], values[v + 2], values[v + 3]);
    };
    constexpr bool halves = sizeof(Real) == 2;
    if constexpr (count == 8)
        STORE_HALF8(to, 0, four(0), four(4));
    else if constexpr (count == 4 && halves)
        STORE_HALF4(to, 0, four(0));
    else if constexpr (count == 4)
        STORE4(to, four(0));
    else if constexpr (count == 2 && halves)
        *(uint *)to = two_halves(values[0], values[1]);
    else if constexpr (count == 2)
        *(float2 *)to = make_float2(values[0], values[1]);
    else if constexpr (halves)
        STORE_HALF(to, 0, values[0]);
    else
        *to = values[0];
}

/* Takes `count` neighbours from a lane's sums as take_neighbours does, applies the epilogue, and
 * stores the results if `stored` is true. Only the store depends on `stored`: loads for other sums
 * then need not wait for a branch. */
template <int count, class Real, class Epilogue>
INLINE void store_sums(Real *to, bool stored, const float (*tiles)[4], int half, Epilogue epilogue)
{
    float values[count];
    take_neighbours(values, tiles, half);
    epilogue(values);
    if (stored)
        store_neighbours(to, values);
}
