/* The second of the two launches per block of exact blocking. One work-group per network trains on
 * the samples of the block, one after the other. Let W be the first layer's weights before the
 * block. The first launch (advance.cl) has computed the products W x_s for the samples s of the
 * block. The sums of the first layer's units for sample s, without biases, are
 *     W x_s + sum over the block's samples r < s of (x_r . x_s) delta_r
 * where the update after sample r adds delta_r[j] * x_r[i] to the weight from input i to unit j. As
 * soon as delta_r is known, (x_r . x_s) delta_r is added to the sums of all later samples s of the
 * block. Weight decay multiplies W, and each earlier change, by a factor at each sample. The kernel
 * therefore multiplies the products and the inner products by powers of this factor.
 *
 * upper_layers.h describes further macros. NARROW is 0. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define UNITS 32 /* units of the first layer */
#define SPLITS 4 /* work-items that share the additions to the sums of a unit */
#define BLOCK 32 /* maximum number of samples of a block */
#define REACH 32 /* inner products per sample, each with one of the next samples (see gram.cl) */
#define TILE 64 /* samples of a work-group of gram.cl */
#define SLICES 1 /* slices of the inputs; advance.cl has computed partial products for each slice */
#define SUM_AT 1024 /* offset in shared memory, in floats, of the block's sums */
/* offset, in floats, of the inner products of three samples with later samples */
#define COEFFICIENT_AT 2048
#define POWER_AT 2144 /* offset of the powers of the decay factor, in floats */
#define FLOATS 2208 /* floats of shared memory */
#endif

#include "dialect/common.h"
#include "ops/backprop/upper_layers.h"

/* Number of inner products and targets of a sample that a work-item fetches. */
#define VALUES_PER_FETCHER CEIL_DIV(BLOCK + OUTPUTS, FETCHERS)

KERNEL WORK_GROUP_OF(THREADS) void in_turn(
    const GLOBAL float *RESTRICT targets, const GLOBAL int *RESTRICT order,
    const GLOBAL float *RESTRICT settings, const GLOBAL float *before, GLOBAL float *after,
    GLOBAL float *RESTRICT losses, const GLOBAL float *RESTRICT gram,
    const GLOBAL int *RESTRICT same, const GLOBAL float *RESTRICT products,
    GLOBAL float *RESTRICT deltas, int samples, int first, int count, int gram_count, int gram_first
    DYNAMIC_SHARED_PARAMETER(float4, pool4))
{
    DYNAMIC_SHARED(float4, pool4)
    SHARED_POINTER float *pool = (SHARED_POINTER float *)pool4;
    int item = LOCAL_ID(0), network = GROUP_ID(0), networks = GROUP_COUNT(0);
    int fetcher = item - FIRST_FETCHER;
    int source = same[network * CEIL_DIV(gram_count, TILE) + gram_first / TILE] ? 0 : network;
    float rate = settings[network * 3], decay = settings[network * 3 + 2];
    float fetched[VALUES_PER_FETCHER] = {0.0f};
    before += network * PARAMETERS;
    after += network * PARAMETERS;
    order += network * samples + first;
    losses += network * samples + first;
    gram += (source * gram_count + gram_first) * REACH;
    products += network * BLOCK * UNITS;
    deltas += network * BLOCK * UNITS;

/* FETCH loads the inner products and targets of a sample into registers. STAGE multiplies the inner
 * products by powers of the decay factor, and writes the results and the targets to shared
 * memory. */
#define FETCH(sample)                                                      \
    if ((sample) < count && IS_FETCHER)                                    \
        UNROLL for (int k = 0; k < VALUES_PER_FETCHER; k++) {              \
            int n = fetcher + FETCHERS * k;                                \
            if (n < BLOCK)                                                 \
                fetched[k] = gram[(sample) * REACH + n];                   \
            else if (n < BLOCK + OUTPUTS)                                  \
                fetched[k] = targets[order[sample] * OUTPUTS + n - BLOCK]; \
        }
#define STAGE(sample)                                                                      \
    if ((sample) < count && IS_FETCHER)                                                    \
        UNROLL for (int k = 0; k < VALUES_PER_FETCHER; k++) {                              \
            int n = fetcher + FETCHERS * k, buffer = (sample) % 2, slot = (sample) % 3;    \
            if (n < BLOCK)                                                                 \
                pool[COEFFICIENT_AT + slot * BLOCK + n] = fetched[k] * pool[POWER_AT + n]; \
            else if (n < BLOCK + OUTPUTS)                                                  \
                pool[TARGET_AT + buffer * PADDED(OUTPUTS) + n - BLOCK] = fetched[k];       \
        }

    for (int n = item; n < FLOATS; n += THREADS)
        pool[n] = 0.0f;
    BARRIER();
    load_upper_layers(pool, before, item);
    for (int n = item; n < BLOCK; n += THREADS) {
        float power = 1.0f;
        for (int k = 0; k < n; k++)
            power *= 1.0f - rate * decay;
        pool[POWER_AT + n] = power;
    }
    BARRIER();
    for (int n = item; n < count * UNITS; n += THREADS) {
        float sum = 0.0f;
        UNROLL for (int slice = 0; slice < SLICES; slice++)
            sum += products[slice * networks * BLOCK * UNITS + n];
        pool[SUM_AT + n] = sum * pool[POWER_AT + n / UNITS];
    }
    FETCH(0)
    STAGE(0)
    FETCH(1)
    GLOBAL_BARRIER();

    for (int s = 0; s < count; s++) {
        int buffer = s % 2;
        SHARED_POINTER const float *coefficient = pool + COEFFICIENT_AT + s % 3 * BLOCK;
        for (int j = item; j < UNITS; j += THREADS)
            store_output(pool, 0, j, pool[SUM_AT + s * UNITS + j] + pool[BIAS_AT + j], buffer);
        STAGE(s + 1)
        FETCH(s + 2)
        backpropagate_upper_layers(pool, item, buffer);
        BARRIER();
        /* No barrier is needed after this loop: the work-item that changes a sum of the next sample
         * also reads this sum. */
        for (int n = item; n < UNITS * SPLITS; n += THREADS) {
            int j = n % UNITS;
            float delta = -rate * pool[ERROR_AT + buffer * WIDTH + j];
            for (int r = s + 1 + n / UNITS; r < count; r += SPLITS)
                pool[SUM_AT + r * UNITS + j] =
                    FMA(coefficient[r - s - 1], delta, pool[SUM_AT + r * UNITS + j]);
            if (n < UNITS)
                deltas[s * UNITS + j] = delta * pool[POWER_AT + count - 1 - s];
        }
        update_upper_layers(pool, losses + s, item, buffer, rate, 0.0f, decay);
    }

    BARRIER();
    store_upper_layers(pool, after, item);
}
