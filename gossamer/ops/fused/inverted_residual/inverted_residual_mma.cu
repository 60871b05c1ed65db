/* An inverted residual block, or a separable convolution, as one kernel, with the expanded tensor
 * in shared memory. Tensor cores compute both 1x1 convolutions, in float16, in TF32, or in float32
 * by three products of TF32 numbers.
 *
 * A cluster of CLUSTER work-groups computes TILE_H by TILE_W outputs of all channels. The chunks of
 * CHUNK hidden channels are distributed round-robin among the work-groups of a cluster. For each of
 * its chunks, a work-group computes three steps:
 * 1. It expands the image's pixels under the tile's windows into shared memory. Pixels outside the
 *    image are zeros.
 * 2. It convolves the expanded pixels.
 * 3. It projects the convolved pixels while it expands its next chunk, and adds the results to
 *    accumulators in registers.
 * Weights are copied to shared memory one chunk ahead. At the end, every work-group computes a
 * slice of the results: it adds up the accumulators of all work-groups of the cluster.
 *
 * Tensors are NHWC. The output begins at y + y_first. Its pixels are y_channels elements apart;
 * y_channels exceeds OUT_CHANNELS if the output is a slice of the channels of a larger tensor.
 *
 * Products are computed in tiles of 16 pixels by 8 channels, two channel tiles at a time. Of each
 * tile, a lane holds the pixels lane / 4 and lane / 4 + 8 in the channels 2 (lane % 4) and
 * 2 (lane % 4) + 1.
 *
 * With GATHERS, the expansion is the first convolution of a network. x is the network's input: an
 * image, or another tensor, such as bytes, from which the kernel computes the image. For each
 * expanded pixel, work-items gather the inputs of the pixel's window.
 *
 * With EXCITES (squeeze-and-excite), a tile is a whole image. The work-groups keep the convolved
 * channels, and compute the gates from the channels' means. They scale the channels by the gates
 * and project the scaled channels (mma_excite.h).
 *
 * In float16, tensor cores also compute the depthwise convolution. The right operand of a product
 * has two blocks of 8 x 8 numbers, one for each of two taps. The diagonal of a block holds the
 * tap's weights in 8 channels. A warp computes RUN consecutive rows of outputs in each of 16
 * columns of the tile, so that it loads each input once for all rows of the filter.
 *
 * mma_sizes.h has the macros and their meanings. mma_gather.h and ops/image.h have further macros
 * for GATHERS, and mma_excite.h has further macros for EXCITES. */

