/* A matrix product of ROWS rows. Each work-group reduces one column of the result; its work-items
 * stride along a contiguous row of weights. The kernel is memory-bound: it reads every weight once.
 * VECTOR is 4 where the depth is a multiple of 4, else 1. WORK_GROUP_SIZE is a power of two.
 * HALVES: x, y and the epilogue's tensor operands are 16-bit floats. */

#if VECTOR == 4
#define PIECE float4
#define LOAD_WEIGHTS(pointer) LOAD4(pointer)
#define LOAD_PIECE LOAD_REAL4
#define DOT(sum, a, b) \
    sum = FMA((a).x, (b).x, sum); sum = FMA((a).y, (b).y, sum); \
    sum = FMA((a).z, (b).z, sum); sum = FMA((a).w, (b).w, sum);
#else
#define PIECE float
#define LOAD_WEIGHTS(pointer) (*(pointer))
#define LOAD_PIECE LOAD_REAL
#define DOT(sum, a, b) sum = FMA(a, b, sum);
#endif

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void few_rows(
    const GLOBAL REAL *RESTRICT x, const GLOBAL float *RESTRICT weight, GLOBAL REAL *RESTRICT y,
    int columns, int depth EPILOGUE_PARAMETERS)
{
    BEGIN_EARLY();
    SHARED float partial[ROWS * WORK_GROUP_SIZE];
    int item = LOCAL_ID(0);
    int channel = GROUP_ID(0);

    float sum[ROWS];
    UNROLL for (int row = 0; row < ROWS; row++)
        sum[row] = 0.0f;
    for (int k = item * VECTOR; k < depth; k += WORK_GROUP_SIZE * VECTOR) {
        PIECE w = LOAD_WEIGHTS(weight + channel * depth + k);
        UNROLL for (int row = 0; row < ROWS; row++) {
            PIECE a = LOAD_PIECE(x + row * depth, k);
            DOT(sum[row], a, w)
        }
    }
    add_up(partial, sum, item);
    if (item < ROWS) {
        float value = partial[item * WORK_GROUP_SIZE];
        int index = item * columns + channel;
        EPILOGUE(value, channel, index)
        STORE_REAL(y, index, value);
    }
}
