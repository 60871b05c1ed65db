/* Kernels with which candidates are checked in the device's own memory. */

#include "dialect/common.h"

#define LARGEST 3.402823466e+38f
#define IS_FINITE(x) (fabs(x) <= LARGEST)
#define IS_NAN(x) ((x) != (x))

/* Compares images of an output with the expected images, which are row-major float32. The output is
 * float16 if `halves` is not 0, else float32. Its strides s0 to s3 are in elements. The output lies
 * between two margins of `margin` guard bytes each. Work-group (b, k) compares a share of the
 * output's image images[k] with expected image k, and writes four numbers:
 *
 * 0: the sum of squared differences over the elements where both values are finite
 * 1: the sum of squares of the expected values of these elements
 * 2: the number of other elements where the two values differ; NaN counts as equal to NaN
 * 3: two bits for the work-group's share of the memory. Bit 0 is 1 if a byte of the margins is not
 *    the guard byte. Bit 1 is 1 if an element of the output still consists of guard bytes. */
KERNEL LAUNCH_BOUNDS(256, 1)
void compare(const GLOBAL uchar *RESTRICT memory, int halves, INT64 margin, INT64 output_bytes,
             const GLOBAL float *RESTRICT expected, const GLOBAL int *RESTRICT images,
             GLOBAL float *RESTRICT sums, INT64 image_size, INT64 image_stride,
             int n1, int n2, int n3, INT64 s0, INT64 s1, INT64 s2, INT64 s3)
{
    SHARED float differences[256], squares[256], unlike[256];
    SHARED uint all_found[1];
    int item = LOCAL_ID(0), image = GROUP_ID(1), blocks = GROUP_COUNT(0);
    const GLOBAL uchar *output = memory + margin;
    float difference = 0.0f, square = 0.0f, other = 0.0f;
    INT64 first = (INT64)images[image] * image_stride;
    for (INT64 i = (INT64)GROUP_ID(0) * 256 + item; i < image_size; i += (INT64)blocks * 256) {
        INT64 i3 = i % n3, rest = i / n3;
        INT64 i2 = rest % n2;
        rest /= n2;
        INT64 place = first + rest / n1 * s0 + rest % n1 * s1 + i2 * s2 + i3 * s3;
        float e = expected[(INT64)image * image_size + i], r;
        if (halves)
            r = LOAD_HALF((const GLOBAL HALF *)output, place);
        else
            r = ((const GLOBAL float *)output)[place];
        if (IS_FINITE(r) && IS_FINITE(e)) {
            difference += (r - e) * (r - e);
            square += e * e;
        } else if (!(r == e || (IS_NAN(r) && IS_NAN(e)))) {
            other += 1.0f;
        }
    }
    INT64 start = ((INT64)image * blocks + GROUP_ID(0)) * 256 + item;
    INT64 step = (INT64)GROUP_COUNT(1) * blocks * 256;
    uint found = 0;
    for (INT64 i = start; i < margin; i += step)
        if (memory[i] != 255 || output[output_bytes + i] != 255)
            found |= 1;
    if (halves) {
        for (INT64 i = start; i < output_bytes / 2; i += step)
            if (((const GLOBAL unsigned short *)output)[i] == 65535)
                found |= 2;
    } else {
        for (INT64 i = start; i < output_bytes / 4; i += step)
            if (((const GLOBAL uint *)output)[i] == 4294967295u)
                found |= 2;
    }
    differences[item] = difference;
    squares[item] = square;
    unlike[item] = other;
    if (item == 0)
        all_found[0] = 0;
    BARRIER();
    if (found)
        ATOMIC_OR(all_found, found);
    for (int apart = 128; apart > 0; apart /= 2) {
        if (item < apart) {
            differences[item] += differences[item + apart];
            squares[item] += squares[item + apart];
            unlike[item] += unlike[item + apart];
        }
        BARRIER();
    }
    if (item == 0) {
        int place = 4 * (image * blocks + GROUP_ID(0));
        sums[place] = differences[0];
        sums[place + 1] = squares[0];
        sums[place + 2] = unlike[0];
        sums[place + 3] = (float)all_found[0];
    }
}

/* Fills memory with the guard byte, four bytes at a time. */
KERNEL void fill_with_guards(GLOBAL uint *RESTRICT words, INT64 count)
{
    INT64 step = (INT64)GROUP_COUNT(0) * LOCAL_SIZE(0);
    for (INT64 i = (INT64)GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0); i < count; i += step)
        words[i] = 4294967295u;
}
