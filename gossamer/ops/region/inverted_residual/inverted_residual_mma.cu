/* An inverted residual block, or a separable convolution, as one kernel, with the expanded tensor in
 * shared memory. Both 1x1 convolutions are products of tensor cores in float16 and TF32, and of
 * multiply-adds in float32.
 *
 * A cluster of CLUSTER work-groups computes TILE_H by TILE_W outputs of all channels. Its
 * work-groups take turns with chunks of CHUNK hidden channels. For each chunk a work-group expands
 * the pixels under the tile's windows, those in the image only, stores them among zeros,
 * convolves them, and adds their projection to sums in registers. The weights of the next chunk are
 * copied to shared memory meanwhile. At the end each work-group of a cluster receives the sums of
 * all of them for a part of the results. Tensors are NHWC.
 *
 * Products are in tiles of 16 pixels and 8 channels, two tiles of channels at a time. A lane holds
 * pixels lane / 4 and lane / 4 + 8 of a tile for channels 2 (lane % 4) and the next.
 *
 * HALVES    1: x, y and operands are 16-bit floats; 0: they are floats
 * TF32      1: floats are multiplied as TF32; 0: as float32
 * EXPANDS   1: the block begins with an expansion; 0: its hidden channels are those of x
 * CHANNELS  channels of x, and OUT_CHANNELS those of y, multiples of 8
 * PADDED    1: the last chunk has channels that do not exist
 * ROW_TILES tiles of 16 that hold the pixels under a tile's windows
 * EXPAND_PAIRS  pairs of channel tiles that a warp expands at once
 * STRIP     neighbouring outputs of a row that a work-item convolves at once, a divisor of TILE_W
 * STAGES    chunks whose weights fit shared memory: 1 where a work-group has one chunk
 * SIDES     warps that share the channels of a tile of outputs */

#define WORK_GROUP_SIZE (32 * WARPS)
#define HALO_H ((TILE_H - 1) * STRIDE_Y + KERNEL_H)
#define HALO_W ((TILE_W - 1) * STRIDE_X + KERNEL_W)
#define PIXEL_TILES CEIL_DIV(TILE_H * TILE_W, 16)
#define WIDTH (HALVES ? 8 : 4)       /* elements of 16 bytes */
#define PRODUCTS (HALVES || TF32)    /* whether tensor cores multiply */
#define DEPTH (HALVES ? 16 : TF32 ? 8 : 4) /* input channels that a step multiplies */
#define EXPAND_STEPS CEIL_DIV(CHANNELS, DEPTH)
#define PROJECT_STEPS (CHUNK / DEPTH)
#define PAIR_WORDS (PRODUCTS ? 32 : 16) /* words of 16 bytes of a step's weights for 16 channels */
#define CHUNK_PAIRS (CHUNK / 16)
#define OUT_PAIRS CEIL_DIV(OUT_CHANNELS, 16)
#define OUT_TILES (OUT_CHANNELS / 8)
/* rows in shared memory: an odd number of words, so that eight rows are in different banks */
#define X_ROW (EXPAND_STEPS * DEPTH + WIDTH)
#define CHUNK_ROW (CHUNK + WIDTH)
/* the parts of shared memory, in words of 16 bytes */
#define X_WORDS (EXPANDS ? ROW_TILES * 16 * X_ROW / WIDTH : 0)
#define EXPANDED_WORDS (HALO_H * HALO_W * CHUNK_ROW / WIDTH)
#define CONVOLVED_WORDS (PIXEL_TILES * 16 * CHUNK_ROW / WIDTH)
#define EXPAND_WORDS (EXPANDS ? EXPAND_STEPS * CHUNK_PAIRS * PAIR_WORDS : 0)
#define CONSTANT_WORDS ((KERNEL_H * KERNEL_W + EXPAND_CONSTANTS + DEPTHWISE_CONSTANTS) * CHUNK / 4)
#define PROJECT_WORDS (PROJECT_STEPS * OUT_PAIRS * PAIR_WORDS)
#define WEIGHT_WORDS (EXPAND_WORDS + CONSTANT_WORDS + PROJECT_WORDS)
#define RESULT_WORDS (PROJECT_CONSTANTS * OUT_CHANNELS / 4)
#define PLACE_WORDS (ROW_TILES * 4)
#define FRAGMENTS (PIXEL_TILES * OUT_TILES)
#define SHARE CEIL_DIV(FRAGMENTS, CLUSTER)
/* the projection's warps: SIDES share the channels, the others the pixels */
#define HEIGHTS (WARPS / SIDES)
#define SUM_TILES CEIL_DIV(PIXEL_TILES, HEIGHTS)
#define SUM_PAIRS CEIL_DIV(OUT_PAIRS, SIDES)
#define EXPAND_PARTS (CHUNK_PAIRS / EXPAND_PAIRS)

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#define CLUSTER_ARRIVE() asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define CLUSTER_WAIT() asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
#define CLUSTER_BARRIER()                                                                         \
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" \
                 ::: "memory")
