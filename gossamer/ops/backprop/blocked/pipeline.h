/* What exact blocking in one work-group a network has in common, however the first layer is worked
 * on: which warps do what, the records of a block, and the order of it all.
 *
 * While the first warp goes through the BLOCK samples of a block (sequential_core.h), the matmul warps change
 * the first layer's weights by the block before and multiply them by the block after. A barrier of
 * the group stands between blocks.
 *
 * With W the weights after block u - 1, the sums z of sample s of block u + 1 are
 *     W x_s + sum over the samples r of block u, and of u + 1 before s, of (x_r . x_s) delta_r
 * where delta_r is what r's error changes the hidden units' weights by for an input of 1. The
 * matmul warps compute W x_s while block u is gone through, `gram` holds the inner products, and
 * the first warp adds each delta_r to the sums that it still has before it (`pending`). Weight
 * decay multiplies W by `keep` a sample, and products by its powers.
 *
 * INPUTS, BLOCK (a multiple of 4), REACH (2 * BLOCK), TILE (as in gram.cl)
 * THREADS, MATMUL_WARPS (warps), RECORD_ITEMS (work-items that make records)
 * RECORD_AT, POWER_AT  places in shared memory, in floats
 * and those of sequential_core.h */

#define FIRST_WARP (warp == 0)
#define PRODUCTS CEIL_DIV(BLOCK * REACH, RECORD_ITEMS)
#define TARGETS CEIL_DIV(BLOCK * OUTPUTS, RECORD_ITEMS)
#define CLAMPED(sample) LESSER(sample, run->count - 1)
#define WEIGHT_COUNT (HIDDEN * (INPUTS + 1))
#define PARAMETERS (WEIGHT_COUNT + OUTPUTS * (HIDDEN + 1))

/* A network's part in the run: `count` samples, from `start` on among those of all networks, and
 * from the tile `start_tile` on. */
typedef struct {
    const GLOBAL float *x, *targets, *gram;
    const GLOBAL int *order, *same;
    GLOBAL float *losses;
    int network, count, start, start_tile;
    float rate, keep;
} Run;

/* What a work-item that makes records fetches for the next block's. */
typedef struct {
    float product[PRODUCTS], target[TARGETS];
} Fetched;

/* Asks for the products (where `source` says) and the targets of the block whose first sample is
 * `next`. What is past the last sample is one's that has been, and comes to nothing. */
INLINE void fetch_records(Fetched *fetched, const Run *run, const SHARED_POINTER int *data_row,
                          int source, int worker, int next)
{
    UNROLL for (int k = 0; k < PRODUCTS; k++) {
        int n = worker + k * RECORD_ITEMS;
        fetched->product[k] = 0.0f;
        if (n < BLOCK * REACH && next + n / REACH < run->count)
            fetched->product[k] = run->gram[(source * run->count + next) * REACH + n];
    }
    UNROLL for (int k = 0; k < TARGETS; k++) {
        int n = worker + k * RECORD_ITEMS;
        fetched->target[k] = 0.0f;
        if (n < BLOCK * OUTPUTS)
            fetched->target[k] = run->targets[data_row[n / OUTPUTS] * OUTPUTS + n % OUTPUTS];
    }
}

/* The losses of the block whose first sample is `last`, from its records. */
INLINE void write_losses(const SHARED_POINTER float *records, const Run *run, int worker,
                         int last)
{
    if (worker < LESSER(BLOCK, run->count - last)) {
        float loss = 0.0f;
        for (int k = 0; k < OUTPUTS; k++)
            loss += records[worker * RECORD + RECORD_TERM + k];
        run->losses[run->start + last + worker] = loss;
    }
}

