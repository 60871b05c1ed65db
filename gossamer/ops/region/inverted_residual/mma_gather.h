/* How inverted_residual_mma.cu finds the pixels of its input. */

/* Returns number / divisor for numbers below 2^16, from the reciprocal of the divisor. */
INLINE int quotient(int number, float reciprocal)
{
    return (int)(((float)number + 0.5f) * reciprocal);
}

#if GATHERS
/* Writes the window of each pixel that is expanded to its row of `inputs`, a pixel a work-item, with
 * zeros outside of the image.
 *
 * pixels, columns: those that are expanded, of `columns` a row. top, left: row and column of the
 * first one. image_top, image_left: zeros above the image and on its left. */
INLINE void gather_windows(REAL *inputs, const float *image, int item, int pixels, int columns,
                           int top, int left, int image_height, int image_width, int image_top,
                           int image_left)
{
    float of_columns = 1.0f / (float)columns;
    for (int pixel = item; pixel < ROW_TILES * 16; pixel += WORK_GROUP_SIZE) {
        int row = quotient(pixel, of_columns), column = pixel - row * columns;
        int image_row = (top + row) * FILTER_STEP_Y - image_top;
        int image_column = (left + column) * FILTER_STEP_X - image_left;
        UNROLL for (int first = 0; first < CHANNELS; first += WIDTH) {
            float values[WIDTH];
            UNROLL for (int j = 0; j < WIDTH; j++) {
                const int tap = (first + j) % (FILTER_H * FILTER_W);
                const int channel = (first + j) / (FILTER_H * FILTER_W);
                int y = image_row + tap / FILTER_W * FILTER_DILATION_Y;
                int x = image_column + tap % FILTER_W * FILTER_DILATION_X;
                bool exists = pixel < pixels && first + j < GATHERED
                              && (uint)y < (uint)image_height && (uint)x < (uint)image_width;
                values[j] = rounded(
                    exists ? image[(channel * image_height + y) * image_width + x] : 0.0f);
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
