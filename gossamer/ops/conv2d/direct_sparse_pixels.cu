/* Pruned convolution of few images on tensor cores: output pixels stand side by side, columns that
 * no row of a block needs are left out.
 *
 * A block is 16 * TILES output channels, its columns the (channel, tap) pairs where one of them has
 * a nonzero, 16 of which make a step. An octet is 8 neighbouring output pixels of a line. A cluster
 * of CLUSTER groups computes BLOCKS blocks for a tile of `lines` lines of `width` octets; each group
 * takes the columns of its own part of the channels.
 *
 * A group holds its channels in local memory, once for each of KERNEL_WIDTH taps, as that tap meets
 * them: line by line, the place of an octet holds what its pixels multiply, zeros where that is
 * outside of the image. With a vertical stride lines that one tap meets lie together, first those
 * of even numbers, say, then the others. So the octets of a tile follow one another in pieces of
 * 16 bytes for each column, and its first piece, in `offsets`, says all. ldmatrix gathers 16 columns
 * of two octets at once.
 *
 * A warp multiplies a block's steps for OCTETS octets; SIDES warps share a tile, PARTS the steps.
 * What a fragment of sums (a row tile's of one octet) has in all warps and groups is added up by the
 * group whose turn it is, to which the others write it.
 *
 * DEPTH     steps that are asked for ahead
 * BATCH     inputs of a work-item that are asked for at once */

#define WARPS (BLOCKS * SIDES * PARTS)
#define GROUP (32 * WARPS)
#define FRAGMENTS (BLOCKS * TILES * SIDES * OCTETS)
#define HOLDERS (CLUSTER * PARTS)
#define SHARE CEIL_DIV(FRAGMENTS, CLUSTER)
#define TURNS CEIL_DIV(SHARE, WARPS)

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#define CLUSTER_BARRIER()                                                                         \
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" \
                 ::: "memory")
#else
#define IN_CLUSTERS
#define CLUSTER_BARRIER() BARRIER()
#endif

/* What a lane multiplies in a step, and where the columns it fetches for the warp are. */
struct Step {
    uint4 weights[TILES];
    int offset;
};

/* sum: rows lane / 4 and lane / 4 + 8 of the tile, of pixels 2 (lane % 4) and the next. */
INLINE void multiply(float (&sum)[4], const uint4 &weights, uint lower, uint upper)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(weights.x), "r"(weights.y), "r"(weights.z), "r"(weights.w), "r"(lower), "r"(upper));
}

/* Of the warp's 16 columns, two octets: x and y of the first, z and w of the second. */
INLINE uint4 gather(uint address)
{
    uint4 found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(address) : "memory");
    return found;
}

/* Where another group of the cluster has what stands here in the own local memory. */
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

