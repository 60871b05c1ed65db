/* Online back-propagation of a network with one hidden layer by exact blocking, in one work-group
 * per network (pipeline.h). The matmul warps keep the first layer's weights in registers, and
 * multiply them on tensor cores.
 *
 * Inputs are assigned to the matmul warps in groups of 8. A warp holds the weights of its groups in
 * the register layout of the accumulator of mma.m16n8k8: units are rows (TILES * 16 rows), and
 * inputs are columns. The changes by the 8 samples of a block are a matrix product, (units x
 * samples) times (samples x inputs), whose accumulator has the same layout. The registers of the
 * weights are also the left operand (16 units x 8 inputs) of the products with samples: inputs 2 t
 * and 2 t + 1 are columns t and t + 4 of this operand, for t = 0 to 3. A group whose inputs are 0
 * in all samples of a block is skipped.
 *
 * TF32 has 11 significant bits. Each weight and each delta is therefore split into two numbers: its
 * upper 11 bits and the remainder. A warp also splits its inputs of a block if TF32 cannot
 * represent at least one of them. Changes are added to the weights by ordinary additions, because
 * tensor cores truncate their sums.
 *
 * In shared memory the inputs of a warp are stored group by group, as 8 rows of 8 inputs. Row r
 * holds the inputs of sample SAMPLE_OF(r). In this order, the lanes of a warp access different
 * banks, both when they read inputs and when they read deltas.
 *
 * Warp 4 makes the records. It is in the first warp's sub-partition of the multiprocessor. It has
 * little work, so it hardly delays the first warp.
 *
 * Macros that end in _AT are offsets in shared memory, in floats. FLOATS is the number of floats of
 * shared memory. pipeline.h has further macros; BLOCK is 8. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define GROUPS 2 /* groups of 8 inputs of a matmul warp */
#define ROWS_AT 1828 /* offset in shared memory, in floats, of the inputs of three blocks */
#define PARTIAL_AT 3984 /* offset of partial sums, in floats */
#define DATA_ROW_AT 5904 /* offset of the samples' row numbers in the data, in floats */
#define FLOATS 5920 /* floats of shared memory */
#endif

#include "dialect/common.h"
#include "sequential_core.h"
#include "pipeline.h"

#define IS_MATMUL_WARP (warp != 4)
#define MATMUL_WARP (warp - 1 - (warp > 4))
#define MATMUL_ITEMS (MATMUL_WARPS * 32)
#define TILES CEIL_DIV(HIDDEN, 16) /* tiles of 16 hidden units */
#define PAIRS CEIL_DIV(GROUPS, 2) /* pairs of groups of inputs */
#define PAIRS_AT_ONCE CEIL_DIV(PAIRS, 2) /* pairs whose inputs are fetched at once */
#define ROWS_FLOATS (PAIRS * 128) /* inputs of a warp in a block */
#define SUMS (TILES * 128) /* partial sums of a warp */
#define DATA_ROWS (2 * BLOCK)
#define SAMPLE_OF(row) ((row) % 4 * 2 + (row) / 4)
#define GROUP_OF(n) ((n) * MATMUL_WARPS + matmul_warp)
#define LINE 32 /* floats in a line of the L2 cache */
#define INEXACT 0x80000000u /* see Inputs */
#define TF32_LOST_BITS 0x1fffu
/* Hides the value of a number from the compiler, to leave registers for the weights. A compiler
 * that knows the value computes many offsets in advance, even if they differ only by a constant,
 * and keeps each of them in a register. */
#define OPAQUE(number) asm volatile("" : "+r"(number));

INLINE uint bits_of(float value)
{
    union {
        float value;
        uint bits;
    } number = {value};
    return number.bits;
}

/* Splits a number into its upper 11 bits, which TF32 represents, and the remainder. */
INLINE void split(float value, uint &upper, uint &lower)
{
    upper = bits_of(value) & ~TF32_LOST_BITS;
    lower = bits_of(value - __int_as_float((int)upper));
}

