/* A bottleneck block as one kernel: a 1x1 convolution, a convolution with windows, and another 1x1
 * convolution, with the tensors between them in shared memory. A work-group computes a tile of
 * output pixels of one image.
 *
 * The tensors between the layers lie in shared memory with channels outside and octets of pixels
 * inside, so that ldmatrix gathers any 16 columns of a layer, a column being an input channel and a
 * place in the window. Blocks of 16 or 32 output channels list the columns that some of them needs;
 * the others are neither loaded nor multiplied.
 *
 * The first layer reads octets of neighbours in the rows of the tile with its halo: with TURNED from
 * such a form of the input too, else, without looking for zeros, as the input lies in memory. For the
 * other layers place i of an octet has column i * STRIP + j of the tile, where j is the same for all eight:
 * a step along the window is then a step of whole octets.
 *
 * Macros:
 *   WARPS                  warps of a work-group
 *   TILES                  tiles of 16 output channels of a block
 *   TILE_H, STRIP          rows of a tile of outputs; columns of a place of an octet
 *   KERNEL_H, KERNEL_W     rows and columns of the window
 *   CHANNELS, FIRST, SECOND, LAST  channels of the input and of the results of the three layers
 *   CHUNK                  input channels that shared memory holds at once
 *   TURNED                 1: the first layer skips columns as well, and its input is turned for that
 *   FIRST_OCTETS, SECOND_OCTETS, LAST_OCTETS  octets that a warp multiplies at once, even numbers
 *   X_ROW, FIRST_ROW, SECOND_ROW  octets of a channel of the input and of both results in shared
 *                          memory, odd numbers, so that neighbouring channels begin in other banks
 *   INPUTS_AT              where the input lies in shared memory, in octets, before it is turned and
 *                          after that, or two chunks of it; they make room for the second result
 *   STARTS_AT              where each block's first step lies there, in octets
 *   *_EPILOGUE, *_EPILOGUE4, EPILOGUES  epilogues of the layers, and all their parameters */

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "mma/warp.h"

#define TILE_W (8 * STRIP)
#define HALO_H (TILE_H + KERNEL_H - 1)
#define HALO_W (TILE_W + KERNEL_W - 1)
#define HALO_OCTETS CEIL_DIV(HALO_H * HALO_W, 8)
#define PITCH (STRIP + KERNEL_W - 1) /* octets of a row of the first result */
#define TILE_OCTETS (TILE_H * STRIP)
#define BLOCK (16 * TILES)
#define FIRST_GROUPS CEIL_DIV(HALO_OCTETS, FIRST_OCTETS)
#define FIRST_ALL (CEIL_DIV(FIRST, BLOCK) * FIRST_GROUPS)
#define FIRST_HELD CEIL_DIV(FIRST_ALL, WARPS)
#define SECOND_GROUPS CEIL_DIV(TILE_OCTETS, SECOND_OCTETS)
#define LAST_GROUPS CEIL_DIV(TILE_OCTETS, LAST_OCTETS)
#define CHUNKS CEIL_DIV(CHANNELS, CHUNK)
#define SECOND_STARTS (CHUNKS * CEIL_DIV(FIRST, BLOCK))
#define LAST_STARTS (SECOND_STARTS + CEIL_DIV(SECOND, BLOCK))
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define STAGED_ROW (CHUNK / 8 + 1) /* 16-byte words of a pixel in the staging memory */
#define STAGED (8 * HALO_OCTETS * STAGED_ROW)

/* Loads four matrices of 8 columns by 8 pixels, in which pixels are neighbours: two of 16 columns for
 * each of two octets. */
INLINE uint4 load_turned(uint address)
{
    uint4 found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(address) : "memory");
    return found;
}

/* The same where channels are neighbours. */
[[maybe_unused]] INLINE uint4 load_direct(uint address)
{
    uint4 found;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(address) : "memory");
    return found;
}

/* Adds the products of a block's steps of 16 columns with some octets. places: addresses of the
 * octets, of every second one in lanes from 16 on. turned: whether pixels are neighbours there.
 * by_pixel: of each pair of octets the first sum has the first eight channels and the second the
 * others, and a lane has two of them for its pixel of either octet, in place of two pixels for its
 * channel of either eight. */
