/* The depthwise convolution of inverted_residual_mma.cu, by tensor cores or by multiply-adds. */

#pragma once

#include "mma_products.h"
#include "mma_tile.h"

#if CONVOLVES
/* A warp convolves 16 pixels of 8 channels by matrix products. Each product multiplies the inputs
 * of a pair of taps by the weights of the pair, which are on diagonals of the right operand. Each
 * row of a filter has ROW_PAIRS pairs of neighbouring taps. If rows have an odd number of taps, the
 * last taps of two neighbouring rows are also a pair (COLUMN_PAIRS pairs). If the number of rows is
 * odd, too, the last tap of the last row remains. This single tap is multiplied alone. One load
 * writes the inputs of a pair to the consecutive registers that a product reads. */
#define ROW_PAIRS (KERNEL_W / 2)
#define MOST_PAIRS (ROW_PAIRS > 0 ? ROW_PAIRS : 1)
#define IS_ODD (KERNEL_W % 2)
#define COLUMN_PAIRS (IS_ODD ? KERNEL_H / 2 : 0)
#define HAS_SINGLE (IS_ODD && KERNEL_H % 2)
#define TAP_PAIRS (KERNEL_H * ROW_PAIRS + COLUMN_PAIRS)
/* rows of inputs that are in registers at the same time */
#define HELD_ROWS ((ROWS_AT_ONCE - 1) * STRIDE_Y + KERNEL_H)
/* A column load reads the inputs of the last taps of two neighbouring rows. Every STRIDE_Y-th row
 * is the upper row of a column load. The inputs of the single tap are one row of a column load.
 * With SINGLE_IS_LOWER, they are the lower row, because the next output also reads this load.
 * Without SINGLE_IS_LOWER, they are the upper row. */
#define SINGLE_IS_LOWER (STRIDE_Y == 1 && KERNEL_H > 1)
/* upper row of the last column load for an output, relative to the output's first row */
#define LAST_COLUMN (KERNEL_H - (SINGLE_IS_LOWER || KERNEL_H % 2 == 0 ? 2 : 1))
/* upper row of the first column load that no earlier output reads */
#define FIRST_COLUMN(output) \
    ((output) == 0 ? 0 : ((output) - 1) * STRIDE_Y + LAST_COLUMN + STRIDE_Y)
/* upper row of the last column load of which both rows are read */
#define LAST_FULL_COLUMN (COLUMN_PAIRS ? (RUN - 1) * STRIDE_Y + 2 * COLUMN_PAIRS - 2 : -1)

/* Index of the run (RUN rows of the tile) that contains a column of outputs. */
#define RUN_OF(column)                               \
    (RUN == TILE_H       ? 0                         \
     : 2 * RUN == TILE_H ? (column) >= TILE_W ? 1 : 0 \
                         : (int)((uint)(column) / TILE_W))

/* The left operands that are loaded from a row of inputs, for 16 pixels and 8 channels. pairs: the
 * operands for the pairs of neighbouring taps. column: the operand of the column load whose upper
 * row is this row. */
struct RowOfInputs {
    uint4 pairs[MOST_PAIRS];
    uint4 column;
};

/* mma.sync.m16n8k16: sets `sum` to `start` plus the products of 16 pixels of 8 channels and two
 * taps. */
INLINE void mma_sync_from(float (&sum)[4], const uint4 &inputs, uint lower, uint upper,
                          const float (&start)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(inputs.x), "r"(inputs.y), "r"(inputs.z), "r"(inputs.w), "r"(lower), "r"(upper),
          "f"(start[0]), "f"(start[1]), "f"(start[2]), "f"(start[3]));
}

/* mma.sync.m16n8k8: adds the products of 16 pixels of 8 channels and one tap to `sum`. */
INLINE void mma_sync_tap(float (&sum)[4], uint lower, uint upper, uint weight)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(lower), "r"(upper), "r"(weight));
}

/* Convolves a chunk: reads `expanded` and writes `convolved`. store: applies the epilogue to the
 * results of two neighbouring channels and stores them. start: returns the initial value of a
 * channel's sums. real: number of hidden channels, without padding, from the chunk's first channel
 * to the last channel of the block. */
