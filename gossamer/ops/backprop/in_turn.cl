/* Back-propagation through the samples of a block in turn, in one work-group a network, when the
 * products of the first layer's weights, as they were before the block, with the block's samples
 * are known. With those and the samples' inner products the sums of the first layer's units for
 * sample s are
 *     W x_s + sum over the samples r before s of (x_r . x_s) delta_r
 * so that the first layer is one of BLOCK inputs here, whose weights are the changes delta_r (of
 * its units' weights for an input of 1). Weight decay multiplies W by `keep` a sample, and inner
 * products by its powers.
 *
 * UNITS       of the first layer; SPLITS work-items share its sums
 * BLOCK, REACH, TILE  samples; those of a row of gram, as in gram.cl
 * SLICES      parts of the inputs of which the products are sums
 * DELTA_AT, COEFFICIENT_AT, BASE_AT, POWER_AT  places in local memory, in floats
 * and those of upper.h, with BATCH = 1 */

/* What is fetched of a sample: products, inner products with those before it, and targets. */
#define WANTED_FROM (UNITS + BLOCK)
#define FETCHED CEIL_DIV(WANTED_FROM + OUTPUTS, FETCHERS)

KERNEL LAUNCH_BOUNDS(THREADS, 1) void in_turn(
    const GLOBAL float *RESTRICT targets, const GLOBAL int *RESTRICT order,
    const GLOBAL float *RESTRICT settings, const GLOBAL float *before, GLOBAL float *after,
    GLOBAL float *RESTRICT losses, const GLOBAL float *RESTRICT gram,
    const GLOBAL int *RESTRICT same, const GLOBAL float *RESTRICT products,
    GLOBAL float *RESTRICT deltas, int samples, int first, int count, int of_gram, int gram_first
    DYNAMIC_LOCAL_PARAMETER(float4, pool4))
{
    DYNAMIC_LOCAL(float4, pool4)
    LOCAL_POINTER float *pool = (LOCAL_POINTER float *)pool4;
    int item = LOCAL_ID(0), network = GROUP_ID(0), networks = GROUP_COUNT(0);
    int fetcher = item - FIRST_FETCHER;
    int source = same[network * CEIL_DIV(of_gram, TILE) + gram_first / TILE] ? 0 : network;
    float rate = settings[network * 3], decay = settings[network * 3 + 2];
    float fetched[FETCHED] = {0.0f};
    before += network * PARAMETERS;
    after += network * PARAMETERS;
    order += network * samples + first;
    losses += network * samples + first;
    gram += (source * of_gram + gram_first) * REACH;
    products += network * BLOCK * UNITS;
    deltas += network * BLOCK * UNITS;

#define FETCH(sample)                                                                    \
    if ((sample) < count && FETCHES)                                                     \
        UNROLL for (int k = 0; k < FETCHED; k++) {                                       \
            int n = fetcher + FETCHERS * k, r = n - UNITS;                               \
            if (n < UNITS) {                                                             \
                fetched[k] = 0.0f;                                                       \
                for (int slice = 0; slice < SLICES; slice++)                             \
                    fetched[k] +=                                                        \
                        products[(slice * networks * BLOCK + (sample)) * UNITS + n];     \
            } else if (n < WANTED_FROM) {                                                \
                if (r < (sample))                                                        \
                    fetched[k] = gram[r * REACH + (sample) - 1 - r];                     \
            } else if (n < WANTED_FROM + OUTPUTS) {                                      \
                fetched[k] = targets[order[sample] * OUTPUTS + n - WANTED_FROM];         \
            }                                                                            \
        }
#define STAGE(sample)                                                                    \
    if ((sample) < count && FETCHES)                                                     \
        UNROLL for (int k = 0; k < FETCHED; k++) {                                       \
            int n = fetcher + FETCHERS * k, r = n - UNITS, to = (sample) % 2;            \
            if (n < UNITS)                                                               \
                pool[BASE_AT + to * UNITS + n] = fetched[k] * pool[POWER_AT + (sample)]; \
            else if (n < WANTED_FROM && r < (sample))                                    \
                pool[COEFFICIENT_AT + to * BLOCK + r] =                                  \
                    fetched[k] * pool[POWER_AT + (sample) - 1 - r];                      \
            else if (n >= WANTED_FROM && n < WANTED_FROM + OUTPUTS)                      \
                pool[WANTED_AT + to * PADDED(OUTPUTS) + n - WANTED_FROM] = fetched[k];   \
        }
/* Goes over a work-item's sums: unit j, and of the samples every one from `split` on. */
#define EACH_SUM                                                                         \
    for (int n = item, j = n % UNITS, split = n / UNITS; n < UNITS * SPLITS;             \
         n += THREADS, j = n % UNITS, split = n / UNITS)

    for (int n = item; n < FLOATS; n += THREADS)
        pool[n] = 0.0f;
    BARRIER();
    load_upper(pool, before, item);
    for (int n = item; n < count; n += THREADS) {
        float power = 1.0f;
        for (int k = 0; k < n; k++)
            power *= 1.0f - rate * decay;
        pool[POWER_AT + n] = power;
    }
    BARRIER();
    FETCH(0)
    STAGE(0)
    FETCH(1)
    GLOBAL_BARRIER();

    for (int s = 0; s < count; s++) {
        int buffer = s % 2;
        EACH_SUM {
            float sum = 0.0f;
            for (int r = split; r < s; r += SPLITS)
                sum = FMA(pool[DELTA_AT + r * UNITS + j],
                          pool[COEFFICIENT_AT + buffer * BLOCK + r], sum);
            pool[PARTIAL_AT + n] = sum;
        }
        BARRIER();
        for (int j = item; j < UNITS; j += THREADS) {
            float z = pool[BIAS_AT + j] + pool[BASE_AT + buffer * UNITS + j];
            for (int split = 0; split < SPLITS; split++)
                z += pool[PARTIAL_AT + split * UNITS + j];
            give_out(pool, 0, j, z, 0, buffer);
        }
        STAGE(s + 1)
        FETCH(s + 2)
        pass_upper(pool, item, 0, buffer);
        BARRIER();
        update_upper(pool, losses + s, item, 1, rate, 0.0f, decay);
        EACH_SUM
            if (split == s % SPLITS)
                pool[DELTA_AT + s * UNITS + j] = -rate * pool[ERROR_AT + j];
    }

    store_upper(pool, after, item);
    EACH_SUM
        for (int r = split; r < count; r += SPLITS)
            deltas[r * UNITS + j] = pool[DELTA_AT + r * UNITS + j] * pool[POWER_AT + count - 1 - r];
}
