/* An inverted residual block, or a separable convolution, as one kernel, with the expanded tensor in
 * shared memory. Both 1x1 convolutions are products of tensor cores, in float16, in TF32, or in
 * float32 by three products of TF32 numbers.
 *
 * A cluster of CLUSTER work-groups computes TILE_H by TILE_W outputs of all channels. Its
 * work-groups take turns with chunks of CHUNK hidden channels. For each chunk a work-group expands
 * the pixels under the tile's windows, those in the image only, stores them among zeros,
 * convolves them, and adds their projection to sums in registers, while the next chunk is expanded.
 * Weights are copied to shared memory a chunk ahead. At the end each work-group of a cluster receives
 * the sums of all of them for a part of the results. Tensors are NHWC.
 *
 * Products are in tiles of 16 pixels and 8 channels, two tiles of channels at a time. A lane holds
 * pixels lane / 4 and lane / 4 + 8 of a tile for channels 2 (lane % 4) and the next.
 *
 * The expansion may be the first convolution of a network. Then x is its image, or what the network's
 * callers give, such as bytes, of which work-items make the image's numbers, and the inputs of a pixel
 * are those of its window, which work-items gather.
 *
 * With squeeze-and-excite a tile is a whole image. The work-groups keep what they convolved, make
 * gates of its means together, and project when they have scaled it by these (mma_excite.h).
 *
 * In float16 tensor cores convolve, too: the 16 rows of the right operand are two taps of 8
 * channels, and its diagonals hold their weights. A warp computes RUN outputs below one another of
 * 16 columns, so that an input is loaded once for all rows of taps.
 *
 * HALVES    1: x, y and operands are 16-bit floats; 0: they are floats
 * TF32      1: floats are multiplied as TF32; 0: as float32
 * EXPANDS   1: the block begins with an expansion; 0: its hidden channels are those of x
 * CHANNELS  channels of x, and OUT_CHANNELS those of y, multiples of 8
 * GATHERS   1: the expansion reads windows of an image of IMAGE_CHANNELS, each of GATHERED numbers,
 *           by filters of FILTER_H by FILTER_W; CHANNELS is then GATHERED with zeros up to a step
 *           (what the image is: ops/image.h)
 * PADDED    1: the last chunk has channels that do not exist
 * ROW_TILES tiles of 16 that hold the pixels under a tile's windows, a multiple of EXPAND_TILES
 * EXPAND_TILES, EXPAND_PAIRS  tiles of pixels and pairs of channel tiles that a warp expands at once
 * COLUMNS_AT_ONCE     neighbouring outputs of a row that a work-item convolves at once, a divisor of TILE_W
 * RUN       outputs below one another that a warp convolves in turn, a divisor of TILE_H
 * ROWS_AT_ONCE  those of them whose sums it holds at once
 * STAGES    chunks whose weights fit shared memory: 1 where a work-group has one chunk
 * EXCITES   1: with squeeze-and-excite; OWN_CHUNKS is then the chunks of a work-group, at most, SQUEEZED
 *           the numbers that its first product makes, and HIDDEN_ROW the channels of all chunks
 * WARPGROUPS_M     warps, or warpgroups, that share the channels of a tile of outputs
 * BULK      1: one work-item copies the weights of a chunk at once (sm_90); not with EXCITES
 * WGMMA     1: four warps multiply together by wgmma (sm_90a), with BULK; not in float32 */

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ptx/mbarrier.h"
#include "mma/warp.h"
#include "mma/precisions.h"
#include "ptx/wgmma.h"
#include "ptx/cluster.h"
#include "ptx/shfl.h"
#include "ops/region/squeeze_excite.h"
#include "ops/image.h"
#include "mma_sizes.h"
#include "mma_products.h"
#include "mma_warpgroups.h"
#include "mma_gather.h"
#include "mma_depthwise.h"
#include "mma_excite.h"

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void fused_block(
    const INPUT *RESTRICT x, const uint4 *RESTRICT weights, const uint4 *RESTRICT constants,
    REAL *RESTRICT y, int hidden, int height, int width, int out_height, int out_width,
    int pad_top, int pad_left EXCITE_PARAMETERS GATHER_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    REAL *inputs = (REAL *)memory;
    REAL *expanded = (REAL *)(memory + X_WORDS);
    REAL *convolved = (REAL *)(memory + FRONT_WORDS);
    uint4 *staged = (uint4 *)(convolved + KEPT_CHUNKS * CONVOLVED_WORDS * WIDTH);
    float *of_result = (float *)(memory + X_WORDS + CHUNK_WORDS);
    int *places = (int *)(of_result + RESULT_WORDS * 4);
#if CLUSTER > 1
    float4 *partial = EXCITES ? (float4 *)memory
                              : (float4 *)(places + (PLACE_WORDS + BARRIER_WORDS) * 4);
#endif
    [[maybe_unused]] ulong *arrived = (ulong *)(places + PLACE_WORDS * 4), *summed = arrived + 4;
    int item = LOCAL_ID(0);
    /* the compiler sees by the shuffle that all of a warp have the same number */
    uint lane = (uint)item % 32, warp = (uint)__shfl_sync(0xffffffffu, item / 32, 0);
    int rank = GROUP_ID(0) % CLUSTER;
#if CLUSTER > 1
    if (item == 0) {
        mbarrier_init(summed, 1);
        mbarrier_arrive_expect_tx(summed,
                                  CEIL_DIV(FRAGMENTS - rank, CLUSTER) * (CLUSTER * 32 * 16));
        fence_mbarrier_init();
    }
    WARP_BARRIER();
#endif
    CLUSTER_ARRIVE();
    pdl_trigger();

    /* the part of the windows that is in the image */
    int first_row = GROUP_ID(1) * TILE_H, first_column = GROUP_ID(0) / CLUSTER * TILE_W;
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    int top = above < 0 ? -above : 0, start = left < 0 ? -left : 0;
    int bottom = height - above < HALO_H ? height - above : HALO_H;
    int stop = width - left < HALO_W ? width - left : HALO_W;
    int columns = stop > start ? stop - start : 0;
    int pixels = bottom > top ? (bottom - top) * columns : 0;
    float of_columns = 1.0f / (float)columns;
#if GATHERS
    const INPUT *image = x + (long long)GROUP_ID(2) * IMAGE_CHANNELS * image_height * image_width;
#else
    const REAL *source = x + ((GROUP_ID(2) * height + above + top) * width + left + start)
                             * CHANNELS;
#endif

#if BULK
    /* One work-item copies a part of a chunk's weights at once. `arrived` has two barriers for each
     * stage: one for the weights of the projection, behind one for what is before them. */
    auto copy_part = [&](int chunk, int stage, int from, int to, ulong *barrier) {
        mbarrier_arrive_expect_tx(barrier, (to - from) * 16);
        cp_async_bulk(shared_address(staged + stage * WEIGHT_WORDS + from),
                      weights + chunk * WEIGHT_WORDS + from, (to - from) * 16, barrier);
    };
    auto copy_weights = [&](int chunk, int stage, int from, int to) {
        if (item == 0 && from < FIRST_WORDS)
            copy_part(chunk, stage, 0, FIRST_WORDS, arrived + 2 * stage);
        if (item == 0 && to > FIRST_WORDS)
            copy_part(chunk, stage, FIRST_WORDS, WEIGHT_WORDS, arrived + 2 * stage + 1);
    };
    if (item == 0) {
        UNROLL for (int i = 0; i < 2 * STAGES; i++)
            mbarrier_init(arrived + i, 1);
        fence_proxy_async();
    }
#else
    auto copy_weights = [&](int chunk, int stage, int from, int to) {
        ONCE_EACH for (int i = from + item; i < to; i += WORK_GROUP_SIZE)
            cp_async_16(shared_address(staged + stage * WEIGHT_WORDS + i),
                        weights + chunk * WEIGHT_WORDS + i, 16);
    };
#endif
#if !EXPANDS
    /* Copies a chunk of the input's channels to where an expansion would store them. */
    auto copy_hidden = [&](int chunk, int stage) {
        REAL *target = expanded + stage * EXPANDED_WORDS * WIDTH;
        ONCE_EACH for (int i = item; i < pixels * (CHUNK / WIDTH); i += WORK_GROUP_SIZE) {
            int pixel = i / (CHUNK / WIDTH), word = i % (CHUNK / WIDTH) * WIDTH;
            int row = quotient(pixel, of_columns), column = pixel - row * columns;
            bool exists = !PADDED || chunk * CHUNK + word < CHANNELS;
            const REAL *there = target + ((top + row) * HALO_W + column_place(start + column))
                                             * CHUNK_ROW + word;
            const REAL *from = source + (row * width + column) * CHANNELS
                               + (exists ? chunk * CHUNK + word : 0);
            cp_async_16(shared_address(there), from, exists ? 16 : 0);
        }
    };
#endif
    int chunks = CEIL_DIV(hidden, CHUNK);
    if (rank < chunks)
        copy_weights(rank, 0, 0, EXCITES ? FIRST_WORDS : WEIGHT_WORDS);
    ONCE_EACH for (int i = item; i < RESULT_WORDS; i += WORK_GROUP_SIZE)
        cp_async_16(shared_address((uint4 *)of_result + i), constants + i, 16);
    if (pixels < HALO_H * HALO_W) {
        ONCE_EACH for (int i = item; i < (EXPANDS ? 1 : STAGES) * EXPANDED_WORDS; i += WORK_GROUP_SIZE)
            ((uint4 *)expanded)[i] = make_uint4(0, 0, 0, 0);
        if (!EXPANDS)
            BARRIER();
    }
#if EXPANDS
    UNROLL for (int word = CHANNELS / WIDTH; word < X_ROW / WIDTH - 1; word++)
        ONCE_EACH for (int pixel = item; pixel < ROW_TILES * 16; pixel += WORK_GROUP_SIZE)
            ((uint4 *)(inputs + pixel * X_ROW))[word] = make_uint4(0, 0, 0, 0);
    ONCE_EACH for (int pixel = item; pixel < pixels; pixel += WORK_GROUP_SIZE) {
        int row = quotient(pixel, of_columns), column = pixel - row * columns;
        places[pixel] = ((top + row) * HALO_W + column_place(start + column)) * CHUNK_ROW;
    }
    pdl_wait();
#if GATHERS
    gather_windows(inputs, image, item, pixels, columns, above + top, left + start, image_height,
                   image_width, image_top, image_left GIVEN_OPERANDS);
#else
    ONCE_EACH for (int i = item; i < pixels * (CHANNELS / WIDTH); i += WORK_GROUP_SIZE) {
        int pixel = i / (CHANNELS / WIDTH), word = i % (CHANNELS / WIDTH) * WIDTH;
        int row = quotient(pixel, of_columns), column = pixel - row * columns;
        cp_async_16(shared_address(inputs + pixel * X_ROW + word),
                    source + (row * width + column) * CHANNELS + word, 16);
    }
#endif
#else
    pdl_wait();
    if (rank < chunks)
        copy_hidden(rank, 0);
#endif
    cp_async_commit_group();

    float sums[SUM_TILES][2 * SUM_PAIRS][4];
    UNROLL for (int m = 0; m < SUM_TILES; m++)
        UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++)
            UNROLL for (int i = 0; i < 4; i++)
                sums[m][n][i] = 0.0f;
    int warpgroup = warp / WARPGROUP_WARPS;
    int warpgroup_m = warpgroup % WARPGROUPS_M, warpgroup_p = warpgroup / WARPGROUPS_M;
    auto tile_of = [&](int m) {
        return (warpgroup_p * SUM_TILES + m) * WARPGROUP_WARPS + (int)warp % WARPGROUP_WARPS;
    };
    auto project = [&](const REAL *pixels_of_chunk, const uint4 *factors_of_chunk) {
#if WGMMA
        UNROLL for (int m = 0; m < SUM_TILES; m++) {
            int tile = tile_of(m) < PIXEL_TILES ? tile_of(m) : PIXEL_TILES - 1;
            multiply_steps<SUM_PAIRS, PROJECT_STEPS, OUT_PAIRS>(
                sums[m], pixels_of_chunk + tile * 16 * CHUNK_ROW, CHUNK_ROW,
                shared_address(factors_of_chunk + warpgroup_m * SUM_PAIRS * PAIR_WORDS), lane);
        }
        wgmma_wait_group<0>();
#else
        UNROLL_BY(2) for (int step = 0; step < PROJECT_STEPS; step++) {
            Pixels found[SUM_TILES];
            UNROLL for (int m = 0; m < SUM_TILES; m++) {
                /* a tile behind the last one is the last one once more, and its sums are not
                 * stored: conditions would take longer than the products */
                int tile = tile_of(m);
                if ((WARPGROUPS_P - 1) * SUM_TILES + m >= PIXEL_TILES)
                    tile = tile < PIXEL_TILES ? tile : PIXEL_TILES - 1;
                found[m] = load_pixels(pixels_of_chunk + tile * 16 * CHUNK_ROW, CHUNK_ROW, step,
                                       lane);
            }
            UNROLL for (int pair = 0; pair < SUM_PAIRS; pair++) {
                int place = warpgroup_m * SUM_PAIRS + pair;
                if ((WARPGROUPS_M - 1) * SUM_PAIRS + pair >= OUT_PAIRS)
                    place = place < OUT_PAIRS ? place : OUT_PAIRS - 1;
                Weights factors = load_weights(
                    factors_of_chunk + (step * OUT_PAIRS + place) * PAIR_WORDS, lane);
                UNROLL for (int m = 0; m < SUM_TILES; m++)
                    UNROLL for (int i = 0; i < 2; i++)
                        if (2 * pair + i < OUT_TILES)
                            multiply_tile(sums[m][2 * pair + i], found[m], factors, i);
            }
        }
#endif
    };

    /* Of several chunks one is projected where the next one is expanded: that is a barrier
     * less, and warps that have done the one do the other. A projection's weights take the
     * place of those of two chunks before, which are read an iteration later than the rest of
     * their stage, and so they are copied an iteration later. */
    int stage = 0;
    [[maybe_unused]] uint iteration = 0;
    for (int chunk = rank; chunk < chunks + (PROJECTS_LATER ? CLUSTER : 0); chunk += CLUSTER) {
        bool exists = !PROJECTS_LATER || chunk < chunks;
        cp_async_wait_group<0>();
        BARRIER();
        if (STAGES > 1 && chunk + CLUSTER < chunks) {
            copy_weights(chunk + CLUSTER, stage ^ 1, 0, FIRST_WORDS);
#if !EXPANDS
            copy_hidden(chunk + CLUSTER, stage ^ 1);
#endif
        }
        if (PROJECTS_LATER && chunk != rank && exists)
            copy_weights(chunk, stage, FIRST_WORDS, WEIGHT_WORDS);
#if !BULK || !EXPANDS
        cp_async_commit_group();
#endif
        const uint4 *expand = staged + stage * WEIGHT_WORDS;
        const uint4 *taps = expand + EXPAND_WORDS;
        const float *chunk_constants = (const float *)(taps + TAP_WORDS);
        const REAL *hidden_pixels = expanded + (EXPANDS ? 0 : stage) * EXPANDED_WORDS * WIDTH;
        EXPAND_OPERANDS
        DEPTHWISE_OPERANDS
#if BULK
        if (exists)
            mbarrier_wait_parity(arrived + 2 * stage, iteration / STAGES);
#endif
#if EXPANDS
        const int UNIT_PIXELS = 16 * WARPGROUP_WARPS * EXPAND_TILES;
        int units = exists ? CEIL_DIV(pixels, UNIT_PIXELS) * EXPAND_PARTS : 0;
        for (int unit = warpgroup; unit < units; unit += WARPGROUPS) {
            int part = unit % EXPAND_PARTS * EXPAND_PAIRS;
            int tile = unit / EXPAND_PARTS * (WARPGROUP_WARPS * EXPAND_TILES)
                       + (int)warp % WARPGROUP_WARPS;
            float values[EXPAND_TILES][2 * EXPAND_PAIRS][4];
            UNROLL for (int m = 0; m < EXPAND_TILES; m++)
                UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++)
                    UNROLL for (int i = 0; i < 4; i++)
                        values[m][n][i] = EXPAND_START(part * 16 + n * 8 + (int)lane % 4 * 2
                                                       + i % 2);
#if WGMMA
            multiply_steps<EXPAND_PAIRS, EXPAND_STEPS, CHUNK_PAIRS>(
                values[0], inputs + tile * 16 * X_ROW, X_ROW,
                shared_address(expand + part * PAIR_WORDS), lane);
            wgmma_wait_group<0>();
#else
            UNROLL_BY(STEPS_AT_ONCE) for (int step = 0; step < EXPAND_STEPS; step++) {
                Pixels found[EXPAND_TILES];
                UNROLL for (int m = 0; m < EXPAND_TILES; m++)
                    found[m] = load_pixels(inputs + (tile + m) * 16 * X_ROW, X_ROW, step, lane);
                UNROLL for (int pair = 0; pair < EXPAND_PAIRS; pair++) {
                    Weights factors = load_weights(
                        expand + (step * CHUNK_PAIRS + part + pair) * PAIR_WORDS, lane);
                    UNROLL for (int m = 0; m < EXPAND_TILES; m++) {
                        multiply_tile(values[m][2 * pair], found[m], factors, 0);
                        multiply_tile(values[m][2 * pair + 1], found[m], factors, 1);
                    }
                }
            }
#endif
            UNROLL for (int i = 0; i < 2 * EXPAND_TILES; i++) {
                int pixel = tile * 16 + (int)lane / 4 + 8 * i;
                if (pixel < pixels) {
                    REAL *target = expanded + places[pixel];
                    UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++) {
                        int channel = part * 16 + n * 8 + (int)lane % 4 * 2;
                        float first = values[i / 2][n][i % 2 * 2];
                        float second = values[i / 2][n][i % 2 * 2 + 1];
                        EXPAND_STORE(target + channel, first, second, channel)
                    }
                }
            }
        }
