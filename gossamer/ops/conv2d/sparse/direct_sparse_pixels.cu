/* Pruned convolution of few images on tensor cores. An instruction computes neighbouring output
 * pixels. A column of the weights is skipped if it is zero in all rows of a block.
 *
 * A block is 16 * TILES output channels. Its columns are the pairs (input channel, tap) for which
 * at least one of these output channels has a nonzero. 16 columns make a step. A line is a row of
 * pixels, and a fragment is 8 neighbouring output pixels of a line. A cluster of CLUSTER
 * work-groups computes BLOCKS blocks for a tile of `lines` lines of `width` fragments. Each
 * work-group multiplies the columns of its own part of the input channels.
 *
 * A work-group holds its input channels in shared memory. There is one copy of these channels for
 * each of KERNEL_WIDTH horizontal taps. Each vector of a tap's copy contains the eight inputs that
 * the tap reads for the pixels of a fragment. Inputs outside of the image are zeros. The vectors
 * are stored line by line. With a vertical stride above 1, the lines that one tap reads are
 * adjacent: with a stride of 2, the even lines come first, then the odd lines. For each column, the
 * vectors of a tile's fragments are therefore consecutive, and `offsets` contains the offset of the
 * first vector. ldmatrix gathers 16 columns of two fragments at once. ldmatrix cannot transpose
 * numbers of 32 bits, so in TF32 a lane loads one float of every fourth column.
 *
 * A warp multiplies a block's steps for FRAGMENTS fragments. WARPS_P warps share a tile of pixels,
 * and PARTS warps share the steps. A set of sums is 16 rows by one fragment. The sets are assigned
 * to the work-groups of the cluster in turn. All warps with partial sums of a set write these sums
 * to the shared memory of the set's work-group. That work-group adds the sums up. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
/* 1: x, y and the epilogue's tensor operands are 16-bit floats; 0: they are floats, which are
 * read as TF32 */
#define HALVES 1
#define TILES 1 /* tiles of 16 output channels of a block */
#define BLOCKS 2 /* blocks of a work-group */
#define WARPS_P 1 /* warps that share a tile of pixels */
#define PARTS 2 /* warps that share the steps of a block */
#define FRAGMENTS 4 /* fragments of a warp, an even number */
#define CLUSTER 2 /* work-groups of a cluster */
#define KERNEL_WIDTH 3 /* columns of the window */
#define DEPTH 2 /* steps that are loaded ahead */
#define BATCH 4 /* inputs that a work-item loads at once */
#define STRIDED 0 /* 1: the vertical stride is not 1 */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "ptx/mbarrier.h"
#include "mma/ring.h"
#include "mma/warp.h"
#include "ops/epilogue.h"

#define WARPS (BLOCKS * WARPS_P * PARTS)
#define WORK_GROUP_SIZE (32 * WARPS)
#define HOLDERS (CLUSTER * PARTS) /* warps that hold partial sums of the same results */
#define OF_WARP (TILES * FRAGMENTS) /* sets of sums of a warp, a multiple of CLUSTER */
#define SHARE (BLOCKS * WARPS_P * OF_WARP / CLUSTER) /* sets that a work-group adds up */
#define ROWS (BLOCKS * TILES * 16) /* output channels of a work-group */
#define WORDS (HALVES ? 1 : 2) /* words of 16 bytes in a vector */
/* The time of code that runs only once is mostly the time to fetch its instructions, so loops of
 * few iterations are not unrolled. */
#define ONCE_EACH _Pragma("unroll 1")

/* The part of a step that a lane loads: its weights, and the offsets of its columns in bytes. */
struct Step {
#if HALVES
    uint4 weights[TILES];
    int offset; /* offset of column lane % 16, which the lane loads for the warp */
#else
    uint4 weights[TILES][2];
    int4 offsets; /* offsets of column lane % 4, and of the columns 4, 8 and 12 further on */
#endif
};

/* Returns an input as an operand of mma: floats are rounded to TF32. */
INLINE REAL rounded_operand(REAL input)
{
#if HALVES
    return input;
#else
    return __int_as_float((int)round_to_tf32((uint)__float_as_int(input)));
#endif
}

