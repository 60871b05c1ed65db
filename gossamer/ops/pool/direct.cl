/* Pooling of a tensor seen as (outer, height, width, inner), inner contiguous: NCHW is
 * (N C, H, W, 1), NHWC is (N, H, W, C), CHWN is (C, H, W, N). One work-item takes VECTOR
 * neighbours along `inner`.
 *
 * MAX: defined for the maximum; else the average. VECTOR: 1 or 4; 4 needs inner % 4 == 0. */

#ifdef MAX
#define START (-INFINITY)
#define TAKE(total, value) total = MAXIMUM(total, value)
#else
#define START 0.0f
#define TAKE(total, value) total += value
#endif

KERNEL void pool(const GLOBAL float *RESTRICT source, GLOBAL float *RESTRICT target, int count,
                 int height, int width, int inner, int out_height, int out_width,
                 int kernel_height, int kernel_width, int stride_y, int stride_x,
                 int top, int left, int dilation_y, int dilation_x,
                 int counted_top, int counted_left, int counted_bottom, int counted_right)
{
    uint rest = (uint)GROUP_ID(0) * (uint)LOCAL_SIZE(0) + (uint)LOCAL_ID(0);
    if (rest < (uint)count) {
        GLOBAL float *result = target + (size_t)rest * VECTOR;
        int i = (int)(rest % (uint)(inner / VECTOR)) * VECTOR;
        rest /= (uint)(inner / VECTOR);
        int x0 = (int)(rest % (uint)out_width) * stride_x - left;
        rest /= (uint)out_width;
        int y0 = (int)(rest % (uint)out_height) * stride_y - top;
        const GLOBAL float *plane = source
            + (size_t)(rest / (uint)out_height) * (size_t)(height * width * inner) + i;
        float total[VECTOR];
        int taps = 0;
        UNROLL
        for (int k = 0; k < VECTOR; k++)
            total[k] = START;
        for (int r = 0; r < kernel_height; r++) {
            int y = y0 + r * dilation_y;
            if (y < -counted_top || y >= height + counted_bottom)
                continue;
            for (int s = 0; s < kernel_width; s++) {
                int x = x0 + s * dilation_x;
                taps += x >= -counted_left && x < width + counted_right;
                if (y >= 0 && y < height && x >= 0 && x < width) {
                    const GLOBAL float *place = plane + (y * width + x) * inner;
#if VECTOR == 4
                    float4 value = LOAD4(place);
                    TAKE(total[0], value.x);
                    TAKE(total[1], value.y);
                    TAKE(total[2], value.z);
                    TAKE(total[3], value.w);
#else
                    TAKE(total[0], place[0]);
#endif
                }
            }
        }
#ifndef MAX
        UNROLL
        for (int k = 0; k < VECTOR; k++)
            total[k] = total[k] / (float)taps;
#endif
#if VECTOR == 4
        STORE4(result, MAKE4(total[0], total[1], total[2], total[3]));
#else
        result[0] = total[0];
#endif
    }
}
