/* Convolution of signs on bit tensor cores: products of warps, which read both operands from shared
 * memory into registers.
 *
 * A work-group computes WARPS_P * TILES_P * 16 output pixels, counted through all images, and
 * WARPS_C * TILES_C * 8 channels. Its warps divide these among them, and each step of the inner
 * product among WARPS_K of them, whose sums are added at the end. Channels are ordered so that a
 * lane has 2 * TILES_C consecutive ones of a pixel: it packs the words of the output alone.
 *
 * STAGES  parts of shared memory, each of which holds WARPS_K steps */

#define TILE_P (WARPS_P * TILES_P * 16)
#define WARPS_OF_PART (WARPS_P * WARPS_C)
#define THREADS (32 * WARPS_OF_PART * WARPS_K)
#define LINE LINE_BYTES(TILE_P)
#define LINES (WARPS_K * WORDS)
/* Pieces of 16 bytes of the weights of a warp's channels: of a step, and of a stage. */
#define STEP_PIECES (PLANES * TILES_C * 16)
#define STAGE_PIECES (WARPS_K * STEP_PIECES)
#define INPUT_BYTES (LINES * LINE)
#define STAGE_BYTES (INPUT_BYTES + WARPS_C * STAGE_PIECES * 16)
#define SUMS (TILES_P * TILES_C * 4)

/* Starts an asynchronous copy of 16 bytes. */
INLINE void copy_weights(uint target, const uint4 *source)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(target), "l"(source), "r"(16) : "memory");
}

/* Multiplies 16 pixels by 8 channels over 256 bits and adds the ones to sum, in which a lane holds
 * channels 2 (lane % 4) and the next of pixels lane / 4 and lane / 4 + 8. */
