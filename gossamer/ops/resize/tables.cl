/* Resizing of a tensor (outer, height, width, inner) whose last dimension is contiguous. NCHW is
 * (N * C, H, W, 1), NHWC is (N, H, W, C), CHWN is (C, H, W, N). Tables hold the input position of
 * each output row and column. With LINEAR, they also hold the next input position and the weight of
 * this second position.
 *
 * A work-item computes LANES neighbours along `inner`, or PIXELS neighbours along the width. At
 * most one of LANES and PIXELS is 4; the other is 1. LANES = 4 requires inner % 4 == 0; PIXELS = 4
 * requires inner == 1 and out_width % 4 == 0.
 *
 * source_inner and target_inner are the sizes of the last dimension in memory. They exceed `inner`
 * if a tensor is a slice of the channels of a larger tensor. source_first and target_first are the
 * offsets of the first elements. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LANES 4 /* neighbours along `inner` that a work-item computes, 1 or 4 */
#define PIXELS 1 /* neighbours along the width that a work-item computes, 1 or 4 */
#define HALVES 1 /* 1: tensors are 16-bit floats; 0: they are 32-bit floats */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

/* Interpolation between `a` and `b`. `part` is the weight of `b`. */
#define MIX(a, b, part) ((a) * (1.0f - (part)) + (b) * (part))
/* One component of a float4, interpolated between four input pixels: `aa` and `ab` in one row, `ba`
 * and `bb` in the next row. */
#define MIX_FOUR(lane) MIX(MIX(aa.lane, ab.lane, px), MIX(ba.lane, bb.lane, px), py)

#if LANES == 4
#define VALUES float4
#define TAKE LOAD_REAL4
#else
#define VALUES float
#define TAKE LOAD_REAL
#endif

KERNEL void resize(const GLOBAL REAL *source, GLOBAL REAL *RESTRICT target,
                   const GLOBAL int *RESTRICT rows, const GLOBAL int *RESTRICT columns,
#ifdef LINEAR
                   const GLOBAL int *RESTRICT next_rows, const GLOBAL int *RESTRICT next_columns,
                   const GLOBAL float *RESTRICT row_parts,
                   const GLOBAL float *RESTRICT column_parts,
#endif
                   int count, int height, int width, int source_first, int source_inner,
                   int target_first, int target_inner, DIVISOR(inner_steps), DIVISOR(out_columns),
                   DIVISOR(out_height))
{
    pdl_trigger_and_wait();
    uint item = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (item < (uint)count) {
        uint rest = QUOTIENT(item, inner_steps);
        int i = (int)(item - rest * (uint)inner_steps) * LANES;
        uint line = QUOTIENT(rest, out_columns);
        int x0 = (int)(rest - line * (uint)out_columns) * PIXELS;
        uint outer = QUOTIENT(line, out_height);
        int y = (int)(line - outer * (uint)out_height);
        const GLOBAL REAL *plane = source + source_first
                                   + (size_t)outer * (size_t)(height * width * source_inner) + i;
        const GLOBAL REAL *row = plane + rows[y] * width * source_inner;
#ifdef LINEAR
        const GLOBAL REAL *next = plane + next_rows[y] * width * source_inner;
        float py = row_parts[y];
#endif
        VALUES result[PIXELS];
        UNROLL
        for (int p = 0; p < PIXELS; p++) {
            VALUES aa = TAKE(row, columns[x0 + p] * source_inner);
#ifdef LINEAR
            VALUES ab = TAKE(row, next_columns[x0 + p] * source_inner);
            VALUES ba = TAKE(next, columns[x0 + p] * source_inner);
            VALUES bb = TAKE(next, next_columns[x0 + p] * source_inner);
            float px = column_parts[x0 + p];
#if LANES == 4
            aa = MAKE4(MIX_FOUR(x), MIX_FOUR(y), MIX_FOUR(z), MIX_FOUR(w));
#else
            aa = MIX(MIX(aa, ab, px), MIX(ba, bb, px), py);
#endif
#endif
            result[p] = aa;
        }
        GLOBAL REAL *place = target + target_first + (size_t)rest * (PIXELS * target_inner) + i;
#if LANES == 4
        STORE_REAL4(place, 0, result[0]);
#elif PIXELS == 4
        STORE_REAL4(place, 0, MAKE4(result[0], result[1], result[2], result[3]));
#else
        STORE_REAL(place, 0, result[0]);
#endif
    }
}
