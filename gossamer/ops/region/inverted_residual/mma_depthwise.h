/* The depthwise convolution of inverted_residual_mma.cu, by tensor cores or by multiply-adds. */

/* Returns where a column of the windows is in shared memory. With a stride of 2 the even columns
 * precede the odd ones, so that those that a tap meets are neighbours. */
INLINE int column_place(int column)
{
    return CONVOLVES && STRIDE_X == 2 ? column / 2 + column % 2 * CEIL_DIV(HALO_W, 2) : column;
}

#if CONVOLVES
/* rows of inputs that are in registers: those of two neighbouring outputs */
#define HELD_ROWS (KERNEL_H + STRIDE_Y)

/* Loads 8 neighbouring channels of 16 pixels for each tap of a row of a filter. address: that of the
 * first tap's input; lanes from 16 on give that of the second tap's. */
INLINE void load_row(uint (&row)[KERNEL_W][2], uint address)
{
    UNROLL for (int tap = 0; tap < KERNEL_W - 1; tap += 2) {
        uint of_tap = address + column_place(tap) * CHUNK_ROW * 2;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(row[tap][0]), "=r"(row[tap][1]), "=r"(row[tap + 1][0]),
                       "=r"(row[tap + 1][1])
                     : "r"(of_tap) : "memory");
    }
    if (KERNEL_W % 2) {
        uint of_tap = address + column_place(KERNEL_W - 1) * CHUNK_ROW * 2;
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(row[KERNEL_W - 1][0]), "=r"(row[KERNEL_W - 1][1])
                     : "r"(of_tap) : "memory");
    }
}

/* Convolves a chunk: reads `expanded` and writes `convolved`. store: stores two results of
 * neighbouring channels behind the epilogue. start: returns what a channel's sums begin with. real:
 * the channels of the chunk that exist. */
template <class Store, class Start>
INLINE void convolve(REAL *convolved, const REAL *expanded, const REAL *taps, uint warp, uint lane,
                     const Store &store, const Start &start, int real)
{
    const int UNITS = CHUNK / 8 * COLUMN_TILES;
    int held = -1;
    uint weights[TAP_PAIRS][2];
    for (int unit = warp * UNITS / WARPS; unit < (int)(warp + 1) * UNITS / WARPS; unit++) {
        int channel = unit / COLUMN_TILES * 8, tile = unit % COLUMN_TILES;
        if (channel != held) {
            /* a lane holds column lane / 4 of the right operand, and of each tap rows 2 (lane % 4)
             * and the next */
            uint mask = lane / 8 == lane % 4 ? 0xffffu << lane / 4 % 2 * 16 : 0;
            UNROLL for (int pair = 0; pair < TAP_PAIRS; pair++)
                UNROLL for (int i = 0; i < 2; i++) {
                    int tap = 2 * pair + i;
                    uint weight = tap < KERNEL_H * KERNEL_W ? taps[tap * CHUNK + channel + lane / 4]
                                                            : 0;
                    weights[pair][i] = weight * 0x10001u & mask;
                }
            held = channel;
        }
        int place = tile * 16 + lane % 16 < COLUMNS ? tile * 16 + (int)lane % 16 : COLUMNS - 1;
        uint address = (uint)__cvta_generic_to_shared(
            expanded + channel
            + (place / TILE_W * RUN * STRIDE_Y * HALO_W
               + place % TILE_W * (STRIDE_X == 2 ? 1 : STRIDE_X)
               + (int)lane / 16 * column_place(1)) * CHUNK_ROW);
        int first_channel = channel + (int)lane % 4 * 2;
        float first_sum = start(first_channel), second_sum = start(first_channel + 1);
        REAL *targets[2];
        bool exist[2];
        UNROLL for (int i = 0; i < 2; i++) {
            int result = tile * 16 + (int)lane / 4 + 8 * i;
            exist[i] = result < COLUMNS;
            targets[i] = convolved + first_channel
                         + (result / TILE_W * RUN * TILE_W + result % TILE_W) * CHUNK_ROW;
        }
        uint rows[HELD_ROWS][KERNEL_W][2];
        /* two rows at a time, so that one multiplies while the other waits */
        UNROLL for (int r = 0; r < RUN; r += 2) {
            const int from = r == 0 ? 0 : (r - 1) * STRIDE_Y + KERNEL_H > r * STRIDE_Y
                                              ? (r - 1) * STRIDE_Y + KERNEL_H : r * STRIDE_Y;
            const int count = r + 1 < RUN ? 2 : 1;
            UNROLL for (int row = from; row < (r + count - 1) * STRIDE_Y + KERNEL_H; row++)
                load_row(rows[row % HELD_ROWS], address + row * HALO_W * CHUNK_ROW * 2);
            float sums[2][4];
            UNROLL for (int j = 0; j < count; j++)
                UNROLL for (int i = 0; i < 4; i++)
                    sums[j][i] = i % 2 ? second_sum : first_sum;
            UNROLL for (int pair = 0; pair < TAP_PAIRS; pair++)
                UNROLL for (int j = 0; j < count; j++) {
                    const int tap = 2 * pair, next = 2 * pair + 1;
                    const int above = (r + j) * STRIDE_Y;
                    const uint(&upper)[2] = rows[(above + tap / KERNEL_W) % HELD_ROWS]
                                                [tap % KERNEL_W];
                    uint4 pixels = {upper[0], upper[1], 0, 0};
                    if (next < KERNEL_H * KERNEL_W) {
                        const uint(&lower)[2] = rows[(above + next / KERNEL_W) % HELD_ROWS]
                                                    [next % KERNEL_W];
                        pixels.z = lower[0];
                        pixels.w = lower[1];
                    }
                    multiply(sums[j], pixels, weights[pair][0], weights[pair][1]);
                }
            UNROLL for (int j = 0; j < count; j++)
                UNROLL for (int i = 0; i < 2; i++)
                    if (exist[i]) {
                        REAL *target = targets[i] + (r + j) * TILE_W * CHUNK_ROW;
                        store(target, sums[j][2 * i], sums[j][2 * i + 1], first_channel);
#if PADDED
                        /* an epilogue may make anything of channels that do not exist */
                        UNROLL for (int k = 0; k < 2; k++)
                            if (first_channel + k >= real)
                                target[k] = 0;
#endif
                    }
        }
    }
}
#else
/* Convolves a chunk, as the function above does. A work-item computes STRIP neighbouring outputs of
 * a row for four channels. */
