/* All layers of a network but the weights of its first, in the shared memory of one work-group:
 * what a sample makes the units give out, their errors, and the changes of weights and biases.
 *
 * Layer l has sizes[l] inputs and sizes[l + 1] units. The weights of layers from 1 on lie input by
 * input in rows of odd length, which work-items can walk along and across without conflicts of
 * banks. A sample's units, its errors and the rows are padded with zeros to multiples of 4.
 *
 * LAYERS, SIZES, OUTPUTS, WIDTH (all units of a sample, padded), BATCH, VELOCITY
 * UNIT_AT, WEIGHT_AT, PARAMETER_AT  tables, by layer: its units among a sample's, its weights in
 *             shared memory (from layer 1 on), its parameters among the network's
 * OUT_AT, ERROR_AT, TERM_AT, WANTED_AT, EXPONENTIAL_AT, PARTIAL_AT, BIAS_AT
 *             where in shared memory, in floats, are: what the units of each sample of a batch give
 *             out, their errors, the terms of the losses, the targets of two samples, and room
 * UPPER_VELOCITY  from a weight to its velocity; WIDTH: from a bias to its own
 * THREADS     work-items of the group
 * NARROW      whether no layer but the first has more than 32 inputs or units: one warp does all
 *             that is small, and the others wait for it once
 * ACTIVATE, SLOPE, ACTIVATE_OUTPUT, OUTPUT_SLOPE, SOFTMAX  as in training.py */

CONSTANT_TABLE int sizes[] = {SIZES};
CONSTANT_TABLE int unit_at[] = {UNIT_AT};
CONSTANT_TABLE int weight_at[] = {WEIGHT_AT};
CONSTANT_TABLE int parameter_at[] = {PARAMETER_AT};

#define PADDED(count) (CEIL_DIV(count, 4) * 4)
#define ROW(units) (PADDED(units) + 1)
#define PARAMETERS (parameter_at[LAYERS])
#define AT_LEAST_1(n) ((n) > 1 ? (n) : 1)
#define LESSER(a, b) ((a) < (b) ? (a) : (b))

#if NARROW
#define UPPER_BARRIER() WARP_BARRIER()
#define SPLITS_OF(inputs, units) 1
#else
#define UPPER_BARRIER() BARRIER()
#define SPLITS_OF(inputs, units) AT_LEAST_1(LESSER(THREADS / (units), CEIL_DIV(inputs, 16)))
#endif

/* The work-items that have nothing small to do fetch what the next sample needs. */
#define FETCHES (item >= FIRST_FETCHER)
#define FIRST_FETCHER (NARROW && THREADS > 32 ? 32 : 0)
#define FETCHERS (THREADS - FIRST_FETCHER)

/* Changes a parameter by its gradient, and by its decay. */
#if VELOCITY
#define APPLY(parameter, velocity, gradient, decay)                                  \
    {                                                                                \
        (velocity) = FMA(momentum, velocity, FMA(decay, parameter, gradient));       \
        (parameter) = FMA(-rate, velocity, parameter);                               \
    }
#else
#define APPLY(parameter, velocity, gradient, decay)                                  \
    (parameter) = FMA(-rate, gradient, (1.0f - rate * (decay)) * (parameter));
#endif

/* Weight n of layer l, in local and in global memory. */
#define UPPER_I (n / sizes[l + 1])
#define UPPER_J (n % sizes[l + 1])
#define UPPER_HERE (weight_at[l] + UPPER_I * ROW(sizes[l + 1]) + UPPER_J)
#define UPPER_PLACE (parameter_at[l] + UPPER_J * sizes[l] + UPPER_I)
/* Bias j of layer l. */
#define BIAS_HERE (BIAS_AT + unit_at[l] + j)
#define BIAS_PLACE (parameter_at[l] + sizes[l] * sizes[l + 1] + j)