#include "ptx/cluster.h"
#include "ptx/griddepcontrol.h"
#include "mma/ring.h"
#include "mma_sizes.h"
#include "mma_tile.h"
#include "mma_gather.h"
#include "mma_expand.h"
#include "mma_depthwise.h"
#include "mma_excite.h"
#include "mma_project.h"

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void inverted_residual_mma(
    const INPUT *x, const uint4 *RESTRICT weights, const uint4 *RESTRICT constants,
    REAL *RESTRICT y, int y_first, int y_channels, int hidden, int height, int width,
    int out_height, int out_width, int pad_top, int pad_left EXCITE_PARAMETERS GATHER_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    [[maybe_unused]] REAL *inputs = (REAL *)memory;
    REAL *expanded = (REAL *)(memory + X_WORDS);
    REAL *convolved = (REAL *)(memory + FRONT_WORDS);
    uint4 *staged = (uint4 *)(convolved + KEPT_CHUNKS * CONVOLVED_WORDS * WIDTH);
    float *of_result = (float *)(memory + X_WORDS + CHUNK_WORDS);
    int *offsets = (int *)(of_result + RESULT_WORDS * 4);
    float4 *partial = EXCITES ? (float4 *)memory
                              : (float4 *)(offsets + (OFFSET_WORDS + BARRIER_WORDS) * 4);
    ulong *arrived = (ulong *)(offsets + OFFSET_WORDS * 4), *summed = arrived + 4;
    const Tile tile = find_tile(height, width, pad_top, pad_left);
    if constexpr (CLUSTER > 1) {
        if (tile.item == 0) {
            init_once(summed, CEIL_DIV(FRAGMENTS - tile.rank, CLUSTER) * (CLUSTER * 32 * 16));
            fence_mbarrier_init();
        }
    }
    CLUSTER_ARRIVE();
    pdl_trigger();
#if GATHERS
    const INPUT *source = x + (long long)GROUP_ID(2) * IMAGE_CHANNELS * image_height * image_width;
#else
    const REAL *source = x + ((GROUP_ID(2) * height + tile.above + tile.top) * width + tile.left
                              + tile.start) * CHANNELS;
#endif

    /* Before pdl_wait, the previous kernel may still run. So the code before pdl_wait initialises
     * shared memory, and copies only weights and constants, which no kernel writes. */
    if constexpr (BULK) {
        if (tile.item == 0) {
            UNROLL for (int i = 0; i < 2 * STAGES; i++)
                mbarrier_init(arrived + i, 1);
            fence_proxy_async();
        }
    }
    auto copy = [&](int chunk, int stage, int from, int to) {
        copy_weights(staged, weights, arrived, tile.item, chunk, stage, from, to);
    };
    int chunks = CEIL_DIV(hidden, CHUNK);
    if (tile.rank < chunks)
        copy(tile.rank, 0, 0, EXCITES ? FIRST_WORDS : WEIGHT_WORDS);
    ONCE_EACH for (int i = tile.item; i < RESULT_WORDS; i += WORK_GROUP_SIZE)
        cp_async_16(shared_address((uint4 *)of_result + i), constants + i, 16);
    if (tile.pixels < HALO_H * HALO_W) {
        const int WORDS = (EXPANDS ? 1 : STAGES) * EXPANDED_WORDS;
        ONCE_EACH for (int i = tile.item; i < WORDS; i += WORK_GROUP_SIZE)
            ((uint4 *)expanded)[i] = make_uint4(0, 0, 0, 0);
        if (!EXPANDS)
            BARRIER();
    }
#if EXPANDS
    prepare_inputs(inputs, offsets, tile);
#endif
    pdl_wait();
#if GATHERS
    gather_windows(inputs, source, tile, image_height, image_width, image_top,
                   image_left GIVEN_OPERANDS);
#else
#if EXPANDS
    copy_inputs(inputs, source, tile, width);
#else
    if (tile.rank < chunks)
        copy_hidden(expanded, source, tile, width, tile.rank, 0);
#endif
#endif
    cp_async_commit_group();

    Sums sums = {};
    const Share share = share_of(tile.warp);

    /* If a work-group has several chunks, the iteration that expands a chunk also projects the
     * work-group's previous chunk. This saves a barrier, and a warp that has finished one product
     * continues with the other. The projection's weights are therefore read one iteration later
     * than the other weights of their stage. They are also copied one iteration later, because they
     * overwrite the projection's weights of an older chunk, which the previous iteration still
     * reads. */
    Ring<STAGES> first = {arrived}, projected = {arrived + STAGES};
    for (int chunk = tile.rank; chunk < chunks + (PROJECTS_LATER ? CLUSTER : 0);
         chunk += CLUSTER) {
        bool exists = !PROJECTS_LATER || chunk < chunks;
        int stage = first.slot;
        cp_async_wait_group<0>();
        BARRIER();
        if (STAGES > 1 && chunk + CLUSTER < chunks) {
            copy(chunk + CLUSTER, stage ^ 1, 0, FIRST_WORDS);
#if !EXPANDS
            copy_hidden(expanded, source, tile, width, chunk + CLUSTER, stage ^ 1);
#endif
        }
        if (PROJECTS_LATER && chunk != tile.rank && exists)
            copy(chunk, stage, FIRST_WORDS, WEIGHT_WORDS);
        if (!BULK || !EXPANDS)
            cp_async_commit_group();
        const uint4 *factors = staged + stage * WEIGHT_WORDS;
        const uint4 *taps = factors + EXPAND_WORDS;
        const float *chunk_constants = (const float *)(taps + TAP_WORDS);
        const REAL *hidden_pixels = expanded + (EXPANDS ? 0 : stage) * EXPANDED_WORDS * WIDTH;
        DEPTHWISE_OPERANDS
        if (BULK && exists)
            consumer_wait(first);
#if EXPANDS
        const int UNIT_PIXELS = 16 * WARPGROUP_WARPS * EXPAND_TILES;
        int units = exists ? CEIL_DIV(tile.pixels, UNIT_PIXELS) * EXPAND_PARTS : 0;
        expand_chunk(expanded, inputs, factors, chunk_constants, offsets, tile, units);
#endif
        if constexpr (PROJECTS_LATER) {
            if (chunk != tile.rank) {
                if (BULK)
                    consumer_wait(projected);
                advance(projected);
                project_chunk(sums, convolved, staged + (stage ^ 1) * WEIGHT_WORDS + FIRST_WORDS,
                              share, tile.warp, tile.lane);
            }
            if (!exists)
                break;
        }
        if (EXPANDS || PROJECTS_LATER)
            BARRIER();
        convolve(convolved, hidden_pixels, (const REAL *)taps, tile.warp, tile.lane,
                 [&](REAL *target, float first, float second, int channel) {
                     DEPTHWISE_STORE(target, first, second, channel)
                 },
                 [&](int channel) { return DEPTHWISE_START(channel); }, hidden - chunk * CHUNK);
        advance(first);
        if constexpr (EXCITES) {
            convolved += CONVOLVED_WORDS * WIDTH;
        } else if constexpr (!PROJECTS_LATER) {
            BARRIER();
            if (BULK)
                consumer_wait(projected);
            project_chunk(sums, convolved, staged + FIRST_WORDS, share, tile.warp, tile.lane);
        }
    }

#if EXCITES
    /* A work-group without chunks has not yet waited for the copies of its inputs. The copies must
     * be complete before other work-groups write sums to the same memory. */
    cp_async_wait_group<0>();
    BARRIER();
    int own_chunks = tile.rank < chunks ? (chunks - 1 - tile.rank) / CLUSTER + 1 : 0;
    convolved = (REAL *)(memory + FRONT_WORDS);
    if (FIRST_WORDS < WEIGHT_WORDS && own_chunks > 0) {
        copy(tile.rank, 0, FIRST_WORDS, WEIGHT_WORDS);
        cp_async_commit_group();
    }
    float *gates = (float *)(staged + STAGES * WEIGHT_WORDS);
    make_gates(gates, convolved, own_chunks, tile, squeeze, excite, small_constants);
    scale_chunks(convolved, gates, own_chunks, tile, hidden);
    int stage = 0;
    for (int own_chunk = 0; own_chunk < own_chunks; own_chunk++) {
        if (FIRST_WORDS < WEIGHT_WORDS || own_chunk == 0) {
            cp_async_wait_group<0>();
            BARRIER();
        }
        if (FIRST_WORDS < WEIGHT_WORDS && own_chunk + 1 < own_chunks) {
            copy(tile.rank + (own_chunk + 1) * CLUSTER, stage ^ 1, FIRST_WORDS, WEIGHT_WORDS);
            cp_async_commit_group();
        }
        project_chunk(sums, convolved,
                      staged + stage * WEIGHT_WORDS + EXPAND_WORDS + CONSTANT_WORDS, share,
                      tile.warp, tile.lane);
        stage ^= STAGES > 1;
        convolved += CONVOLVED_WORDS * WIDTH;
    }
#endif

    PROJECT_OPERANDS
    /* a work-group without a chunk has not yet waited for its inputs and constants */
    cp_async_wait_group<0>();
    if (CLUSTER > 1 && tile.rank >= chunks)
        BARRIER();
#if !EXCITES
    CLUSTER_WAIT();
#endif
    reduce_sums(sums, partial, summed, share, tile,
                [&](int pixel, int channel, float first, float second) {
        int row = tile.first_row + pixel / TILE_W, column = tile.first_column + pixel % TILE_W;
        if (pixel < TILE_H * TILE_W && row < out_height && column < out_width) {
            int pixel_index = (GROUP_ID(2) * out_height + row) * out_width + column;
            /* index at which the epilogue reads its tensor operand: an index in the tile of x in
             * shared memory, or in a tensor of y's shape */
            [[maybe_unused]] int operand =
                EXPANDS && !EXCITES
                    ? ((row - tile.above - tile.top) * tile.columns + column - tile.left
                       - tile.start) * X_ROW + channel
                    : pixel_index * OUT_CHANNELS + channel;
            PROJECT_EPILOGUE(first, channel, operand)
            PROJECT_EPILOGUE(second, channel + 1, operand + 1)
            store_two(y + y_first + pixel_index * y_channels + channel, first, second);
        }
    });
}
