/* Back-propagation in one launch: a work-group a network, which keeps all parameters in registers
 * and shared memory for the whole run, and fetches each sample while the one before it is worked on.
 *
 * In the first layer LANES neighbouring work-items share SHARE inputs, and each has PER_ITEM units,
 * LANES apart: all that is ever done to a weight is done by one work-item. Without velocities the
 * weights are stored divided by `scale`, so that their decay costs one multiplication a step.
 *
 * INPUTS, UNITS  of the first layer; LANES, SPLITS, SHARE, PER_ITEM: its division, as above
 * REGISTERS   whether its weights are in registers
 * SPARSE      whether zeros of a sample are skipped: its other inputs are listed, 32 inputs a list
 * X_AT, LISTED_AT, LENGTHS_AT, FIRST_AT, VELOCITY_AT  where in shared memory are: two samples, the
 *             inputs in their lists and the lists' lengths, the first layer's weights, velocities
 * FLOATS      of shared memory
 * and those of upper_layers.h */

#define STRIDE (LANES * PER_ITEM)
#define XS (SPLITS * SHARE)
#define LISTS CEIL_DIV(INPUTS, 32)

#define FETCHED CEIL_DIV(INPUTS, FETCHERS)
#define FETCHED_TARGETS CEIL_DIV(OUTPUTS, FETCHERS)

/* A work-item's weight of input k and unit u among its own, in global memory, and its velocity. */
#define FIRST_I (split * SHARE + (k))
#define FIRST_J ((u) * LANES + lane)
#define FIRST_PLACE (FIRST_J * INPUTS + FIRST_I)
#define IS_FIRST (FIRST_I < INPUTS && FIRST_J < UNITS)
#define SPEED pool[VELOCITY_AT + FIRST_I * STRIDE + FIRST_J]
#if REGISTERS
#define WEIGHT weights[u][k]
#define ALONG_SHARE UNROLL
#else
#define WEIGHT first[FIRST_I * STRIDE + FIRST_J]
#define ALONG_SHARE
#endif
#define EACH_WEIGHT                                   \
    if (split < SPLITS)                               \
        ALONG_SHARE for (int k = 0; k < SHARE; k++)   \
            UNROLL for (int u = 0; u < PER_ITEM; u++)

/* Goes over what is listed of a sample of those inputs that are a work-item's, AT_ONCE a step: a
 * list ends with zeros of a row that is no input's. */
#define AT_ONCE 4
#define EACH_LISTED                                                                     \
    for (int list = split; list < LISTS; list += SPLITS)                                \
        for (int n = (buffer * LISTS + list) * 32, end = n + lengths[buffer * LISTS + list]; \
             n < end; n += AT_ONCE)

/* Samples in the order in which they are wanted in shared memory: with mini-batches, those of an
 * update once for their errors and once more for the changes. */
INLINE int sample_at(int position, int samples)
{
#if BATCH == 1
    return position;
#else
    int begin = position / (2 * BATCH) * BATCH;
    int count = LESSER(BATCH, samples - begin);
    return count > 0 ? begin + (position - 2 * begin) % count : samples;
#endif
}

