/* Kernels with which candidates are checked in the device's own memory. */

/* Copies four dimensions, of which the first is the outermost, between memory of other strides and
 * of another type of floats. Sizes n, source strides s and target strides t are in elements. */
KERNEL void rearrange(const GLOBAL uchar *RESTRICT source, GLOBAL uchar *RESTRICT target,
                      int from_halves, int into_halves, INT64 count, int n1, int n2, int n3,
                      INT64 source_offset, INT64 target_offset,
                      INT64 s0, INT64 s1, INT64 s2, INT64 s3,
                      INT64 t0, INT64 t1, INT64 t2, INT64 t3)
{
    INT64 index = (INT64)GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    INT64 step = (INT64)GROUP_COUNT(0) * LOCAL_SIZE(0);
    for (; index < count; index += step) {
        INT64 i3 = index % n3, rest = index / n3;
        INT64 i2 = rest % n2;
        rest /= n2;
        INT64 i1 = rest % n1, i0 = rest / n1;
        INT64 from = source_offset + i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
        INT64 to = target_offset + i0 * t0 + i1 * t1 + i2 * t2 + i3 * t3;
        float value;
        if (from_halves)
            value = LOAD_HALF((const GLOBAL HALF *)source, from);
        else
            value = ((const GLOBAL float *)source)[from];
        if (into_halves)
            STORE_HALF((GLOBAL HALF *)target, to, value);
        else
            ((GLOBAL float *)target)[to] = value;
    }
}

#define LARGEST 3.402823466e+38f
#define IS_FINITE(x) (fabs(x) <= LARGEST)
#define IS_NAN(x) ((x) != (x))

/* Compares images with the expected ones. Group (b, k) writes for its share of image k three sums:
 * squares of differences, squares of what is expected, and how many values are finite, or not, in
 * one of both only. Equal values that are not finite count in none. */
KERNEL LAUNCH_BOUNDS(256, 1)
void compare(const GLOBAL float *RESTRICT result, const GLOBAL float *RESTRICT expected,
             GLOBAL float *RESTRICT sums, INT64 image_size)
{
    SHARED float differences[256], squares[256], unlike[256];
    int item = LOCAL_ID(0), image = GROUP_ID(1), blocks = GROUP_COUNT(0);
    float difference = 0.0f, square = 0.0f, other = 0.0f;
    INT64 first = (INT64)image * image_size;
    for (INT64 i = (INT64)GROUP_ID(0) * 256 + item; i < image_size; i += (INT64)blocks * 256) {
        float r = result[first + i], e = expected[first + i];
        if (IS_FINITE(r) && IS_FINITE(e)) {
            difference += (r - e) * (r - e);
            square += e * e;
        } else if (!(r == e || (IS_NAN(r) && IS_NAN(e)))) {
            other += 1.0f;
        }
    }
    differences[item] = difference;
    squares[item] = square;
    unlike[item] = other;
    BARRIER();
    for (int apart = 128; apart > 0; apart /= 2) {
        if (item < apart) {
            differences[item] += differences[item + apart];
            squares[item] += squares[item + apart];
            unlike[item] += unlike[item + apart];
        }
        BARRIER();
    }
    if (item == 0) {
        int place = 3 * (image * blocks + GROUP_ID(0));
        sums[place] = differences[0];
        sums[place + 1] = squares[0];
        sums[place + 2] = unlike[0];
    }
}

/* Sets bit 0 of `flags` where a byte before or after an output is not the guard byte, and bit 1
 * where an element of the output still consists of guard bytes. */
KERNEL void look_for_guards(const GLOBAL uchar *RESTRICT bytes, GLOBAL uint *RESTRICT flags,
                            INT64 margin, INT64 output_bytes, int halves)
{
    INT64 start = (INT64)GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    INT64 step = (INT64)GROUP_COUNT(0) * LOCAL_SIZE(0);
    uint found = 0;
    for (INT64 i = start; i < margin; i += step)
        if (bytes[i] != 255 || bytes[margin + output_bytes + i] != 255)
            found |= 1;
    if (halves) {
        const GLOBAL unsigned short *elements = (const GLOBAL unsigned short *)(bytes + margin);
        for (INT64 i = start; i < output_bytes / 2; i += step)
            if (elements[i] == 65535)
                found |= 2;
    } else {
        const GLOBAL uint *elements = (const GLOBAL uint *)(bytes + margin);
        for (INT64 i = start; i < output_bytes / 4; i += step)
            if (elements[i] == 4294967295u)
                found |= 2;
    }
    if (found)
        ATOMIC_OR(flags, found);
}

/* Fills memory with the guard byte, four bytes at a time. */
KERNEL void fill_with_guards(GLOBAL uint *RESTRICT words, INT64 count)
{
    INT64 step = (INT64)GROUP_COUNT(0) * LOCAL_SIZE(0);
    for (INT64 i = (INT64)GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0); i < count; i += step)
        words[i] = 4294967295u;
}
