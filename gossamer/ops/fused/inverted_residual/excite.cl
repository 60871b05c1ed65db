/* The gates of a squeeze-and-excite layer. The kernel computes the mean of each hidden channel over
 * the image. A first matrix product (squeeze) turns the means into SQUEEZED numbers. A second
 * product (excite) turns these numbers into one gate per channel.
 *
 * A work-group computes the gates of one image. totals: sum of each channel over each tile of the
 * image, as (images, tiles, hidden). share: 1 / (number of pixels). Weights are stored as
 * (inputs, outputs), so that neighbouring work-items read neighbouring weights. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HIDDEN 64 /* hidden channels; the parameter `hidden` also counts their padding in memory */
#define SQUEEZED 8 /* results of the first product */
#define PARTS 4 /* work-items that together compute one result of the first product */
#define WORK_GROUP_SIZE 128 /* work-items of a work-group */
/* the epilogues of both products: their kernel parameters, and the macros that apply them */
#define SQUEEZE_EPILOGUE_PARAMETERS
#define EXCITE_EPILOGUE_PARAMETERS
#define SQUEEZE_EPILOGUE(value, channel, index)
#define EXCITE_EPILOGUE(value, channel, index)
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void excite(
    const GLOBAL float *totals, const GLOBAL float *RESTRICT squeeze,
    const GLOBAL float *RESTRICT excite_weights, GLOBAL float *RESTRICT gates, int hidden,
    int tiles, float share SQUEEZE_EPILOGUE_PARAMETERS EXCITE_EPILOGUE_PARAMETERS)
{
    pdl_trigger_and_wait();
    SHARED float means[HIDDEN];
    SHARED float sums[PARTS * SQUEEZED];
    int item = LOCAL_ID(0), image = GROUP_ID(0);
    totals += image * tiles * hidden;
    for (int channel = item; channel < HIDDEN; channel += WORK_GROUP_SIZE) {
        float total = 0.0f;
        for (int tile = 0; tile < tiles; tile++)
            total += totals[tile * hidden + channel];
        means[channel] = total * share;
    }
    BARRIER();
    for (int unit = item; unit < PARTS * SQUEEZED; unit += WORK_GROUP_SIZE) {
        int number = unit % SQUEEZED, part = unit / SQUEEZED;
        float sum = 0.0f;
        for (int channel = part; channel < HIDDEN; channel += PARTS)
            sum = FMA(means[channel], squeeze[channel * SQUEEZED + number], sum);
        sums[unit] = sum;
    }
    BARRIER();
    for (int number = item; number < SQUEEZED; number += WORK_GROUP_SIZE) {
        float sum = 0.0f;
        for (int part = 0; part < PARTS; part++)
            sum += sums[part * SQUEEZED + number];
        SQUEEZE_EPILOGUE(sum, number, 0)
        sums[number] = sum;
    }
    BARRIER();
    for (int channel = item; channel < hidden; channel += WORK_GROUP_SIZE) {
        float gate = 0.0f;
        if (channel < HIDDEN) {
            for (int number = 0; number < SQUEEZED; number++)
                gate = FMA(sums[number], excite_weights[number * HIDDEN + channel], gate);
            EXCITE_EPILOGUE(gate, channel, 0)
        }
        gates[image * hidden + channel] = gate;
    }
}