template <bool turned, bool by_pixel, int octets>
INLINE void multiply_steps(float (&sums)[TILES][octets][4], const uint4 *RESTRICT weights,
                           const int *RESTRICT columns, int step, int stop,
                           const uint (&places)[octets / 2], uint lane)
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
        UNROLL for (int pair = 0; pair < octets / 2; pair++) {
            uint address = places[pair] + own_column;
            uint4 pixels = turned ? load_turned(address) : load_direct(address);
            UNROLL for (int t = 0; t < TILES; t++) {
                if (by_pixel) {
                    uint4 rows = make_uint4(pixels.x, pixels.z, pixels.y, pixels.w);
                    multiply(sums[t][2 * pair], rows, own[t].x, own[t].z);
                    multiply(sums[t][2 * pair + 1], rows, own[t].y, own[t].w);
                } else {
                    multiply(sums[t][2 * pair], own[t], pixels.x, pixels.y);
                    multiply(sums[t][2 * pair + 1], own[t], pixels.z, pixels.w);
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
    for (int item = LOCAL_ID(0); item < HALO_OCTETS * 8 * (CHUNK / 8); item += 32 * WARPS) {
        int pixel = item / (CHUNK / 8), word = item % (CHUNK / 8);
        int y = top + pixel / HALO_W, x = left + pixel % HALO_W, channel = chunk * CHUNK + word * 8;
        bool inside = pixel < HALO_H * HALO_W && (uint)y < (uint)height && (uint)x < (uint)width
                      && channel < CHANNELS;
        copy_16_bytes(shared_address(staged + pixel * STAGED_ROW + word),
                      image + (inside ? (y * width + x) * CHANNELS + channel : 0), inside ? 16 : 0);
    }
    commit_copies();
}

/* Turns a chunk, so that pixels are neighbours. */
[[maybe_unused]] INLINE void turn_chunk(uint4 *inputs, const uint4 *staged, uint warp, uint lane)
{
    /* a turn takes 8 pixels of 32 channels */
    for (int turn = (int)warp; turn < HALO_OCTETS * (CHUNK / 32); turn += WARPS) {
        int octet = turn / (CHUNK / 32), word = turn % (CHUNK / 32) * 4;
        uint4 four = load_turned(shared_address(
            staged + (octet * 8 + (int)lane % 8) * STAGED_ROW + word + (int)lane / 8));
        uint *to = (uint *)(inputs + (word * 8 + (int)lane / 4) * X_ROW + octet) + lane % 4;
        to[0] = four.x;
        to[8 * X_ROW * 4] = four.y;
        to[16 * X_ROW * 4] = four.z;
        to[24 * X_ROW * 4] = four.w;
    }
}

/* Stores a number of the first result in each octet that has its pixel of the tile with its halo. */
INLINE void store_first(HALF *first, int channel, int y, int x, float value)
{
    HALF half = float_to_half(value);
    UNROLL for (int turn = 0; turn < CEIL_DIV(PITCH, STRIP); turn++) {
        int j = x % STRIP + turn * STRIP, place = x / STRIP - turn;
        if (j < PITCH && (uint)place < 8)
            first[(channel * FIRST_ROW + y * PITCH + j) * 8 + place] = half;
    }
}

KERNEL LAUNCH_BOUNDS(32 * WARPS, 1) void bottleneck(
    const HALF *RESTRICT x, const int *RESTRICT all_starts, const int *RESTRICT columns,
    const uint4 *RESTRICT weights, HALF *RESTRICT y, int height, int width, int out_height,
    int out_width, int pad_top, int pad_left EPILOGUES)
{
    DYNAMIC_SHARED(uint4, memory)
    uint4 *inputs = memory + INPUTS_AT, *staged = inputs + TURNED * CHUNK * X_ROW;
    int *starts = (int *)(memory + STARTS_AT);
    uint lane = LOCAL_ID(0) % 32, warp = LOCAL_ID(0) / 32;
    int tile_y = GROUP_ID(1) * TILE_H, tile_x = GROUP_ID(0) * TILE_W;
    int top = tile_y - pad_top, left = tile_x - pad_left;
    const HALF *image = x + GROUP_ID(2) * height * width * CHANNELS;

    for (int item = LOCAL_ID(0); item <= LAST_STARTS + CEIL_DIV(LAST, BLOCK); item += 32 * WARPS)
        starts[item] = all_starts[item];
    BEGIN_EARLY();
    copy_chunk(staged, image, 0, top, left, height, width);
    {
        float sums[FIRST_HELD][TILES][FIRST_OCTETS][4] = {};
        _Pragma("unroll 1") for (int chunk = 0; chunk < CHUNKS; chunk++) {
            wait_for_all_copies();
            BARRIER();
#if TURNED
            turn_chunk(inputs, staged, warp, lane);
            BARRIER();
            uint4 *following = staged;
#else
            uint4 *present = staged + chunk % 2 * STAGED, *following = staged + (chunk + 1) % 2 * STAGED;
#endif
            if (chunk + 1 < CHUNKS)
                copy_chunk(following, image, chunk + 1, top, left, height, width);
            UNROLL for (int held = 0; held < FIRST_HELD; held++) {
                int unit = (int)warp + held * WARPS;
                if (unit < FIRST_ALL) {
                    uint places[FIRST_OCTETS / 2];
                    UNROLL for (int pair = 0; pair < FIRST_OCTETS / 2; pair++) {
                        int octet = unit % FIRST_GROUPS * FIRST_OCTETS + 2 * pair + (int)lane / 16;
                        octet = LESSER(octet, HALO_OCTETS - 1);
#if TURNED
                        places[pair] = shared_address(inputs + octet);
#else
                        places[pair] = shared_address(present + (octet * 8 + (int)lane % 8)
                                                                    * STAGED_ROW + lane / 8 % 2);
#endif
                    }
                    const int *start = starts + chunk * CEIL_DIV(FIRST, BLOCK)
                                       + unit / FIRST_GROUPS;
                    multiply_steps<TURNED, false>(sums[held], weights, columns, start[0], start[1],
                                                  places, lane);
                }
            }
        }
        UNROLL for (int held = 0; held < FIRST_HELD; held++) {
            int unit = (int)warp + held * WARPS;
            UNROLL for (int o = 0; o < FIRST_OCTETS; o++)
                UNROLL for (int side = 0; side < 2; side++) {
                    int pixel = (unit % FIRST_GROUPS * FIRST_OCTETS + o) * 8 + (int)lane % 4 * 2
                                + side;
                    int in_y = pixel / HALO_W, in_x = pixel % HALO_W;
                    bool inside = (uint)(top + in_y) < (uint)height
                                  && (uint)(left + in_x) < (uint)width;
                    bool exists = unit < FIRST_ALL && pixel < HALO_H * HALO_W;
                    UNROLL for (int row = 0; row < 2 * TILES; row++) {
                        int channel = unit / FIRST_GROUPS * BLOCK + row * 8 + (int)lane / 4;
                        int own = LESSER(channel, FIRST - 1);
                        float value = sums[held][row / 2][o][row % 2 * 2 + side];
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
        float sums[TILES][SECOND_OCTETS][4] = {};
        uint places[SECOND_OCTETS / 2];
        UNROLL for (int pair = 0; pair < SECOND_OCTETS / 2; pair++) {
            int octet = LESSER(unit % SECOND_GROUPS * SECOND_OCTETS + 2 * pair + (int)lane / 16,
                            TILE_OCTETS - 1);
            places[pair] = shared_address(memory + octet / STRIP * PITCH + octet % STRIP);
        }
        const int *start = starts + SECOND_STARTS + unit / SECOND_GROUPS;
        multiply_steps<true, false>(sums, weights, columns, start[0], start[1], places, lane);
        UNROLL for (int t = 0; t < TILES; t++)
            UNROLL for (int o = 0; o < SECOND_OCTETS; o++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int channel = unit / SECOND_GROUPS * BLOCK + t * 16 + (int)lane / 4 + half * 8;
                    int octet = unit % SECOND_GROUPS * SECOND_OCTETS + o;
                    int own = LESSER(channel, SECOND - 1);
                    float value = sums[t][o][2 * half], other = sums[t][o][2 * half + 1];
                    SECOND_EPILOGUE(value, own, 0)
                    SECOND_EPILOGUE(other, own, 0)
                    if (channel < SECOND && octet < TILE_OCTETS)
                        ((uint *)(inputs + channel * SECOND_ROW + octet))[lane % 4] =
                            two_halves(value, other);
                }
    }
    BARRIER();

    _Pragma("unroll 1") for (int unit = (int)warp; unit < CEIL_DIV(LAST, BLOCK) * LAST_GROUPS;
                             unit += WARPS) {
        float sums[TILES][LAST_OCTETS][4] = {};
        uint places[LAST_OCTETS / 2];
        UNROLL for (int pair = 0; pair < LAST_OCTETS / 2; pair++) {
            int octet = unit % LAST_GROUPS * LAST_OCTETS + 2 * pair + (int)lane / 16;
            places[pair] = shared_address(inputs + LESSER(octet, TILE_OCTETS - 1));
        }
        const int *start = starts + LAST_STARTS + unit / LAST_GROUPS;
        multiply_steps<true, true>(sums, weights, columns, start[0], start[1], places, lane);
        UNROLL for (int o = 0; o < LAST_OCTETS; o++) {
            int octet = unit % LAST_GROUPS * LAST_OCTETS + o;
            int out_y = tile_y + octet / STRIP;
            int out_x = tile_x + (int)lane / 4 * STRIP + octet % STRIP;
            bool inside = octet < TILE_OCTETS && out_y < out_height && out_x < out_width;
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
