/* Pruned convolution on tensor cores: only the columns that some row of a block needs are
 * multiplied.
 *
 * A block is 16 * TILES output channels, its columns the (channel, tap) pairs where one of them has
 * a nonzero, 4 * ROWS of which make a step. A unit is VECTOR images of one output pixel, 16 bytes
 * that lie together in x and in y. A warp computes a block for 8 * SETS units: the lanes 4 u to
 * 4 u + 3 fetch ROWS columns each for unit u, and what they hold of VECTOR images are operands of
 * VECTOR instructions, one an image. Units go along the pixels, `run` units of a pixel at a time.
 *
 * HALVES    x, y and the epilogue's tensor operands are 16-bit floats, else floats read as TF32
 * TILES     instructions' tiles of 16 output channels
 * SETS      units of a lane
 * WARPS     warps of a group side by side: their units follow one another
 * BLOCKS    blocks of a group: they go through like columns of the same units, which come from the
 *           L1 cache but once
 * SPLIT     sets of warps that share the steps of a block
 * PADDED    whether windows leave the image */

#if HALVES
#define VECTOR 8
#define ROWS 4
#else
#define VECTOR 4
#define ROWS 2
#endif
#define UNITS (8 * SETS)
#define PRODUCTS (VECTOR * SETS)
#define SUMS (4 * TILES * PRODUCTS)

/* Where a lane's columns of a step are: for each, how many units behind the start of a window, and
 * the bits of `outside` under which there is nothing. */
struct Places {
    int4 of_two[ROWS / 2];
};

/* What a lane multiplies in a step. */
struct Step {
    uint4 rows[SETS][ROWS];
    uint4 weights[TILES];
};

/* sum: rows lane / 4 and lane / 4 + 8 of the tile, of units 2 (lane % 4) and the next. */
INLINE void multiply(float (&sum)[4], const uint4 &weights, uint lower, uint upper)
{
#if HALVES
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(weights.x), "r"(weights.y), "r"(weights.z), "r"(weights.w), "r"(lower), "r"(upper));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(weights.x), "r"(weights.y), "r"(weights.z), "r"(weights.w), "r"(lower), "r"(upper));
#endif
}

INLINE uint word(const uint4 &row, int index)
{
    return index == 0 ? row.x : index == 1 ? row.y : index == 2 ? row.z : row.w;
}

/* An instruction's lower or upper half of the columns that a lane has, of one image. */
INLINE uint operand(const uint4 *columns, int upper, int image)
{
#if HALVES
    const uint4 *two = columns + 2 * upper;
    return __byte_perm(word(two[0], image / 2), word(two[1], image / 2),
                       image % 2 ? 0x7632 : 0x5410);
#else
    return word(columns[upper], image);
#endif
}

INLINE void multiply_step(float (&sums)[TILES][PRODUCTS][4], const Step &step)
{
    UNROLL for (int set = 0; set < SETS; set++)
        UNROLL for (int image = 0; image < VECTOR; image++) {
            uint lower = operand(step.rows[set], 0, image);
            uint upper = operand(step.rows[set], 1, image);
            UNROLL for (int tile = 0; tile < TILES; tile++)
                multiply(sums[tile][set * VECTOR + image], step.weights[tile], lower, upper);
        }
}