/* The sum of weight[i * row] * in[i] over every `step`th four of the inputs. */
INLINE float weighted(SHARED_POINTER const float *weight, SHARED_POINTER const float *in, int fours,
                      int start, int step, int row)
{
    float4 sum = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int n = start; n < fours; n += step) {
        float4 four = SHARED_LOAD4(in + 4 * n);
        sum.x = FMA(weight[(4 * n) * row], four.x, sum.x);
        sum.y = FMA(weight[(4 * n + 1) * row], four.y, sum.y);
        sum.z = FMA(weight[(4 * n + 2) * row], four.z, sum.z);
        sum.w = FMA(weight[(4 * n + 3) * row], four.w, sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

INLINE void load_upper_layers(SHARED_POINTER float *pool, const GLOBAL float *before, int item)
{
    UNROLL for (int l = 0; l < LAYERS; l++) {
        for (int n = item; l > 0 && n < sizes[l] * sizes[l + 1]; n += THREADS) {
            pool[UPPER_HERE] = before[UPPER_PLACE];
            if (VELOCITY)
                pool[UPPER_HERE + UPPER_VELOCITY] = before[PARAMETERS + UPPER_PLACE];
        }
        for (int j = item; j < sizes[l + 1]; j += THREADS) {
            pool[BIAS_HERE] = before[BIAS_PLACE];
            if (VELOCITY)
                pool[BIAS_HERE + WIDTH] = before[PARAMETERS + BIAS_PLACE];
        }
    }
}

INLINE void store_upper_layers(SHARED_POINTER const float *pool, GLOBAL float *after, int item)
{
    UNROLL for (int l = 0; l < LAYERS; l++) {
        for (int n = item; l > 0 && n < sizes[l] * sizes[l + 1]; n += THREADS) {
            after[UPPER_PLACE] = pool[UPPER_HERE];
            if (VELOCITY)
                after[PARAMETERS + UPPER_PLACE] = pool[UPPER_HERE + UPPER_VELOCITY];
        }
        for (int j = item; j < sizes[l + 1]; j += THREADS) {
            after[BIAS_PLACE] = pool[BIAS_HERE];
            if (VELOCITY)
                after[PARAMETERS + BIAS_PLACE] = pool[BIAS_HERE + WIDTH];
        }
    }
}

/* What unit j of layer l gives out for sample b of the batch, and an output's error; the targets
 * are in a buffer of two. */
INLINE void give_out(SHARED_POINTER float *pool, int l, int j, float z, int b, int buffer)
{
    int unit = b * WIDTH + unit_at[l] + j;
    if (l < LAYERS - 1) {
        pool[OUT_AT + unit] = ACTIVATE(z);
    } else {
        float y = ACTIVATE_OUTPUT(z);
        float off = y - pool[WANTED_AT + buffer * PADDED(OUTPUTS) + j];
        pool[OUT_AT + unit] = y;
        pool[ERROR_AT + unit] = off * OUTPUT_SLOPE(y);
        pool[TERM_AT + b * PADDED(OUTPUTS) + j] = 0.5f * off * off;
    }
}

/* From what the first layer gives out to the errors of its units. Barriers stand round it: in
 * NARROW one that the first warp need not wait for before, one of the group behind. */
INLINE void pass_upper_layers(SHARED_POINTER float *pool, int item, int b, int buffer)
{
    SHARED_POINTER float *out = pool + OUT_AT + b * WIDTH, *error = pool + ERROR_AT + b * WIDTH;
    UNROLL for (int l = 1; l < LAYERS; l++) {
        int units = sizes[l + 1], fours = CEIL_DIV(sizes[l], 4), row = ROW(units);
        int splits = SPLITS_OF(sizes[l], units);
        SHARED_POINTER const float *weight = pool + weight_at[l], *in = out + unit_at[l - 1];
        UPPER_BARRIER();
#if !NARROW
        if (splits > 1)
            for (int n = item; n < units * splits; n += THREADS)
                pool[PARTIAL_AT + n] = weighted(weight + n % units, in, fours, n / units, splits,
                                                row);
        BARRIER();
#endif
        for (int j = item; j < units; j += THREADS) {
            float z = pool[BIAS_HERE];
            if (splits > 1)
                for (int s = 0; s < splits; s++)
                    z += pool[PARTIAL_AT + s * units + j];
            else
                z += weighted(weight + j, in, fours, 0, 1, row);
            give_out(pool, l, j, z, b, buffer);
        }
    }
#if SOFTMAX
    SHARED_POINTER const float *z = out + unit_at[LAYERS - 1];
    SHARED_POINTER const float *wanted = pool + WANTED_AT + buffer * PADDED(OUTPUTS);
    float largest = -INFINITY;
    UPPER_BARRIER();
    for (int k = 0; item < OUTPUTS && k < OUTPUTS; k++)
        largest = MAXIMUM(z[k], largest);
    for (int j = item; j < OUTPUTS; j += THREADS)
        pool[EXPONENTIAL_AT + j] = exp(z[j] - largest);
    UPPER_BARRIER();
    for (int j = item; j < OUTPUTS; j += THREADS) {
        float sum = 0.0f, all = 0.0f;
        for (int k = 0; k < OUTPUTS; k++) {
            sum += pool[EXPONENTIAL_AT + k];
            all += wanted[k];
        }
        error[unit_at[LAYERS - 1] + j] = pool[EXPONENTIAL_AT + j] / sum * all - wanted[j];
        pool[TERM_AT + b * PADDED(OUTPUTS) + j] = wanted[j] * (log(sum) + largest - z[j]);
    }
#endif
    UNROLL for (int l = LAYERS - 1; l >= 1; l--) {
        UPPER_BARRIER();
        for (int i = item; i < sizes[l]; i += THREADS) {
            float y = out[unit_at[l - 1] + i];
            error[unit_at[l - 1] + i] =
                SLOPE(y) * weighted(pool + weight_at[l] + i * ROW(sizes[l + 1]),
                                    error + unit_at[l], CEIL_DIV(sizes[l + 1], 4), 0, 1, 1);
        }
    }
}

/* Changes weights and biases by `count` samples of the batch from `first` on, and adds up their
 * losses. */
INLINE void update_upper_layers(SHARED_POINTER float *pool, GLOBAL float *losses, int item, int first,
                         int count, float rate, float momentum, float decay)
{
    SHARED_POINTER const float *out = pool + OUT_AT + first * WIDTH;
    SHARED_POINTER const float *error = pool + ERROR_AT + first * WIDTH;
    SHARED_POINTER const float *term = pool + TERM_AT + first * PADDED(OUTPUTS);
    float share = 1.0f / (float)count;
    for (int b = THREADS - 1 - item; b < count; b += THREADS) {
        float loss = 0.0f;
        for (int k = 0; k < OUTPUTS; k++)
            loss += term[b * PADDED(OUTPUTS) + k];
        losses[b] = loss;
    }
    UNROLL for (int l = 1; l < LAYERS; l++) {
        /* a work-item has one unit's weights for every so many fours of inputs */
        int units = sizes[l + 1], fours = CEIL_DIV(sizes[l], 4), row = ROW(units);
        int splits = AT_LEAST_1(LESSER(THREADS / units, fours));
        for (int n = item; n < units * splits; n += THREADS) {
            SHARED_POINTER const float *part = error + unit_at[l] + n % units;
            float first_part = part[0] * share;
            for (int i = n / units * 4; i < 4 * fours; i += 4 * splits) {
                SHARED_POINTER float *weight = pool + weight_at[l] + i * row + n % units;
                SHARED_POINTER const float *in = out + unit_at[l - 1] + i;
                float4 four = SHARED_LOAD4(in);
                float gradient[4] = {first_part * four.x, first_part * four.y,
                                     first_part * four.z, first_part * four.w};
                for (int b = 1; b < count; b++) {
                    float other_part = part[b * WIDTH] * share;
                    four = SHARED_LOAD4(in + b * WIDTH);
                    gradient[0] = FMA(other_part, four.x, gradient[0]);
                    gradient[1] = FMA(other_part, four.y, gradient[1]);
                    gradient[2] = FMA(other_part, four.z, gradient[2]);
                    gradient[3] = FMA(other_part, four.w, gradient[3]);
                }
                UNROLL for (int k = 0; k < 4; k++)
                    APPLY(weight[k * row], weight[k * row + UPPER_VELOCITY], gradient[k], decay)
            }
        }
    }
    UNROLL for (int l = 0; l < LAYERS; l++)
        for (int j = item; j < sizes[l + 1]; j += THREADS) {
            float gradient = 0.0f;
            for (int b = 0; b < count; b++)
                gradient += error[b * WIDTH + unit_at[l] + j];
            gradient *= share;
            APPLY(pool[BIAS_HERE], pool[BIAS_HERE + WIDTH], gradient, 0.0f)
        }
}
