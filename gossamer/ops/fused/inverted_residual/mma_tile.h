/* The tile of a work-group of inverted_residual_mma.cu: its position in the image, and the copies
 * of inputs and weights to shared memory. */

#pragma once

#include "ptx/mbarrier.h"
#include "mma_sizes.h"

/* The indices of a work-item, and the tile of its work-group. The pixels of a tile are the pixels
 * of the image under the tile's windows, in row-major order. */
struct Tile {
    int item;                    /* index of the work-item in its work-group */
    uint lane, warp;             /* index of the work-item in its warp, index of the warp */
    int rank;                    /* index of the work-group in its cluster */
    int first_row, first_column; /* first row and column of the tile's outputs */
    int above, left;             /* row and column of the image where the first window begins */
    int top, start;              /* window rows above the image, window columns left of it */
    int columns, pixels;         /* pixels in a row, and in the whole tile */
    float of_columns;            /* 1 / columns */
};

INLINE Tile find_tile(int height, int width, int pad_top, int pad_left)
{
    Tile tile;
    tile.item = LOCAL_ID(0);
    /* the shuffle tells the compiler that all lanes of a warp have the same warp index */
    tile.lane = (uint)tile.item % 32;
    tile.warp = (uint)__shfl_sync(0xffffffffu, tile.item / 32, 0);
    tile.rank = GROUP_ID(0) % CLUSTER;
    tile.first_row = GROUP_ID(1) * TILE_H;
    tile.first_column = GROUP_ID(0) / CLUSTER * TILE_W;
    tile.above = tile.first_row * STRIDE_Y - pad_top;
    tile.left = tile.first_column * STRIDE_X - pad_left;
    tile.top = tile.above < 0 ? -tile.above : 0;
    tile.start = tile.left < 0 ? -tile.left : 0;
    int bottom = height - tile.above < HALO_H ? height - tile.above : HALO_H;
    int stop = width - tile.left < HALO_W ? width - tile.left : HALO_W;
    tile.columns = stop > tile.start ? stop - tile.start : 0;
    tile.pixels = bottom > tile.top ? (bottom - tile.top) * tile.columns : 0;
    tile.of_columns = 1.0f / (float)tile.columns;
    return tile;
}

/* Returns number / divisor, rounded down, for numbers below 2^16. reciprocal: 1 / divisor. */
INLINE int quotient(int number, float reciprocal)
{
    return (int)(((float)number + 0.5f) * reciprocal);
}

/* Returns the position in shared memory of a column of the windows. If tensor cores convolve with a
 * stride of 2, the even columns precede the odd columns. Then the columns that one tap multiplies
 * are adjacent. */
INLINE int column_offset(int column)
{
    return CONVOLVES && STRIDE_X == 2 ? column / 2 + column % 2 * CEIL_DIV(HALO_W, 2) : column;
}

/* Returns the offset of a pixel's hidden channels in shared memory, in elements. */
INLINE int hidden_offset(const Tile &tile, int row, int column)
{
    return ((tile.top + row) * HALO_W + column_offset(tile.start + column)) * CHUNK_ROW;
}

/* Copies words `from` to `to` - 1 of a chunk's weights to a stage of shared memory. With BULK, one
 * work-item starts up to two bulk copies: first the FIRST_WORDS words before the projection's
 * weights, then the projection's weights. arrived: STAGES barriers for the first copies,
 * followed by STAGES barriers for the copies of the projection's weights. */
INLINE void copy_weights(uint4 *staged, const uint4 *weights, ulong *arrived, int item, int chunk,
                         int stage, int from, int to)
{
    uint4 *target = staged + stage * WEIGHT_WORDS;
    const uint4 *source = weights + chunk * WEIGHT_WORDS;
    if constexpr (BULK) {
        if (item == 0 && from < FIRST_WORDS) {
            start_bulk_copy(shared_address(target), source, FIRST_WORDS * 16, arrived + stage);
        }
        if (item == 0 && to > FIRST_WORDS) {
            start_bulk_copy(shared_address(target + FIRST_WORDS), source + FIRST_WORDS,
                            (WEIGHT_WORDS - FIRST_WORDS) * 16, arrived + STAGES + stage);
        }
    } else {
        ONCE_EACH for (int i = from + item; i < to; i += WORK_GROUP_SIZE)
            cp_async_16(shared_address(target + i), source + i, 16);
    }
}

#if EXPANDS
/* Writes the offset of each pixel's hidden channels to `offsets`, and pads each pixel's inputs with
 * zeros to whole steps of K. */
INLINE void prepare_inputs(REAL *inputs, int *offsets, const Tile &tile)
{
    UNROLL for (int word = CHANNELS / WIDTH; word < X_ROW / WIDTH - 1; word++)
        ONCE_EACH for (int pixel = tile.item; pixel < ROW_TILES * 16; pixel += WORK_GROUP_SIZE)
            ((uint4 *)(inputs + pixel * X_ROW))[word] = make_uint4(0, 0, 0, 0);
    ONCE_EACH for (int pixel = tile.item; pixel < tile.pixels; pixel += WORK_GROUP_SIZE) {
        int row = quotient(pixel, tile.of_columns), column = pixel - row * tile.columns;
        offsets[pixel] = hidden_offset(tile, row, column);
    }
}

/* Copies the inputs of the pixels. source: the inputs of the first pixel. */
[[maybe_unused]] INLINE void copy_inputs(REAL *inputs, const REAL *source, const Tile &tile,
                                         int width)
{
    ONCE_EACH for (int i = tile.item; i < tile.pixels * (CHANNELS / WIDTH); i += WORK_GROUP_SIZE) {
        int pixel = i / (CHANNELS / WIDTH), word = i % (CHANNELS / WIDTH) * WIDTH;
        int row = quotient(pixel, tile.of_columns), column = pixel - row * tile.columns;
        cp_async_16(shared_address(inputs + pixel * X_ROW + word),
                    source + (row * width + column) * CHANNELS + word, 16);
    }
}
#else
/* Copies a chunk of x's channels to `expanded`, where an expansion would store its results. source:
 * the channels of the first pixel. */
INLINE void copy_hidden(REAL *expanded, const REAL *source, const Tile &tile, int width, int chunk,
                        int stage)
{
    REAL *target = expanded + stage * EXPANDED_WORDS * WIDTH;
    ONCE_EACH for (int i = tile.item; i < tile.pixels * (CHUNK / WIDTH); i += WORK_GROUP_SIZE) {
        int pixel = i / (CHUNK / WIDTH), word = i % (CHUNK / WIDTH) * WIDTH;
        int row = quotient(pixel, tile.of_columns), column = pixel - row * tile.columns;
        bool exists = !PADDED || chunk * CHUNK + word < CHANNELS;
        const REAL *there = target + hidden_offset(tile, row, column) + word;
        const REAL *from = source + (row * width + column) * CHANNELS
                           + (exists ? chunk * CHUNK + word : 0);
        cp_async_16(shared_address(there), from, exists ? 16 : 0);
    }
}
#endif
