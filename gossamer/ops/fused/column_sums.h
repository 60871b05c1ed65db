/* The sums of the columns of a matrix by all work-items of a work-group. */

#pragma once

#include "dialect/common.h"

/* The sums of COLUMNS columns of ROWS rows by ITEMS work-items. COLUMNS is a multiple of four.
 *
 * There are two steps, with a barrier between them: add_rows computes PARTS partial sums of each
 * column, and total adds them up. Neighbouring work-items read neighbouring columns, so that reads
 * of shared memory have no bank conflicts, and several reads are in flight at once. Sums within
 * warps would need a chain of five shuffles for each column. */
template <int ITEMS, int ROWS, int COLUMNS> struct ColumnSums {
    static constexpr int QUADS = COLUMNS / 4, MOST_PARTS = ITEMS / QUADS,
                         /* with more parts, the second step would take longer than the first */
                         PARTS = MOST_PARTS > 8 ? 8 : MOST_PARTS > 1 ? MOST_PARTS : 1,
                         UNITS = PARTS * QUADS, /* a unit: a part of the rows of four columns */
                         AT_ONCE = ROWS / PARTS > 16 ? 8 : 16;

    /* partial: the results, as (PARTS, COLUMNS). add(sum, row, column): adds the elements of a row
     * in four columns to `sum`. */
    template <class Add> INLINE void add_rows(float *partial, int item, Add add)
    {
        ONCE_EACH for (int unit = item; unit < UNITS; unit += ITEMS) {
            int column = unit % QUADS * 4, part = unit / QUADS;
            float4 sum = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
            /* only the last row has a condition, so that the other rows are read at once */
            UNROLL_BY(AT_ONCE) for (int i = 0; i < ROWS / PARTS; i++)
                add(sum, i * PARTS + part, column);
            if (ROWS % PARTS > 0 && part < ROWS % PARTS)
                add(sum, ROWS / PARTS * PARTS + part, column);
            STORE4(partial + unit * 4, sum);
        }
    }

    /* Returns the sum of a column. */
    INLINE float total(const float *partial, int column)
    {
        float sum = 0.0f;
        UNROLL for (int part = 0; part < PARTS; part++)
            sum += partial[part * COLUMNS + column];
        return sum;
    }
};
