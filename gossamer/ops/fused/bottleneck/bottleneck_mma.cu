/* A bottleneck block as one kernel: a 1x1 convolution, a convolution with windows, and another 1x1
 * convolution, with the tensors between them in shared memory. A work-group computes a tile of
 * output pixels of one image.
 *
 * The tensors between the layers lie in shared memory with channels outside and fragments of pixels
 * inside, so that ldmatrix gathers any 16 columns of a layer, a column being an input channel and a
 * place in the window. Blocks of 16 or 32 output channels list the columns that some of them needs;
 * the others are neither loaded nor multiplied.
 *
 * The first layer reads fragments of neighbours in the rows of the tile with its halo: with TRANSPOSED from
 * such a form of the input too, else, without looking for zeros, as the input lies in memory. For the
 * other layers place i of a fragment has column i * FRAGMENT_STRIDE + j of the tile, where j is the same for all eight:
 * a step along the window is then a step of whole fragments. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: operands of tensor cores are 16-bit floats */
#define WARPS 8 /* warps of a work-group */
#define TILES 1 /* tiles of 16 output channels of a block */
#define TILE_H 4 /* rows of a tile of outputs */
/* columns from a pixel of a fragment to the next one; a tile has 8 times as many columns */
#define FRAGMENT_STRIDE 1
#define CHUNK 32 /* input channels that shared memory holds at once */
/* 1: the first layer skips columns as well, and its input is transposed for that */
#define TRANSPOSED 1
#define KERNEL_H 3 /* rows of the window */
#define KERNEL_W 3 /* columns of the window */
#define CHANNELS 40 /* channels of the input */
#define FIRST 8 /* channels of the first layer's result */
#define SECOND 24 /* channels of the second layer's result */
#define LAST 40 /* channels of the last layer's result */
/* fragments that a warp multiplies at once in the first layer, an even number */
#define FIRST_FRAGMENTS 2
#define SECOND_FRAGMENTS 2 /* the same in the second layer */
#define LAST_FRAGMENTS 2 /* the same in the last layer */
/* fragments of a channel of the input in shared memory, an odd number, so that neighbouring
 * channels begin in other banks */
#define X_ROW 9
#define FIRST_ROW 19 /* the same of the first result */
#define SECOND_ROW 5 /* the same of the second one */
/* where the input lies in shared memory, in fragments, before it is transposed and after that,
 * or two chunks of it; they make room for the second result */
#define INPUTS_AT 152
#define STARTS_AT 1064 /* where each block's first step lies there, in fragments */
#define EPILOGUES /* parameters of the layers' epilogues */
#define FIRST_EPILOGUE(value, channel, index) /* applies the first layer's epilogue */
#define SECOND_EPILOGUE(value, channel, index) /* applies the second layer's */
/* applies the last layer's to four neighbouring channels */
#define LAST_EPILOGUE4(value, channel, index)
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ptx/ldmatrix.h"
#include "mma/warp.h"
#include "ops/epilogue.h"

#define TILE_W (8 * FRAGMENT_STRIDE)
#define HALO_H (TILE_H + KERNEL_H - 1)
#define HALO_W (TILE_W + KERNEL_W - 1)
#define HALO_FRAGMENTS CEIL_DIV(HALO_H * HALO_W, 8)
#define PITCH (FRAGMENT_STRIDE + KERNEL_W - 1) /* fragments of a row of the first result */
#define TILE_FRAGMENTS (TILE_H * FRAGMENT_STRIDE)
#define BLOCK (16 * TILES)
#define FIRST_GROUPS CEIL_DIV(HALO_FRAGMENTS, FIRST_FRAGMENTS)
#define FIRST_ALL (CEIL_DIV(FIRST, BLOCK) * FIRST_GROUPS)
#define FIRST_HELD CEIL_DIV(FIRST_ALL, WARPS)
#define SECOND_GROUPS CEIL_DIV(TILE_FRAGMENTS, SECOND_FRAGMENTS)
#define LAST_GROUPS CEIL_DIV(TILE_FRAGMENTS, LAST_FRAGMENTS)
#define CHUNKS CEIL_DIV(CHANNELS, CHUNK)
#define SECOND_STARTS (CHUNKS * CEIL_DIV(FIRST, BLOCK))
#define LAST_STARTS (SECOND_STARTS + CEIL_DIV(SECOND, BLOCK))
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define STAGED_ROW (CHUNK / 8 + 1) /* 16-byte words of a pixel in the staging memory */
#define STAGED (8 * HALO_FRAGMENTS * STAGED_ROW)

