/* What must be done sample after sample to train a network with one hidden layer, by one warp.
 *
 * Everything of a sample is in its record: what the hidden units' sums are without the samples
 * just before it, by how much those samples' changes count for it, and its targets; and the
 * terms of its loss and the change of the hidden units' weights for an input of 1, which are what
 * comes of it. A change counts for the REACH samples behind it (pending).
 *
 * HIDDEN, OUTPUTS, BLOCK (records at once), REACH (a multiple of 4), STRIDE (hidden units, padded)
 * PARTS, SHARE    an output's weights lie on PARTS work-items, SHARE (a multiple of 4) on each;
 *                 on NVIDIA, where parts of a sum need no shared memory, on SPLIT and PIECE
 * HIDDEN_AT, ERROR_AT, PART_SUM_AT, SUMS_AT, EXPONENTIALS_AT  places in shared memory, in floats
 * ACTIVATE, SLOPE, ACTIVATE_OUTPUT, OUTPUT_SLOPE, SOFTMAX  as in training.py */

#ifdef POCL_DEVICE_ADDRESS_BITS
/* unrolled, this takes PoCL four times as long to build */
#undef UNROLL
#define UNROLL
#endif

/* KEPT: a number that is computed once and stays in its register: the start of shared memory takes
 * 25 cycles to ask for. */
#ifdef __OPENCL_VERSION__
#define SPLIT PARTS
#define PIECE SHARE
#define KEPT(number)
#else
#define SPLIT LESSER(LESSER(32 / OUTPUTS, CEIL_DIV(HIDDEN, 4)), 3)
#define PIECE PADDED(CEIL_DIV(HIDDEN, SPLIT))
#define KEPT(number) asm volatile("" : "+r"(number));
#endif

#define PADDED(count) (CEIL_DIV(count, 4) * 4)
#define LESSER(a, b) ((a) < (b) ? (a) : (b))
#define HELD CEIL_DIV(HIDDEN, 32)

#define RECORD_COEFFICIENT 0
#define RECORD_WANTED REACH
#define RECORD_BASE (RECORD_WANTED + PADDED(OUTPUTS))
#define RECORD_TERM (RECORD_BASE + STRIDE)
#define RECORD_DELTA (RECORD_TERM + PADDED(OUTPUTS))
#define RECORD_FACTOR (RECORD_DELTA + STRIDE)
#define RECORD (RECORD_FACTOR + 4)

/* Neighbouring floats of shared memory. */
#define TAKE2(to, from)                                             \
    {                                                               \
        float2 taken = *(const SHARED_POINTER float2 *)(from);       \
        (to)[0] = taken.x, (to)[1] = taken.y;                       \
    }
#define TAKE4(to, from)                                             \
    {                                                               \
        float4 taken = SHARED_LOAD4(from);                           \
        (to)[0] = taken.x, (to)[1] = taken.y;                       \
        (to)[2] = taken.z, (to)[3] = taken.w;                       \
    }

/* What a work-item has of the network beyond the first layer's weights: of an output's weights
 * PIECE, of HELD hidden units all weights to the outputs. */
typedef struct {
    float to_output[PIECE], to_hidden[HELD][PADDED(OUTPUTS)];
    float output_bias, bias[HELD], pending[HELD][REACH];
    /* the bias that this block's products go with, and the next one's */
    float bias_base[HELD], bias_start[HELD];
    /* of the last sample, which to_hidden and pending do not have yet: what changed the outputs'
     * biases and the hidden units', what the latter gave out, its coefficients, and the decay */
    float changes[PADDED(OUTPUTS)], delta[HELD], y[HELD], coefficient[REACH], kept;
    int output, part;
    /* 0: where the pool starts */
    int origin;
} SequentialCore;

/* Whether the last part has no hidden unit left for its weight j. */
#define IS_LATE(j) (((SPLIT) - 1) * (PIECE) + (j) >= PADDED(HIDDEN))

/* Goes through the `count` samples of a block, one at least, whose records are given.
 *
 * One sample after the other is what takes the time. So what the next one does not wait for is
 * done while it waits: an output's weights change while the errors come, a hidden unit's while
 * its next sigmoid does, what is pending while all hidden units do; and of what comes from local
 * memory the values that are waited for are asked for first. */
