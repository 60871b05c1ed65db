/* A 1x1 convolution with its epilogue, and the mean of each output channel over the image. Tensor
 * cores compute the products, with float32 sums. x is NHWC; y has one number for each image and
 * output channel.
 *
 * A work-group computes OUT_PART channels of an image. The work-group copies its weights to shared
 * memory while the previous kernel still runs. Tiles of 16 pixels are distributed round-robin among
 * the warps. A line is 64 neighbouring bytes of a pixel: the operands of two products. Four lanes
 * load a line together, WIDTH channels each. A lane loads lines of the pixels lane / 4 and
 * lane / 4 + 8 of the tile. The weights are read in the same way, so the input channels of both
 * operands have the same order. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: x, y and operands are 16-bit floats; 0: they are 32-bit floats */
#define TF32 0 /* 1: 32-bit floats are multiplied as TF32; 0: they are multiplied as float32 */
#define WIDTH 8 /* channels of a word of 16 bytes */
#define CHANNELS 320 /* channels of x, a multiple of WIDTH */
#define OUT_PART 32 /* output channels of a work-group, a multiple of 8 */
#define WARPS 4 /* warps of a work-group */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "mma/warp.h"
#include "mma/precisions.h"
#include "ops/epilogue.h"

#define WORK_GROUP_SIZE (32 * WARPS)
#define LINE (4 * WIDTH)               /* channels of a line of 64 bytes */
#define LINES CEIL_DIV(CHANNELS, LINE) /* lines of a pixel */
#define OUT_TILES (OUT_PART / 8)
/* length of a row of weights in words of 16 bytes, with padding so that neighbouring rows begin in
 * different banks */
#define WEIGHT_ROW (LINES * 4 + (LINES % 2 ? 0 : 4))
/* Maximum number of lines that are loaded at once. In float32, a line takes twice as many
 * registers, because each number becomes two operands (mma/precisions.h). */
#define MOST_AT_ONCE (HALVES || TF32 ? 10 : 4)
#define AT_ONCE CEIL_DIV(LINES, CEIL_DIV(LINES, MOST_AT_ONCE))

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void pointwise_mean(
    const REAL *x, const uint4 *RESTRICT weights, REAL *RESTRICT y, int out_channels,
    int pixels EPILOGUE_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, factors)
    float *parts = (float *)(factors + OUT_PART * WEIGHT_ROW);
    int item = LOCAL_ID(0);
    uint lane = (uint)item % 32, warp = (uint)item / 32;
    int first_channel = GROUP_ID(0) * OUT_PART;
    pdl_trigger();
    for (int i = item; i < OUT_PART * LINES * 4; i += WORK_GROUP_SIZE)
        cp_async_16(shared_address(factors + i / (LINES * 4) * WEIGHT_ROW + i % (LINES * 4)),
                    weights + first_channel * LINES * 4 + i, 16);
    cp_async_commit_group();
    pdl_wait();

    const REAL *image = x + (long long)GROUP_ID(1) * pixels * CHANNELS;
    float totals[OUT_TILES][2] = {};
    int iterations = CEIL_DIV(pixels, 16 * WARPS);
    for (int iteration = 0; iteration < iterations; iteration++) {
        int positions[2];
        const uint4 *rows[2];
        UNROLL for (int half = 0; half < 2; half++) {
            positions[half] = (iteration * WARPS + (int)warp) * 16 + (int)lane / 4 + 8 * half;
            int pixel = positions[half] < pixels ? positions[half] : pixels - 1;
            rows[half] = (const uint4 *)(image + (long long)pixel * CHANNELS) + lane % 4;
        }
        float sums[OUT_TILES][4] = {};
        _Pragma("unroll 1") for (int start = 0; start < LINES; start += AT_ONCE) {
            uint4 found[AT_ONCE][2];
            UNROLL for (int j = 0; j < AT_ONCE; j++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int word = (start + j) * 4;
                    bool exists = (word + (int)lane % 4) * WIDTH < CHANNELS;
                    found[j][half] = exists ? rows[half][word] : make_uint4(0, 0, 0, 0);
                }
            if (iteration == 0 && start == 0) {
                cp_async_wait_group<0>();
                BARRIER();
            }
            UNROLL for (int j = 0; j < AT_ONCE; j++)
                if (start + j < LINES) {
                    const uint4 &upper = found[j][0], &lower = found[j][1];
                    Pixels first = as_operands(make_uint4(upper.x, lower.x, upper.y, lower.y));
                    Pixels second = as_operands(make_uint4(upper.z, lower.z, upper.w, lower.w));
                    UNROLL for (int n = 0; n < OUT_TILES; n++) {
                        Weights factor = packed_operands(
                            factors[(n * 8 + lane / 4) * WEIGHT_ROW + (start + j) * 4 + lane % 4]);
                        multiply_tile(sums[n], first, factor, 0);
                        multiply_tile(sums[n], second, factor, 1);
                    }
                }
        }
        UNROLL for (int n = 0; n < OUT_TILES; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (positions[i / 2] < pixels) {
                    float value = sums[n][i];
                    EPILOGUE(value, first_channel + n * 8 + (int)lane % 4 * 2 + i % 2, 0)
                    totals[n][i % 2] += value;
                }
    }

    UNROLL for (int n = 0; n < OUT_TILES; n++)
        UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (uint step = 4; step < 32; step *= 2)
                totals[n][i] += __shfl_xor_sync(0xffffffffu, totals[n][i], step);
            if (lane < 4)
                parts[warp * OUT_PART + n * 8 + lane * 2 + i] = totals[n][i];
        }
    BARRIER();
    int channel = first_channel + item;
    if (item < OUT_PART && channel < out_channels) {
        float total = 0.0f;
        UNROLL for (int other = 0; other < WARPS; other++)
            total += parts[other * OUT_PART + item];
        STORE_REAL(y, GROUP_ID(1) * out_channels + channel, total / (float)pixels);
    }
}