#else
#define IN_CLUSTERS
#define CLUSTER_ARRIVE()
#define CLUSTER_WAIT()
#endif

/* With BEGINS_EARLY the kernel begins while the one before it still runs, and copies weights; what
 * that one wrote is read only after PREDECESSOR_WAIT. */
#if BEGINS_EARLY && __CUDA_ARCH__ >= 900
#define SUCCESSOR_MAY_BEGIN() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define PREDECESSOR_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define SUCCESSOR_MAY_BEGIN()
#define PREDECESSOR_WAIT()
#endif

/* Starts a copy of 16 bytes to shared memory, or of zeros. */
INLINE void copy_later(void *target, const void *source, bool exists)
{
    uint address = (uint)__cvta_generic_to_shared(target);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(source), "r"(exists ? 16u : 0u) : "memory");
}

INLINE void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all copies of this work-item. */
INLINE void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(0) : "memory");
}

#if PRODUCTS
typedef uint4 Pixels;
struct Weights {
    uint4 tiles;
};

/* Loads a step of 16 rows. first: the first element of the first row. */
INLINE Pixels load_pixels(const REAL *first, int row, int step, uint lane)
{
    uint address = (uint)__cvta_generic_to_shared(
        first + (lane % 16) * row + lane / 16 * WIDTH + step * 2 * WIDTH);
    Pixels found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(address) : "memory");
    return found;
}

/* Loads a step's weights for two tiles of channels. */
INLINE Weights load_weights(const uint4 *first, uint lane)
{
    return {first[lane]};
}

INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels, const Weights &weights, int tile)
{
    multiply(sum, pixels, tile ? weights.tiles.z : weights.tiles.x,
             tile ? weights.tiles.w : weights.tiles.y);
}
#else
struct Pixels {
    float4 upper, lower;
};
struct Weights {
    float4 tiles[2][2];
};

INLINE Pixels load_pixels(const REAL *first, int row, int step, uint lane)
{
    const REAL *pixel = first + lane / 4 * row + step * WIDTH;
    return {*(const float4 *)pixel, *(const float4 *)(pixel + 8 * row)};
}

INLINE Weights load_weights(const uint4 *first, uint lane)
{
    const float4 *words = (const float4 *)first + lane % 4 * 2;
    return {{{words[0], words[1]}, {words[8], words[9]}}};
}

INLINE void multiply_tile(float (&sum)[4], const Pixels &pixels, const Weights &weights, int tile)
{
    float4 first = weights.tiles[tile][0], last = weights.tiles[tile][1];
    UNROLL for (int i = 0; i < 2; i++) {
        float4 pixel = i ? pixels.lower : pixels.upper;
        sum[2 * i] = FMA(pixel.x, first.x, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.x, first.y, sum[2 * i + 1]);
        sum[2 * i] = FMA(pixel.y, first.z, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.y, first.w, sum[2 * i + 1]);
        sum[2 * i] = FMA(pixel.z, last.x, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.z, last.y, sum[2 * i + 1]);
        sum[2 * i] = FMA(pixel.w, last.z, sum[2 * i]);
        sum[2 * i + 1] = FMA(pixel.w, last.w, sum[2 * i + 1]);
    }
}
#endif

/* Returns a value as the tensor cores read it: TF32 rounded, where they would truncate it. */
INLINE float rounded(float value)
{
#if TF32
    return __int_as_float(__float_as_int(value) + 0x1000);
#else
    return value;
#endif
}

/* Stores two neighbours. */
INLINE void store_two(REAL *target, float first, float second)
{
#if HALVES
    *(uint *)target = (uint)float_to_half(first) | (uint)float_to_half(second) << 16;
#else
    *(float2 *)target = make_float2(first, second);
#endif
}

