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
 * In float16 tensor cores convolve, too: the 16 rows of the right operand are two taps of 8
 * channels, and its diagonals hold their weights. A warp computes RUN outputs below one another of
 * 16 columns, so that an input is loaded once for all rows of taps.
 *
 * HALVES    1: x, y and operands are 16-bit floats; 0: they are floats
 * TF32      1: floats are multiplied as TF32; 0: as float32
 * EXPANDS   1: the block begins with an expansion; 0: its hidden channels are those of x
 * CHANNELS  channels of x, and OUT_CHANNELS those of y, multiples of 8
 * PADDED    1: the last chunk has channels that do not exist
 * ROW_TILES tiles of 16 that hold the pixels under a tile's windows
 * EXPAND_PAIRS  pairs of channel tiles that a warp expands at once
 * STRIP     neighbouring outputs of a row that a work-item convolves at once, a divisor of TILE_W
 * RUN       outputs below one another that a warp convolves at once, a divisor of TILE_H
 * STAGES    chunks whose weights fit shared memory: 1 where a work-group has one chunk
 * SIDES     warps that share the channels of a tile of outputs */

#define WORK_GROUP_SIZE (32 * WARPS)
#define HALO_H ((TILE_H - 1) * STRIDE_Y + KERNEL_H)
#define HALO_W ((TILE_W - 1) * STRIDE_X + KERNEL_W)
#define PIXEL_TILES CEIL_DIV(TILE_H * TILE_W, 16)
#define WIDTH (HALVES ? 8 : 4)       /* elements of 16 bytes */
#define PRODUCTS (HALVES || TF32)    /* whether tensor cores multiply */
#define DEPTH (HALVES ? 16 : TF32 ? 8 : 4) /* input channels that a step multiplies */
#define CONVOLVES (HALVES && KERNEL_H * KERNEL_W <= 25) /* whether tensor cores convolve */
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
#define TAP_WORDS (KERNEL_H * KERNEL_W * CHUNK / (CONVOLVES ? 8 : 4))
#define CONSTANT_WORDS (TAP_WORDS + (EXPAND_CONSTANTS + DEPTHWISE_CONSTANTS) * CHUNK / 4)
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
/* a column of outputs is RUN of them below one another */
#define COLUMNS (TILE_H / RUN * TILE_W)
#define COLUMN_TILES CEIL_DIV(COLUMNS, 16)
#define TAP_PAIRS CEIL_DIV(KERNEL_H * KERNEL_W, 2)

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

#define PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(count) PRAGMA(unroll count)
#define STEPS_AT_ONCE 4 /* steps of the expansion whose loads are under way together */

/* With BEGINS_EARLY the kernel begins while the one before it still runs, and copies weights; what
 * that one wrote is read only after PREDECESSOR_WAIT. */
#if BEGINS_EARLY && __CUDA_ARCH__ >= 900
#define SUCCESSOR_MAY_BEGIN() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define PREDECESSOR_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define SUCCESSOR_MAY_BEGIN()
#define PREDECESSOR_WAIT()
#endif

/* One instruction each, where the dialect's need two comparisons; NaN where one is NaN. */
#undef MAXIMUM
#undef MINIMUM
#define MAXIMUM(a, b) larger(a, b)
#define MINIMUM(a, b) smaller(a, b)

