/* The gathering of an image's windows in inverted_residual_mma.cu, if the expansion is the first
 * convolution of a network. */

#pragma once

#if !defined CONFIGURED && !defined GATHERS
#define GATHERS 1 /* 1: the expansion reads windows of an image */
#endif
#if !defined CONFIGURED && !defined GATHERED
#define GATHERED 9 /* numbers in a window */
#define FILTER_H 3 /* rows of the first convolution's window */
#define FILTER_W 1 /* columns of the first convolution's window */
#define FILTER_STEP_Y 1 /* rows from a window to the next */
#define FILTER_STEP_X 1 /* columns from a window to the next */
#define FILTER_DILATION_Y 1 /* rows from a tap to the next */
#define FILTER_DILATION_X 1 /* columns from a tap to the next */
#endif

#include "ops/image.h"
#include "mma_products.h"
#include "mma_tile.h"

#if GATHERS
/* Writes the window of each pixel to the pixel's row of `inputs`. Numbers outside the image are
 * zeros. A work-item writes whole rows. image_top: rows of padding above the image. image_left:
 * columns of padding to the left of the image. */
INLINE void gather_windows(REAL *inputs, const INPUT *image, const Tile &tile GATHER_PARAMETERS)
{
    for (int pixel = tile.item; pixel < ROW_TILES * 16; pixel += WORK_GROUP_SIZE) {
        int row = quotient(pixel, tile.of_columns), column = pixel - row * tile.columns;
        int image_row = (tile.above + tile.top + row) * FILTER_STEP_Y - image_top;
        int image_column = (tile.left + tile.start + column) * FILTER_STEP_X - image_left;
        const INPUT *corner = image + (image_row * image_width + image_column) * IMAGE_COLUMN;
        bool rows_exist[FILTER_H], columns_exist[FILTER_W];
        UNROLL for (int r = 0; r < FILTER_H; r++)
            rows_exist[r] = pixel < tile.pixels
                            && (uint)(image_row + r * FILTER_DILATION_Y) < (uint)image_height;
        UNROLL for (int s = 0; s < FILTER_W; s++)
            columns_exist[s] = (uint)(image_column + s * FILTER_DILATION_X) < (uint)image_width;
        UNROLL for (int first = 0; first < CHANNELS; first += WIDTH) {
            float values[WIDTH];
            UNROLL for (int j = 0; j < WIDTH; j++) {
                const int r = (first + j) / FILTER_W % FILTER_H, s = (first + j) % FILTER_W;
                const int channel = first + j < GATHERED ? (first + j) / (FILTER_H * FILTER_W) : 0;
                int offset = (r * FILTER_DILATION_Y * image_width + s * FILTER_DILATION_X)
                                * IMAGE_COLUMN
                            + channel * IMAGE_CHANNEL(image_height * image_width);
                bool exists = first + j < GATHERED && rows_exist[r] && columns_exist[s];
                LOAD_IMAGE(values[j], corner, offset, channel, exists)
            }
            REAL *target = inputs + pixel * X_ROW + first;
#if HALVES
            STORE_HALF8(target, 0, MAKE4(values[0], values[1], values[2], values[3]),
                        MAKE4(values[4], values[5], values[6], values[7]));
#else
            STORE_REAL4(target, 0, MAKE4(values[0], values[1], values[2], values[3]));
#endif
        }
    }
}
#endif