/* Returns the address of the same element in the shared memory of another work-group of the
 * cluster. */
INLINE float4 *of_group(float4 *own, int other)
{
#if CLUSTER > 1
    float4 *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(other));
    return there;
#else
    return own;
#endif
}

KERNEL IN_CLUSTERS LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void fused_block(
    const REAL *RESTRICT x, const uint4 *RESTRICT weights, const uint4 *RESTRICT constants,
    REAL *RESTRICT y, int hidden, int height, int width, int out_height, int out_width,
    int pad_top, int pad_left)
{
    DYNAMIC_SHARED(uint4, memory)
    REAL *inputs = (REAL *)memory;
    REAL *expanded = (REAL *)(memory + X_WORDS);
    REAL *convolved = expanded + (EXPANDS ? 1 : STAGES) * EXPANDED_WORDS * WIDTH;
    uint4 *staged = (uint4 *)(convolved + CONVOLVED_WORDS * WIDTH);
    float *of_result = (float *)(staged + STAGES * WEIGHT_WORDS);
    int *places = (int *)(of_result + RESULT_WORDS * 4);
    float4 *partial = (float4 *)(places + PLACE_WORDS * 4);
    int item = LOCAL_ID(0);
    uint lane = (uint)item % 32, warp = (uint)item / 32;
    int rank = GROUP_ID(0) % CLUSTER;
    CLUSTER_ARRIVE();
    SUCCESSOR_MAY_BEGIN();

    /* the part of the windows that is in the image */
    int first_row = GROUP_ID(1) * TILE_H, first_column = GROUP_ID(0) / CLUSTER * TILE_W;
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    int top = above < 0 ? -above : 0, start = left < 0 ? -left : 0;
    int bottom = height - above < HALO_H ? height - above : HALO_H;
    int stop = width - left < HALO_W ? width - left : HALO_W;
    int columns = stop > start ? stop - start : 0;
    int pixels = bottom > top ? (bottom - top) * columns : 0;
    const REAL *source = x + ((GROUP_ID(2) * height + above + top) * width + left + start)
                             * CHANNELS;

    auto copy_weights = [&](int chunk, int stage) {
        for (int i = item; i < WEIGHT_WORDS; i += WORK_GROUP_SIZE)
            copy_later(staged + stage * WEIGHT_WORDS + i, weights + chunk * WEIGHT_WORDS + i, true);
    };
    /* Copies a chunk of the input's channels to where an expansion would store them. */
    auto copy_hidden = [&](int chunk, int stage) {
        REAL *target = expanded + stage * EXPANDED_WORDS * WIDTH;
        for (int i = item; i < pixels * (CHUNK / WIDTH); i += WORK_GROUP_SIZE) {
            int pixel = i / (CHUNK / WIDTH), word = i % (CHUNK / WIDTH) * WIDTH;
            int row = pixel / columns, column = pixel - row * columns;
            bool exists = !PADDED || chunk * CHUNK + word < CHANNELS;
            copy_later(target + ((top + row) * HALO_W + start + column) * CHUNK_ROW + word,
                       source + (row * width + column) * CHANNELS
                           + (exists ? chunk * CHUNK + word : 0), exists);
        }
    };
    int chunks = CEIL_DIV(hidden, CHUNK);
    if (rank < chunks)
        copy_weights(rank, 0);
    for (int i = item; i < RESULT_WORDS; i += WORK_GROUP_SIZE)
        copy_later((uint4 *)of_result + i, constants + i, true);
    if (pixels < HALO_H * HALO_W) {
        for (int i = item; i < (EXPANDS ? 1 : STAGES) * EXPANDED_WORDS; i += WORK_GROUP_SIZE)
            ((uint4 *)expanded)[i] = make_uint4(0, 0, 0, 0);
        if (!EXPANDS)
            BARRIER();
    }
#if EXPANDS
    UNROLL for (int word = CHANNELS / WIDTH; word < X_ROW / WIDTH - 1; word++)
        for (int pixel = item; pixel < ROW_TILES * 16; pixel += WORK_GROUP_SIZE)
            ((uint4 *)(inputs + pixel * X_ROW))[word] = make_uint4(0, 0, 0, 0);
    for (int pixel = item; pixel < pixels; pixel += WORK_GROUP_SIZE) {
        int row = pixel / columns, column = pixel - row * columns;
        places[pixel] = ((top + row) * HALO_W + start + column) * CHUNK_ROW;
    }
    PREDECESSOR_WAIT();
    for (int i = item; i < pixels * (CHANNELS / WIDTH); i += WORK_GROUP_SIZE) {
        int pixel = i / (CHANNELS / WIDTH), word = i % (CHANNELS / WIDTH) * WIDTH;
        int row = pixel / columns, column = pixel - row * columns;
        copy_later(inputs + pixel * X_ROW + word, source + (row * width + column) * CHANNELS + word,
                   true);
    }
#else
    PREDECESSOR_WAIT();
    if (rank < chunks)
        copy_hidden(rank, 0);
#endif
    commit_copies();

    float sums[SUM_TILES][2 * SUM_PAIRS][4];
    UNROLL for (int m = 0; m < SUM_TILES; m++)
        UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++)
            UNROLL for (int i = 0; i < 4; i++)
                sums[m][n][i] = 0.0f;
    int side = warp % SIDES, level = warp / SIDES;

    int stage = 0;
    for (int chunk = rank; chunk < chunks; chunk += CLUSTER) {
        wait_for_copies();
        BARRIER();
        if (STAGES > 1 && chunk + CLUSTER < chunks) {
            copy_weights(chunk + CLUSTER, stage ^ 1);
            if (!EXPANDS)
                copy_hidden(chunk + CLUSTER, stage ^ 1);
            commit_copies();
        }
        const uint4 *expand = staged + stage * WEIGHT_WORDS;
        const float *taps = (const float *)(expand + EXPAND_WORDS);
        const uint4 *project = expand + EXPAND_WORDS + CONSTANT_WORDS;
        const float *chunk_constants = taps + KERNEL_H * KERNEL_W * CHUNK;
        const REAL *hidden_pixels = expanded + (EXPANDS ? 0 : stage) * EXPANDED_WORDS * WIDTH;
        EXPAND_OPERANDS
        DEPTHWISE_OPERANDS
#if EXPANDS
        for (int unit = warp; unit < CEIL_DIV(pixels, 16) * EXPAND_PARTS; unit += WARPS) {
            int part = unit % EXPAND_PARTS * EXPAND_PAIRS, tile = unit / EXPAND_PARTS;
            float values[2 * EXPAND_PAIRS][4];
            UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++)
                UNROLL for (int i = 0; i < 4; i++)
                    values[n][i] = 0.0f;
            _Pragma("unroll 4") for (int step = 0; step < EXPAND_STEPS; step++) {
                Pixels found = load_pixels(inputs + tile * 16 * X_ROW, X_ROW, step, lane);
                UNROLL for (int pair = 0; pair < EXPAND_PAIRS; pair++) {
                    Weights factors = load_weights(
                        expand + (step * CHUNK_PAIRS + part + pair) * PAIR_WORDS, lane);
                    multiply_tile(values[2 * pair], found, factors, 0);
                    multiply_tile(values[2 * pair + 1], found, factors, 1);
                }
            }
            UNROLL for (int i = 0; i < 2; i++) {
                int pixel = tile * 16 + lane / 4 + 8 * i;
                if (pixel < pixels) {
                    REAL *target = expanded + places[pixel];
                    UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++) {
                        int channel = part * 16 + n * 8 + lane % 4 * 2;
                        float first = values[n][2 * i], second = values[n][2 * i + 1];
                        EXPAND_EPILOGUE(first, channel, 0)
                        EXPAND_EPILOGUE(second, channel + 1, 0)
                        store_two(target + channel, first, second);
                    }
                }
            }
        }
        BARRIER();