KERNEL LAUNCH_BOUNDS(32 * WARPS * BLOCKS * SPLIT, 1) void columns(
    const uint4 *RESTRICT x, const int *RESTRICT starts, const Places *RESTRICT places,
    const uint4 *RESTRICT weights, const int *RESTRICT channels, REAL *RESTRICT y, int units,
    int pixel_units, DIVISOR(run_units), DIVISOR(run), DIVISOR(out_width), int height, int width,
    int kernel_height, int kernel_width, int stride_y, int stride_x, int dilation_y,
    int dilation_x, int pad_top, int pad_left, int y_channel EPILOGUE_PARAMETERS)
{
#if SPLIT > 1
    LOCAL float partial[SPLIT - 1][WARPS * BLOCKS][SUMS][32];
#endif
    int lane = LOCAL_ID(0) % 32, warp = LOCAL_ID(0) / 32 % (WARPS * BLOCKS);
    int part = LOCAL_ID(0) / (32 * WARPS * BLOCKS);
    int block = GROUP_ID(1) * BLOCKS + warp / WARPS;
    int first_unit = (GROUP_ID(0) * WARPS + warp % WARPS) * UNITS;
    int unit = lane / 4, quarter = lane % 4;

    /* the pixel of a unit, and how many units it lies behind its image plane's start */
    auto locate = [&](int own, int &pixel) {
        int round = (int)QUOTIENT(own, run_units);
        int in_round = own - round * run_units;
        pixel = (int)QUOTIENT(in_round, run);
        return pixel * pixel_units + round * run + in_round - pixel * run;
    };

    int window[SETS];
    uint outside[SETS];
    UNROLL for (int set = 0; set < SETS; set++) {
        int own = first_unit + set * 8 + unit, pixel;
        int place = locate(own < units ? own : units - 1, pixel);
        int row = (int)QUOTIENT(pixel, out_width);
        int top = row * stride_y - pad_top;
        int left = (pixel - row * out_width) * stride_x - pad_left;
        window[set] = place + (top * width + left - pixel) * pixel_units;
        outside[set] = 0;
        for (int r = 0; r < kernel_height; r++)
            outside[set] |= (uint)(top + r * dilation_y) < (uint)height ? 0 : 1u << r;
        for (int s = 0; s < kernel_width; s++)
            outside[set] |= (uint)(left + s * dilation_x) < (uint)width ? 0 : 0x10000u << s;
    }
    int start = starts[block], count = starts[block + 1] - start;
    int next = start + count * part / SPLIT, end = start + count * (part + 1) / SPLIT;
    Places place;

    auto find = [&](int number) {
        if (number < end)
            place = places[number * 4 + quarter];
    };
    auto fetch = [&](Step &step, int number) {
        UNROLL for (int set = 0; set < SETS; set++)
            UNROLL for (int row = 0; row < ROWS; row++) {
                const int4 &two = place.of_two[row / 2];
                int offset = row % 2 ? two.z : two.x;
                uint sides = (uint)(row % 2 ? two.w : two.y);
                step.rows[set][row] = make_uint4(0, 0, 0, 0);
                if (!PADDED || !(outside[set] & sides))
                    step.rows[set][row] = x[window[set] + offset];
            }
        UNROLL for (int tile = 0; tile < TILES; tile++)
            step.weights[tile] = weights[(number * TILES + tile) * 32 + lane];
        find(number + 1);
    };

    float sums[TILES][PRODUCTS][4] = {};
    Step even, odd;
    find(next);
    if (next < end)
        fetch(even, next);
    for (; next < end; next += 2) {
        if (next + 1 < end)
            fetch(odd, next + 1);
        multiply_step(sums, even);
        if (next + 1 < end) {
            if (next + 2 < end)
                fetch(even, next + 2);
            multiply_step(sums, odd);
        }
    }

#if SPLIT > 1
    float *flat = &sums[0][0][0];
    if (part > 0)
        UNROLL for (int k = 0; k < SUMS; k++)
            partial[part - 1][warp][k][lane] = flat[k];
    BARRIER();
    if (part == 0)
        UNROLL for (int other = 0; other < SPLIT - 1; other++)
            UNROLL for (int k = 0; k < SUMS; k++)
                flat[k] += partial[other][warp][k][lane];
#endif
    if (part == 0)
        UNROLL for (int tile = 0; tile < TILES; tile++)
            UNROLL for (int half = 0; half < 2; half++) {
                int row = tile * 16 + half * 8 + unit;
                int channel = channels[block * 16 * TILES + row];
                if (channel >= 0)
                    UNROLL for (int set = 0; set < SETS; set++)
                        UNROLL for (int side = 0; side < 2; side++) {
                            int own = first_unit + set * 8 + 2 * quarter + side;
                            int pixel, place = locate(own < units ? own : units - 1, pixel);
                            if (own < units)
                                UNROLL for (int image = 0; image < VECTOR; image += 4) {
                                    const float (*of)[4] = sums[tile] + set * VECTOR + image;
                                    int k = half * 2 + side;
                                    float4 value =
                                        MAKE4(of[0][k], of[1][k], of[2][k], of[3][k]);
                                    int index = channel * y_channel + place * VECTOR + image;
                                    EPILOGUE4(value, channel, index)
                                    STORE_REAL4(y, index, value);
                                }
                        }
            }
}
