/* Exchanges a warp's floats through shared memory, for bits_wgmma.cu.
 *
 * A lane has TILE_C / 4 consecutive channels of a pixel. If lanes loaded and stored their own
 * floats, the lanes of an access would touch different cache lines. A warp therefore keeps the
 * floats of its 16 pixels by TILE_C channels in shared memory. The warp copies the epilogue's
 * operand to shared memory while it multiplies, replaces the operand by the results, and writes the
 * results to y.
 * Accesses to device memory are in pieces of 16 bytes, and neighbouring lanes access neighbouring
 * pieces of a pixel. Tensors of floats are NHWC.
 *
 * A row of this shared memory is one pixel. The row has a part for each of the pixel's four lanes.
 * 16 bytes of padding follow each part, so that eight lanes access all 32 banks.
 *
 * Macros: EXCHANGES is 1 if floats are exchanged. EXCHANGED_OPERAND is the name of the epilogue's
 * operand; it is undefined if the epilogue has none. */

#pragma once

#if !defined CONFIGURED && !defined EXCHANGES
#define EXCHANGES 1 /* 1: floats are read and written in shared memory */
#endif
#if !defined CONFIGURED && !defined TILE_C
#define TILE_C 64 /* channels of a work-group: 64, 128 or 256 */
#endif

#include "results.h"

#if EXCHANGES
#define LANE_BYTES (TILE_C / 4 * (int)sizeof(STORED))
#define LANE_PITCH (LANE_BYTES + 16)
#define EXCHANGED_ROW (4 * LANE_PITCH)
#define EXCHANGE_BYTES (16 * EXCHANGED_ROW)
#define PIECE_FLOATS (16 / (int)sizeof(STORED))
#define ROW_PIECES (TILE_C / PIECE_FLOATS)

/* The pixels and channels whose floats a warp exchanges. The lanes of the warp copy pieces of 16
 * bytes in turn.
 *
 * shared: the warp's shared memory.
 * end: the group's last channel + 1. */
struct Exchange {
    uchar *shared;
    int first_pixel, pixels, first_channel, end, out_channels, lane;
};

/* Calls `copy` for each piece that a lane copies. The arguments are the index of the piece's first
 * float in the tensor, and the address of the piece in shared memory. */
template <typename Copy> INLINE void for_each_piece(const Exchange &exchange, Copy copy)
{
    constexpr int LANE_PIECES = ROW_PIECES / 4;
    _Pragma("unroll 4") for (int i = 0; i < 16 * ROW_PIECES / 32; i++) {
        int number = i * 32 + exchange.lane, row = number / ROW_PIECES;
        int piece = number % ROW_PIECES, pixel = exchange.first_pixel + row;
        int channel = exchange.first_channel + piece * PIECE_FLOATS;
        if (pixel < exchange.pixels && channel < exchange.end)
            copy((INT64)pixel * exchange.out_channels + channel,
                 exchange.shared + row * EXCHANGED_ROW + piece / LANE_PIECES * LANE_PITCH
                     + piece % LANE_PIECES * 16);
    }
}

/* Starts the copies of an operand into shared memory. */
[[maybe_unused]] INLINE void load_exchanged(const Exchange &exchange, const STORED *operand)
{
    for_each_piece(exchange, [&](INT64 number, uchar *place) {
        cp_async_16(shared_address(place), operand + number, 16);
    });
}

/* Writes the results from shared memory to y. */
[[maybe_unused]] INLINE void store_exchanged(const Exchange &exchange, STORED *y)
{
    for_each_piece(exchange, [&](INT64 number, uchar *place) {
        *(uint4 *)(y + number) = *(const uint4 *)place;
    });
}
#endif