template <class Store, class Start>
INLINE void convolve(REAL *convolved, const REAL *expanded, const REAL *taps, uint warp, uint lane,
                     const Store &store, const Start &start, int real)
{
    const int UNITS = CHUNK / 8 * COLUMN_TILES;
    /* A lane holds column lane / 4 of the right operand in the rows 2 (lane % 4) and
     * 2 (lane % 4) + 1 of each tap, 16 bits per row. Multiplying a weight by 1 or 0x10000 moves it
     * to the row that is on the diagonal. The factor is 0 if neither row is on the diagonal. */
    uint on_diagonal = lane / 8 == lane % 4 ? lane / 4 % 2 ? 0x10000u : 1u : 0u;
    int held = -1;
    uint weights[TAP_PAIRS > 0 ? TAP_PAIRS : 1][2], single = 0;
    for (int unit = warp * UNITS / WARPS; unit < (int)(warp + 1) * UNITS / WARPS; unit++) {
        int channel = unit / COLUMN_TILES * 8, tile = unit % COLUMN_TILES;
        if (channel != held) {
            const REAL *own = taps + channel + (int)lane / 4;
            auto weight_of = [&](int row, int column) {
                return own[(row * KERNEL_W + column) * CHUNK] * on_diagonal;
            };
            UNROLL for (int i = 0; i < 2; i++) {
                UNROLL for (int pair = 0; pair < KERNEL_H * ROW_PAIRS; pair++)
                    weights[pair][i] = weight_of(pair / MOST_PAIRS, pair % MOST_PAIRS * 2 + i);
                UNROLL for (int pair = 0; pair < COLUMN_PAIRS; pair++)
                    weights[KERNEL_H * ROW_PAIRS + pair][i] = weight_of(2 * pair + i, KERNEL_W - 1);
            }
            if (HAS_SINGLE)
                single = weight_of(KERNEL_H - 1, KERNEL_W - 1);
            held = channel;
        }
        int own_column = tile * 16 + lane % 16 < COLUMNS ? tile * 16 + (int)lane % 16 : COLUMNS - 1;
        const int COLUMN_STEP = STRIDE_X == 2 ? 1 : STRIDE_X;
        int first = own_column * COLUMN_STEP
                    + RUN_OF(own_column) * (RUN * STRIDE_Y * HALO_W - TILE_W * COLUMN_STEP);
        uint inputs = (uint)__cvta_generic_to_shared(expanded + channel);
        uint address = inputs + (first + (int)lane / 16 * column_offset(1)) * CHUNK_ROW * 2;
        uint last_column = inputs + (first + column_offset(KERNEL_W - 1) + (int)lane / 16 * HALO_W)
                                        * CHUNK_ROW * 2;
        int first_channel = channel + (int)lane % 4 * 2;
        /* `zero` is always 0, because every chunk has hidden channels (real > 0). The compiler does
         * not know this, and keeps all four numbers of `begin` in registers. If the compiler knew
         * that begin[2] = begin[0] and begin[3] = begin[1], it would copy begin[0] and begin[1]
         * before each product. */
        float zero = real > 0 ? 0.0f : 1.0f;
        float begin[4] = {start(first_channel), start(first_channel + 1)};
        begin[2] = begin[0] + zero;
        begin[3] = begin[1] + zero;
        REAL *targets[2];
        bool exist[2];
        UNROLL for (int i = 0; i < 2; i++) {
            int result = tile * 16 + (int)lane / 4 + 8 * i;
            exist[i] = result < COLUMNS;
            targets[i] = convolved + first_channel
                         + (result + RUN_OF(result) * ((RUN - 1) * TILE_W)) * CHUNK_ROW;
        }
        RowOfInputs rows[HELD_ROWS];
        /* ROWS_AT_ONCE rows of outputs are computed together. A product waits for the previous
         * product of the same row; meanwhile the products of other rows run. */
        UNROLL for (int r = 0; r < RUN; r += ROWS_AT_ONCE) {
            const int from = r == 0 ? 0 : (r - 1) * STRIDE_Y + KERNEL_H > r * STRIDE_Y
                                              ? (r - 1) * STRIDE_Y + KERNEL_H : r * STRIDE_Y;
            const int count = r + ROWS_AT_ONCE < RUN ? ROWS_AT_ONCE : RUN - r;
            /* the bounds of the loops over i are constants, so that these loops can be unrolled */
            UNROLL for (int i = 0; i < HELD_ROWS; i++)
                UNROLL for (int pair = 0; pair < ROW_PAIRS; pair++) {
                    const int row = from + i;
                    if (row < (r + count - 1) * STRIDE_Y + KERNEL_H)
                        rows[row % HELD_ROWS].pairs[pair] = ldmatrix_x4(
                            address + (row * HALO_W + column_offset(2 * pair)) * CHUNK_ROW * 2);
                }
            UNROLL for (int i = 0; i < HELD_ROWS; i += STRIDE_Y) {
                const int row = FIRST_COLUMN(r) + i;
                uint of_row = last_column + row * HALO_W * CHUNK_ROW * 2;
                if (!IS_ODD || row >= FIRST_COLUMN(r + count))
                    continue;
                uint4 &taps = rows[row % HELD_ROWS].column;
                if (SINGLE_IS_LOWER || row <= LAST_FULL_COLUMN) {
                    taps = ldmatrix_x4(of_row);
                } else {
                    uint2 tap = ldmatrix_x2(of_row);
                    taps.x = tap.x;
                    taps.y = tap.y;
                }
            }
            float sums[ROWS_AT_ONCE][4];
            if (TAP_PAIRS == 0)
                UNROLL for (int j = 0; j < count; j++)
                    UNROLL for (int i = 0; i < 4; i++)
                        sums[j][i] = begin[i];
            UNROLL for (int pair = 0; pair < TAP_PAIRS; pair++)
                UNROLL for (int j = 0; j < count; j++) {
                    const int above = (r + j) * STRIDE_Y;
                    const int of_column = pair - KERNEL_H * ROW_PAIRS;
                    const uint4 &pixels =
                        of_column >= 0
                            ? rows[(above + 2 * of_column) % HELD_ROWS].column
                            : rows[(above + pair / MOST_PAIRS) % HELD_ROWS]
                                  .pairs[pair % MOST_PAIRS];
                    if (pair == 0)
                        mma_sync_from(sums[j], pixels, weights[0][0], weights[0][1], begin);
                    else
                        mma_sync(sums[j], pixels, weights[pair][0], weights[pair][1]);
                }
            if (HAS_SINGLE)
                UNROLL for (int j = 0; j < count; j++) {
                    const int row = (r + j) * STRIDE_Y + KERNEL_H - 1 - SINGLE_IS_LOWER;
                    const uint4 &pixels = rows[row % HELD_ROWS].column;
                    mma_sync_tap(sums[j], SINGLE_IS_LOWER ? pixels.z : pixels.x,
                                 SINGLE_IS_LOWER ? pixels.w : pixels.y, single);
                }
            UNROLL for (int j = 0; j < count; j++)
                UNROLL for (int i = 0; i < 2; i++)
                    if (exist[i]) {
                        REAL *target = targets[i] + (r + j) * TILE_W * CHUNK_ROW;
                        store(target, sums[j][2 * i], sums[j][2 * i + 1], first_channel);
#if PADDED
                        /* zeroes padding channels, which the epilogue may have changed */
                        UNROLL for (int k = 0; k < 2; k++)
                            if (first_channel + k >= real)
                                target[k] = 0;
#endif
                    }
        }
    }
}
#else
/* Convolves a chunk by multiply-adds. The parameters have the same meanings as in the function for
 * tensor cores above. A work-item computes COLUMNS_AT_ONCE neighbouring outputs of a row in four
 * channels. */
