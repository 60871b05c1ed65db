/* For kernels whose groups reduce one column of a product: GROUP work-items, a power of two, have a
 * sum each of ROWS rows. */

/* Adds them up in a tree: the sum of a row is then in partial[row * GROUP]. */
INLINE void add_up(LOCAL_POINTER float *partial, const float *sum, int item)
{
    UNROLL for (int row = 0; row < ROWS; row++)
        partial[row * GROUP + item] = sum[row];
    BARRIER();
    for (int reach = GROUP / 2; reach > 0; reach /= 2) {
        if (item < reach) {
            UNROLL for (int row = 0; row < ROWS; row++)
                partial[row * GROUP + item] += partial[row * GROUP + item + reach];
        }
        BARRIER();
    }
}
