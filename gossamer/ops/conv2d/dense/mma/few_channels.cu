/* A convolution of few input channels on tensor cores in float16 with float32 sums, such as the
 * first of a network, which reads the image as it comes: float32, NCHW. y is float16, NHWC.
 *
 * A work-group computes TILE_H by TILE_W outputs of OUT_PART output channels. It copies the pixels
 * under their windows to shared memory as float16, with zeros outside of the image. A row of the
 * left operand is the window of an output, whose DEPTH inputs lanes gather; the columns of the
 * right one are output channels.
 *
 * The columns of GROUP_TILES neighbouring tiles are in an order in which a lane holds neighbouring
 * channels of a pixel and stores them at once.
 *
 * STEPS          steps of 16 inputs of a window
 * GROUP_TILES    tiles of 8 output channels whose columns share an order: 4, 2 or 1
 * TILES_AT_ONCE  tiles of 16 outputs that a warp multiplies at once */

#define WORK_GROUP_SIZE (32 * WARPS)
#define HALO_H ((TILE_H - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1)
#define HALO_W ((TILE_W - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)
#define WINDOWS (CHANNELS * HALO_H * HALO_W)
#define DEPTH (CHANNELS * KERNEL_H * KERNEL_W)
#define PIXEL_TILES (TILE_H * TILE_W / 16)
#define GROUPS (OUT_PART / (8 * GROUP_TILES))
#define LANE_CHANNELS (2 * GROUP_TILES) /* neighbouring channels of a lane */
#define WEIGHT_WORDS (2 * STEPS * OUT_PART) /* words of 16 bytes */

/* Returns two 16-bit floats as a register, the first in the lower half. */
INLINE uint pair_of(uint first, uint second)
{
    return first | second << 16;
}

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, 1) void few_channels(
    const float *RESTRICT x, const uint4 *RESTRICT weights, HALF *RESTRICT y, int out_channels,
    int height, int width, int out_height, int out_width, int pad_top, int pad_left,
    int column_tiles EPILOGUE_PARAMETERS)
{
    SHARED ALIGNED(16) HALF windows[WINDOWS];
    SHARED uint4 factors[WEIGHT_WORDS];
    SHARED ALIGNED(8) int places[STEPS * 16]; /* of the inputs of a window; -1 beyond its end */
    int item = LOCAL_ID(0);
    uint lane = (uint)item % 32, warp = (uint)item / 32;
    int part = GROUP_ID(0) / column_tiles;
    SUCCESSOR_MAY_BEGIN();
    int first_row = GROUP_ID(1) * TILE_H;
    int first_column = (GROUP_ID(0) - part * column_tiles) * TILE_W;
    int above = first_row * STRIDE_Y - pad_top, left = first_column * STRIDE_X - pad_left;
    const float *source = x + (long long)GROUP_ID(2) * CHANNELS * height * width;
    for (int i = item; i < WEIGHT_WORDS; i += WORK_GROUP_SIZE)
        copy_16_bytes(shared_address(factors + i), weights + part * WEIGHT_WORDS + i, 16);
    commit_copies();
    PREDECESSOR_WAIT();
    UNROLL_BY(8) for (int i = item; i < WINDOWS; i += WORK_GROUP_SIZE) {
        int line = i / HALO_W, column = left + i % HALO_W;
        int channel = line / HALO_H, row = above + line % HALO_H;
        bool exists = (uint)row < (uint)height && (uint)column < (uint)width;
        float value = exists ? source[(channel * height + row) * width + column] : 0.0f;
        STORE_HALF(windows, i, value);
    }

    for (int k = item; k < STEPS * 16; k += WORK_GROUP_SIZE) {
        int tap = k % (KERNEL_H * KERNEL_W), channel = k / (KERNEL_H * KERNEL_W);
        int row = tap / KERNEL_W * DILATION_Y, column = tap % KERNEL_W * DILATION_X;
        places[k] = k < DEPTH ? (channel * HALO_H + row) * HALO_W + column : -1;
    }
    wait_for_copies<0>();
    BARRIER();

    for (int tile = warp * TILES_AT_ONCE; tile < PIXEL_TILES; tile += WARPS * TILES_AT_ONCE) {
        float sums[TILES_AT_ONCE][OUT_PART / 8][4];
        UNROLL for (int m = 0; m < TILES_AT_ONCE; m++)
            UNROLL for (int n = 0; n < OUT_PART / 8; n++)
                UNROLL for (int i = 0; i < 4; i++)
                    sums[m][n][i] = 0.0f;
        UNROLL_BY(4) for (int step = 0; step < STEPS; step++) {
            const int2 *own = (const int2 *)(places + step * 16) + lane % 4;
            int offsets[4] = {own[0].x, own[0].y, own[4].x, own[4].y};
            uint4 found[TILES_AT_ONCE];
            UNROLL for (int m = 0; m < TILES_AT_ONCE; m++) {
                uint bits[2][4];
                UNROLL for (int half = 0; half < 2; half++) {
                    int pixel = (tile + m) * 16 + (int)lane / 4 + 8 * half;
                    const HALF *window = windows + pixel / TILE_W * STRIDE_Y * HALO_W
                                         + pixel % TILE_W * STRIDE_X;
                    UNROLL for (int i = 0; i < 4; i++) {
                        bits[half][i] = offsets[i] >= 0 ? window[offsets[i]] : 0;
                    }
                }
                found[m] = make_uint4(pair_of(bits[0][0], bits[0][1]),
                                      pair_of(bits[1][0], bits[1][1]),
                                      pair_of(bits[0][2], bits[0][3]),
                                      pair_of(bits[1][2], bits[1][3]));
            }
            UNROLL for (int n = 0; n < OUT_PART / 8; n++) {
                uint2 factor = ((const uint2 *)factors)[(step * (OUT_PART / 8) + n) * 32 + lane];
                UNROLL for (int m = 0; m < TILES_AT_ONCE; m++)
                    multiply(sums[m][n], found[m], factor.x, factor.y);
            }
        }
        UNROLL for (int m = 0; m < TILES_AT_ONCE; m++)
            UNROLL for (int half = 0; half < 2; half++) {
                int pixel = (tile + m) * 16 + (int)lane / 4 + 8 * half;
                int row = first_row + pixel / TILE_W, column = first_column + pixel % TILE_W;
                if (row < out_height && column < out_width)
                    UNROLL for (int group = 0; group < GROUPS; group++) {
                        int channel = part * OUT_PART + group * 8 * GROUP_TILES
                                      + (int)lane % 4 * LANE_CHANNELS;
                        int index = ((GROUP_ID(2) * out_height + row) * out_width + column)
                                        * out_channels + channel;
                        float values[LANE_CHANNELS];
                        UNROLL for (int i = 0; i < LANE_CHANNELS; i++) {
                            values[i] = sums[m][group * GROUP_TILES + i / 2][2 * half + i % 2];
                            EPILOGUE(values[i], channel + i, index + i)
                        }
                        HALF *target = y + index;
#if LANE_CHANNELS == 8
                        STORE_HALF8(target, 0, MAKE4(values[0], values[1], values[2], values[3]),
                                    MAKE4(values[4], values[5], values[6], values[7]));
#elif LANE_CHANNELS == 4
                        STORE_HALF4(target, 0, MAKE4(values[0], values[1], values[2], values[3]));
#else
                        STORE_HALF(target, 0, values[0]);
                        STORE_HALF(target, 1, values[1]);
#endif
                    }
            }
    }
}