/* All of the records but the sums that they start from. */
INLINE void make_records(SHARED_POINTER float *records, const SHARED_POINTER float *power,
                         const Fetched *fetched, const Run *run, int worker, int next)
{
    UNROLL for (int k = 0; k < PRODUCTS; k++) {
        int n = worker + k * RECORD_ITEMS, s = n / REACH, d = n % REACH;
        if (n < BLOCK * REACH)
            records[s * RECORD + RECORD_COEFFICIENT + d] =
                s + 1 + d < 2 * BLOCK ? FMA(power[d], fetched->product[k], 1.0f) : 0.0f;
    }
    UNROLL for (int k = 0; k < TARGETS; k++) {
        int n = worker + k * RECORD_ITEMS;
        if (n < BLOCK * OUTPUTS)
            records[n / OUTPUTS * RECORD + RECORD_WANTED + n % OUTPUTS] = fetched->target[k];
    }
    if (worker < BLOCK) {
        int left = LESSER(BLOCK, run->count - next) - 1 - worker;
        records[worker * RECORD + RECORD_FACTOR] = left < 0 ? 0.0f : power[left];
    }
}

/* The kernels' parameters, and a work-item's view of them. */
#define PIPELINE_PARAMETERS                                                                  \
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT targets,                    \
        const GLOBAL int *RESTRICT order, const GLOBAL float *RESTRICT settings,             \
        const GLOBAL float *before, GLOBAL float *after, GLOBAL float *RESTRICT losses,      \
        const GLOBAL float *RESTRICT gram, const GLOBAL int *RESTRICT same, int samples,     \
        int first, int count DYNAMIC_SHARED_PARAMETER(float4, pool4)

#define PIPELINE_START                                                                       \
    DYNAMIC_SHARED(float4, pool4)                                                             \
    SHARED_POINTER float *pool = (SHARED_POINTER float *)pool4;                                \
    int item = LOCAL_ID(0), network = GROUP_ID(0), warp = item / 32;                         \
    int blocks = CEIL_DIV(count, BLOCK);                                                     \
    Run here = {x, targets, gram, order, same, losses, network, count,                       \
                network * samples + first, network * CEIL_DIV(count, TILE),                  \
                settings[network * 3],                                                       \
                1.0f - settings[network * 3] * settings[network * 3 + 2]};                   \
    const Run *run = &here;                                                                  \
    before += network * PARAMETERS;                                                          \
    after += network * PARAMETERS;                                                           \
    for (int n = item; n < FLOATS; n += THREADS)                                             \
        pool[n] = 0.0f;                                                                      \
    BARRIER();                                                                               \
    if (item <= 2 * BLOCK) {                                                                 \
        pool[POWER_AT + item] = 1.0f;                                                        \
        for (int n = 0; n < item; n++)                                                       \
            pool[POWER_AT + item] *= run->keep;                                              \
    }                                                                                        \
    if (item < DATA_ROWS)                                                                    \
        ((SHARED_POINTER int *)pool)[DATA_ROW_AT + item] = run->order[run->start + CLAMPED(item)];

/* The first warp's part of a block. */
#define LEARN(keep)                                                                          \
    if (block >= 0 && block < blocks)                                                        \
        learn(pool, pool + RECORD_AT + (block & 1) * BLOCK * RECORD, &core, item,         \
              LESSER(BLOCK, count - block * BLOCK), run->rate, keep);

/* Where each warp has a program counter of its own: a part in a loop of its own keeps no registers
 * for the others. */
#define BLOCKS_OF(PART_OF_BLOCK)                                                             \
    for (int block = -1; block <= blocks; block++) {                                         \
        PART_OF_BLOCK                                                                        \
        PART_BARRIER(2, THREADS);                                                            \
    }
/* Weights that do not decay need no multiplication. */
#define FIRST_WARPS_BLOCKS                                                                   \
    {                                                                                        \
        SequentialCore core;                                                                     \
        load_sequential_core(&core, before + HIDDEN * INPUTS, before + WEIGHT_COUNT, item);       \
        if (run->keep == 1.0f)                                                               \
            BLOCKS_OF(LEARN(1.0f))                                                           \
        else                                                                                 \
            BLOCKS_OF(LEARN(run->keep))                                                      \
        store_sequential_core(&core, after + HIDDEN * INPUTS, after + WEIGHT_COUNT, item);        \
    }