#endif
        for (int unit = item; unit < TILE_H * (TILE_W / STRIP) * (CHUNK / 4);
             unit += WORK_GROUP_SIZE) {
            int channel = unit % (CHUNK / 4) * 4, strip = unit / (CHUNK / 4);
            int row = strip / (TILE_W / STRIP), column = strip % (TILE_W / STRIP) * STRIP;
            const REAL *window = hidden_pixels + channel
                                 + (row * STRIDE_Y * HALO_W + column * STRIDE_X) * CHUNK_ROW;
            float4 values[STRIP];
            UNROLL for (int j = 0; j < STRIP; j++)
                values[j] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
            UNROLL for (int r = 0; r < KERNEL_H; r++) {
                float4 factors[KERNEL_W];
                UNROLL for (int s = 0; s < KERNEL_W; s++)
                    factors[s] = *(const float4 *)(taps + (r * KERNEL_W + s) * CHUNK + channel);
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
                float lanes[4] = {values[j].x, values[j].y, values[j].z, values[j].w};
                UNROLL for (int i = 0; i < 4; i++) {
                    DEPTHWISE_EPILOGUE(lanes[i], channel + i, 0)
#if PADDED
                    /* an epilogue may make anything of channels that do not exist */
                    if (chunk * CHUNK + channel + i >= hidden)
                        lanes[i] = 0.0f;
#endif
                    lanes[i] = rounded(lanes[i]);
                }
                float4 result = MAKE4(lanes[0], lanes[1], lanes[2], lanes[3]);
                STORE_REAL4(convolved, (row * TILE_W + column + j) * CHUNK_ROW + channel, result);
            }
        }
        BARRIER();

        _Pragma("unroll 2") for (int step = 0; step < PROJECT_STEPS; step++) {
            Pixels found[SUM_TILES];
            UNROLL for (int m = 0; m < SUM_TILES; m++) {
                int tile = level * SUM_TILES + m;
                if (tile < PIXEL_TILES)
                    found[m] = load_pixels(convolved + tile * 16 * CHUNK_ROW, CHUNK_ROW, step,
                                           lane);
            }
            UNROLL for (int pair = 0; pair < SUM_PAIRS; pair++) {
                int place = side * SUM_PAIRS + pair;
                if (place < OUT_PAIRS) {
                    Weights factors = load_weights(
                        project + (step * OUT_PAIRS + place) * PAIR_WORDS, lane);
                    UNROLL for (int m = 0; m < SUM_TILES; m++)
                        if (level * SUM_TILES + m < PIXEL_TILES) {
                            multiply_tile(sums[m][2 * pair], found[m], factors, 0);
                            if (2 * place + 1 < OUT_TILES)
                                multiply_tile(sums[m][2 * pair + 1], found[m], factors, 1);
                        }
                }
            }
        }
        stage ^= STAGES > 1;
    }

    PROJECT_OPERANDS
    auto store_results = [&](int tile, int first_channel, const float *values) {
        int channel = first_channel + (int)lane % 4 * 2;
        UNROLL for (int i = 0; i < 2; i++) {
            int pixel = tile * 16 + (int)lane / 4 + 8 * i;
            int row = pixel / TILE_W, column = pixel % TILE_W;
            int y_row = first_row + row, y_column = first_column + column;
            if (pixel < TILE_H * TILE_W && y_row < out_height && y_column < out_width) {
                int index = ((GROUP_ID(2) * out_height + y_row) * out_width + y_column)
                            * OUT_CHANNELS + channel;
                /* the place of the same pixel and channel in x, which is added to the result */
                int operand = EXPANDS ? ((y_row - above - top) * columns + y_column - left - start)
                                            * X_ROW + channel
                                      : index;
                float first = values[2 * i], second = values[2 * i + 1];
                PROJECT_EPILOGUE(first, channel, operand)
                PROJECT_EPILOGUE(second, channel + 1, operand + 1)
                store_two(y + index, first, second);
            }
        }
    };
#if CLUSTER > 1
    CLUSTER_WAIT();
#endif
    UNROLL for (int m = 0; m < SUM_TILES; m++)
        UNROLL for (int n = 0; n < 2 * SUM_PAIRS; n++) {
            int tile = level * SUM_TILES + m, channels = side * SUM_PAIRS * 2 + n;
            if (tile < PIXEL_TILES && channels < OUT_TILES) {
#if CLUSTER > 1
                int fragment = tile * OUT_TILES + channels;
                float4 *own = partial + (fragment / CLUSTER * CLUSTER + rank) * 32 + lane;
                *of_group(own, fragment % CLUSTER) =
                    MAKE4(sums[m][n][0], sums[m][n][1], sums[m][n][2], sums[m][n][3]);
#else
                store_results(tile, channels * 8, sums[m][n]);
#endif
            }
        }
#if CLUSTER > 1
    CLUSTER_BARRIER();
    for (int slot = warp; slot < SHARE; slot += WARPS) {
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
            store_results(fragment / OUT_TILES, fragment % OUT_TILES * 8, values);
        }
    }
#endif
}