/* mma.sync.m16n8k8: adds the product of two matrices to a sum. Let i = lane / 4 and t = lane % 4. A
 * lane has the sum's elements in rows i and i + 8, and columns 2 t and 2 t + 1. */
INLINE void mma_sync(float (&sum)[4], const uint (&left)[4], uint first, uint second)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(first), "r"(second));
}

/* Where the inputs of a block are in shared memory, and which groups of inputs are not all 0.
 *
 * rows: the offset in shared memory of the first matmul warp's inputs.
 * active: for each group of this warp, a bit that is set if one of the group's inputs is nonzero.
 * Bit INEXACT is set if TF32 cannot represent one of the warp's inputs. */
struct Inputs {
    int rows;
    uint active;
};
#define ROWS_OF(inputs) ((inputs).rows + matmul_warp * ROWS_FLOATS)

/* The registers of a work-item of a matmul warp: weights, descriptions of the inputs of three
 * blocks (see Inputs), and inputs that are being fetched. */
struct MatmulState {
    float weight[GROUPS][TILES][4];
    Inputs before, now, next;
    int4 fetched_inputs[PAIRS_AT_ONCE];
};

/* Fetches this work-item's inputs of a block from PAIRS_AT_ONCE pairs of groups, beginning with
 * pair `start`. From each pair, the work-item fetches four inputs of one sample. */
INLINE void fetch_inputs(MatmulState &state, const Run *run, const int *data_row, int start,
                         int matmul_warp, int lane)
{
    int first = GROUP_OF(lane / 16) * 8 + lane % 2 * 4;
    int row = data_row[SAMPLE_OF(lane / 2 % 8)];
    UNROLL for (int p = start; p < start + PAIRS_AT_ONCE && p < PAIRS; p++) {
        int i = first + p * 2 * MATMUL_WARPS * 8;
        int4 four = {0, 0, 0, 0};
#if INPUTS % 4 == 0
        const int4 *fours = (const int4 *)run->x + row * (INPUTS / 4) + first / 4;
        if ((p + 1) * 2 * MATMUL_WARPS * 8 <= INPUTS || i < INPUTS)
            four = fours[p * 2 * MATMUL_WARPS * 2];
#else
        const int *from = (const int *)run->x + row * INPUTS + i;
        if (i < INPUTS)
            four.x = from[0];
        if (i + 1 < INPUTS)
            four.y = from[1];
        if (i + 2 < INPUTS)
            four.z = from[2];
        if (i + 3 < INPUTS)
            four.w = from[3];
#endif
        state.fetched_inputs[p - start] = four;
    }
}

/* Stores the fetched inputs in shared memory, except groups that are all 0. Sets the bits of the
 * stored groups in `inputs.active`. */
INLINE void store_inputs(float *pool, const MatmulState &state, Inputs &inputs, int start,
                         int matmul_warp, int lane)
{
    int group = lane / 16, all_bits = 0;
    int offset = ROWS_OF(inputs) + group * 64 + lane % 16 * 4;
    uint bits = 0;
    UNROLL for (int p = start; p < start + PAIRS_AT_ONCE && p < PAIRS; p++) {
        const int4 &four = state.fetched_inputs[p - start];
        int any = four.x | four.y | four.z | four.w;
        all_bits |= any;
        bits |= any ? 1u << 2 * p : 0u;
    }
    bits <<= group;
    bits |= all_bits & TF32_LOST_BITS ? INEXACT : 0u;
    bits = __reduce_or_sync(0xffffffffu, bits);
    inputs.active |= bits;
    bits >>= group;
    OPAQUE(offset)
    UNROLL for (int p = start; p < start + PAIRS_AT_ONCE && p < PAIRS; p++)
        if (bits >> 2 * p & 1)
            *(int4 *)(pool + offset + p * 128) = state.fetched_inputs[p - start];
}