INLINE void learn(SHARED_POINTER float *pool, SHARED_POINTER float *record, SequentialCore *own, int item,
                  int count, float rate, float keep)
{
    SHARED_POINTER float *hidden = pool + own->origin + HIDDEN_AT;
    SHARED_POINTER float *error = pool + own->origin + ERROR_AT;
    int output = own->output, part = own->part;
    int share = part < SPLIT ? part * PIECE : 0;
    /* of the sample at hand: hidden units' sums, the outputs' inputs, the target */
    float sum[HELD], in[PIECE], wanted = 0.0f;

/* The part of a hidden unit's sum that the matmul warps have computed. */
#define BASE(record, u) (record)[RECORD_BASE + LESSER(item + 32 * (u), STRIDE - 1)]

    if (item < 32) {
        UNROLL for (int u = 0; u < HELD; u++) {
            own->bias_base[u] = own->bias_start[u];
            own->bias_start[u] = own->bias[u];
            sum[u] = own->bias_base[u] + BASE(record, u)
                     + FMA(own->coefficient[0], own->delta[u], own->pending[u][1]);
        }
        wanted = record[RECORD_WANTED + output];
    }
    int s = 0;
    do {
        SHARED_POINTER float *following = record + (s + 1 < count ? RECORD : 0);
        float next[HELD], next_wanted = 0.0f, change = 0.0f, z = 0.0f;
        if (item < 32)
            UNROLL for (int u = 0; u < HELD; u++) {
                float was = own->y[u];
                own->y[u] = ACTIVATE(sum[u]);
                if (item + 32 * u < HIDDEN)
                    hidden[item + 32 * u] = own->y[u];
                UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
                    own->to_hidden[u][k] =
                        FMA(own->changes[k], was, own->kept * own->to_hidden[u][k]);
            }
        WARP_BARRIER();
        if (item < 32) {
            float sums[4] = {part == 0 ? own->output_bias : 0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL for (int j = 0; j < PIECE; j += 4) {
                /* past the last one any will do: weights are and stay 0 there */
                TAKE4(in + j, hidden + LESSER(share + j, PADDED(HIDDEN) - 4))
                UNROLL for (int k = 0; k < 4; k++)
                    sums[k] = FMA(own->to_output[j + k], in[j + k], sums[k]);
            }
            z = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            UNROLL for (int u = 0; u < HELD; u++)
                UNROLL for (int d = 0; d < REACH - 1; d++)
                    own->pending[u][d] =
                        FMA(own->coefficient[d], own->delta[u], own->pending[u][d + 1]);
            UNROLL for (int u = 0; u < HELD; u++)
                next[u] = own->bias_base[u] + BASE(following, u) + own->pending[u][1];
            TAKE4(own->coefficient, record + RECORD_COEFFICIENT)
            next_wanted = following[RECORD_WANTED + output];
        }
#ifndef __OPENCL_VERSION__
        if (SPLIT > 1) {
            /* all in the same order: they get the same sum */
            float own_part = z;
            z = __shfl_sync(0xffffffffu, own_part, output);
            UNROLL for (int p = 1; p < SPLIT; p++)
                z += __shfl_sync(0xffffffffu, own_part, p * OUTPUTS + output);
        }
#elif SPLIT > 1
        SHARED_POINTER float *part_sum = pool + PART_SUM_AT;
        if (item < OUTPUTS * SPLIT)
            part_sum[item] = z;
        WARP_BARRIER();
        if (item < 32) {
            z = 0.0f;
            UNROLL for (int p = 0; p < SPLIT; p++)
                z += part_sum[p * OUTPUTS + output];
        }
#endif
/* Errors are passed on as changes: times -rate. */
#if SOFTMAX
        SHARED_POINTER float *sums = pool + SUMS_AT, *exponentials = pool + EXPONENTIALS_AT;
        if (item < OUTPUTS)
            sums[item] = z;
        WARP_BARRIER();
        float largest = -INFINITY, exponential = 0.0f, total = 0.0f, all = 0.0f;
        if (item < 32) {
            UNROLL for (int k = 0; k < OUTPUTS; k++)
                largest = MAXIMUM(sums[k], largest);
            exponential = exp(z - largest);
        }
        if (item < OUTPUTS)
            exponentials[item] = exponential;
        WARP_BARRIER();
        if (item < 32) {
            UNROLL for (int k = 0; k < OUTPUTS; k++) {
                total += exponentials[k];
                all += record[RECORD_WANTED + k];
            }
            change = rate * (wanted - exponential / total * all);
        }
#define TERM (wanted * (log(total) + largest - z))
#else
        float out = ACTIVATE_OUTPUT(z);
        change = FMA(-rate, out, rate * wanted) * OUTPUT_SLOPE(out);
#define TERM (0.5f * (out - wanted) * (out - wanted))
#endif
        if (item < OUTPUTS)
            error[item] = change;
        WARP_BARRIER();
        if (item < 32) {
            UNROLL for (int k = 0; k < OUTPUTS; k += 4)
                TAKE4(own->changes + k, error + k)
            UNROLL for (int d = 4; d < REACH; d += 4)
                TAKE4(own->coefficient + d, record + RECORD_COEFFICIENT + d)
            if (item < OUTPUTS)
                record[RECORD_TERM + item] = TERM;
            wanted = next_wanted;
            own->kept = keep;
            float late_change = part == SPLIT - 1 ? 0.0f : change;
            UNROLL for (int j = 0; j < PIECE; j++)
                own->to_output[j] = FMA(IS_LATE(j) ? late_change : change, in[j],
                                        keep * own->to_output[j]);
            own->output_bias += change;
            UNROLL for (int u = 0; u < HELD; u++) {
                float parts[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
                    parts[k % 4] = FMA(own->to_hidden[u][k], own->changes[k], parts[k % 4]);
                float steepness = SLOPE(own->y[u]);
                float whole = (parts[0] + parts[1]) + (parts[2] + parts[3]);
                own->delta[u] = whole * steepness;
                sum[u] = FMA(own->coefficient[0] * steepness, whole, next[u]);
                own->bias[u] += own->delta[u];
                if (item + 32 * u < STRIDE)
                    record[RECORD_DELTA + item + 32 * u] =
                        keep == 1.0f ? own->delta[u] : own->delta[u] * record[RECORD_FACTOR];
            }
            record += RECORD;
        }
    } while (++s < count);
    for (int s = count; item < 32 && s < BLOCK; s++) {
        for (int j = item; j < STRIDE; j += 32)
            record[RECORD_DELTA + j] = 0.0f;
        record += RECORD;
    }
}

INLINE void load_sequential_core(SequentialCore *own, const GLOBAL float *biases, const GLOBAL float *upper,
                         int item)
{
    own->output = item % OUTPUTS, own->part = item / OUTPUTS;
    own->origin = 0;
    KEPT(own->origin)
    own->kept = 1.0f;
    UNROLL for (int k = 0; k < PIECE; k++) {
        int j = own->part * PIECE + k;
        own->to_output[k] =
            own->part < SPLIT && j < HIDDEN ? upper[own->output * HIDDEN + j] : 0.0f;
    }
    own->output_bias = upper[OUTPUTS * HIDDEN + own->output];
    UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
        own->changes[k] = 0.0f;
    UNROLL for (int d = 0; d < REACH; d++)
        own->coefficient[d] = 0.0f;
    UNROLL for (int u = 0; u < HELD; u++) {
        int j = item + 32 * u;
        UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
            own->to_hidden[u][k] = j < HIDDEN && k < OUTPUTS ? upper[k * HIDDEN + j] : 0.0f;
        own->bias[u] = j < HIDDEN ? biases[j] : 0.0f;
        own->bias_start[u] = own->bias[u];
        own->delta[u] = own->y[u] = 0.0f;
        UNROLL for (int d = 0; d < REACH; d++)
            own->pending[u][d] = 0.0f;
    }
}

INLINE void store_sequential_core(const SequentialCore *own, GLOBAL float *biases, GLOBAL float *upper, int item)
{
    UNROLL for (int k = 0; k < PIECE; k++) {
        int j = own->part * PIECE + k;
        if (own->part < SPLIT && j < HIDDEN)
            upper[own->output * HIDDEN + j] = own->to_output[k];
    }
    UNROLL for (int u = 0; u < HELD; u++)
        if (item + 32 * u < HIDDEN)
            biases[item + 32 * u] = own->bias[u];
    if (item < OUTPUTS)
        upper[OUTPUTS * HIDDEN + item] = own->output_bias;
}
