/* Conversion of floats into packed values and back, and between packed formats.
 *
 * Kernels read and write parts of 32 bits. A word of 64 bits has two parts. The lower part comes
 * first in memory, because devices are little-endian. A part has one bit for each of 32 channels;
 * the first channel is the lowest bit. A position in the target has four indices: the image, the
 * step along the channels, the row and the column. Kernels write all positions, including those in
 * the padding. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define SOURCE_PLANES 0 /* planes of the source: 1 for bits, 2 for trits, 0 for floats */
#define TARGET_PLANES 1 /* planes of the target: 1 for bits, 2 for trits, 0 for floats */
#define SOURCE_PARTS 1 /* 32-bit parts of a word of the source, 1 or 2 */
#define TARGET_PARTS 1 /* 32-bit parts of a word of the target, 1 or 2 */
#define CHANNELS 4 /* number of channels that a work-item of unpack computes, 1, 4 or 32 */
#define FOURS 0 /* 1: pack loads four floats at a time; 0: it loads single floats */
/* The indices i0 to i3 of a position are in the memory order of the float tensor. The next four
 * macros define which of i0 to i3 is the index of the image, of the step along the channels, of the
 * row and of the column. */
#define IMAGE i0
#define STEP i1 /* a step has 32 channels; in unpack, a step has CHANNELS channels */
#define ROW i2
#define COLUMN i3
#define HALVES 1 /* 1: floats in memory are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/packed_bits.h"

#define POSITION DIVISOR(n1), DIVISOR(n2), DIVISOR(n3), int top, int left

/* Splits the index `item` of a position into i0 to i3. */
#define SPLIT_POSITION(item) \
    uint next = QUOTIENT(item, n3); \
    int i3 = (int)((item) - next * (uint)n3); \
    uint rest = QUOTIENT(next, n2); \
    int i2 = (int)(next - rest * (uint)n2); \
    int i0 = (int)QUOTIENT(rest, n1); \
    int i1 = (int)rest - i0 * n1;

/* Declares the row y and the column x of the position. Both are counted from the first pixel inside
 * the target's border. */
#define PIXEL int y = ROW - top, x = COLUMN - left;
#define INSIDE (y >= 0 && y < height && x >= 0 && x < width)

/* The index in a packed tensor of a part's bits in the first plane. `start` is this index for
 * image, step, row and column 0. */
#define PART_AT(start, step, row, column, parts, image_step, word_step, y_step, x_step) \
    ((start) + IMAGE * image_step + (step) / (parts) * word_step + (step) % (parts) \
     + (row) * y_step + (column) * x_step)
#define TARGET_AT \
    PART_AT(0, STEP, ROW, COLUMN, TARGET_PARTS, to_image, to_word, to_y, to_x)

/* Sets `nonzero` and `positive` to the bits of the channels 32 * part to 32 * part + 31. With one
 * plane, the values are -1 or 1, so all channels that exist are nonzero. */
#define LOAD_PLANES(part) { \
    int at = PART_AT(start, part, y, x, SOURCE_PARTS, from_image, from_word, from_y, from_x); \
    int count_here = channels - 32 * (part); \
    positive = source[at + (SOURCE_PLANES - 1) * SOURCE_PARTS]; \
    nonzero = SOURCE_PLANES == 2 ? source[at] : 0xffffffffu; \
    if (count_here < 32) \
        nonzero &= (1u << count_here) - 1u; \
}

#if SOURCE_PLANES == 0
KERNEL void pack(const GLOBAL REAL *source, GLOBAL uint *RESTRICT target, int count,
                 POSITION, int channels, int height, int width,
                 int start, int from_image, int from_channel, int from_y, int from_x,
                 int to_image, int to_word, int to_y, int to_x)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        SPLIT_POSITION(item)
        PIXEL
        uint nonzero = 0, positive = 0;
        if (INSIDE && STEP * 32 < channels) {
            const GLOBAL REAL *pixel = source + start + IMAGE * from_image + y * from_y + x * from_x
                + STEP * 32 * from_channel;
#if FOURS
            UNROLL
            for (int k = 0; k < 32; k += 4) {
                float4 four = LOAD_REAL4(pixel, k);
                nonzero |= FOUR_BITS(four, != 0.0f) << k;
                positive |= FOUR_BITS(four, > 0.0f) << k;
            }
#else
            int last = channels - STEP * 32 - 1;
            /* loads are unconditional, so that all of them can be in flight at once */
            UNROLL
            for (int k = 0; k < 32; k++) {
                float value = LOAD_REAL(pixel, (k < last ? k : last) * from_channel);
                nonzero |= (uint)(value != 0.0f) << k;
                positive |= (uint)(value > 0.0f) << k;
            }
            uint exist = last < 31 ? (2u << last) - 1u : 0xffffffffu;
            nonzero &= exist, positive &= exist;
#endif
        }
        STORE_PLANES(TARGET_AT, nonzero, positive)
    }
}