/* Returns `bits`, which must be equal in all lanes. The ballot shows the compiler that they are. */
INLINE uint warp_uniform(uint bits, int lane)
{
    uint ballot;
    BALLOT(ballot, , bits >> lane & 1);
    return ballot;
}

/* Changes the weights by the updates of the block in `state.before`.
 *
 * records: the records of that block. */
INLINE void change_weights(const float *pool, MatmulState &state, const float *records,
                           int matmul_warp, int lane)
{
    uint upper[TILES][4], lower[TILES][4], active = warp_uniform(state.before.active, lane);
    int first_delta = lane % 4 * 2 * RECORD + lane / 4;
    int offset = ROWS_OF(state.before) + lane % 4 * 8 + lane / 4;
    OPAQUE(first_delta)
    OPAQUE(offset)
    const float *delta = records + first_delta + RECORD_DELTA;
    const float *column = pool + offset;
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int k = 0; k < 4; k++)
            split(delta[k / 2 * RECORD + tile * 16 + k % 2 * 8], upper[tile][k], lower[tile][k]);
    UNROLL for (int n = 0; n < GROUPS; n++)
        if (active >> n & 1) {
            float first = column[n * 64], second = column[n * 64 + 32];
            float sum[TILES][4] = {};
            UNROLL for (int tile = 0; tile < TILES; tile++)
                mma_sync(sum[tile], lower[tile], bits_of(first), bits_of(second));
            if (active & INEXACT) {
                uint low[2], high[2];
                split(first, high[0], low[0]);
                split(second, high[1], low[1]);
                UNROLL for (int tile = 0; tile < TILES; tile++)
                    mma_sync(sum[tile], upper[tile], low[0], low[1]);
            }
            UNROLL for (int tile = 0; tile < TILES; tile++)
                mma_sync(sum[tile], upper[tile], bits_of(first), bits_of(second));
            UNROLL for (int tile = 0; tile < TILES; tile++)
                UNROLL for (int k = 0; k < 4; k++)
                    state.weight[n][tile][k] += sum[tile][k];
        }
}

/* Adds the products of this warp's weights and its inputs of the next block to `sum` (units x
 * samples). Column r of `sum` belongs to sample SAMPLE_OF(r). */
INLINE void multiply_inputs(const float *pool, const MatmulState &state, float (&sum)[TILES][4],
                            int matmul_warp, int lane)
{
    uint active = warp_uniform(state.next.active, lane);
    int offset = ROWS_OF(state.next) + lane * 2;
    OPAQUE(offset)
    UNROLL for (int n = 0; n < GROUPS; n++)
        if (active >> n & 1) {
            float2 two = *(const float2 *)(pool + offset + n * 64);
            UNROLL for (int tile = 0; tile < TILES; tile++) {
                uint upper[4], lower[4];
                UNROLL for (int k = 0; k < 4; k++)
                    split(state.weight[n][tile][k % 2 * 2 + k / 2], upper[k], lower[k]);
                mma_sync(sum[tile], lower, bits_of(two.x), bits_of(two.y));
                if (active & INEXACT) {
                    uint low[2], high[2];
                    split(two.x, high[0], low[0]);
                    split(two.y, high[1], low[1]);
                    mma_sync(sum[tile], upper, low[0], low[1]);
                }
                mma_sync(sum[tile], upper, bits_of(two.x), bits_of(two.y));
            }
        }
}

/* Loops over this work-item's weights.
 *
 * exists: whether the network has the weight.
 * first: the offset of this work-item's first weight of unit j, among the network's parameters.
 * input_offset: the offset of the weight from `first`. */
