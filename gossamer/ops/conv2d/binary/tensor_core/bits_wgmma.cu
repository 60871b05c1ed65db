/* Convolution of signs on bit tensor cores: products of warpgroups (wgmma), which read the weights
 * from shared memory.
 *
 * A work-group keeps the weights of TILE_C channels in shared memory, for the whole inner product.
 * Each of its WARPGROUPS takes tiles of 64 output pixels, counted through all images, one after the
 * other and apart from the others: while one writes its results another multiplies. It copies the
 * words of its windows into its own STAGES parts of shared memory, of a step each, and goes on with
 * those of its next tile while it still computes. Channels are ordered so that a lane has TILE_C / 4
 * consecutive ones of a pixel: it packs the words of the output alone. */

#define TILE_P 64
#define THREADS (128 * WARPGROUPS)
#define LINE LINE_BYTES(TILE_P)
#define STAGE_BYTES (WORDS * LINE)
/* The weights of a step: of each plane, the lower and then the upper half of the step. */
#define PLANE_BYTES (TILE_C * 32)
#define STEP_BYTES (PLANES * PLANE_BYTES)
#define SUMS (TILE_C / 2)
#define CHANNELS_OF_LANE (TILE_C / 4)
#define CHANNELS_AT_ONCE (CHANNELS_OF_LANE < 32 ? CHANNELS_OF_LANE : 32)

#define SUMS8(n)                                                                    \
    "+r"(sums[n]), "+r"(sums[n + 1]), "+r"(sums[n + 2]), "+r"(sums[n + 3]),         \
        "+r"(sums[n + 4]), "+r"(sums[n + 5]), "+r"(sums[n + 6]), "+r"(sums[n + 7])
#define SUMS32(n) SUMS8(n), SUMS8(n + 8), SUMS8(n + 16), SUMS8(n + 24)

/* Starts the multiplication of 64 pixels by TILE_C channels over 256 bits; adds the ones to sums, or
 * sets sums to them. Of each 8 channels a lane holds 2 (lane % 4) and the next, of pixels lane / 4
 * and lane / 4 + 8 of its warp's 16. */
INLINE void multiply_bits(int (&sums)[SUMS], uint upper_low, uint lower_low, uint upper_high,
                          uint lower_high, ulong weights, int adds)
{
#if TILE_C == 256
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %133, 0; "
                 "wgmma.mma_async.sync.aligned.m64n256k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, {%128, %129, %130, %131}, %132, p; }"
                 : SUMS32(0), SUMS32(32), SUMS32(64), SUMS32(96)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
#elif TILE_C == 128
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, p; }"
                 : SUMS32(0), SUMS32(32)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
#else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p; }"
                 : SUMS32(0)
                 : "r"(upper_low), "r"(lower_low), "r"(upper_high), "r"(lower_high),
                   "l"(weights), "r"(adds));
#endif
}

/* Describes weights to the tensor cores: 8 channels x 128 bits at a time, of which those of the next
 * channels follow after 128 bytes and those of the next bits after TILE_C * 16. */
INLINE ulong described(uint address)
{
    return (ulong)(address >> 4) | (ulong)TILE_C << 16 | (ulong)(128 >> 4) << 32;
}

INLINE void expect_bytes(uint barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(barrier), "r"(bytes) : "memory");
}

INLINE void copy_bytes(uint target, const uchar *source, int bytes, uint barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 ::"r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
}

/* Waits until all bytes that a barrier expects have arrived. */
INLINE void wait_for_bytes(uint barrier)
{
    int arrived;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
                     "selp.b32 %0, 1, 0, p; }"
                     : "=r"(arrived) : "r"(barrier) : "memory");
    while (!arrived);
}

KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_PER_UNIT) void bits_wgmma(
    const uchar *RESTRICT x, const int4 *RESTRICT taps, const uchar *RESTRICT weights,
    const int *RESTRICT constants, const uchar *RESTRICT flips, const int *RESTRICT thresholds,
    const float *RESTRICT alphas, const int *RESTRICT classes, uchar *RESTRICT y, int pixels,
    int steps, DIVISOR(out_pixels), DIVISOR(out_width), DIVISOR(tiles_c), int in_words,
    int group_words, int height, int width, int stride_y, int stride_x, int pad_top, int pad_left,
    int group_channels, int tile_channels, int out_channels, int out_words, int column_classes,
    int stride_n, int stride_c, int stride_h, int stride_w EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, pool)
    int item = LOCAL_ID(0) % 128, lane = item % 32, warp = item / 32;
    /* the compiler sees by the shuffle that all of a warp have the same number */
    int warpgroup = __shfl_sync(0xffffffffu, LOCAL_ID(0) / 128, 0);
    int tile_c = GROUP_ID(1), group = (int)QUOTIENT(tile_c, tiles_c);
    uint held = address_of(pool);
    uchar *ring = (uchar *)pool + steps * STEP_BYTES + warpgroup * STAGES * STAGE_BYTES;
    uint barriers = held + steps * STEP_BYTES + WARPGROUPS * STAGES * STAGE_BYTES;

    if (LOCAL_ID(0) == 0) {
        for (int step = 0; step < steps; step++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                         ::"r"(barriers + step * 8) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        const uchar *own = weights + (INT64)tile_c * steps * STEP_BYTES;
        for (int step = 0; step < steps; step++) {
            expect_bytes(barriers + step * 8, STEP_BYTES);
            copy_bytes(held + step * STEP_BYTES, own + step * STEP_BYTES, STEP_BYTES,
                       barriers + step * 8);
        }
    }
    BARRIER();

    auto position_of = [&](int pixel) {
        int image = (int)QUOTIENT(pixel, out_pixels), rest = pixel - image * out_pixels;
        int row = (int)QUOTIENT(rest, out_width);
        return Position{image, row, rest - row * out_width};
    };
    const Source source = {x,        group * group_words, in_words, height,  width,
                           stride_y, stride_x,            pad_top,  pad_left};
    int tile = GROUP_ID(0) * WARPGROUPS + warpgroup, turns = GROUP_COUNT(0) * WARPGROUPS;
    /* the next step to be copied, and the window of this work-item's pixel in its tile */
    int next_pixel = tile * TILE_P + item % TILE_P, next_step = 0, next_stage = 0;
    Window window;
    auto copy_step = [&]() {
        if (next_step == 0) {
            window = window_of(source, position_of(next_pixel < pixels ? next_pixel : 0));
            if (next_pixel >= pixels)
                window.row = height;
        }
        if (next_pixel - item % TILE_P < pixels) {
            uint start = address_of(ring) + next_stage * STAGE_BYTES + item % TILE_P * PLACE_BYTES;
            UNROLL for (int turn = 0; turn < WORDS / 2; turn++) {
                int line = 2 * turn + item / TILE_P;
                copy_tap(start + line * LINE, source, window, taps[next_step * WORDS + line]);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        next_stage = next_stage + 1 < STAGES ? next_stage + 1 : 0;
        if (++next_step == steps) {
            next_step = 0;
            next_pixel += turns * TILE_P;
        }
    };
    UNROLL for (int number = 0; number < STAGES - 1; number++)
        copy_step();

    const Target target = {y,          constants,  flips,          thresholds, alphas,   classes,
                           tile_channels, out_channels, out_words, out_pixels / out_width,
                           out_width,  column_classes, stride_n,   stride_c,   stride_h, stride_w};
    int in_tiles = (tile_c * 4 + lane % 4) * CHANNELS_OF_LANE;
    int channel = in_tiles - group * (tiles_c * TILE_C) + group * group_channels;
    bool is_first = true;
    int stage = 0;
    for (; tile * TILE_P < pixels; tile += turns) {
        int sums[SUMS];
        int counted[2] = {};
        Operand upper[2], lower[2];
        auto multiply_step = [&](int step, int turn) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            /* this step's words have arrived, and no warp reads the stage that is replaced */
            asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
            const uchar *words = ring + stage * STAGE_BYTES + lane % 4 * LINE
                                 + (warp * 16 + lane / 4) * PLACE_BYTES;
            upper[turn] = load_operand(words, LINE, counted[0], true);
            lower[turn] = load_operand(words + 8 * PLACE_BYTES, LINE, counted[1], true);
            if (is_first)
                wait_for_bytes(barriers + step * 8);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            UNROLL for (int plane = 0; plane < PLANES; plane++)
                multiply_bits(sums, upper[turn].low[plane], lower[turn].low[plane],
                              upper[turn].high[plane], lower[turn].high[plane],
                              described(held + step * STEP_BYTES + plane * PLANE_BYTES),
                              step + plane > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            copy_step();
            /* the operands of the step before may be replaced; with two planes the compiler keeps
             * no multiplication running while others' operands are computed */
            asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PLANES == 1) : "memory");
            stage = stage + 1 < STAGES ? stage + 1 : 0;
        };
        for (int step = 0; step < steps; step += 2) {
            multiply_step(step, 0);
            if (step + 1 < steps)
                multiply_step(step + 1, 1);
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        is_first = false;
        UNROLL for (int half = 0; half < 2; half++) {
            counted[half] += __shfl_xor_sync(0xffffffffu, counted[half], 1);
            counted[half] += __shfl_xor_sync(0xffffffffu, counted[half], 2);
            int pixel = tile * TILE_P + warp * 16 + half * 8 + lane / 4;
            if (pixel < pixels) {
                Position position = position_of(pixel);
                UNROLL for (int first = 0; first < CHANNELS_OF_LANE; first += CHANNELS_AT_ONCE) {
                    int own[CHANNELS_AT_ONCE];
                    UNROLL for (int n = 0; n < CHANNELS_AT_ONCE; n++)
                        own[n] = sums[(first + n) / 2 * 4 + half * 2 + n % 2];
                    write_channels(own, counted[half], target, position, in_tiles + first,
                                   channel + first, (group + 1) * group_channels
                                   EPILOGUE_ARGUMENTS);
                }
            }
        }
    }
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
    /* no work-group ends before the weights that it asked for have arrived */
    if (is_first)
        for (int step = 0; step < steps; step++)
            wait_for_bytes(barriers + step * 8);
}
