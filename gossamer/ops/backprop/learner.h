/* What must be done sample after sample to train a network with one hidden layer, by one warp.
 *
 * Everything of a sample is in its record: what the hidden units' sums are without the samples
 * just before it, by how much those samples' changes count for it, and its targets; and the
 * terms of its loss and the change of the hidden units' weights for an input of 1, which are what
 * comes of it. A change counts for the REACH samples behind it (pending).
 *
 * HIDDEN, OUTPUTS, BLOCK (records at once), REACH (a multiple of 4), STRIDE (hidden units, padded)
 * PARTS, SHARE    an output's weights lie on PARTS work-items, SHARE (a multiple of 4) on each
 * HIDDEN_AT, ERROR_AT, PART_SUM_AT, SUMS_AT, EXPONENTIALS_AT  places in local memory, in floats
 * ACTIVATE, SLOPE, ACTIVATE_OUTPUT, OUTPUT_SLOPE, SOFTMAX  as in training.py */

#ifdef POCL_DEVICE_ADDRESS_BITS
/* unrolled, this takes PoCL four times as long to build */
#undef UNROLL
#define UNROLL
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

/* Neighbouring floats of local memory. */
#define TAKE2(to, from)                                             \
    {                                                               \
        float2 taken = *(const LOCAL_POINTER float2 *)(from);       \
        (to)[0] = taken.x, (to)[1] = taken.y;                       \
    }
#define TAKE4(to, from)                                             \
    {                                                               \
        float4 taken = LOCAL_LOAD4(from);                           \
        (to)[0] = taken.x, (to)[1] = taken.y;                       \
        (to)[2] = taken.z, (to)[3] = taken.w;                       \
    }

/* What a work-item has of the network beyond the first layer's weights: of an output's weights
 * SHARE, of HELD hidden units all weights to the outputs. */
typedef struct {
    float to_output[SHARE], to_hidden[HELD][PADDED(OUTPUTS)];
    float output_bias, bias[HELD], pending[HELD][REACH];
    /* the bias that this block's products go with, and the next one's */
    float bias_base[HELD], bias_start[HELD];
} Learner;