#define FOR_EACH_WEIGHT(BODY)                                                                      \
    UNROLL for (int half = 0; half < 2 * TILES; half++) {                                          \
        int j = half * 8 + lane / 4;                                                               \
        int first = j * INPUTS + matmul_warp * 8 + lane % 4 * 2;                                   \
        UNROLL for (int n = 0; n < GROUPS; n++)                                                    \
            UNROLL for (int neighbour = 0; neighbour < 2; neighbour++) {                           \
                float &weight = state.weight[n][half / 2][half % 2 * 2 + neighbour];               \
                int input_offset = n * MATMUL_WARPS * 8 + neighbour;                               \
                bool exists = (half * 8 + 8 <= HIDDEN || j < HIDDEN)                               \
                              && ((n + 1) * MATMUL_WARPS * 8 <= INPUTS                             \
                                  || matmul_warp * 8 + lane % 4 * 2 + input_offset < INPUTS);      \
                BODY                                                                               \
            }                                                                                      \
    }

/* Recomputes the indices of the matmul warp and of the lane, so that they occupy no registers. */
#define COMPUTE_WARP_AND_LANE                                              \
    OPAQUE(item)                                                           \
    int lane = item & 31, warp = item >> 5, matmul_warp = MATMUL_WARP & 31;

INLINE void load_matmul_warp(float *pool, MatmulState &state, const Run *run, const float *before,
                             int item)
{
    COMPUTE_WARP_AND_LANE
    state.next = {ROWS_AT, 0};
    state.now = {ROWS_AT + MATMUL_WARPS * ROWS_FLOATS, 0};
    state.before = {ROWS_AT + 2 * MATMUL_WARPS * ROWS_FLOATS, 0};
    UNROLL for (int start = 0; start < PAIRS; start += PAIRS_AT_ONCE) {
        fetch_inputs(state, run, (const int *)pool + DATA_ROW_AT, start, matmul_warp, lane);
        store_inputs(pool, state, state.next, start, matmul_warp, lane);
    }
    /* The weights are fetched after the inputs, so that the two fetches do not occupy registers at
     * the same time. After the barrier, the warps that make records may overwrite the first block's
     * data rows. */
    PART_BARRIER(3, MATMUL_ITEMS + RECORD_ITEMS);
    FOR_EACH_WEIGHT(weight = exists ? (before + first)[input_offset] : 0.0f;)
}

INLINE void store_matmul_warp(MatmulState &state, float *after, int item)
{
    COMPUTE_WARP_AND_LANE
    FOR_EACH_WEIGHT(if (exists) (after + first)[input_offset] = weight;)
}

/* Adds up the partial sums of the matmul warps, and stores the results in the records
 * (RECORD_BASE). */
INLINE void add_sums(float *pool, float *records, int block, int record_item)
{
    for (int n = record_item; n < SUMS; n += MATMUL_ITEMS) {
        /* a lane of a matmul warp stored its four sums at consecutive addresses */
        int lane = n / 4 % 32, k = n % 4, sample = SAMPLE_OF(lane % 4 * 2 + k % 2);
        int unit = n / 128 * 16 + lane / 4 + k / 2 * 8;
        float sum = 0.0f;
        UNROLL for (int p = 0; p < MATMUL_WARPS; p++)
            sum += pool[PARTIAL_AT + p * SUMS + n];
        records[sample * RECORD + RECORD_BASE + unit] =
            pool[POWER_AT + (block < 0 ? 0 : BLOCK) + sample] * sum;
    }
}

#define RECORDS_OF(block) (pool + RECORD_AT + ((block) & 1) * BLOCK * RECORD)
#define DATA_ROWS_OF(block) ((int *)pool + DATA_ROW_AT + ((block) & 1) * BLOCK)

/* During a block, changes the weights by the updates of block - 1, multiplies the changed weights
 * by the samples of block + 1, and fetches the inputs of block + 2. */