template <class Store, class Start>
INLINE void convolve(REAL *convolved, const REAL *expanded, const REAL *taps, uint warp, uint lane,
                     const Store &store, const Start &start, int real)
{
    for (int unit = warp * 32 + lane; unit < TILE_H * (TILE_W / COLUMNS_AT_ONCE) * (CHUNK / 4);
         unit += WORK_GROUP_SIZE) {
        const int ROW_UNITS = TILE_W / COLUMNS_AT_ONCE;
        int channel = unit % (CHUNK / 4) * 4, of_channel = unit / (CHUNK / 4);
        int row = of_channel / ROW_UNITS, column = of_channel % ROW_UNITS * COLUMNS_AT_ONCE;
        const REAL *window = expanded + channel
                             + (row * STRIDE_Y * HALO_W + column * STRIDE_X) * CHUNK_ROW;
        float4 values[COLUMNS_AT_ONCE];
        UNROLL for (int j = 0; j < COLUMNS_AT_ONCE; j++)
            values[j] = MAKE4(start(channel), start(channel + 1), start(channel + 2),
                              start(channel + 3));
        UNROLL for (int r = 0; r < KERNEL_H; r++) {
            float4 factors[KERNEL_W];
            UNROLL for (int s = 0; s < KERNEL_W; s++)
                factors[s] = *(const float4 *)((const float *)taps + (r * KERNEL_W + s) * CHUNK
                                               + channel);
            UNROLL for (int w = 0; w < (COLUMNS_AT_ONCE - 1) * STRIDE_X + KERNEL_W; w++) {
                float4 input = LOAD_REAL4(window, (r * HALO_W + w) * CHUNK_ROW);
                UNROLL for (int j = 0; j < COLUMNS_AT_ONCE; j++) {
                    int s = w - j * STRIDE_X;
                    if (s >= 0 && s < KERNEL_W) {
                        values[j].x = FMA(input.x, factors[s].x, values[j].x);
                        values[j].y = FMA(input.y, factors[s].y, values[j].y);
                        values[j].z = FMA(input.z, factors[s].z, values[j].z);
                        values[j].w = FMA(input.w, factors[s].w, values[j].w);
                    }
                }
            }
        }
        UNROLL for (int j = 0; j < COLUMNS_AT_ONCE; j++) {
            REAL *target = convolved + (row * TILE_W + column + j) * CHUNK_ROW + channel;
            store(target, values[j].x, values[j].y, channel);
            store(target + 2, values[j].z, values[j].w, channel + 2);
#if PADDED
            /* zeroes padding channels, which the epilogue may have changed */
            UNROLL for (int i = 0; i < 4; i++)
                if (channel + i >= real)
                    target[i] = 0;
#endif
        }
    }
}
#endif
