/* Computes outputs from sums, for the kernels on bit tensor cores: adds constants, applies the
 * epilogue or thresholds, and packs words. */

#pragma once

#if !defined CONFIGURED && !defined OUTPUT_PLANES
#define OUTPUT_PLANES 1 /* planes of the packed output, 1 or 2; 0 if no output is packed */
#define FLOATS 0 /* 1: floats are written; a packed output is then the second result */
#define THRESHOLDS 1 /* 1: integer thresholds replace the epilogue */
#define HALVES 0 /* 1: the floats, and the operands of the epilogue, are 16-bit floats */
/* number of channels whose floats are read and written at once: 8 with 16-bit floats. With 32-bit
 * floats it is 4 if a group's channels are adjacent in memory and their number is a multiple of 4,
 * else 1 */
#define VECTOR 1
/* number of classes of output pixels if the constants of all classes are kept in shared memory,
 * else 0; all pixels of a class have the same taps inside of the image */
#define CONSTANT_CLASSES 6
#endif
#if !defined CONFIGURED && !defined EXCHANGES
#define EXCHANGES 0 /* 1: floats are read and written in shared memory (exchange.h) */
#endif

#include "dialect/common.h"
#include "ops/epilogue.h"
#include "bits.h"

/* 1: the result is a bit, and the threshold is folded into the constants */
#define FOLDED (THRESHOLDS && OUTPUT_PLANES == 1)

#if HALVES
#define STORED HALF
#else
#define STORED float
#endif

/* The outputs, and the constants that convert sums to outputs.
 *
 * classes: the class of each row of the output, then of each column. */
struct Target {
    STORED *y;
    uchar *packed;
    const int *thresholds;
    const float *alphas;
    const int *classes;
    int out_channels, out_words, rows, columns, column_classes;
    int stride_n, stride_c, stride_h, stride_w;
};

/* Returns the index of a pixel's channel in a tensor of floats. */
[[maybe_unused]] INLINE int float_of(const Target &target, const Position &position, int channel)
{
    return position.image * target.stride_n + position.row * target.stride_h
           + position.column * target.stride_w + channel * target.stride_c;
}

/* The place of an output pixel: the number of its first word, and its class. All pixels of a class
 * have the same taps inside of the image. */
struct Place {
    int word, pixel_class;
};

INLINE Place place_of(const Target &target, const Position &at)
{
    int word = (at.image * target.out_words * target.rows + at.row) * target.columns + at.column;
    return {word, target.classes[at.row] * target.column_classes
                       + target.classes[target.rows + at.column]};
}

/* A bit for each of COUNT channels, 1 if the channel's result falls as its sum rises. */
template <int COUNT> struct Flips {
    uint words[COUNT > 32 ? COUNT / 32 : 1];
};

template <int COUNT> INLINE Flips<COUNT> flips_of(const uchar *flips, int in_tiles)
{
    Flips<COUNT> found = {};
#if FOLDED
    const uchar *first = flips + in_tiles / 8;
    UNROLL for (int part = 0; part < CEIL_DIV(COUNT, 32); part++)
        found.words[part] = COUNT >= 32   ? ((const uint *)first)[part]
                            : COUNT == 16 ? *(const unsigned short *)first
                                          : *first;
#endif
    return found;
}

/* Four consecutive elements of an array: FOUR_OF reads them as a float4, SET_FOUR writes them. */
#define FOUR_OF(array, first) \
    MAKE4((float)array[first], (float)array[first + 1], (float)array[first + 2], \
          (float)array[first + 3])
#define SET_FOUR(array, first, four) \
    array[first] = four.x, array[first + 1] = four.y, array[first + 2] = four.z, \
    array[first + 3] = four.w;

/* VOTED: the results whose signs are packed. APPLY_EPILOGUE: applies the epilogue to VECTOR sums,
 * and also computes `seconds` if the epilogue has two results. */
#if FLOATS && OUTPUT_PLANES && VECTOR == 8
#define VOTED seconds
#define APPLY_EPILOGUE(results, seconds, channel, index)                                        \
    float4 lower = FOUR_OF(results, 0), upper = FOUR_OF(results, 4), second_lower, second_upper; \
    float seconds[8];                                                                           \
    EPILOGUE2_8(lower, upper, second_lower, second_upper, channel, index)                       \
    SET_FOUR(results, 0, lower)                                                                 \
    SET_FOUR(results, 4, upper)                                                                 \
    SET_FOUR(seconds, 0, second_lower)                                                          \
    SET_FOUR(seconds, 4, second_upper)
#elif FLOATS && OUTPUT_PLANES && VECTOR == 4
#define VOTED seconds
#define APPLY_EPILOGUE(results, seconds, channel, index)   \
    float4 four = FOUR_OF(results, 0), other;              \
    float seconds[4];                                      \
    EPILOGUE2_4(four, other, channel, index)               \
    SET_FOUR(results, 0, four)                             \
    SET_FOUR(seconds, 0, other)