KERNEL LAUNCH_BOUNDS(THREADS, 1) void persistent(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT targets,
    const GLOBAL int *RESTRICT order, const GLOBAL float *RESTRICT settings,
    const GLOBAL float *before, GLOBAL float *after, GLOBAL float *RESTRICT losses, int samples
    DYNAMIC_SHARED_PARAMETER(float4, pool4))
{
    DYNAMIC_SHARED(float4, pool4)
#if SPARSE
    VOTES(votes, THREADS / 32)
    SHARED_POINTER int *listed = (SHARED_POINTER int *)pool4 + LISTED_AT;
    SHARED_POINTER int *lengths = (SHARED_POINTER int *)pool4 + LENGTHS_AT;
#endif
    SHARED_POINTER float *pool = (SHARED_POINTER float *)pool4;
    int item = LOCAL_ID(0), network = GROUP_ID(0);
    int lane = item % LANES, split = item / LANES, fetcher = item - FIRST_FETCHER;
    float rate = settings[network * 3], momentum = settings[network * 3 + 1];
    float decay = settings[network * 3 + 2], scale = 1.0f;
    float fetched[FETCHED] = {0.0f}, fetched_target[FETCHED_TARGETS] = {0.0f};
#if REGISTERS
    float weights[PER_ITEM][SHARE];
#else
    SHARED_POINTER float *first = pool + FIRST_AT;
#endif
    before += network * PARAMETERS * (VELOCITY + 1);
    after += network * PARAMETERS * (VELOCITY + 1);
    order += network * samples;
    losses += network * samples;

#define FETCH(sample)                                                                   \
    if ((sample) < samples && FETCHES) {                                                \
        int row = order[sample];                                                        \
        UNROLL for (int k = 0; k < FETCHED; k++)                                        \
            if (fetcher + FETCHERS * k < INPUTS)                                        \
                fetched[k] = x[row * INPUTS + fetcher + FETCHERS * k];                  \
        UNROLL for (int k = 0; k < FETCHED_TARGETS; k++)                                \
            if (fetcher + FETCHERS * k < OUTPUTS)                                       \
                fetched_target[k] = targets[row * OUTPUTS + fetcher + FETCHERS * k];    \
    }

#if SPARSE
#define STAGE_INPUTS(buffer)                                                            \
    if (PART(FETCHES)) {                                                                \
        UNROLL for (int k = 0; k < FETCHED; k++) {                                      \
            int i = fetcher + FETCHERS * k, list = (buffer) * LISTS + i / 32;           \
            int active = FETCHES && i < INPUTS && fetched[k] != 0.0f;                   \
            uint ballot;                                                                \
            BALLOT(ballot, votes, active);                                              \
            if (active) {                                                               \
                int n = list * 32 + POPCOUNT(ballot & ((1u << i % 32) - 1u));           \
                pool[X_AT + n] = fetched[k];                                            \
                listed[n] = i;                                                          \
            }                                                                           \
            int count = POPCOUNT(ballot), end = CEIL_DIV(count, AT_ONCE) * AT_ONCE;     \
            if (FETCHES && i < LISTS * 32 && i % 32 >= count && i % 32 < end) {         \
                pool[X_AT + list * 32 + i % 32] = 0.0f;                                 \
                listed[list * 32 + i % 32] = XS + i / 32 % SPLITS;                      \
            }                                                                           \
            if (FETCHES && i < INPUTS && i % 32 == 0)                                   \
                lengths[list] = end;                                                    \
        }                                                                               \
    }
#else
#define STAGE_INPUTS(buffer)                                                            \
    UNROLL for (int k = 0; k < FETCHED; k++)                                            \
        if (FETCHES && fetcher + FETCHERS * k < INPUTS)                                 \
            pool[X_AT + (buffer) * XS + fetcher + FETCHERS * k] = fetched[k];
#endif

#define STAGE(buffer)                                                                   \
    STAGE_INPUTS(buffer)                                                                \
    UNROLL for (int k = 0; k < FETCHED_TARGETS; k++)                                    \
        if (FETCHES && fetcher + FETCHERS * k < OUTPUTS)                                \
            pool[WANTED_AT + (buffer) * PADDED(OUTPUTS) + fetcher + FETCHERS * k] =     \
                fetched_target[k];

    for (int n = item; n < FLOATS; n += THREADS)
        pool[n] = 0.0f;
    BARRIER();
    load_upper_layers(pool, before, item);
    EACH_WEIGHT {
        WEIGHT = IS_FIRST ? before[FIRST_PLACE] : 0.0f;
        if (VELOCITY)
            SPEED = IS_FIRST ? before[PARAMETERS + FIRST_PLACE] : 0.0f;
    }
    FETCH(sample_at(0, samples))
    STAGE(0)
    FETCH(sample_at(1, samples))
    GLOBAL_BARRIER();

    for (int begin = 0; begin < samples; begin += BATCH) {
        int count = BATCH == 1 ? 1 : LESSER(BATCH, samples - begin);
        for (int b = 0; b < count; b++) {
            int position = BATCH == 1 ? begin : 2 * begin + b, buffer = position % 2;
            if (split < SPLITS) {
                float sum[PER_ITEM];
                UNROLL for (int u = 0; u < PER_ITEM; u++)
                    sum[u] = 0.0f;
#if SPARSE
                EACH_LISTED {
                    float weight[AT_ONCE][PER_ITEM], in[AT_ONCE];
                    UNROLL for (int a = 0; a < AT_ONCE; a++) {
                        in[a] = pool[X_AT + n + a];
                        UNROLL for (int u = 0; u < PER_ITEM; u++)
                            weight[a][u] = first[listed[n + a] * STRIDE + FIRST_J];
                    }
                    UNROLL for (int a = 0; a < AT_ONCE; a++)
                        UNROLL for (int u = 0; u < PER_ITEM; u++)
                            sum[u] = FMA(weight[a][u], in[a], sum[u]);
                }
#else
                ALONG_SHARE for (int k4 = 0; k4 < SHARE; k4 += 4) {
                    float4 four = SHARED_LOAD4(pool + X_AT + buffer * XS + split * SHARE + k4);
                    float value[4] = {four.x, four.y, four.z, four.w};
                    UNROLL for (int k = k4; k < k4 + 4; k++)
                        UNROLL for (int u = 0; u < PER_ITEM; u++)
                            sum[u] = FMA(WEIGHT, value[k - k4], sum[u]);
                }
#endif
                UNROLL for (int u = 0; u < PER_ITEM; u++)
                    pool[PARTIAL_AT + split * STRIDE + FIRST_J] = sum[u];
            }
            BARRIER();
            for (int j = item; j < UNITS; j += THREADS) {
                float sum = 0.0f;
                for (int s = 0; s < SPLITS; s++)
                    sum += pool[PARTIAL_AT + s * STRIDE + j];
                give_out(pool, 0, j, FMA(scale, sum, pool[BIAS_AT + j]), b, buffer);
            }
            STAGE(1 - buffer)
            FETCH(sample_at(position + 2, samples))
            pass_upper_layers(pool, item, b, buffer);
            BARRIER();
        }

        update_upper_layers(pool, losses + begin, item, 0, count, rate, momentum, decay);
        float step = 1.0f / (float)count;
#if !VELOCITY
        scale *= 1.0f - rate * decay;
        if (fabs(scale) < 0.001f) {
            BARRIER();
            EACH_WEIGHT
                WEIGHT *= scale;
            BARRIER();
            scale = 1.0f;
        }
        step *= -rate / scale;
#endif
        for (int b = 0; b < count; b++) {
            int position = BATCH == 1 ? begin : 2 * begin + count + b, buffer = position % 2;
            if (split < SPLITS) {
                float delta[PER_ITEM];
                UNROLL for (int u = 0; u < PER_ITEM; u++)
                    delta[u] = step * pool[ERROR_AT + b * WIDTH + FIRST_J];
#if SPARSE
                EACH_LISTED {
                    SHARED_POINTER float *place[AT_ONCE];
                    float weight[AT_ONCE][PER_ITEM], in[AT_ONCE];
                    UNROLL for (int a = 0; a < AT_ONCE; a++) {
                        in[a] = pool[X_AT + n + a];
                        place[a] = first + listed[n + a] * STRIDE + lane;
                        UNROLL for (int u = 0; u < PER_ITEM; u++)
                            weight[a][u] = place[a][u * LANES];
                    }
                    UNROLL for (int a = 0; a < AT_ONCE; a++)
                        UNROLL for (int u = 0; u < PER_ITEM; u++)
                            place[a][u * LANES] = FMA(delta[u], in[a], weight[a][u]);
                }
#else
                ALONG_SHARE for (int k4 = 0; k4 < SHARE; k4 += 4) {
                    float4 four = SHARED_LOAD4(pool + X_AT + buffer * XS + split * SHARE + k4);
                    float value[4] = {four.x, four.y, four.z, four.w};
                    UNROLL for (int k = k4; k < k4 + 4; k++)
                        UNROLL for (int u = 0; u < PER_ITEM; u++) {
#if VELOCITY
                            /* velocities gather the gradients, the last of which moves */
                            float velocity = SPEED;
                            if (b == 0)
                                velocity = FMA(momentum, velocity, decay * WEIGHT);
                            velocity = FMA(delta[u], value[k - k4], velocity);
                            SPEED = velocity;
                            if (b == count - 1)
                                WEIGHT = FMA(-rate, velocity, WEIGHT);
#else
                            WEIGHT = FMA(delta[u], value[k - k4], WEIGHT);
#endif
                        }
                }
#endif
            }
#if BATCH > 1
            STAGE(1 - buffer)
            FETCH(sample_at(position + 2, samples))
            BARRIER();
#endif
        }
    }

    BARRIER();
    store_upper_layers(pool, after, item);
    EACH_WEIGHT {
        if (IS_FIRST) {
            after[FIRST_PLACE] = scale * WEIGHT;
            if (VELOCITY)
                after[PARAMETERS + FIRST_PLACE] = SPEED;
        }
    }
}
