/* The code that is shared by pipeline.cl and pipeline_mma.cu, the two kernels of exact blocking in
 * one work-group per network: the beginning of the kernels, the loops over the blocks, and the
 * functions that make the records (see sequential_core.h). The two kernels differ in how they hold
 * the first layer's weights.
 *
 * While the first warp trains on the BLOCK samples of a block (sequential_core.h), the matmul warps
 * change the first layer's weights by the updates of the previous block, and multiply the weights
 * by the samples of the next block. A barrier of the work-group separates the blocks.
 *
 * Let W be the first layer's weights after block u - 1. The hidden units' sums for sample s of
 * block u + 1 are
 *     W x_s + sum over samples r of (x_r . x_s) delta_r
 * where r runs over block u, and over the samples before s of block u + 1. The update after sample
 * r adds delta_r[j] * x_r[i] to the weight from input i to hidden unit j. The matmul warps compute
 * W x_s during block u. `gram` contains the inner products. The first warp adds up the changes
 * (`pending`). A bias is a weight whose input is 1 in each sample, so the bias adds 1 to each inner
 * product. Weight decay multiplies W by `keep` at each sample. The inner products are therefore
 * multiplied by powers of `keep`. The added 1 is not, because biases do not decay. */

#pragma once

#if !defined CONFIGURED && !defined INPUTS
#define INPUTS 64 /* inputs */
#define TILE 64 /* samples of a work-group of gram.cl */
#define THREADS 224 /* work-items of the work-group */
#define MATMUL_WARPS 5 /* warps that change and multiply the first layer's weights */
#define RECORD_ITEMS 32 /* work-items that make records */
#define RECORD_AT 0 /* offset in shared memory, in floats, of the records of two blocks */
#define POWER_AT 1808 /* offset of the powers of `keep`, in floats */
#endif

#include "dialect/common.h"
#include "sequential_core.h"

#define FIRST_WARP (warp == 0)
#define PRODUCTS_PER_ITEM CEIL_DIV(BLOCK * REACH, RECORD_ITEMS)
#define TARGETS_PER_ITEM CEIL_DIV(BLOCK * OUTPUTS, RECORD_ITEMS)
#define CLAMPED(sample) LESSER(sample, run->count - 1) /* the sample, but at most the last one */
#define WEIGHT_COUNT (HIDDEN * (INPUTS + 1))
#define PARAMETERS (WEIGHT_COUNT + OUTPUTS * (HIDDEN + 1))

/* The training of one network on `count` samples.
 *
 * start: index of the first sample in `order` and `losses`, which contain the samples of all
 * networks.
 * start_tile: index of the first sample's tile in `same` (see gram.cl), which contains the tiles of
 * all networks.
 * rate: learning rate.
 * keep: factor of the weight decay for one sample. */
typedef struct {
    const GLOBAL float *x, *targets, *gram;
    const GLOBAL int *order, *same;
    GLOBAL float *losses;
    int network, count, start, start_tile;
    float rate, keep;
} Run;

/* A work-item's share of the inner products and targets of the next block. */
typedef struct {
    float product[PRODUCTS_PER_ITEM], target[TARGETS_PER_ITEM];
} Fetched;

/* Fetches inner products and targets of the block that begins with sample `next`.
 *
 * data_row: for each sample of the block, its row number in the data. If the last block is not
 * full, the row number of the last sample is repeated.
 * source: the network whose inner products are fetched: 0 if network 0 has the same samples in the
 * same order, else this network.
 * record_item: index of this work-item among those that make records. */
INLINE void fetch_records(Fetched *fetched, const Run *run, const SHARED_POINTER int *data_row,
                          int source, int record_item, int next)
{
    UNROLL for (int k = 0; k < PRODUCTS_PER_ITEM; k++) {
        int n = record_item + k * RECORD_ITEMS;
        fetched->product[k] = 0.0f;
        if (n < BLOCK * REACH && next + n / REACH < run->count)
            fetched->product[k] = run->gram[(source * run->count + next) * REACH + n];
    }
    UNROLL for (int k = 0; k < TARGETS_PER_ITEM; k++) {
        int n = record_item + k * RECORD_ITEMS;
        fetched->target[k] = 0.0f;
        if (n < BLOCK * OUTPUTS)
            fetched->target[k] = run->targets[data_row[n / OUTPUTS] * OUTPUTS + n % OUTPUTS];
    }
}

/* Writes the losses of a block from its records. first: the first sample of the block. */
INLINE void write_losses(const SHARED_POINTER float *records, const Run *run, int record_item,
                         int first)
{
    if (record_item < LESSER(BLOCK, run->count - first)) {
        float loss = 0.0f;
        for (int k = 0; k < OUTPUTS; k++)
            loss += records[record_item * RECORD + RECORD_TERM + k];
        run->losses[run->start + first + record_item] = loss;
    }
}

/* Makes the records of the block that begins with sample `next`, except RECORD_BASE, which the
 * matmul warps compute. power[n] is `keep` to the power n. */