#elif FLOATS && OUTPUT_PLANES
#define VOTED seconds
#define APPLY_EPILOGUE(results, seconds, channel, index) \
    float seconds[1];                                    \
    EPILOGUE2(results[0], seconds[0], channel, index)
#elif VECTOR == 8
#define VOTED results
#define APPLY_EPILOGUE(results, seconds, channel, index)            \
    float4 lower = FOUR_OF(results, 0), upper = FOUR_OF(results, 4); \
    EPILOGUE8(lower, upper, channel, index)                         \
    SET_FOUR(results, 0, lower)                                     \
    SET_FOUR(results, 4, upper)
#elif VECTOR == 4
#define VOTED results
#define APPLY_EPILOGUE(results, seconds, channel, index) \
    float4 four = FOUR_OF(results, 0);                   \
    EPILOGUE4(four, channel, index)                      \
    SET_FOUR(results, 0, four)
#else
#define VOTED results
#define APPLY_EPILOGUE(results, seconds, channel, index) EPILOGUE(results[0], channel, index)
#endif

/* The 32-bit words that hold COUNT channels: one word for 32 channels or fewer. */
template <int COUNT> struct Words {
    static constexpr int PARTS = COUNT > 32 ? COUNT / 32 : 1;
    uint parts[PARTS];
};

#if FOLDED
/* Returns word shifted left by one bit. The new lowest bit is 1 if 2 ones - counted is larger than
 * `largest`. */
INLINE uint with_sign(uint word, int largest, int counted, int ones)
{
    return word << 1 | (uint)(largest + counted - 2 * ones) >> 31;
}

/* Sets words to the signs of COUNT channels of PIXELS pixels. Each bit of a word has to wait for
 * the bit before it, so the instructions for different words are interleaved. */
template <int PIXELS, int COUNT>
INLINE void signs_of(Words<COUNT> (&words)[PIXELS], const int (&ones)[PIXELS][COUNT],
                     const int (&counted)[PIXELS], const int *const (&constants)[PIXELS])
{
    constexpr int PARTS = Words<COUNT>::PARTS, LENGTH = COUNT / PARTS;
    UNROLL for (int first = LENGTH - 4; first >= 0; first -= 4) {
        int4 largest[PIXELS][PARTS];
        UNROLL for (int i = 0; i < PIXELS; i++)
            UNROLL for (int part = 0; part < PARTS; part++)
                largest[i][part] = *(const int4 *)(constants[i] + part * LENGTH + first);
#define NEXT_SIGN(lane, number)                                                       \
    UNROLL for (int i = 0; i < PIXELS; i++)                                           \
        UNROLL for (int part = 0; part < PARTS; part++)                               \
            words[i].parts[part] = with_sign(words[i].parts[part], largest[i][part].lane, \
                                             counted[i], ones[i][part * LENGTH + first + number]);
        NEXT_SIGN(w, 3)
        NEXT_SIGN(z, 2)
        NEXT_SIGN(y, 1)
        NEXT_SIGN(x, 0)
#undef NEXT_SIGN
    }
}
#endif

#if OUTPUT_PLANES
/* Writes the words of COUNT channels of a pixel. The first of these channels is `channel`. In
 * words[0], a bit is set if its result is 1. With two planes, a bit of words[1] is set if its
 * result is not 0; words[1] is the first plane in memory. */
template <int COUNT>
INLINE void store_words(const Words<COUNT> *words, const Target &target, const Place &place,
                        int channel, int end)
{
    constexpr int PARTS = Words<COUNT>::PARTS;
    int word = channel / WORD_BITS;
    /* words beyond the last group's channels are also written, and contain zeros */
    if (word < target.out_words && (channel < end || end == target.out_channels)) {
        uchar *y = target.packed
                   + ((INT64)place.word + word * (target.rows * target.columns)) * OUTPUT_PLANES
                         * WORD_BYTES + channel % WORD_BITS / 8;
        UNROLL for (int plane = 0; plane < OUTPUT_PLANES; plane++) {
            const uint (&bits)[PARTS] = words[OUTPUT_PLANES - 1 - plane].parts;
            uchar *own = y + plane * WORD_BYTES;
            if (COUNT == 64 && WORD_BITS == 64)
                *(uint2 *)own = uint2{bits[0], bits[PARTS - 1]};
            else if (COUNT == 64) {
                *(uint *)own = bits[0];
                if (word + 1 < target.out_words
                    && (channel + 32 < end || end == target.out_channels))
                    *(uint *)(own + (INT64)(target.rows * target.columns) * OUTPUT_PLANES
                                        * WORD_BYTES) = bits[PARTS - 1];
            } else if (COUNT == 32)
                *(uint *)own = bits[0];
            else if (COUNT == 16)
                *(unsigned short *)own = (unsigned short)bits[0];
            else
                *own = (uchar)bits[0];
        }
    }
}
#endif

