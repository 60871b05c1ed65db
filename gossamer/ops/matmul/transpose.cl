/* Transposes matrices on processors: target[n, j, i] = source[n, i, j]. Each work-group has one
 * work-item, which copies a block of SIDE by SIDE numbers. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define SIDE 16 /* rows and columns of a block */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL LAUNCH_BOUNDS(1, 1)
void transpose_matrices(const GLOBAL float *source, GLOBAL float *RESTRICT target,
                        int rows, int columns)
{
    pdl_trigger_and_wait();
    uint down = (uint)CEIL_DIV(rows, SIDE), across = (uint)CEIL_DIV(columns, SIDE);
    uint number = (uint)GROUP_ID(0);
    int row0 = (int)(number % down) * SIDE;
    number /= down;
    int column0 = (int)(number % across) * SIDE;
    size_t matrix = (size_t)(number / across) * (size_t)rows * (size_t)columns;
    for (int column = column0; column < column0 + SIDE && column < columns; column++)
        for (int row = row0; row < row0 + SIDE && row < rows; row++)
            target[matrix + (size_t)column * rows + row] =
                source[matrix + (size_t)row * columns + column];
}