template <class Store, class Start>
INLINE void convolve(REAL *convolved, const REAL *expanded, const REAL *taps, uint warp, uint lane,
                     const Store &store, const Start &start, int real)
{
    for (int unit = warp * 32 + lane; unit < TILE_H * (TILE_W / STRIP) * (CHUNK / 4);
         unit += WORK_GROUP_SIZE) {
        int channel = unit % (CHUNK / 4) * 4, strip = unit / (CHUNK / 4);
        int row = strip / (TILE_W / STRIP), column = strip % (TILE_W / STRIP) * STRIP;
        const REAL *window = expanded + channel
                             + (row * STRIDE_Y * HALO_W + column * STRIDE_X) * CHUNK_ROW;
        float4 values[STRIP];
        UNROLL for (int j = 0; j < STRIP; j++)
            values[j] = MAKE4(start(channel), start(channel + 1), start(channel + 2),
                              start(channel + 3));
        UNROLL for (int r = 0; r < KERNEL_H; r++) {
            float4 factors[KERNEL_W];
            UNROLL for (int s = 0; s < KERNEL_W; s++)
                factors[s] = *(const float4 *)((const float *)taps + (r * KERNEL_W + s) * CHUNK
                                               + channel);
            UNROLL for (int w = 0; w < (STRIP - 1) * STRIDE_X + KERNEL_W; w++) {
                float4 input = LOAD_REAL4(window, (r * HALO_W + w) * CHUNK_ROW);
                UNROLL for (int j = 0; j < STRIP; j++) {
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
        UNROLL for (int j = 0; j < STRIP; j++) {
            REAL *target = convolved + (row * TILE_W + column + j) * CHUNK_ROW + channel;
            store(target, values[j].x, values[j].y, channel);
            store(target + 2, values[j].z, values[j].w, channel + 2);
#if PADDED
            /* an epilogue may make anything of channels that do not exist */
            UNROLL for (int i = 0; i < 4; i++)
                if (channel + i >= real)
                    target[i] = 0;
#endif
        }
    }
}
#endif