#endif
#if PROJECTS_LATER
        if (chunk != rank) {
#if BULK
            mbarrier_wait_parity(arrived + 2 * (stage ^ 1) + 1, (iteration - 1) / STAGES);
#endif
            project(convolved, staged + (stage ^ 1) * WEIGHT_WORDS + FIRST_WORDS);
        }
        if (!exists)
            break;
#endif
#if EXPANDS || PROJECTS_LATER
        BARRIER();
#endif
        convolve(convolved, hidden_pixels, (const REAL *)taps, warp, lane,
                 [&](REAL *target, float first, float second, int channel) {
                     DEPTHWISE_STORE(target, first, second, channel)
                 },
                 [&](int channel) { return DEPTHWISE_START(channel); }, hidden - chunk * CHUNK);
        stage ^= STAGES > 1;
        iteration++;
#if EXCITES
        convolved += CONVOLVED_WORDS * WIDTH;
#elif !PROJECTS_LATER
        BARRIER();
#if BULK
        mbarrier_wait_parity(arrived + 1, 0);
#endif
        project(convolved, staged + FIRST_WORDS);
#endif
    }

#if EXCITES
    /* a work-group without a chunk has not waited for its inputs, whose place sums take */
    cp_async_wait_group<0>();
    BARRIER();
    int own_chunks = rank < chunks ? (chunks - 1 - rank) / CLUSTER + 1 : 0;
    convolved = (REAL *)(memory + FRONT_WORDS);
    if (FIRST_WORDS < WEIGHT_WORDS && own_chunks > 0) {
        copy_weights(rank, 0, FIRST_WORDS, WEIGHT_WORDS);
        cp_async_commit_group();
    }
    float *gates = (float *)(staged + STAGES * WEIGHT_WORDS);
    float *parts = gates + OWN_CHUNKS * CHUNK;
    sum_channels(gates, convolved, own_chunks, warp, lane);
    BARRIER();
    CLUSTER_WAIT();
    squeeze_means(parts, gates, squeeze, own_chunks, rank, warp, lane);
    CLUSTER_BARRIER();
    EXCITE_OPERANDS
    float *squeezed = parts + CLUSTER * SQUEEZED;
    for (int number = item; number < SQUEEZED; number += WORK_GROUP_SIZE) {
        float sum = sum_of_parts(parts, number);
        SQUEEZE_EPILOGUE(sum, number, 0)
        squeezed[number] = sum;
    }
    BARRIER();
    for (int i = item; i < own_chunks * CHUNK; i += WORK_GROUP_SIZE) {
        int channel = (rank + i / CHUNK * CLUSTER) * CHUNK + i % CHUNK;
        float gate = gate_sum(squeezed, excite, HIDDEN_ROW, channel);
        EXCITE_EPILOGUE(gate, channel, 0)
        gates[i] = gate;
    }
    BARRIER();
    for (int i = item; i < own_chunks * TILE_H * TILE_W * (CHUNK / 4); i += WORK_GROUP_SIZE) {
        int channel = i % (CHUNK / 4) * 4, pixel = i / (CHUNK / 4);
        int own_chunk = pixel / (TILE_H * TILE_W);
        int place = own_chunk * CONVOLVED_WORDS * WIDTH + pixel % (TILE_H * TILE_W) * CHUNK_ROW
                    + channel;
        float4 value = LOAD_REAL4(convolved, place);
        float lanes[4] = {value.x, value.y, value.z, value.w};
        const float *scale_operand0 = gates + own_chunk * CHUNK;
        UNROLL for (int j = 0; j < 4; j++) {
            SCALE_EPILOGUE(lanes[j], channel + j, 0)
#if PADDED
            /* what scales may make anything of channels that do not exist */
            if ((rank + own_chunk * CLUSTER) * CHUNK + channel + j >= hidden)
                lanes[j] = 0.0f;
#endif
            lanes[j] = rounded(lanes[j]);
        }
        STORE_REAL4(convolved, place, MAKE4(lanes[0], lanes[1], lanes[2], lanes[3]));
    }

    stage = 0;
    for (int own_chunk = 0; own_chunk < own_chunks; own_chunk++) {
        if (FIRST_WORDS < WEIGHT_WORDS || own_chunk == 0) {
            cp_async_wait_group<0>();
            BARRIER();
        }
        if (FIRST_WORDS < WEIGHT_WORDS && own_chunk + 1 < own_chunks) {
            copy_weights(rank + (own_chunk + 1) * CLUSTER, stage ^ 1, FIRST_WORDS, WEIGHT_WORDS);
            cp_async_commit_group();
        }
        project(convolved, staged + stage * WEIGHT_WORDS + EXPAND_WORDS + CONSTANT_WORDS);
        stage ^= STAGES > 1;
        convolved += CONVOLVED_WORDS * WIDTH;
    }