/* Multiplies a step. first: the address of the warp's first fragment in a column with offset 0. */
INLINE void multiply_step(float (&sums)[TILES][FRAGMENTS][4], const Step &step,
                          const REAL *first, uint lane)
{
#if HALVES
    /* lanes from 16 on load the second of two fragments */
    uint base = (uint)__cvta_generic_to_shared(first + lane / 16 * 8) + (uint)step.offset;
    uint4 columns[FRAGMENTS / 2];
    UNROLL for (int two = 0; two < FRAGMENTS / 2; two++)
        columns[two] = ldmatrix_x4_trans(base + two * 32);
    UNROLL for (int t = 0; t < TILES; t++)
        UNROLL for (int two = 0; two < FRAGMENTS / 2; two++) {
            mma_sync(sums[t][2 * two], step.weights[t], columns[two].x, columns[two].y);
            mma_sync(sums[t][2 * two + 1], step.weights[t], columns[two].z, columns[two].w);
        }
#else
    const char *pixel = (const char *)(first + lane / 4);
    const uint *x = (const uint *)(pixel + step.offsets.x);
    const uint *y = (const uint *)(pixel + step.offsets.y);
    const uint *z = (const uint *)(pixel + step.offsets.z);
    const uint *w = (const uint *)(pixel + step.offsets.w);
    UNROLL for (int fragment = 0; fragment < FRAGMENTS; fragment++)
        UNROLL for (int t = 0; t < TILES; t++) {
            mma_sync(sums[t][fragment], step.weights[t][0], x[fragment * 8], y[fragment * 8]);
            mma_sync(sums[t][fragment], step.weights[t][1], z[fragment * 8], w[fragment * 8]);
        }
#endif
}

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void pixels(
    const REAL *x, const int *RESTRICT starts, const int *RESTRICT offsets,
    const uint4 *RESTRICT weights, const int *RESTRICT channels, REAL *RESTRICT y,
    DIVISOR(tiles_across), int lines, DIVISOR(width), int all_channels, int group_channels,
    int share_channels, DIVISOR(group_parts), int in_height, int in_width, int out_channels,
    int out_height, int out_width, DIVISOR(stride_y), DIVISOR(stride_x), int dilation_x,
    int pad_top, int pad_left, int span_y, DIVISOR(columns), DIVISOR(items), int at_once,
    int chunks, int batches, int residue_vectors, int tap_vectors, int channel_vectors, int vectors
    EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    REAL *inputs = (REAL *)memory;
    float4 *partial = (float4 *)(memory + vectors * WORDS);
    int *numbers = (int *)(partial + HOLDERS * SHARE * 32); /* the output channels of the blocks */
    [[maybe_unused]] ulong *summed = (ulong *)(numbers + ROWS);
    uint lane = (uint)LOCAL_ID(0) % 32, warp = (uint)LOCAL_ID(0) / 32;
    uint block = warp % BLOCKS, warp_p = warp / BLOCKS % WARPS_P, part = warp / (BLOCKS * WARPS_P);
    uint rank = (uint)GROUP_ID(0) % CLUSTER, blocks_part = (uint)GROUP_ID(0) / CLUSTER;
    pdl_trigger();
    if (CLUSTER > 1 && LOCAL_ID(0) == 0) {
        init_once(summed, HOLDERS * SHARE * 32 * 16);
        fence_mbarrier_init();
    }
    CLUSTER_ARRIVE();
    int list = (int)((blocks_part * BLOCKS + block) * CLUSTER + rank);
    int start = starts[list], stop = starts[list + 1];
    int number = LOCAL_ID(0) < ROWS ? channels[(int)blocks_part * ROWS + LOCAL_ID(0)] : 0;
    int image = (int)QUOTIENT(GROUP_ID(2), tiles_across);
    int first_line = GROUP_ID(1) * lines;
    int first_fragment = (GROUP_ID(2) - image * tiles_across) * width;

    /* A work-item copies one input pixel of a tile, channel by channel. If a tile has more pixels
     * than the work-group has work-items, a work-item copies several pixels one after another. */
    int top = first_line * stride_y - pad_top, left = first_fragment * 8 * stride_x - pad_left;
    int first_y = top > 0 ? top : 0, first_x = left > 0 ? left : 0;
    int first_channel = (int)rank * share_channels, own_channels = group_channels - first_channel;
    int plane = in_height * in_width, step = at_once * channel_vectors * 8;
    int own = (int)QUOTIENT(LOCAL_ID(0), items), item = LOCAL_ID(0) - own * items;
    own_channels = (own_channels < share_channels ? own_channels : share_channels) - own;
    int first_source = (image * all_channels + first_channel + own
                        + (int)QUOTIENT(blocks_part, group_parts) * group_channels) * plane;
    Step steps[DEPTH];
    int next, last;
    auto ask = [&](Step &step, int number) {
        if (number < last) {
#if HALVES
            step.offset = offsets[number * 16 + lane % 16];
            UNROLL for (int t = 0; t < TILES; t++)
                step.weights[t] = weights[(number * TILES + t) * 32 + lane];
#else
            step.offsets = ((const int4 *)offsets)[number * 4 + lane % 4];
            UNROLL for (int t = 0; t < TILES; t++)
                UNROLL for (int half = 0; half < 2; half++)
                    step.weights[t][half] = weights[((number * TILES + t) * 2 + half) * 32 + lane];
#endif
        }
    };
    bool is_first = true;
    pdl_wait();
    ONCE_EACH for (int chunk = 0; chunk < chunks; chunk++, item += items) {
        int line = (int)QUOTIENT(item, columns);
        int in_y = first_y + line, in_x = first_x + item - line * columns;
        int in_tile = in_y - top;
        bool inside = in_y < in_height && in_x < in_width && in_tile < span_y && own < at_once;
        int left_over = inside ? own_channels : 0;
        int source = first_source + in_y * in_width + in_x;
#if STRIDED
        int among = (int)QUOTIENT(in_tile, stride_y);
        int place = among * width + (in_tile - among * stride_y) * residue_vectors;
#else
        int place = in_tile * width;
#endif
        place = 8 * (own * channel_vectors + place);
        ONCE_EACH for (int batch = 0; batch < batches; batch++) {
            REAL held[BATCH];
            UNROLL for (int k = 0; k < BATCH; k++) {
                held[k] = 0;
                const REAL *from = x + source;
                if (left_over > k * at_once)
                    held[k] = rounded_operand(*from);
                source += at_once * plane;
            }
            if (is_first) {
                /* for the compiler, this empty statement is the first use of start and stop; so
                 * the loads above do not wait for the values of start and stop */
                asm volatile("" : "+r"(start), "+r"(stop));
                next = start + (stop - start) * (int)part / PARTS;
                last = start + (stop - start) * ((int)part + 1) / PARTS;
                UNROLL for (int k = 0; k < DEPTH; k++)
                    ask(steps[k], next + k);
                if (LOCAL_ID(0) < ROWS)
                    numbers[LOCAL_ID(0)] = number;
                ONCE_EACH for (int word = LOCAL_ID(0); word < vectors * WORDS;
                               word += WORK_GROUP_SIZE)
                    memory[word] = make_uint4(0, 0, 0, 0);
                BARRIER();
                is_first = false;
            }
            UNROLL for (int tap = 0; tap < KERNEL_WIDTH; tap++) {
                int distance = in_x - left - tap * dilation_x;
                int pixel = distance < 0 ? -1 : (int)QUOTIENT(distance, stride_x);
                if (inside && pixel * stride_x == distance && (uint)pixel < (uint)(8 * width)) {
                    REAL *to = inputs + (place + tap * tap_vectors * 8 + pixel);
                    UNROLL for (int k = 0; k < BATCH; k++)
                        to[k * step] = held[k];
                }
            }
            place += BATCH * step;
            left_over -= BATCH * at_once;
        }
    }
    BARRIER();

    float sums[TILES][FRAGMENTS][4] = {};
    const REAL *first = inputs + warp_p * FRAGMENTS * 8;
    for (; next < last; next += DEPTH)
        UNROLL for (int k = 0; k < DEPTH; k++)
            if (next + k < last) {
                multiply_step(sums, steps[k], first, lane);
                ask(steps[k], next + k + DEPTH);
            }

    CLUSTER_WAIT(); /* all work-groups of the cluster have started and can receive sums */
    float4 *own_partial = partial + (((rank * PARTS + part) * BLOCKS + block) * WARPS_P + warp_p)
                                        * (OF_WARP / CLUSTER * 32) + lane;
    UNROLL for (int owner = 0; owner < CLUSTER; owner++)
        UNROLL for (int k = 0; k < OF_WARP / CLUSTER; k++) {
            int of_warp = k * CLUSTER + owner;
            const float (&sum)[4] = sums[of_warp / FRAGMENTS][of_warp % FRAGMENTS];
#if CLUSTER > 1
            st_async_cluster(shared_address(own_partial + k * 32), sum[0], sum[1], sum[2], sum[3],
                             summed, owner);
#else
            own_partial[k * 32] = MAKE4(sum[0], sum[1], sum[2], sum[3]);
#endif
        }
    if (CLUSTER > 1)
        wait_once(summed);
    else
        BARRIER();
    ONCE_EACH for (uint share = warp; share < SHARE; share += WARPS) {
        float4 sum = partial[share * 32 + lane];
        UNROLL for (int holder = 1; holder < HOLDERS; holder++) {
            float4 more = partial[(holder * SHARE + share) * 32 + lane];
            sum = MAKE4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
        }
        uint of_warp = share % (OF_WARP / CLUSTER) * CLUSTER + rank;
        uint other = share / (OF_WARP / CLUSTER); /* block and warp_p of the set's warp */
        int fragment = (int)(other % WARPS_P * FRAGMENTS + of_warp % FRAGMENTS);
        int in_tile = (int)QUOTIENT(fragment, width);
        int out_y = first_line + in_tile;
        int out_x = (first_fragment + fragment - in_tile * width) * 8 + (int)lane % 4 * 2;
        bool inside = in_tile < lines && out_y < out_height;
        uint row = (other / WARPS_P * TILES + of_warp / FRAGMENTS) * 16 + lane / 4;
        UNROLL for (int k = 0; k < 4; k++) {
            int channel = numbers[row + k / 2 * 8];
            if (inside && channel >= 0 && out_x + k % 2 < out_width) {
                float value = k == 0 ? sum.x : k == 1 ? sum.y : k == 2 ? sum.z : sum.w;
                int index = ((image * out_channels + channel) * out_height + out_y) * out_width
                            + out_x + k % 2;
                EPILOGUE(value, channel, index)
                STORE_REAL(y, index, value);
            }
        }
    }
}
