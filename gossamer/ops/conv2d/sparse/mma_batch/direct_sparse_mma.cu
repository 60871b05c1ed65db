/* Pruned convolution on tensor cores: only the columns that some row of a block needs are
 * multiplied.
 *
 * A block is 16 * TILES output channels. A column of the weights stands for an input channel and a
 * tap; a block has the columns in which at least one of its channels has a nonzero. Columns are
 * multiplied in steps. A step has 16 columns (TF32: 8), which all tiles of the block need. With two
 * tiles there are two further kinds of steps: steps of columns that only the first tile needs, and
 * steps of columns that only the second tile needs. A step for one of two tiles has 32 columns
 * (TF32: 16), so that all steps have the same number of weights and products.
 *
 * A work-group computes BLOCKS blocks for a tile of SETS * HEIGHT x WIDTH output pixels and IMAGES
 * images: as many images as have 128 bytes of values at one pixel of one channel, which are 64 in
 * float16 and 32 in TF32. A warp computes one block for HEIGHT x WIDTH of these pixels and one of
 * PARTS parts of the images.
 *
 * The input is copied densely into `stages` parts of shared memory, `chunk` channels of the tile's
 * halo at a time. In shared memory a pixel of a channel is a row of 128 bytes. For the tile's first
 * output pixel a column of the weights is multiplied with one of these rows. For another output
 * pixel the column is multiplied with a row that lies further on, and the distance between the two
 * rows is the same for all columns. So the taps are gathered by the addresses of the loads alone.
 *
 * The swizzle class of a row, a number from 0 to 7, decides how the row's pieces of 16 bytes are
 * permuted. Rows whose classes differ modulo 8 (TF32: 4) are read at once without bank conflicts.
 * The class grows by 1 along channels and along x, and by ROW_CLASSES along y, modulo 8, so that
 * the class shifts with the output pixel, too.
 *
 * A place is the number of a row of shared memory times 128, plus the row's swizzle class. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
/* 1: x, y and the epilogue's tensor operands are 16-bit floats; 0: they are floats, which are
 * read as TF32 */
#define HALVES 1
#define TILES 1 /* tiles of 16 output channels of a block, 1 or 2 */
#define BLOCKS 4 /* blocks of a work-group */
#define PARTS 1 /* parts into which the images are divided among warps */
#define SETS 1 /* sets of HEIGHT x WIDTH output pixels of a work-group */
#define HEIGHT 2 /* rows of output pixels of a warp */
#define WIDTH 2 /* columns of output pixels of a warp */
#define ROW_CLASSES 3 /* difference of the swizzle classes of a pixel and the pixel above it */
#define BLOCKS_PER_UNIT 1 /* work-groups that a multiprocessor is to hold at once */
#endif

#include "dialect/common.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "mma/warp.h"
#include "ops/epilogue.h"

/* VECTOR: images in 16 bytes. DEPTH: columns of a step for all tiles; a step for one of two tiles
 * has twice as many. MOVED: the number that is combined by exclusive or with the number of a piece
 * to permute the pieces of a row. */
#if HALVES
#define VECTOR 8
#define DEPTH 16
#define MOVED(place) ((place) & 7)
/* Floats from a row of sums to the next in shared memory, so that a warp's writes go to different
 * banks. */
#define SUM_PITCH (WARP_IMAGES + 8)
#else
#define VECTOR 4
#define DEPTH 8
#define MOVED(place) (2 * ((place) & 3))
#define SUM_PITCH (WARP_IMAGES + 4)
#endif
#define IMAGES (8 * VECTOR)
#define WARP_IMAGES (IMAGES / PARTS)
#define PRODUCTS (WARP_IMAGES / 8)
#define POINTS (HEIGHT * WIDTH)
#define THREADS (32 * BLOCKS * PARTS * SETS)
#define KINDS (TILES == 1 ? 1 : 3)

/* The values of IMAGES images at one pixel of one channel: 128 bytes. */
struct ALIGNED(128) Row {
    uint4 pieces[8];
};

/* The source of a row: the index of its first piece in the input, counted from the start of the
 * chunk (-1: outside of the input), and the row's place. */
struct Source {
    int piece, place;
};

/* The part of a step that a lane loads: the places of its columns and its weights. */
struct Step {
    int places[TILES];
#if !HALVES
    int upper_places[TILES];
#endif
    uint4 weights[TILES];
};

/* Multiplies a step for one output pixel. kind: 0 where the step's columns are for all tiles, else
 * the number of the tile that needs the columns, counted from 1. */