KERNEL IN_CLUSTERS LAUNCH_BOUNDS(GROUP, 1) void pixels(
    const REAL *RESTRICT x, const int *RESTRICT starts, const int *RESTRICT offsets,
    const uint4 *RESTRICT weights, const int *RESTRICT channels, REAL *RESTRICT y,
    DIVISOR(tiles), DIVISOR(tiles_across), int lines, DIVISOR(width), int all_channels,
    int group_channels, int share_channels, DIVISOR(group_parts), int in_height, int in_width,
    int out_channels, int out_height, int out_width, DIVISOR(stride_y), DIVISOR(stride_x),
    int dilation_x, int pad_top, int pad_left, DIVISOR(held_lines), int span_y, int spread,
    int residue_pieces, int tap_pieces, int channel_pieces, int pieces EPILOGUE_PARAMETERS)
{
    DYNAMIC_LOCAL(uint4, memory)
    int lane = LOCAL_ID(0) % 32, warp = LOCAL_ID(0) / 32;
    int block = warp % BLOCKS, side = warp / BLOCKS % SIDES, part = warp / (BLOCKS * SIDES);
    int rank = GROUP_ID(0) % CLUSTER, blocks_part = GROUP_ID(0) / CLUSTER;
    int list = (blocks_part * BLOCKS + block) * CLUSTER + rank;
    int start = starts[list], count = starts[list + 1] - start;

    int image = (int)QUOTIENT(GROUP_ID(1), tiles), tile = GROUP_ID(1) - image * tiles;
    int tile_y = (int)QUOTIENT(tile, tiles_across);
    int first_line = tile_y * lines, first_octet = (tile - tile_y * tiles_across) * width;
    int top = first_line * stride_y - pad_top, left = first_octet * 8 * stride_x - pad_left;

    /* a work-item has one column of the input, in one line of a channel after the other */
    int in_x = (left > 0 ? left : 0) + (LOCAL_ID(0) & ((1 << spread) - 1));
    int start_y = top > 0 ? top : 0;
    int own_channels = group_channels - rank * share_channels;
    int rows = own_channels < share_channels ? own_channels : share_channels;
    rows = in_x < in_width ? rows * held_lines : 0;
    int plane = image * all_channels + rank * share_channels
                + (int)QUOTIENT(blocks_part, group_parts) * group_channels;
    int target[KERNEL_WIDTH]; /* of the pixel that meets the column at a tap, in a line's octets */
    UNROLL for (int tap = 0; tap < KERNEL_WIDTH; tap++) {
        int distance = in_x - left - tap * dilation_x;
        int pixel = distance < 0 ? -1 : (int)QUOTIENT(distance, stride_x);
        target[tap] = pixel * stride_x == distance && pixel < 8 * width ? pixel : -1;
    }
    REAL held[BATCH];
    int places[BATCH];
    auto fetch = [&](int first_row) {
        UNROLL for (int k = 0; k < BATCH; k++) {
            int row = first_row + k * (GROUP >> spread);
            int channel = (int)QUOTIENT(row, held_lines);
            int in_y = start_y + row - channel * held_lines, line = in_y - top;
            int in_residue = (int)QUOTIENT(line, stride_y);
            places[k] = 8 * (channel * channel_pieces + in_residue * width
                             + (line - in_residue * stride_y) * residue_pieces);
            if (row < rows && in_y < in_height && line < span_y)
                held[k] = x[((plane + channel) * in_height + in_y) * in_width + in_x];
            else
                places[k] = -1;
        }
    };
    auto put = [&]() {
        REAL *halves = (REAL *)memory;
        UNROLL for (int k = 0; k < BATCH; k++)
            UNROLL for (int tap = 0; tap < KERNEL_WIDTH; tap++)
                if (places[k] >= 0 && target[tap] >= 0)
                    halves[places[k] + tap * tap_pieces * 8 + target[tap]] = held[k];
    };

    int row = LOCAL_ID(0) >> spread;
    fetch(row);

    int next = start + count * part / PARTS, end = start + count * (part + 1) / PARTS;
    Step steps[DEPTH];
    auto ask = [&](Step &step, int number) {
        if (number < end) {
            step.offset = offsets[number * 16 + lane % 16];
            UNROLL for (int t = 0; t < TILES; t++)
                step.weights[t] = weights[(number * TILES + t) * 32 + lane];
        }
    };
    UNROLL for (int k = 0; k < DEPTH; k++)
        ask(steps[k], next + k);

    auto channel_of = [&](int fragment, int half) {
        int tile_row = fragment / (SIDES * OCTETS) * 16 + half * 8 + lane / 4;
        return channels[blocks_part * BLOCKS * TILES * 16 + tile_row];
    };
    auto store = [&](int fragment, const float4 &sum, const int (&own)[2]) {
        int octet = fragment % (SIDES * OCTETS);
        int line = (int)QUOTIENT(octet, width);
        int out_y = first_line + line;
        int out_x = (first_octet + octet - line * width) * 8 + lane % 4 * 2;
        UNROLL for (int k = 0; k < 4; k++) {
            int channel = own[k / 2];
            if (channel >= 0 && line < lines && out_y < out_height && out_x + k % 2 < out_width) {
                float value = k == 0 ? sum.x : k == 1 ? sum.y : k == 2 ? sum.z : sum.w;
                int index = ((image * out_channels + channel) * out_height + out_y) * out_width
                            + out_x + k % 2;
                EPILOGUE(value, channel, index)
                STORE_REAL(y, index, value);
            }
        }
    };

    for (int piece = LOCAL_ID(0); piece < pieces; piece += GROUP)
        memory[piece] = make_uint4(0, 0, 0, 0);
    CLUSTER_BARRIER(); /* of the cluster, because all of it must be there before it is written to */
    put();
    for (row += BATCH * (GROUP >> spread); row < rows; row += BATCH * (GROUP >> spread)) {
        fetch(row);
        put();
    }
    BARRIER();

#if HOLDERS > 1
    int own[TURNS][2];
    UNROLL for (int turn = 0; turn < TURNS; turn++)
        UNROLL for (int half = 0; half < 2; half++) {
            int fragment = (turn * WARPS + warp) * CLUSTER + rank;
            own[turn][half] = fragment < FRAGMENTS ? channel_of(fragment, half) : -1;
        }
#else
    int own[TILES][2];
    UNROLL for (int t = 0; t < TILES; t++)
        UNROLL for (int half = 0; half < 2; half++)
            own[t][half] = channel_of((block * TILES + t) * SIDES * OCTETS, half);
#endif

    float sums[TILES][OCTETS][4] = {};
    /* lanes from 16 on fetch the second of two octets */
    uint base = (uint)__cvta_generic_to_shared(memory + side * OCTETS + lane / 16);
    for (; next < end; next += DEPTH)
        UNROLL for (int k = 0; k < DEPTH; k++)
            if (next + k < end) {
                uint4 columns[OCTETS / 2];
                UNROLL for (int two = 0; two < OCTETS / 2; two++)
                    columns[two] = gather(base + (uint)steps[k].offset + two * 32);
                UNROLL for (int t = 0; t < TILES; t++)
                    UNROLL for (int two = 0; two < OCTETS / 2; two++) {
                        multiply(sums[t][2 * two], steps[k].weights[t], columns[two].x,
                                 columns[two].y);
                        multiply(sums[t][2 * two + 1], steps[k].weights[t], columns[two].z,
                                 columns[two].w);
                    }
                ask(steps[k], next + k + DEPTH);
            }

#if HOLDERS > 1
    float4 *partial = (float4 *)(memory + pieces) + lane;
#endif
    UNROLL for (int t = 0; t < TILES; t++)
        UNROLL for (int octet = 0; octet < OCTETS; octet++) {
            const float (&sum)[4] = sums[t][octet];
            float4 four = MAKE4(sum[0], sum[1], sum[2], sum[3]);
            int fragment = ((block * TILES + t) * SIDES + side) * OCTETS + octet;
#if HOLDERS > 1
            int place = (rank * PARTS + part) * SHARE + fragment / CLUSTER;
            *of_group(partial + place * 32, fragment % CLUSTER) = four;
#else
            store(fragment, four, own[t]);
#endif
        }
#if HOLDERS > 1
    CLUSTER_BARRIER();
    UNROLL for (int turn = 0; turn < TURNS; turn++) {
        int share = turn * WARPS + warp, fragment = share * CLUSTER + rank;
        if (share < SHARE && fragment < FRAGMENTS) {
            float4 sum = partial[share * 32];
            UNROLL for (int holder = 1; holder < HOLDERS; holder++) {
                float4 more = partial[(holder * SHARE + share) * 32];
                sum = MAKE4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
            }
            store(fragment, sum, own[turn]);
        }
    }
#endif
}
