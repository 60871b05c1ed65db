/* How products of batched.cl deal their tiles to work-items. */

#pragma once

#include "dialect/common.h"

#define LESSER(a, b) ((a) < (b) ? (a) : (b))

/* The tile of a work-item, and the part of its sums. */
typedef struct {
    int along, across, part;
} Place;

/* Returns the place of work-item n of along * across * parts.
 *
 * A read of four words by a warp takes two cycles of shared memory instead of four if each
 * work-item n reads the same words as n ^ 1, or each the same as n ^ 2. So four neighbours have a
 * square of tiles, in which n ^ 1 is the next one along and n ^ 2 the next one across. Four squares
 * along stand beside one another: their rows are in different banks. Where a number of tiles is
 * odd, the last tiles, of all parts, come after all squares. */
INLINE Place place_of(int n, int along, int across, int parts)
{
    const int high = along / 2, wide = across / 2, in_squares = 4 * high * wide;
    const int others = along * across - in_squares;
    Place place;
    if (n < in_squares * parts) {
        int square = n % in_squares / 4, strip = square / (4 * wide);
        int tall = LESSER(4, high - 4 * strip);
        place.along = 2 * (4 * strip + (square - 4 * strip * wide) % tall) + n % 2;
        place.across = 2 * ((square - 4 * strip * wide) / tall) + n / 2 % 2;
        place.part = n / in_squares;
    } else {
        int other = n - in_squares * parts, in_column = across % 2 * along, t = other % others;
        place.along = t < in_column ? t : along - 1;
        place.across = t < in_column ? across - 1 : t - in_column;
        place.part = other / others;
    }
    return place;
}

/* Returns the place of work-item n where a warp computes 8 x 4 tiles of 4 x 8 results together.
 * along, across: multiples of 8 and of 4. Place.across counts fours of results. */
INLINE Place place_in_warp(int n, int along, int across, int parts)
{
    int lane = n % 32, warp = n / 32;
    Place place;
    place.along = warp % (along / 8) * 8 + lane / 4;
    place.across = warp / (along / 8) % (across / 4) * 8 + 2 * (lane % 4);
    place.part = warp / (along / 8 * (across / 4));
    return place;
}