INLINE void multiply_point(float (&sums)[TILES][PRODUCTS][4], const Step &step, int kind,
                           const Row *pool, int shift, int first_piece)
{
    UNROLL for (int half = 0; half < (kind == 0 ? 1 : TILES); half++) {
        auto multiply_all = [&](int image, uint lower, uint upper) {
            if (kind == 0)
                UNROLL for (int tile = 0; tile < TILES; tile++)
                    mma_sync(sums[tile][image], step.weights[tile], lower, upper);
            else
                mma_sync(sums[(kind - 1) % TILES][image], step.weights[half], lower, upper);
        };
        int place = step.places[half] + shift;
#if HALVES
        uint address = shared_address(pool) + (place & ~127) + ((MOVED(place) ^ first_piece) << 4);
        UNROLL for (int two = 0; two < PRODUCTS / 2; two++) {
            /* x, y: columns 0 to 7 and 8 to 15 of 8 images; z, w: the same of the next 8 images */
            uint4 loaded = ldmatrix_x4_trans(address ^ two << 5);
            multiply_all(2 * two, loaded.x, loaded.y);
            multiply_all(2 * two + 1, loaded.z, loaded.w);
        }
#else
        int upper_place = step.upper_places[half] + shift;
        uint4 lower = rounded_operands(pool[place >> 7].pieces[MOVED(place) ^ first_piece]);
        uint4 upper = rounded_operands(
            pool[upper_place >> 7].pieces[MOVED(upper_place) ^ first_piece]);
        multiply_all(0, lower.x, upper.x);
        multiply_all(1, lower.y, upper.y);
        multiply_all(2, lower.z, upper.z);
        multiply_all(3, lower.w, upper.w);
#endif
    }
}

/* Writes the sums of 16 output channels to rows of images in shared memory. */
INLINE void put(float *rows, const float (&sums)[PRODUCTS][4], int lane)
{
    UNROLL for (int half = 0; half < 2; half++) {
        float *row = rows + (half * 8 + lane / 4) * SUM_PITCH;
#if HALVES
        UNROLL for (int piece = 0; piece < PRODUCTS; piece++)
            *(float2 *)(row + 8 * piece + 2 * (lane % 4)) =
                make_float2(sums[piece][2 * half], sums[piece][2 * half + 1]);
#else
        UNROLL for (int neighbour = 0; neighbour < 2; neighbour++) {
            int k = 2 * half + neighbour;
            *(float4 *)(row + 8 * (lane % 4) + 4 * neighbour) =
                MAKE4(sums[0][k], sums[1][k], sums[2][k], sums[3][k]);
        }
#endif
    }
}

/* starts, places, weights, channels: the tables that tables.py defines in BatchTables. row_groups:
 * work-groups, along axis 1, of one group of the convolution. group_channels: input channels of one
 * group of the convolution. batch_pieces: pieces of 16 bytes that the whole batch has at one pixel
 * of one channel. */