#if !FOLDED
/* Implements write_channels if FOLDED is 0. Values that are loaded for a channel are used for all
 * pixels, so pixels that do not exist are computed, too, but not written. */
template <int PIXELS, int COUNT>
INLINE void write_results(const int (&ones)[PIXELS][COUNT], const int (&counted)[PIXELS],
                          const Target &target, const Place (&places)[PIXELS],
                          const int (&floats)[PIXELS], const bool (&exists)[PIXELS],
                          const int *const (&constants)[PIXELS], int channel,
                          int end EPILOGUE_PARAMETERS)
{
    [[maybe_unused]] Words<COUNT> words[PIXELS][2] = {};
    UNROLL for (int first = 0; first < COUNT; first += VECTOR) {
        if (channel + first < end) {
            int own = channel + first;
            UNROLL for (int pixel = 0; pixel < PIXELS; pixel++) {
                [[maybe_unused]] int own_index = floats[pixel] + first * target.stride_c;
                int sums[VECTOR];
                UNROLL for (int i = 0; i < VECTOR; i++)
                    sums[i] = (3 - PLANES) * (2 * ones[pixel][first + i] - counted[pixel])
                              + constants[pixel][first + i];
#if THRESHOLDS
                int results[VECTOR];
                UNROLL for (int i = 0; i < VECTOR; i++) {
                    const int *thresholds = target.thresholds + own + i;
                    results[i] = ((sums[i] >= thresholds[0])
                                  + (sums[i] >= thresholds[target.out_channels]) - 1)
                                 * thresholds[2 * target.out_channels];
                }
#else
                float results[VECTOR];
#if VECTOR == 1
                results[0] = (float)sums[0] * target.alphas[own];
#else
                UNROLL for (int i = 0; i < VECTOR; i += 4) {
                    float4 alphas = LOAD4(target.alphas + own + i);
                    results[i] = (float)sums[i] * alphas.x;
                    results[i + 1] = (float)sums[i + 1] * alphas.y;
                    results[i + 2] = (float)sums[i + 2] * alphas.z;
                    results[i + 3] = (float)sums[i + 3] * alphas.w;
                }
#endif
                APPLY_EPILOGUE(results, seconds, own, own_index)
#endif
#if OUTPUT_PLANES
                UNROLL for (int i = 0; i < VECTOR; i++) {
                    words[pixel][0].parts[first / 32] |= (uint)(VOTED[i] > 0) << (first + i) % 32;
                    words[pixel][1].parts[first / 32] |= (uint)(VOTED[i] != 0) << (first + i) % 32;
                }
#endif
#if FLOATS
                if (exists[pixel]) {
#if VECTOR == 8
                    STORE_HALF8(target.y, own_index, FOUR_OF(results, 0), FOUR_OF(results, 4));
#elif VECTOR == 4
                    STORE4(target.y + own_index, FOUR_OF(results, 0));
#else
                    target.y[own_index] = (float)results[0];
#endif
                }
#endif
            }
        }
    }
#if OUTPUT_PLANES
    UNROLL for (int pixel = 0; pixel < PIXELS; pixel++)
        if (exists[pixel])
            store_words(words[pixel], target, places[pixel], channel, end);
#endif
}
#endif

/* Writes COUNT consecutive channels (8, 16, 32 or 64) of PIXELS pixels.
 *
 * ones: the number of ones of each pixel and channel.
 * counted: for each pixel the number that bits.h calls counted.
 * constants: for each channel, the number that is added to its sum; if FOLDED, the largest value of
 * 2 ones - counted for which the channel's bit is 0.
 * channel: number of the first channel, a multiple of COUNT.
 * end: the group's last channel + 1.
 * floats: for each pixel, the index of the first channel's float.
 * exists: whether each pixel exists. */
template <int PIXELS, int COUNT>
INLINE void write_channels(const int (&ones)[PIXELS][COUNT], const int (&counted)[PIXELS],
                           const Target &target, const Place (&places)[PIXELS],
                           const int (&floats)[PIXELS], const bool (&exists)[PIXELS],
                           const int *const (&constants)[PIXELS], const Flips<COUNT> &flips,
                           int channel, int end EPILOGUE_PARAMETERS)
{
#if FOLDED
    Words<COUNT> words[PIXELS] = {};
    signs_of(words, ones, counted, constants);
    UNROLL for (int i = 0; i < PIXELS; i++) {
        UNROLL for (int part = 0; part < Words<COUNT>::PARTS; part++)
            words[i].parts[part] ^= flips.words[part];
        if (exists[i])
            store_words(words + i, target, places[i], channel, end);
    }
#else
    write_results(ones, counted, target, places, floats, exists, constants, channel,
                  end EPILOGUE_ARGUMENTS);
#endif
}
