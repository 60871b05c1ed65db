/* The sums of the columns of a matrix by all work-items of a work-group. */

#pragma once

#include "dialect/common.h"

/* The sums of the columns of a matrix of `rows` by `columns` by `items` work-items. `columns` is a
 * multiple of four.
 *
 * There are two steps, with a barrier between them: add_rows computes partial sums of each column,
 * and total and total4 add them up. Neighbouring work-items read neighbouring columns, so that reads of
 * shared memory have no bank conflicts, and several reads are in flight at once. Sums within warps
 * would need a chain of five shuffles for each column. */
template <int items, int rows, int columns> struct ColumnSums {
    static constexpr int quads = columns / 4, most_parts = items / quads,
                         /* partial sums of a column; with more of them, the second step would take
                          * longer than the first */
                         parts = most_parts > 8 ? 8 : most_parts > 1 ? most_parts : 1,
                         units = parts * quads, /* a unit: a partial sum of four columns */
                         at_once = rows / parts > 16 ? 8 : 16;

    /* partial: the results, as (parts, columns). add(sum, row, column): adds the elements of a row
     * in four columns to `sum`. */
    template <class Add> INLINE void add_rows(float *partial, int item, Add add)
    {
        ONCE_EACH for (int unit = item; unit < units; unit += items) {
            int column = unit % quads * 4, part = unit / quads;
            float4 sum = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
            /* only the last row has a condition, so that the other rows are read at once */
            UNROLL_BY(at_once) for (int i = 0; i < rows / parts; i++)
                add(sum, i * parts + part, column);
            if (rows % parts > 0 && part < rows % parts)
                add(sum, rows / parts * parts + part, column);
            STORE4(partial + unit * 4, sum);
        }
    }

    /* Returns the sums of four columns. */
    INLINE float4 total4(const float *partial, int column)
    {
        float4 sum = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
        UNROLL for (int part = 0; part < parts; part++)
            ADD_SCALED4(sum, 1.0f, LOAD4(partial + part * columns + column));
        return sum;
    }

    /* Returns the sum of a column. */
    INLINE float total(const float *partial, int column)
    {
        float sum = 0.0f;
        UNROLL for (int part = 0; part < parts; part++)
            sum += partial[part * columns + column];
        return sum;
    }
};