KERNEL LAUNCH_BOUNDS(THREADS, BLOCKS_PER_UNIT) void columns(
    const uint4 *x, const int *RESTRICT starts, const int *RESTRICT places,
    const uint4 *RESTRICT weights, const int *RESTRICT channels, REAL *RESTRICT y,
    DIVISOR(tiles_x), DIVISOR(tiles_y), DIVISOR(row_groups), int group_channels, int chunk,
    int phases, int stages, int stage_rows, DIVISOR(pitch), DIVISOR(tile_width),
    int batch_pieces, int height, int width, int out_height, int out_width, int stride_y,
    int stride_x, int pad_top, int pad_left EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(Row, pool)
    pdl_trigger();
    Source *sources = (Source *)(pool + stages * stage_rows);
    int item = LOCAL_ID(0), lane = item % 32, warp = item / 32;
    int of_block = warp / BLOCKS, part = of_block % PARTS, set = of_block / PARTS;
    /* Every fourth warp has the same scheduler. In this order warps of the same block whose numbers
     * `of_block` follow one another have different schedulers; with BLOCKS a multiple of 4, so have
     * any four such warps. With BLOCKS 2, a block has only two schedulers. */
    int block = GROUP_ID(1) * BLOCKS + (warp + of_block) % BLOCKS;
    int tile = GROUP_ID(0), line = (int)QUOTIENT(tile, tiles_x);
    int batch_part = (int)QUOTIENT(line, tiles_y);
    int first_y = (line - batch_part * tiles_y) * (SETS * HEIGHT);
    int first_x = (tile - line * tiles_x) * WIDTH;

    /* shared memory holds the tile's position until results are stored, which saves registers */
    int *corner = (int *)(sources + stage_rows);
    if (item == 0) {
        corner[0] = first_y;
        corner[1] = first_x;
        corner[2] = batch_part;
    }
    for (int row = item; row < stage_rows; row += THREADS) {
        int channel = (int)QUOTIENT(row, pitch), pixel = row - channel * pitch;
        int down = (int)QUOTIENT(pixel, tile_width);
        int right = pixel - down * tile_width;
        int in_y = first_y * stride_y - pad_top + down;
        int in_x = first_x * stride_x - pad_left + right;
        bool inside = (uint)in_y < (uint)height && (uint)in_x < (uint)width;
        sources[row].piece =
            inside ? ((channel * height + in_y) * width + in_x) * batch_pieces : -1;
        sources[row].place = row << 7 | (channel + ROW_CLASSES * down + right) % 8;
    }
    BARRIER();

    int piece = item % 8, batch_piece = batch_part * 8 + piece;
    int first_channel = (int)QUOTIENT(GROUP_ID(1), row_groups) * group_channels;
    /* copy_chunk copies nothing where `number` lies beyond the last chunk */
    auto copy_chunk = [&](int number, int stage) {
        int left = number < phases ? group_channels - number * chunk : 0;
        int rows = (left < chunk ? left : chunk) * pitch;
        int base = (first_channel + number * chunk) * height * width * batch_pieces + batch_piece;
        for (int row = item / 8; row < rows; row += THREADS / 8) {
            Source source = sources[row];
            bool taken = source.piece >= 0 && batch_piece < batch_pieces;
            const uint4 *target =
                &pool[stage * stage_rows + row].pieces[MOVED(source.place) ^ piece];
            cp_async_16(shared_address(target), x + (taken ? base + source.piece : 0),
                        taken ? 16 : 0);
        }
        cp_async_commit_group();
    };
    auto fetch = [&](Step &step, int number) {
        UNROLL for (int k = 0; k < TILES; k++) {
            int fragment = number * TILES + k;
#if HALVES
            step.places[k] = places[fragment * DEPTH + lane % 16];
#else
            step.places[k] = places[fragment * DEPTH + lane % 4];
            step.upper_places[k] = places[fragment * DEPTH + 4 + lane % 4];
#endif
            step.weights[k] = weights[fragment * 32 + lane];
        }
    };

#if HALVES
    int first_piece = lane / 16 | part * PRODUCTS;
#else
    int first_piece = lane / 4;
#endif
    int shifts[POINTS];
    UNROLL for (int point = 0; point < POINTS; point++) {
        int down = (set * HEIGHT + point / WIDTH) * stride_y, right = point % WIDTH * stride_x;
        shifts[point] = (down * tile_width + right) << 7 | (ROW_CLASSES * down + right) % 8;
    }
    float sums[POINTS][TILES][PRODUCTS][4] = {};
    const int *ends = starts + block * (phases * KINDS + 1);
    int number = *ends++, stage = stages > 1 ? 1 : 0;
    Step ahead;
    fetch(ahead, number);
    pdl_wait();
    copy_chunk(0, 0);
    copy_chunk(1, 1);
    for (int phase = 0; phase < phases; phase++) {
        int kind_ends[KINDS];
        UNROLL for (int kind = 0; kind < KINDS; kind++)
            kind_ends[kind] = *ends++;
        cp_async_wait_group<1>();
        /* this phase's input has arrived, and no warp still reads the chunk that is replaced */
        BARRIER();
        stage = stage + 1 < stages ? stage + 1 : 0;
        copy_chunk(phase + 2, stage);
        UNROLL for (int kind = 0; kind < KINDS; kind++) {
            int end = kind_ends[kind];
            /* unrolled twice, the loop would not fit the registers */
            _Pragma("unroll 1") while (number < end) {
                Step step = ahead;
                fetch(ahead, ++number);
                UNROLL for (int point = 0; point < POINTS; point++)
                    multiply_point(sums[point], step, kind, pool, shifts[point], first_piece);
            }
        }
    }

    first_y = corner[0];
    first_x = corner[1];
    batch_part = corner[2];
    BARRIER();
    float *rows = (float *)pool + warp * (16 * SUM_PITCH);
    UNROLL for (int k = 0; k < TILES; k++)
        UNROLL for (int point = 0; point < POINTS; point++) {
            int out_y = first_y + set * HEIGHT + point / WIDTH, out_x = first_x + point % WIDTH;
            put(rows, sums[point][k], lane);
            WARP_BARRIER();
            if (out_y < out_height && out_x < out_width)
                for (int first = 0; first < 16; first += 128 / WARP_IMAGES) {
                    int row = first + lane / (WARP_IMAGES / 4);
                    int image = lane % (WARP_IMAGES / 4) * 4;
                    int channel = channels[(block * TILES + k) * 16 + row];
                    int in_batch = batch_part * IMAGES + part * WARP_IMAGES + image;
                    int batch = batch_pieces * VECTOR;
                    if (channel >= 0 && in_batch < batch) {
                        float4 value = *(const float4 *)(rows + row * SUM_PITCH + image);
                        int index = ((channel * out_height + out_y) * out_width + out_x) * batch
                                    + in_batch;
                        EPILOGUE4(value, channel, index)
                        STORE_REAL4(y, index, value);
                    }
                }
            WARP_BARRIER();
        }
}