/* Adds the products of a block's steps of 16 columns with some fragments. places: addresses of
 * the fragments, of every second one in lanes from 16 on. transposed: whether pixels are
 * neighbours there. by_pixel: of each pair of fragments the first sum has the first eight
 * channels and the second the others, and a lane has two of them for its pixel of either
 * fragment, in place of two pixels for its channel of either eight. */
template <bool transposed, bool by_pixel, int fragments>
INLINE void multiply_steps(float (&sums)[TILES][fragments][4], const uint4 *RESTRICT weights,
                           const int *RESTRICT columns, int step, int stop,
                           const uint (&places)[fragments / 2], uint lane)
{
    uint column = (uint)columns[step * 16 + lane % 16];
    uint4 next[TILES];
    UNROLL for (int t = 0; t < TILES; t++)
        next[t] = weights[(step * TILES + t) * 32 + lane];
    _Pragma("unroll 1") for (; step < stop; step++) {
        uint own_column = column;
        uint4 own[TILES];
        UNROLL for (int t = 0; t < TILES; t++)
            own[t] = next[t];
        /* one more step stands behind the last of all */
        column = (uint)columns[(step + 1) * 16 + lane % 16];
        UNROLL for (int t = 0; t < TILES; t++)
            next[t] = weights[((step + 1) * TILES + t) * 32 + lane];
        UNROLL for (int pair = 0; pair < fragments / 2; pair++) {
            uint address = places[pair] + own_column;
            uint4 pixels = transposed ? ldmatrix_x4_trans(address) : ldmatrix_x4(address);
            UNROLL for (int t = 0; t < TILES; t++) {
                if (by_pixel) {
                    uint4 rows = make_uint4(pixels.x, pixels.z, pixels.y, pixels.w);
                    mma_sync(sums[t][2 * pair], rows, own[t].x, own[t].z);
                    mma_sync(sums[t][2 * pair + 1], rows, own[t].y, own[t].w);
                } else {
                    mma_sync(sums[t][2 * pair], own[t], pixels.x, pixels.y);
                    mma_sync(sums[t][2 * pair + 1], own[t], pixels.z, pixels.w);
                }
            }
        }
    }
}

/* Starts to copy a chunk of the input's channels, with zeros around the image and behind the last
 * channel. */
INLINE void copy_chunk(uint4 *staged, const HALF *RESTRICT image, int chunk, int top, int left,
                       int height, int width)
{
    for (int item = LOCAL_ID(0); item < HALO_FRAGMENTS * 8 * (CHUNK / 8); item += 32 * WARPS) {
        int pixel = item / (CHUNK / 8), word = item % (CHUNK / 8);
        int y = top + pixel / HALO_W, x = left + pixel % HALO_W, channel = chunk * CHUNK + word * 8;
        bool inside = pixel < HALO_H * HALO_W && (uint)y < (uint)height && (uint)x < (uint)width
                      && channel < CHANNELS;
        cp_async_16(shared_address(staged + pixel * STAGED_ROW + word),
                    image + (inside ? (y * width + x) * CHANNELS + channel : 0), inside ? 16 : 0);
    }
    cp_async_commit_group();
}

/* Transposes a chunk, so that pixels are neighbours. */
[[maybe_unused]] INLINE void transpose_chunk(uint4 *inputs, const uint4 *staged, uint warp,
                                             uint lane)
{
    /* an iteration takes 8 pixels of 32 channels */
    for (int iteration = (int)warp; iteration < HALO_FRAGMENTS * (CHUNK / 32); iteration += WARPS) {
        int fragment = iteration / (CHUNK / 32), word = iteration % (CHUNK / 32) * 4;
        uint4 four = ldmatrix_x4_trans(shared_address(
            staged + (fragment * 8 + (int)lane % 8) * STAGED_ROW + word + (int)lane / 8));
        uint *to = (uint *)(inputs + (word * 8 + (int)lane / 4) * X_ROW + fragment) + lane % 4;
        to[0] = four.x;
        to[8 * X_ROW * 4] = four.y;
        to[16 * X_ROW * 4] = four.z;
        to[24 * X_ROW * 4] = four.w;
    }
}

/* Stores a number of the first result in each fragment that has its pixel of the tile with its
 * halo. */