#endif

    PROJECT_OPERANDS
    /* a work-group without a chunk has not waited for its inputs and constants */
    cp_async_wait_group<0>();
    if (CLUSTER > 1 && rank >= chunks)
        BARRIER();
#if !EXCITES
    CLUSTER_WAIT();
#endif
    /* Stores two neighbouring channels of a pixel of the tile. */
    auto store_results = [&](int pixel, int channel, float first, float second) {
        int row = first_row + pixel / TILE_W, column = first_column + pixel % TILE_W;
        if (pixel < TILE_H * TILE_W && row < out_height && column < out_width) {
            int index = ((GROUP_ID(2) * out_height + row) * out_width + column) * OUT_CHANNELS
                        + channel;
            /* the place of the same pixel and channel in x, which is added to the result */
            int operand = EXPANDS && !EXCITES
                              ? ((row - above - top) * columns + column - left - start) * X_ROW
                                        + channel
                              : index;
            PROJECT_EPILOGUE(first, channel, operand)
            PROJECT_EPILOGUE(second, channel + 1, operand + 1)
            store_two(y + index, first, second);
        }
    };
    int first_pixel = (int)lane / 4, first_channel = (int)lane % 4 * 2;
#if CLUSTER > 1
    UNROLL for (int m = 0; m < SUM_TILES; m++)
        UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++) {
            int tile = tile_of(m), channels = warpgroup_m * SUM_PAIRS * 2 + n;
            if (tile < PIXEL_TILES && channels < OUT_TILES) {
                int fragment = tile * OUT_TILES + channels;
                float4 *own = partial + (fragment / CLUSTER * CLUSTER + rank) * 32 + lane;
                st_async_cluster(shared_address(own), sums[m][n][0], sums[m][n][1], sums[m][n][2],
                                 sums[m][n][3], summed, fragment % CLUSTER);
            }
        }
    mbarrier_wait_parity(summed, 0);
    ONCE_EACH for (int slot = warp; slot < SHARE; slot += WARPS) {
        int fragment = slot * CLUSTER + rank;
        if (fragment < FRAGMENTS) {
            float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL for (int other = 0; other < CLUSTER; other++) {
                float4 part = partial[(slot * CLUSTER + other) * 32 + lane];
                values[0] += part.x;
                values[1] += part.y;
                values[2] += part.z;
                values[3] += part.w;
            }
            UNROLL for (int i = 0; i < 2; i++)
                store_results(fragment / OUT_TILES * 16 + first_pixel + 8 * i,
                              fragment % OUT_TILES * 8 + first_channel, values[2 * i],
                              values[2 * i + 1]);
        }
    }
#else
    UNROLL for (int m = 0; m < SUM_TILES; m++)
        UNROLL for (int i = 0; i < 2; i++)
            UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++) {
                int channels = warpgroup_m * SUM_PAIRS * 2 + n;
                if (tile_of(m) < PIXEL_TILES && channels < OUT_TILES)
                    store_results(tile_of(m) * 16 + first_pixel + 8 * i,
                                  channels * 8 + first_channel, sums[m][n][2 * i],
                                  sums[m][n][2 * i + 1]);
            }
#endif
}