/* Goes through the `count` samples of a block, whose records are given. */
INLINE void learn(LOCAL_POINTER float *pool, LOCAL_POINTER float *record, Learner *own, int item,
                  int count, float rate, float keep)
{
    LOCAL_POINTER float *hidden = pool + HIDDEN_AT, *error = pool + ERROR_AT;
    int output = item % OUTPUTS, part = item / OUTPUTS;
    int share = part < PARTS ? part * SHARE : 0;
    float y[HELD], in[SHARE];

/* What a hidden unit of this work-item makes of its sum z. */
#define GIVE_OUT(u, z)                                                  \
    y[u] = ACTIVATE(z);                                                 \
    if (item + 32 * (u) < HIDDEN)                                       \
        hidden[item + 32 * (u)] = y[u];
/* The part of it that the wide warps have computed. */
#define BASE(record, u) (record)[RECORD_BASE + LESSER(item + 32 * (u), STRIDE - 1)]

    if (item < 32)
        UNROLL for (int u = 0; u < HELD; u++) {
            own->bias_base[u] = own->bias_start[u];
            own->bias_start[u] = own->bias[u];
            float z = own->bias_base[u] + BASE(record, u) + own->pending[u][0];
            GIVE_OUT(u, z)
        }
    for (int s = 0; s < count; s++) {
        float coefficient[REACH], next[HELD], wanted = 0.0f, change = 0.0f, z = 0.0f;
        WARP_BARRIER();
        if (item < 32) {
            float sum[4] = {part == 0 ? own->output_bias : 0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL for (int j = 0; j < SHARE; j += 4) {
                TAKE4(in + j, hidden + share + j)
                UNROLL for (int k = 0; k < 4; k++)
                    sum[k] = FMA(own->to_output[j + k], in[j + k], sum[k]);
            }
            z = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            UNROLL for (int d = 0; d < REACH; d += 4)
                TAKE4(coefficient + d, record + RECORD_COEFFICIENT + d)
            wanted = record[RECORD_WANTED + output];
            UNROLL for (int u = 0; u < HELD; u++)
                next[u] = own->bias_base[u] + BASE(record + (s + 1 < count ? RECORD : 0), u)
                          + own->pending[u][1];
        }
#if PARTS > 1
        LOCAL_POINTER float *part_sum = pool + PART_SUM_AT;
        if (item < OUTPUTS * PARTS)
            part_sum[item] = z;
        WARP_BARRIER();
        if (item < 32) {
            z = 0.0f;
            UNROLL for (int p = 0; p < PARTS; p++)
                z += part_sum[p * OUTPUTS + output];
        }
#endif
/* Errors are passed on as changes: times -rate. */
#if SOFTMAX
        LOCAL_POINTER float *sums = pool + SUMS_AT, *exponentials = pool + EXPONENTIALS_AT;
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
        if (item < OUTPUTS) {
            error[item] = change;
            record[RECORD_TERM + item] = wanted * (log(total) + largest - z);
        }
#else
        float out = ACTIVATE_OUTPUT(z);
        change = FMA(-rate, out, rate * wanted) * OUTPUT_SLOPE(out);
        if (item < OUTPUTS) {
            error[item] = change;
            record[RECORD_TERM + item] = 0.5f * (out - wanted) * (out - wanted);
        }
#endif
        WARP_BARRIER();
        if (item < 32) {
            float changes[PADDED(OUTPUTS)];
            UNROLL for (int k = 0; k < OUTPUTS; k += 4)
                TAKE4(changes + k, error + k)
            UNROLL for (int u = 0; u < HELD; u++) {
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
                    sum[k % 4] = FMA(own->to_hidden[u][k], changes[k], sum[k % 4]);
                float was = y[u], steepness = SLOPE(was);
                float delta = ((sum[0] + sum[1]) + (sum[2] + sum[3])) * steepness;
                float z_next = FMA(coefficient[0], delta, next[u]);
                GIVE_OUT(u, z_next)
                UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
                    own->to_hidden[u][k] = FMA(changes[k], was, keep * own->to_hidden[u][k]);
                UNROLL for (int d = 0; d < REACH - 1; d++)
                    own->pending[u][d] = FMA(coefficient[d], delta, own->pending[u][d + 1]);
                own->bias[u] += delta;
                if (item + 32 * u < STRIDE)
                    record[RECORD_DELTA + item + 32 * u] =
                        keep == 1.0f ? delta : delta * record[RECORD_FACTOR];
            }
            UNROLL for (int j = 0; j < SHARE; j++)
                own->to_output[j] = FMA(change, in[j], keep * own->to_output[j]);
            own->output_bias += change;
            record += RECORD;
        }
    }
    for (int s = count; item < 32 && s < BLOCK; s++) {
        for (int j = item; j < STRIDE; j += 32)
            record[RECORD_DELTA + j] = 0.0f;
        record += RECORD;
    }
}

INLINE void load_learner(Learner *own, const GLOBAL float *biases, const GLOBAL float *upper,
                         int item)
{
    int output = item % OUTPUTS, part = item / OUTPUTS;
    UNROLL for (int k = 0; k < SHARE; k++) {
        int j = part * SHARE + k;
        own->to_output[k] = part < PARTS && j < HIDDEN ? upper[output * HIDDEN + j] : 0.0f;
    }
    own->output_bias = upper[OUTPUTS * HIDDEN + output];
    UNROLL for (int u = 0; u < HELD; u++) {
        int j = item + 32 * u;
        UNROLL for (int k = 0; k < PADDED(OUTPUTS); k++)
            own->to_hidden[u][k] = j < HIDDEN && k < OUTPUTS ? upper[k * HIDDEN + j] : 0.0f;
        own->bias[u] = j < HIDDEN ? biases[j] : 0.0f;
        own->bias_start[u] = own->bias[u];
        UNROLL for (int d = 0; d < REACH; d++)
            own->pending[u][d] = 0.0f;
    }
}

INLINE void store_learner(const Learner *own, GLOBAL float *biases, GLOBAL float *upper, int item)
{
    UNROLL for (int u = 0; u < HELD; u++) {
        int j = item + 32 * u;
        UNROLL for (int k = 0; k < OUTPUTS; k++)
            if (j < HIDDEN)
                upper[k * HIDDEN + j] = own->to_hidden[u][k];
        if (j < HIDDEN)
            biases[j] = own->bias[u];
    }
    if (item < OUTPUTS)
        upper[OUTPUTS * HIDDEN + item] = own->output_bias;
}
