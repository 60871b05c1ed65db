/* Online back-propagation in one launch. One work-group per network keeps all parameters in
 * registers and shared memory until the last sample, and fetches each sample while it trains on the
 * previous one.
 *
 * In the first layer, each set of LANES neighbouring work-items has its own SHARE inputs. Each
 * work-item of a set has PER_ITEM units, which are LANES apart. So each weight is read and changed
 * by one work-item only. Without velocities, the stored weights of the first layer are the weights
 * divided by `scale`. Weight decay then multiplies only `scale`, once per update.
 *
 * upper_layers.h has further macros. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define INPUTS 64 /* inputs of the first layer */
#define UNITS 32 /* units of the first layer */
#define LANES 32 /* neighbouring work-items that have the same SHARE inputs */
#define SPLITS 4 /* sets of LANES work-items */
#define SHARE 16 /* inputs of a work-item */
#define PER_ITEM 1 /* units of a work-item, LANES apart */
#define REGISTERS 0 /* 1: the first layer's weights are in registers */
/* 1: inputs of 0 are skipped; for every 32 neighbouring inputs, a list holds the nonzero ones */
#define SPARSE 0
#define X_AT 1024 /* offset of the inputs of two samples in shared memory, in floats */
#define LISTED_AT 1152 /* offset of the indices of the listed inputs, in floats */
#define LENGTHS_AT 1152 /* offset of the lengths of the lists, in floats */
#define FIRST_AT 1152 /* offset of the first layer's weights, in floats */
#define VELOCITY_AT 3200 /* offset of the velocities of the first layer's weights, in floats */
#define FLOATS 3200 /* floats of shared memory */
#endif

#include "dialect/common.h"
#include "ops/backprop/upper_layers.h"

#define STRIDE (LANES * PER_ITEM)
#define PADDED_INPUTS (SPLITS * SHARE)
#define LISTS CEIL_DIV(INPUTS, 32)

#define INPUTS_PER_FETCHER CEIL_DIV(INPUTS, FETCHERS)
#define TARGETS_PER_FETCHER CEIL_DIV(OUTPUTS, FETCHERS)

/* For this work-item's k-th input and u-th unit: the indices of the input and of the unit, the
 * offset of their weight in global memory, whether the weight exists, and its velocity. */
#define FIRST_I (split * SHARE + (k))
#define FIRST_J ((u) * LANES + lane)
#define FIRST_GLOBAL_AT (FIRST_J * INPUTS + FIRST_I)
#define IS_FIRST_WEIGHT (FIRST_I < INPUTS && FIRST_J < UNITS)
#define FIRST_VELOCITY pool[VELOCITY_AT + FIRST_I * STRIDE + FIRST_J]
#if REGISTERS
#define WEIGHT weights[u][k]
#define ALONG_SHARE UNROLL
#else
#define WEIGHT first[FIRST_I * STRIDE + FIRST_J]
#define ALONG_SHARE
#endif
#define FOR_EACH_WEIGHT                                   \
    if (split < SPLITS)                                   \
        ALONG_SHARE for (int k = 0; k < SHARE; k++)       \
            UNROLL for (int u = 0; u < PER_ITEM; u++)

/* Loops over this work-item's lists of a sample's nonzero inputs, AT_ONCE entries at a time. The
 * lists are padded with inputs of 0, whose row of weights belongs to no input. */
#define AT_ONCE 4
#define FOR_EACH_LISTED                                                                      \
    for (int list = split; list < LISTS; list += SPLITS)                                     \
        for (int n = (buffer * LISTS + list) * 32, end = n + lengths[buffer * LISTS + list]; \
             n < end; n += AT_ONCE)