INLINE void multiply_bits(int (&sum)[4], uint upper_low, uint lower_low, uint upper_high,
                          uint lower_high, uint weight_low, uint weight_high)
{
    asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high), "r"(weight_low),
          "r"(weight_high));
}

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_PER_UNIT) void bits_mma(
    const uchar *RESTRICT x, const int4 *RESTRICT taps, const uint4 *RESTRICT weights,
    const int *RESTRICT constants, const uchar *RESTRICT flips, const int *RESTRICT thresholds,
    const float *RESTRICT alphas, const int *RESTRICT classes, uchar *RESTRICT y, int pixels,
    int phases, DIVISOR(out_pixels), DIVISOR(out_width), DIVISOR(tiles_c), int in_words,
    int group_words, int height, int width, int stride_y, int stride_x, int pad_top, int pad_left,
    int group_channels, int tile_channels, int out_channels, int out_words, int column_classes,
    int stride_n, int stride_c, int stride_h, int stride_w EPILOGUE_PARAMETERS)
{
    SHARED int counts[TILE_P];
    DYNAMIC_SHARED(uint4, pool)
    int item = LOCAL_ID(0), lane = item % 32, warp = item / 32;
    int part = warp / WARPS_OF_PART;
    int warp_c = warp % WARPS_C, warp_p = warp % WARPS_OF_PART / WARPS_C;
    int tile_c = GROUP_ID(1), group = (int)QUOTIENT(tile_c, tiles_c);
    int first_pixel = GROUP_ID(0) * TILE_P;
    auto position_of = [&](int pixel) {
        int image = (int)QUOTIENT(pixel, out_pixels), rest = pixel - image * out_pixels;
        int row = (int)QUOTIENT(rest, out_width);
        return Position{image, row, rest - row * out_width};
    };

    const Source source = {x,        group * group_words, in_words, height,  width,
                           stride_y, stride_x,            pad_top,  pad_left};
    int own_pixel = item % TILE_P;
    bool is_pixel = first_pixel + own_pixel < pixels;
    Window window = window_of(source, position_of(is_pixel ? first_pixel + own_pixel : 0));
    if (!is_pixel)
        window.row = height;
    /* copies nothing for numbers behind the last phase */
    auto copy_phase = [&](int number, int stage) {
        if (number < phases) {
            uint start = address_of(pool) + stage * STAGE_BYTES;
            UNROLL for (int line = item / TILE_P; line < LINES; line += THREADS / TILE_P)
                copy_tap(start + line * LINE + own_pixel * PLACE_BYTES, source, window,
                         taps[number * LINES + line]);
            const uint4 *first = weights + ((INT64)tile_c * WARPS_C * phases + number)
                                               * STAGE_PIECES;
            UNROLL for (int piece = item; piece < WARPS_C * STAGE_PIECES; piece += THREADS)
                copy_weights(start + INPUT_BYTES + piece * 16,
                             first + (INT64)(piece / STAGE_PIECES * phases) * STAGE_PIECES
                                 + piece % STAGE_PIECES);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    if (item < TILE_P)
        counts[item] = 0;
    int ones[TILES_P][TILES_C][4] = {};
    int counted[TILES_P][2] = {};
    UNROLL for (int number = 0; number < STAGES - 1; number++)
        copy_phase(number, number);
    int stage = 0;
    for (int phase = 0; phase < phases; phase++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        /* this phase's words have arrived, and no warp reads the stage that is replaced */
        BARRIER();
        copy_phase(phase + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        const uchar *words = (const uchar *)pool + stage * STAGE_BYTES
                             + (part * WORDS + lane % 4) * LINE
                             + (warp_p * TILES_P * 16 + lane / 4) * PLACE_BYTES;
        const uint4 *pieces = (const uint4 *)((const uchar *)pool + stage * STAGE_BYTES
                                              + INPUT_BYTES)
                              + warp_c * STAGE_PIECES + part * STEP_PIECES + lane;
        /* the warps that share pixels count their ones in turn */
        bool counts_phase = phase % WARPS_C == warp_c;
        Operand upper[TILES_P], lower[TILES_P];
        UNROLL for (int tile = 0; tile < TILES_P; tile++) {
            const uchar *place = words + tile * 16 * PLACE_BYTES;
            upper[tile] = load_operand(place, LINE, counted[tile][0], counts_phase);
            lower[tile] = load_operand(place + 8 * PLACE_BYTES, LINE, counted[tile][1],
                                       counts_phase);
        }
        UNROLL for (int plane = 0; plane < PLANES; plane++)
            UNROLL for (int pair = 0; pair < TILES_C / 2; pair++) {
                uint4 weight = pieces[(plane * (TILES_C / 2) + pair) * 32];
                UNROLL for (int tile = 0; tile < TILES_P; tile++) {
                    multiply_bits(ones[tile][2 * pair], upper[tile].low[plane],
                                  lower[tile].low[plane], upper[tile].high[plane],
                                  lower[tile].high[plane], weight.x, weight.y);
                    multiply_bits(ones[tile][2 * pair + 1], upper[tile].low[plane],
                                  lower[tile].low[plane], upper[tile].high[plane],
                                  lower[tile].high[plane], weight.z, weight.w);
                }
            }
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
    UNROLL for (int tile = 0; tile < TILES_P; tile++)
        UNROLL for (int half = 0; half < 2; half++)
            atomicAdd(counts + (warp_p * TILES_P + tile) * 16 + half * 8 + lane / 4,
                      counted[tile][half]);
    BARRIER();
#if WARPS_K > 1
    int *sums = (int *)pool + warp % WARPS_OF_PART * (SUMS * 32) + lane;
    if (part > 0)
        UNROLL for (int n = 0; n < SUMS; n++)
            sums[((part - 1) * WARPS_OF_PART * SUMS + n) * 32] =
                ones[n / (TILES_C * 4)][n / 4 % TILES_C][n % 4];
    BARRIER();
    if (part == 0)
        UNROLL for (int other = 0; other < WARPS_K - 1; other++)
            UNROLL for (int n = 0; n < SUMS; n++)
                ones[n / (TILES_C * 4)][n / 4 % TILES_C][n % 4] +=
                    sums[(other * WARPS_OF_PART * SUMS + n) * 32];
#endif

    const Target target = {y,          constants,  flips,          thresholds, alphas,   classes,
                           tile_channels, out_channels, out_words, out_pixels / out_width,
                           out_width,  column_classes, stride_n,   stride_c,   stride_h, stride_w};
    int in_tiles = ((tile_c * WARPS_C + warp_c) * 4 + lane % 4) * (2 * TILES_C);
    int channel = in_tiles - group * (tiles_c * WARPS_C * TILES_C * 8) + group * group_channels;
    if (part == 0)
        UNROLL for (int tile = 0; tile < TILES_P; tile++)
            UNROLL for (int half = 0; half < 2; half++) {
                int row = (warp_p * TILES_P + tile) * 16 + half * 8 + lane / 4;
                if (first_pixel + row < pixels) {
                    int own[2 * TILES_C];
                    UNROLL for (int n = 0; n < 2 * TILES_C; n++)
                        own[n] = ones[tile][n / 2][half * 2 + n % 2];
                    write_channels(own, counts[row], target, position_of(first_pixel + row),
                                   in_tiles, channel, (group + 1) * group_channels
                                   EPILOGUE_ARGUMENTS);
                }
            }
}