INLINE void make_records(SHARED_POINTER float *records, const SHARED_POINTER float *power,
                         const Fetched *fetched, const Run *run, int record_item, int next)
{
    UNROLL for (int k = 0; k < PRODUCTS_PER_ITEM; k++) {
        int n = record_item + k * RECORD_ITEMS, s = n / REACH, d = n % REACH;
        /* For samples after the next block, the coefficient is 0: their RECORD_BASE already
         * contains the change by this sample. */
        if (n < BLOCK * REACH)
            records[s * RECORD + RECORD_COEFFICIENT + d] =
                s + 1 + d < 2 * BLOCK ? FMA(power[d], fetched->product[k], 1.0f) : 0.0f;
    }
    UNROLL for (int k = 0; k < TARGETS_PER_ITEM; k++) {
        int n = record_item + k * RECORD_ITEMS;
        if (n < BLOCK * OUTPUTS)
            records[n / OUTPUTS * RECORD + RECORD_TARGET + n % OUTPUTS] = fetched->target[k];
    }
    if (record_item < BLOCK) {
        int left = LESSER(BLOCK, run->count - next) - 1 - record_item;
        records[record_item * RECORD + RECORD_FACTOR] = left < 0 ? 0.0f : power[left];
    }
}

/* PIPELINE_PARAMETERS are the parameters of the kernels. `before` and `after` are the networks'
 * weights and biases before and after training. `first` is the first sample of this launch, and
 * `count` is the number of the launch's samples. PIPELINE_START begins a kernel: it defines
 * variables and sets shared memory to 0. It then writes the powers of `keep` and the first samples'
 * row numbers to shared memory. */
#define PIPELINE_PARAMETERS                                                                  \
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT targets,                    \
        const GLOBAL int *RESTRICT order, const GLOBAL float *RESTRICT settings,             \
        const GLOBAL float *before, GLOBAL float *after, GLOBAL float *RESTRICT losses,      \
        const GLOBAL float *RESTRICT gram, const GLOBAL int *RESTRICT same, int samples,     \
        int first, int count DYNAMIC_SHARED_PARAMETER(float4, pool4)

#define PIPELINE_START                                                            \
    DYNAMIC_SHARED(float4, pool4)                                                 \
    SHARED_POINTER float *pool = (SHARED_POINTER float *)pool4;                   \
    int item = LOCAL_ID(0), network = GROUP_ID(0), warp = item / 32;              \
    int blocks = CEIL_DIV(count, BLOCK);                                          \
    Run network_run = {x, targets, gram, order, same, losses, network, count,     \
                       network * samples + first,                                 \
                       network * CEIL_DIV(count, TILE),                           \
                       settings[network * 3],                                     \
                       1.0f - settings[network * 3] * settings[network * 3 + 2]}; \
    const Run *run = &network_run;                                                \
    before += network * PARAMETERS;                                               \
    after += network * PARAMETERS;                                                \
    for (int n = item; n < FLOATS; n += THREADS)                                  \
        pool[n] = 0.0f;                                                           \
    BARRIER();                                                                    \
    if (item <= 2 * BLOCK) {                                                      \
        pool[POWER_AT + item] = 1.0f;                                             \
        for (int n = 0; n < item; n++)                                            \
            pool[POWER_AT + item] *= run->keep;                                   \
    }                                                                             \
    if (item < DATA_ROWS)                                                         \
        ((SHARED_POINTER int *)pool)[DATA_ROW_AT + item] = run->order[run->start + CLAMPED(item)];

/* Runs the sequential core on `block`. Warps other than the first only take part in barriers. */
#define RUN_SEQUENTIAL_CORE(keep)                                                               \
    if (block >= 0 && block < blocks)                                                           \
        run_sequential_core(pool, pool + RECORD_AT + (block & 1) * BLOCK * RECORD, &core, item, \
              LESSER(BLOCK, count - block * BLOCK), run->rate, keep);

/* Loops over the blocks. The matmul warps multiply weights one block ahead and change them one
 * block behind, so the loop starts one block before the first and ends one after the last. In CUDA,
 * the first warp, the matmul warps and the other warps run separate loops, so that no warp needs
 * registers for the work of others. */
#define FOR_EACH_BLOCK(BODY)                                                                 \
    for (int block = -1; block <= blocks; block++) {                                         \
        BODY                                                                                 \
        PART_BARRIER(2, THREADS);                                                            \
    }
/* The loop of the first warp. Without weight decay, `keep` is the constant 1, so that the compiler
 * leaves out the multiplications by `keep`. */
#define FIRST_WARP_LOOP                                                                     \
    {                                                                                       \
        SequentialCore core;                                                                \
        load_sequential_core(&core, before + HIDDEN * INPUTS, before + WEIGHT_COUNT, item); \
        if (run->keep == 1.0f)                                                              \
            FOR_EACH_BLOCK(RUN_SEQUENTIAL_CORE(1.0f))                                       \
        else                                                                                \
            FOR_EACH_BLOCK(RUN_SEQUENTIAL_CORE(run->keep))                                  \
        store_sequential_core(&core, after + HIDDEN * INPUTS, after + WEIGHT_COUNT, item);  \
    }