INLINE void work_matmul_warp(float *pool, MatmulState &state, const Run *run, int item, int block)
{
    COMPUTE_WARP_AND_LANE
    const int *data_row = DATA_ROWS_OF(block + 2);

    fetch_inputs(state, run, data_row, 0, matmul_warp, lane);
    if (block > 0) {
        if (run->keep != 1.0f) {
            float decay_factor = pool[POWER_AT + LESSER(BLOCK, run->count - (block - 1) * BLOCK)];
            UNROLL for (int n = 0; n < GROUPS; n++)
                UNROLL for (int tile = 0; tile < TILES; tile++)
                    UNROLL for (int k = 0; k < 4; k++)
                        state.weight[n][tile][k] *= decay_factor;
        }
        change_weights(pool, state, RECORDS_OF(block - 1), matmul_warp, lane);
    }
    WARP_BARRIER();
    Inputs after = {state.before.rows, 0};
    store_inputs(pool, state, after, 0, matmul_warp, lane);
    fetch_inputs(state, run, data_row, PAIRS_AT_ONCE, matmul_warp, lane);
    float sum[TILES][4] = {};
    multiply_inputs(pool, state, sum, matmul_warp, lane);
    UNROLL for (int tile = 0; tile < TILES; tile++)
        SHARED_STORE4(pool + PARTIAL_AT + matmul_warp * SUMS + tile * 128 + lane * 4,
                     MAKE4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]));
    PART_BARRIER(1, MATMUL_ITEMS);
    add_sums(pool, RECORDS_OF(block + 1), block, matmul_warp * 32 + lane);
    store_inputs(pool, state, after, PAIRS_AT_ONCE, matmul_warp, lane);
    state.before = state.now;
    state.now = state.next;
    state.next = after;
}

/* The registers of a work-item that makes records.
 *
 * next_row: a later sample's row number in the data.
 * source: see fetch_records. */
struct Recorder {
    int next_row, source;
};

/* During a block, writes the losses of block - 1, and makes the records of block + 1 except
 * RECORD_BASE. */
INLINE void make_block(float *pool, Recorder &state, const Run *run, int record_item, int block)
{
    int next = (block + 1) * BLOCK;
    const float *power = pool + POWER_AT;
    float *records = RECORDS_OF(block + 1);
    int *data_row = DATA_ROWS_OF(block + 1);
    Fetched fetched;

    /* the inputs that the matmul warps fetch in the next block are prefetched to the L2 cache */
    if (record_item < 32)
        UNROLL for (int s = 0; s < BLOCK; s++) {
            int row = __shfl_sync(0xffffffffu, state.next_row, s);
            for (int i = record_item * LINE; i < INPUTS; i += 32 * LINE) {
                const float *line = run->x + row * INPUTS + i;
                asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
            }
        }
    fetch_records(&fetched, run, data_row, state.source, record_item, next);
    state.source = run->same[run->start_tile + CLAMPED(next + BLOCK) / TILE] ? 0 : run->network;
    if (block > 0)
        write_losses(records, run, record_item, next - 2 * BLOCK);
    make_records(records, power, &fetched, run, record_item, next);
    /* overwrite the data rows only when all warps that make records have read them */
    PART_BARRIER(4, RECORD_ITEMS);
    if (record_item < BLOCK) {
        data_row[record_item] = state.next_row;
        state.next_row = run->order[run->start + CLAMPED(next + 3 * BLOCK + record_item)];
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, 1) void pipeline_mma(PIPELINE_PARAMETERS)
{
    PIPELINE_START
    BARRIER();
    if (FIRST_WARP)
        FIRST_WARP_LOOP
    else if (IS_MATMUL_WARP) {
        MatmulState state;
        load_matmul_warp(pool, state, run, before, item);
        FOR_EACH_BLOCK(work_matmul_warp(pool, state, run, item, block);)
        store_matmul_warp(state, after, item);
    } else {
        int record_item = item % 32;
        Recorder state = {run->order[run->start + CLAMPED(2 * BLOCK + record_item)],
                        run->same[run->start_tile] ? 0 : run->network};
        PART_BARRIER(3, MATMUL_ITEMS + RECORD_ITEMS);
        FOR_EACH_BLOCK(make_block(pool, state, run, record_item, block);)
    }
}