INLINE float larger(float a, float b)
{
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

INLINE float smaller(float a, float b)
{
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

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

#if HALVES
/* Returns two values as 16-bit floats, the first in the lower half. */
INLINE uint two_halves(float first, float second)
{
    uint packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
    return packed;
}

/* The larger and the smaller ones of two pairs of 16-bit floats; NaN where one is NaN. */
INLINE uint larger_halves(uint a, uint b)
{
    uint result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

INLINE uint smaller_halves(uint a, uint b)
{
    uint result;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}
#endif

/* Returns number / divisor for numbers below 2^16, from the reciprocal of the divisor. */
INLINE int quotient(int number, float reciprocal)
{
    return (int)(((float)number + 0.5f) * reciprocal);
}

/* Returns where a column of the windows is in shared memory. With a stride of 2 the even columns
 * precede the odd ones, so that those that a tap meets are neighbours. */
INLINE int column_place(int column)
{
    return CONVOLVES && STRIDE_X == 2 ? column / 2 + column % 2 * CEIL_DIV(HALO_W, 2) : column;
}

/* Stores two neighbours. */
INLINE void store_two(REAL *target, float first, float second)
{
#if HALVES
    *(uint *)target = two_halves(first, second);
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
#endif

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
    float of_columns = 1.0f / (float)columns;
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
            int row = quotient(pixel, of_columns), column = pixel - row * columns;
            bool exists = !PADDED || chunk * CHUNK + word < CHANNELS;
            copy_later(target + ((top + row) * HALO_W + column_place(start + column)) * CHUNK_ROW
                           + word,
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
        int row = quotient(pixel, of_columns), column = pixel - row * columns;
        places[pixel] = ((top + row) * HALO_W + column_place(start + column)) * CHUNK_ROW;
    }
    PREDECESSOR_WAIT();
    for (int i = item; i < pixels * (CHANNELS / WIDTH); i += WORK_GROUP_SIZE) {
        int pixel = i / (CHANNELS / WIDTH), word = i % (CHANNELS / WIDTH) * WIDTH;
        int row = quotient(pixel, of_columns), column = pixel - row * columns;
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
        const uint4 *taps = expand + EXPAND_WORDS;
        const uint4 *project = taps + CONSTANT_WORDS;
        const float *chunk_constants = (const float *)(taps + TAP_WORDS);
        const REAL *hidden_pixels = expanded + (EXPANDS ? 0 : stage) * EXPANDED_WORDS * WIDTH;
        EXPAND_OPERANDS
        DEPTHWISE_OPERANDS
#if EXPANDS
        for (int unit = warp; unit < CEIL_DIV(pixels, 16) * EXPAND_PARTS; unit += WARPS) {
            int part = unit % EXPAND_PARTS * EXPAND_PAIRS, tile = unit / EXPAND_PARTS;
            float values[2 * EXPAND_PAIRS][4];
            UNROLL for (int n = 0; n < 2 * EXPAND_PAIRS; n++)
                UNROLL for (int i = 0; i < 4; i++)
                    values[n][i] = EXPAND_START(part * 16 + n * 8 + (int)lane % 4 * 2 + i % 2);
            UNROLL_BY(STEPS_AT_ONCE) for (int step = 0; step < EXPAND_STEPS; step++) {
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
                        EXPAND_STORE(target + channel, first, second, channel)
                    }
                }
            }
        }
        BARRIER();
#endif
#if CONVOLVES
        convolve(convolved, hidden_pixels, (const REAL *)taps, warp, lane,
                 [&](REAL *target, float first, float second, int channel) {
                     DEPTHWISE_STORE(target, first, second, channel)
                 },
                 [&](int channel) { return DEPTHWISE_START(channel); }, hidden - chunk * CHUNK);
#else
        for (int unit = item; unit < TILE_H * (TILE_W / STRIP) * (CHUNK / 4);
             unit += WORK_GROUP_SIZE) {
            int channel = unit % (CHUNK / 4) * 4, strip = unit / (CHUNK / 4);
            int row = strip / (TILE_W / STRIP), column = strip % (TILE_W / STRIP) * STRIP;
            const REAL *window = hidden_pixels + channel
                                 + (row * STRIDE_Y * HALO_W + column * STRIDE_X) * CHUNK_ROW;
            float4 values[STRIP];
            UNROLL for (int j = 0; j < STRIP; j++)
                values[j] = MAKE4(DEPTHWISE_START(channel), DEPTHWISE_START(channel + 1),
                                  DEPTHWISE_START(channel + 2), DEPTHWISE_START(channel + 3));
            UNROLL for (int r = 0; r < KERNEL_H; r++) {
                float4 factors[KERNEL_W];
                UNROLL for (int s = 0; s < KERNEL_W; s++)
                    factors[s] = *(const float4 *)((const float *)taps + (r * KERNEL_W + s) * CHUNK + channel);
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
#endif
        BARRIER();

        UNROLL_BY(2) for (int step = 0; step < PROJECT_STEPS; step++) {
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
