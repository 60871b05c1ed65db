/* Evaluates an expression whose results are -1, 0 or 1, and packs the results. A work-item reads 32
 * channels of a pixel, evaluates the expression for each of them, and packs the results into one
 * 32-bit part of a word. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
/* 1: every part has 32 channels without padding, and channels are contiguous in memory */
#define FOURS 0
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ops/epilogue.h"
#include "ops/packed_bits.h"

/* Evaluates the expression for four channels and sets their bits in `nonzero` and `positive`. */
#define ADD_FOUR(four, k) { \
    EPILOGUE4(four, first + (k), 0) \
    nonzero |= FOUR_BITS(four, != 0.0f) << (k); \
    positive |= FOUR_BITS(four, > 0.0f) << (k); \
}

KERNEL void pack_results(const GLOBAL REAL *source, GLOBAL uint *RESTRICT target, int count,
                         DIVISOR(pixels), DIVISOR(parts), int channels, int from_image,
                         int from_channel, int from_pixel EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        uint plane = QUOTIENT(item, pixels);
        int pixel = (int)(item - plane * (uint)pixels);
        int image = (int)QUOTIENT(plane, parts), part = (int)plane - image * parts;
        int first = 32 * part;
        uint nonzero = 0, positive = 0;
        if (first < channels) {
            const GLOBAL REAL *values = source + image * from_image + pixel * from_pixel
                                        + first * from_channel;
#if FOURS && HALVES
            UNROLL
            for (int k = 0; k < 32; k += 8) {
                FETCHED_HALF8 eight = FETCH_HALF8(values, k);
                float4 lower = LOWER_VALUE4(eight), upper = UPPER_VALUE4(eight);
                ADD_FOUR(lower, k)
                ADD_FOUR(upper, k + 4)
            }
#elif FOURS
            UNROLL
            for (int k = 0; k < 32; k += 4) {
                float4 four = LOAD_REAL4(values, k);
                ADD_FOUR(four, k)
            }
#else
            int last = channels - first - 1;
            /* loads are unconditional, so that all of them can be in flight at once */
            UNROLL
            for (int k = 0; k < 32; k++) {
                int own = k < last ? k : last;
                float value = LOAD_REAL(values, own * from_channel);
                EPILOGUE(value, first + own, 0)
                nonzero |= (uint)(value != 0.0f) << k;
                positive |= (uint)(value > 0.0f) << k;
            }
            uint exist = last < 31 ? (2u << last) - 1u : 0xffffffffu;
            nonzero &= exist, positive &= exist;
#endif
        }
        int at = ((image * (parts / TARGET_PARTS) + part / TARGET_PARTS) * pixels + pixel)
                     * TARGET_PLANES * TARGET_PARTS + part % TARGET_PARTS;
        STORE_PLANES(at, nonzero, positive)
    }
}