KERNEL WORK_GROUP_OF(THREADS) void persistent(
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
    float fetched[INPUTS_PER_FETCHER] = {0.0f}, fetched_target[TARGETS_PER_FETCHER] = {0.0f};
#if REGISTERS
    float weights[PER_ITEM][SHARE];
#else
    SHARED_POINTER float *first = pool + FIRST_AT;
#endif
    before += network * PARAMETERS * (VELOCITY + 1);
    after += network * PARAMETERS * (VELOCITY + 1);
    order += network * samples;
    losses += network * samples;

/* FETCH loads the inputs and targets of a sample into registers. STAGE writes these registers to
 * one of two buffers in shared memory. STAGE_INPUTS writes only the inputs. */
#define FETCH(sample)                                                                              \
    if ((sample) < samples && IS_FETCHER) {                                                        \
        int row = order[sample];                                                                   \
        UNROLL for (int k = 0; k < INPUTS_PER_FETCHER; k++)                                        \
            if (fetcher + FETCHERS * k < INPUTS)                                                   \
                fetched[k] = x[row * INPUTS + fetcher + FETCHERS * k];                             \
        UNROLL for (int k = 0; k < TARGETS_PER_FETCHER; k++)                                       \
            if (fetcher + FETCHERS * k < OUTPUTS)                                                  \
                fetched_target[k] = targets[row * OUTPUTS + fetcher + FETCHERS * k];               \
    }

#if SPARSE
#define STAGE_INPUTS(buffer)                                                                       \
    if (PART(IS_FETCHER)) {                                                                        \
        UNROLL for (int k = 0; k < INPUTS_PER_FETCHER; k++) {                                      \
            int i = fetcher + FETCHERS * k, list = (buffer) * LISTS + i / 32;                      \
            int active = IS_FETCHER && i < INPUTS && fetched[k] != 0.0f;                           \
            uint ballot;                                                                           \
            BALLOT(ballot, votes, active);                                                         \
            if (active) {                                                                          \
                int n = list * 32 + POPCOUNT(ballot & ((1u << i % 32) - 1u));                      \
                pool[X_AT + n] = fetched[k];                                                       \
                listed[n] = i;                                                                     \
            }                                                                                      \
            int count = POPCOUNT(ballot), end = CEIL_DIV(count, AT_ONCE) * AT_ONCE;                \
            if (IS_FETCHER && i < LISTS * 32 && i % 32 >= count && i % 32 < end) {                 \
                pool[X_AT + list * 32 + i % 32] = 0.0f;                                            \
                listed[list * 32 + i % 32] = PADDED_INPUTS + i / 32 % SPLITS;                      \
            }                                                                                      \
            if (IS_FETCHER && i < INPUTS && i % 32 == 0)                                           \
                lengths[list] = end;                                                               \
        }                                                                                          \
    }
#else
#define STAGE_INPUTS(buffer)                                                                       \
    UNROLL for (int k = 0; k < INPUTS_PER_FETCHER; k++)                                            \
        if (IS_FETCHER && fetcher + FETCHERS * k < INPUTS)                                         \
            pool[X_AT + (buffer) * PADDED_INPUTS + fetcher + FETCHERS * k] = fetched[k];
#endif

#define STAGE(buffer)                                                                       \
    STAGE_INPUTS(buffer)                                                                    \
    UNROLL for (int k = 0; k < TARGETS_PER_FETCHER; k++)                                    \
        if (IS_FETCHER && fetcher + FETCHERS * k < OUTPUTS)                                 \
            pool[TARGET_AT + (buffer) * PADDED(OUTPUTS) + fetcher + FETCHERS * k] =         \
                fetched_target[k];

    for (int n = item; n < FLOATS; n += THREADS)
        pool[n] = 0.0f;
    BARRIER();
    load_upper_layers(pool, before, item);
    FOR_EACH_WEIGHT {
        WEIGHT = IS_FIRST_WEIGHT ? before[FIRST_GLOBAL_AT] : 0.0f;
        if (VELOCITY)
            FIRST_VELOCITY = IS_FIRST_WEIGHT ? before[PARAMETERS + FIRST_GLOBAL_AT] : 0.0f;
    }
    FETCH(0)
    STAGE(0)
    FETCH(1)
    GLOBAL_BARRIER();

    for (int s = 0; s < samples; s++) {
        int buffer = s % 2;
        if (split < SPLITS) {
            float sum[PER_ITEM];
            UNROLL for (int u = 0; u < PER_ITEM; u++)
                sum[u] = 0.0f;
#if SPARSE
            FOR_EACH_LISTED {
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
                float4 four = SHARED_LOAD4(pool + X_AT + buffer * PADDED_INPUTS
                                           + split * SHARE + k4);
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
            for (int part = 0; part < SPLITS; part++)
                sum += pool[PARTIAL_AT + part * STRIDE + j];
            store_output(pool, 0, j, FMA(scale, sum, pool[BIAS_AT + j]), buffer);
        }
        STAGE(1 - buffer)
        FETCH(s + 2)
        backpropagate_upper_layers(pool, item, buffer);
        BARRIER();

        update_upper_layers(pool, losses + s, item, buffer, rate, momentum, decay);
        float step = 1.0f;
#if !VELOCITY
        scale *= 1.0f - rate * decay;
        if (fabs(scale) < 0.001f) {
            BARRIER();
            FOR_EACH_WEIGHT
                WEIGHT *= scale;
            BARRIER();
            scale = 1.0f;
        }
        step = -rate / scale;
#endif
        if (split < SPLITS) {
            float delta[PER_ITEM];
            UNROLL for (int u = 0; u < PER_ITEM; u++)
                delta[u] = step * pool[ERROR_AT + buffer * WIDTH + FIRST_J];
#if SPARSE
            FOR_EACH_LISTED {
                SHARED_POINTER float *address[AT_ONCE];
                float weight[AT_ONCE][PER_ITEM], in[AT_ONCE];
                UNROLL for (int a = 0; a < AT_ONCE; a++) {
                    in[a] = pool[X_AT + n + a];
                    address[a] = first + listed[n + a] * STRIDE + lane;
                    UNROLL for (int u = 0; u < PER_ITEM; u++)
                        weight[a][u] = address[a][u * LANES];
                }
                UNROLL for (int a = 0; a < AT_ONCE; a++)
                    UNROLL for (int u = 0; u < PER_ITEM; u++)
                        address[a][u * LANES] = FMA(delta[u], in[a], weight[a][u]);
            }
#else
            ALONG_SHARE for (int k4 = 0; k4 < SHARE; k4 += 4) {
                float4 four = SHARED_LOAD4(pool + X_AT + buffer * PADDED_INPUTS
                                           + split * SHARE + k4);
                float value[4] = {four.x, four.y, four.z, four.w};
                UNROLL for (int k = k4; k < k4 + 4; k++)
                    UNROLL for (int u = 0; u < PER_ITEM; u++) {
#if VELOCITY
                        float velocity = FMA(momentum, FIRST_VELOCITY, decay * WEIGHT);
                        velocity = FMA(delta[u], value[k - k4], velocity);
                        FIRST_VELOCITY = velocity;
                        WEIGHT = FMA(-rate, velocity, WEIGHT);
#else
                        WEIGHT = FMA(delta[u], value[k - k4], WEIGHT);
#endif
                    }
            }
#endif
        }
    }

    BARRIER();
    store_upper_layers(pool, after, item);
    FOR_EACH_WEIGHT {
        if (IS_FIRST_WEIGHT) {
            after[FIRST_GLOBAL_AT] = scale * WEIGHT;
            if (VELOCITY)
                after[PARAMETERS + FIRST_GLOBAL_AT] = FIRST_VELOCITY;
        }
    }
}