INLINE void store_first(HALF *first, int channel, int y, int x, float value)
{
    HALF half = float_to_half(value);
    UNROLL for (int iteration = 0; iteration < CEIL_DIV(PITCH, FRAGMENT_STRIDE); iteration++) {
        int j = x % FRAGMENT_STRIDE + iteration * FRAGMENT_STRIDE;
        int place = x / FRAGMENT_STRIDE - iteration;
        if (j < PITCH && (uint)place < 8)
            first[(channel * FIRST_ROW + y * PITCH + j) * 8 + place] = half;
    }
}

KERNEL LAUNCH_BOUNDS(32 * WARPS, 1) void bottleneck_mma(
    const HALF *RESTRICT x, const int *RESTRICT all_starts, const int *RESTRICT columns,
    const uint4 *RESTRICT weights, HALF *RESTRICT y, int height, int width, int out_height,
    int out_width, int pad_top, int pad_left EPILOGUES)
{
    DYNAMIC_SHARED(uint4, memory)
    uint4 *inputs = memory + INPUTS_AT, *staged = inputs + TRANSPOSED * CHUNK * X_ROW;
    int *starts = (int *)(memory + STARTS_AT);
    uint lane = LOCAL_ID(0) % 32, warp = LOCAL_ID(0) / 32;
    int tile_y = GROUP_ID(1) * TILE_H, tile_x = GROUP_ID(0) * TILE_W;
    int top = tile_y - pad_top, left = tile_x - pad_left;
    const HALF *image = x + GROUP_ID(2) * height * width * CHANNELS;

    for (int item = LOCAL_ID(0); item <= LAST_STARTS + CEIL_DIV(LAST, BLOCK); item += 32 * WARPS)
        starts[item] = all_starts[item];
    pdl_trigger_and_wait();
    copy_chunk(staged, image, 0, top, left, height, width);
    {
        float sums[FIRST_HELD][TILES][FIRST_FRAGMENTS][4] = {};
        _Pragma("unroll 1") for (int chunk = 0; chunk < CHUNKS; chunk++) {
            cp_async_wait_all();
            BARRIER();
#if TRANSPOSED
            transpose_chunk(inputs, staged, warp, lane);
            BARRIER();
            uint4 *following = staged;
#else
            uint4 *present = staged + chunk % 2 * STAGED;
            uint4 *following = staged + (chunk + 1) % 2 * STAGED;
#endif
            if (chunk + 1 < CHUNKS)
                copy_chunk(following, image, chunk + 1, top, left, height, width);
            UNROLL for (int held = 0; held < FIRST_HELD; held++) {
                int unit = (int)warp + held * WARPS;
                if (unit < FIRST_ALL) {
                    uint places[FIRST_FRAGMENTS / 2];
                    UNROLL for (int pair = 0; pair < FIRST_FRAGMENTS / 2; pair++) {
                        int fragment = unit % FIRST_GROUPS * FIRST_FRAGMENTS + 2 * pair
                                       + (int)lane / 16;
                        fragment = LESSER(fragment, HALO_FRAGMENTS - 1);
#if TRANSPOSED
                        places[pair] = shared_address(inputs + fragment);
#else
                        places[pair] = shared_address(present + (fragment * 8 + (int)lane % 8)
                                                                    * STAGED_ROW + lane / 8 % 2);
#endif
                    }
                    const int *start = starts + chunk * CEIL_DIV(FIRST, BLOCK)
                                       + unit / FIRST_GROUPS;
                    multiply_steps<TRANSPOSED, false>(sums[held], weights, columns, start[0], start[1],
                                                  places, lane);
                }
            }
        }
        UNROLL for (int held = 0; held < FIRST_HELD; held++) {
            int unit = (int)warp + held * WARPS;
            UNROLL for (int o = 0; o < FIRST_FRAGMENTS; o++)
                UNROLL for (int neighbour = 0; neighbour < 2; neighbour++) {
                    int pixel = (unit % FIRST_GROUPS * FIRST_FRAGMENTS + o) * 8 + (int)lane % 4 * 2
                                + neighbour;
                    int in_y = pixel / HALO_W, in_x = pixel % HALO_W;
                    bool inside = (uint)(top + in_y) < (uint)height
                                  && (uint)(left + in_x) < (uint)width;
                    bool exists = unit < FIRST_ALL && pixel < HALO_H * HALO_W;
                    UNROLL for (int row = 0; row < 2 * TILES; row++) {
                        int channel = unit / FIRST_GROUPS * BLOCK + row * 8 + (int)lane / 4;
                        int own = LESSER(channel, FIRST - 1);
                        float value = sums[held][row / 2][o][row % 2 * 2 + neighbour];
                        FIRST_EPILOGUE(value, own, 0)
                        if (exists && channel < FIRST)
                            store_first((HALF *)memory, channel, in_y, in_x,
                                        inside ? value : 0.0f);
                    }
                }
        }
    }
    BARRIER();

    _Pragma("unroll 1") for (int unit = (int)warp; unit < CEIL_DIV(SECOND, BLOCK) * SECOND_GROUPS;
                             unit += WARPS) {
        float sums[TILES][SECOND_FRAGMENTS][4] = {};
        uint places[SECOND_FRAGMENTS / 2];
        UNROLL for (int pair = 0; pair < SECOND_FRAGMENTS / 2; pair++) {
            int fragment = unit % SECOND_GROUPS * SECOND_FRAGMENTS + 2 * pair + (int)lane / 16;
            fragment = LESSER(fragment, TILE_FRAGMENTS - 1);
            places[pair] = shared_address(memory + fragment / FRAGMENT_STRIDE * PITCH
                                          + fragment % FRAGMENT_STRIDE);
        }
        const int *start = starts + SECOND_STARTS + unit / SECOND_GROUPS;
        multiply_steps<true, false>(sums, weights, columns, start[0], start[1], places, lane);
        UNROLL for (int t = 0; t < TILES; t++)
            UNROLL for (int o = 0; o < SECOND_FRAGMENTS; o++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int channel = unit / SECOND_GROUPS * BLOCK + t * 16 + (int)lane / 4 + half * 8;
                    int fragment = unit % SECOND_GROUPS * SECOND_FRAGMENTS + o;
                    int own = LESSER(channel, SECOND - 1);
                    float value = sums[t][o][2 * half], other = sums[t][o][2 * half + 1];
                    SECOND_EPILOGUE(value, own, 0)
                    SECOND_EPILOGUE(other, own, 0)
                    if (channel < SECOND && fragment < TILE_FRAGMENTS)
                        ((uint *)(inputs + channel * SECOND_ROW + fragment))[lane % 4] =
                            two_halves(value, other);
                }
    }
    BARRIER();

    _Pragma("unroll 1") for (int unit = (int)warp; unit < CEIL_DIV(LAST, BLOCK) * LAST_GROUPS;
                             unit += WARPS) {
        float sums[TILES][LAST_FRAGMENTS][4] = {};
        uint places[LAST_FRAGMENTS / 2];
        UNROLL for (int pair = 0; pair < LAST_FRAGMENTS / 2; pair++) {
            int fragment = unit % LAST_GROUPS * LAST_FRAGMENTS + 2 * pair + (int)lane / 16;
            places[pair] = shared_address(inputs + LESSER(fragment, TILE_FRAGMENTS - 1));
        }
        const int *start = starts + LAST_STARTS + unit / LAST_GROUPS;
        multiply_steps<true, true>(sums, weights, columns, start[0], start[1], places, lane);
        UNROLL for (int o = 0; o < LAST_FRAGMENTS; o++) {
            int fragment = unit % LAST_GROUPS * LAST_FRAGMENTS + o;
            int out_y = tile_y + fragment / FRAGMENT_STRIDE;
            int out_x = tile_x + (int)lane / 4 * FRAGMENT_STRIDE + fragment % FRAGMENT_STRIDE;
            bool inside = fragment < TILE_FRAGMENTS && out_y < out_height && out_x < out_width;
            int pixel = (GROUP_ID(2) * out_height + out_y) * out_width + out_x;
            UNROLL for (int t = 0; t < TILES; t++) {
                const float (&lower)[4] = sums[t][o / 2 * 2], (&upper)[4] = sums[t][o / 2 * 2 + 1];
                float4 value = MAKE4(lower[o % 2 * 2], lower[o % 2 * 2 + 1], upper[o % 2 * 2],
                                     upper[o % 2 * 2 + 1]);
                int channel = unit / LAST_GROUPS * BLOCK + t * 16 + (int)lane % 4 * 4;
                /* what lies outside reads the first number, so that no load waits for a branch */
                bool exists = inside && channel < LAST;
                int own = exists ? channel : 0, index = exists ? pixel * LAST + channel : 0;
                LAST_EPILOGUE4(value, own, index)
                if (exists)
                    STORE_HALF4(y, index, value);
            }
        }
    }
}
