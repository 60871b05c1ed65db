/* Assigns the tiles of the products in batched.cl to work-items. */

#pragma once

#include "dialect/common.h"

#define LESSER(a, b) ((a) < (b) ? (a) : (b))

/* The tile of a work-item, by its indices in two directions, and the part of the tile's sums that
 * the work-item computes. */
typedef struct {
    int along, across, part;
} Place;

/* Returns the place of work-item n of along * across * parts work-items.
 *
 * along, across: numbers of tiles in the two directions. parts: number of parts of each sum.
 *
 * If each work-item of a warp reads four words, the reads take four cycles of shared memory. They
 * take only two cycles if work-items n and n ^ 1 read the same words for every n, or if work-items
 * n and n ^ 2 do. Therefore four neighbouring work-items have a square of 2 x 2 tiles: n ^ 1 has
 * the tile beside that of n along, and n ^ 2 the tile beside it across. Up to four squares that are
 * neighbours along follow one another, because their rows are in different banks. If `along` or
 * `across` is odd, some tiles belong to no square. These tiles of all parts come after the squares
 * of all parts. */
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

/* Returns the place of work-item n if each warp computes a block of 8 x 4 tiles together. A tile
 * has 4 x 8 results.
 *
 * along, across: numbers of tiles; `along` is a multiple of 8, and `across` a multiple of 4.
 * Place.across is in units of four results, so it increases by 2 from tile to tile. */
INLINE Place place_in_warp(int n, int along, int across, int parts)
{
    int lane = n % 32, warp = n / 32;
    Place place;
    place.along = warp % (along / 8) * 8 + lane / 4;
    place.across = warp / (along / 8) % (across / 4) * 8 + 2 * (lane % 4);
    place.part = warp / (along / 8 * (across / 4));
    return place;
}