/* Each warp packs one position. Its work-items read the 32 channels of the position at once. */
KERNEL void pack_position_by_vote(
    const GLOBAL REAL *source, GLOBAL uint *RESTRICT target, int count, POSITION,
    int channels, int height, int width, int start, int from_image, int from_channel, int from_y,
    int from_x, int to_image, int to_word, int to_y, int to_x)
{
    pdl_trigger_and_wait();
    VOTES(votes, 8)
    int lane = LOCAL_ID(0) % 32;
    uint item = (uint)GROUP_ID(0) * (uint)(LOCAL_SIZE(0) / 32) + (uint)(LOCAL_ID(0) / 32);
    uint positive;
    SPLIT_POSITION(item)
    PIXEL
    int channel = STEP * 32 + lane;
    float value = 0.0f;
    if (item < (uint)count && INSIDE && channel < channels)
        value = LOAD_REAL(source, start + IMAGE * from_image + y * from_y + x * from_x
                          + channel * from_channel);
    BALLOT(positive, votes, value > 0.0f);
#if TARGET_PLANES == 2
    uint nonzero;
    BALLOT(nonzero, votes, value != 0.0f);
#endif
    if (item < (uint)count && lane == 0)
        STORE_PLANES(TARGET_AT, nonzero, positive)
}

/* Each warp packs 32 neighbouring positions, one after another. The warp reads the 32 channels of a
 * position at once, and each of its work-items keeps and writes the bits of one position. This
 * kernel is meant for channels that are contiguous in memory. */
KERNEL void pack_by_vote(const GLOBAL REAL *source, GLOBAL uint *RESTRICT target,
                         int count, POSITION, int channels, int height, int width,
                         int start, int from_image, int from_channel, int from_y, int from_x,
                         int to_image, int to_word, int to_y, int to_x)
{
    pdl_trigger_and_wait();
    VOTES(votes, 8)
    int lane = LOCAL_ID(0) % 32;
    uint own = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    uint positive = 0, vote;
#if TARGET_PLANES == 2
    uint nonzero = 0;
#endif
    for (int k = 0; k < 32; k++) {
        uint item = own - (uint)lane + (uint)k;
        float value = 0.0f;
        if (item < (uint)count) {
            SPLIT_POSITION(item)
            PIXEL
            int channel = STEP * 32 + lane;
            if (INSIDE && channel < channels)
                value = LOAD_REAL(source, start + IMAGE * from_image + y * from_y + x * from_x
                                  + channel * from_channel);
        }
        BALLOT(vote, votes, value > 0.0f);
        positive = lane == k ? vote : positive;
#if TARGET_PLANES == 2
        BALLOT(vote, votes, value != 0.0f);
        nonzero = lane == k ? vote : nonzero;
#endif
    }
    if (own < (uint)count) {
        SPLIT_POSITION(own)
        STORE_PLANES(TARGET_AT, nonzero, positive)
    }
}
#elif TARGET_PLANES == 0
/* The value of a channel. Its two bits are bit number `bit` of `nonzero` and of `positive`. */
#define VALUE_OF(bit) (nonzero >> (bit) & 1u ? (positive >> (bit) & 1u ? 1.0f : -1.0f) : 0.0f)

KERNEL void unpack(const GLOBAL uint *source, GLOBAL REAL *RESTRICT target, int count,
                   POSITION, int channels, int height, int width, int stored_channels,
                   int start, int from_image, int from_word, int from_y, int from_x,
                   int to_image, int to_channel, int to_y, int to_x)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        SPLIT_POSITION(item)
        PIXEL
        int first = STEP * CHANNELS;
        uint nonzero = 0, positive = 0;
        if (INSIDE && first < channels)
            LOAD_PLANES(first / 32)
        GLOBAL REAL *pixel = target + IMAGE * to_image + ROW * to_y + COLUMN * to_x
            + first * to_channel;
#if CHANNELS == 4
        int bit = first % 32;
        STORE_REAL4(pixel, 0, MAKE4(VALUE_OF(bit), VALUE_OF(bit + 1), VALUE_OF(bit + 2),
                                    VALUE_OF(bit + 3)));
#else
        UNROLL
        for (int k = 0; k < CHANNELS; k++) {
            int bit = (first + k) % 32;
            if (first + k < stored_channels)
                STORE_REAL(pixel, k * to_channel, VALUE_OF(bit));
        }
#endif
    }
}
#else
KERNEL void repack(const GLOBAL uint *source, GLOBAL uint *RESTRICT target, int count,
                   POSITION, int channels, int height, int width,
                   int start, int from_image, int from_word, int from_y, int from_x,
                   int to_image, int to_word, int to_y, int to_x)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        SPLIT_POSITION(item)
        PIXEL
        uint nonzero = 0, positive = 0;
        if (INSIDE && STEP * 32 < channels)
            LOAD_PLANES(STEP)
        STORE_PLANES(TARGET_AT, nonzero, positive)
    }
}
#endif
