/* How inverted_residual_mma.cu finds the pixels of its input. */

/* Returns number / divisor for numbers below 2^16, from the reciprocal of the divisor. */
INLINE int quotient(int number, float reciprocal)
{
    return (int)(((float)number + 0.5f) * reciprocal);
}

#if GATHERS
/* Writes the window of each pixel that is expanded to its row of `inputs`, two numbers a work-item,
 * with zeros outside of the image. Neighbouring lanes have neighbouring pixels.
 *
 * pixels, columns: those that are expanded, of `columns` a row. top, left: row and column of the
 * first one. image_top, image_left: zeros above the image and on its left. */
INLINE void gather_windows(REAL *inputs, const float *image, int item, int pixels, int columns,
                           int top, int left, int image_height, int image_width, int image_top,
                           int image_left)
{
    float of_columns = 1.0f / (float)columns;
    UNROLL_BY(4) for (int i = item; i < ROW_TILES * 16 * (CHANNELS / 2); i += WORK_GROUP_SIZE) {
        int pixel = i % (ROW_TILES * 16), number = i / (ROW_TILES * 16) * 2;
        int row = quotient(pixel, of_columns), column = pixel - row * columns;
        int image_row = (top + row) * FILTER_STEP_Y - image_top;
        int image_column = (left + column) * FILTER_STEP_X - image_left;
        float values[2];
        UNROLL for (int j = 0; j < 2; j++) {
            int tap = (number + j) % (FILTER_H * FILTER_W);
            int channel = (number + j) / (FILTER_H * FILTER_W);
            int y = image_row + tap / FILTER_W * FILTER_DILATION_Y;
            int x = image_column + tap % FILTER_W * FILTER_DILATION_X;
            bool exists = pixel < pixels && number + j < GATHERED
                          && (uint)y < (uint)image_height && (uint)x < (uint)image_width;
            values[j] = exists ? image[(channel * image_height + y) * image_width + x] : 0.0f;
        }
        store_two(inputs + pixel * X_ROW + number, rounded(values[0]), rounded(values[1]));
    }
}
#endif
