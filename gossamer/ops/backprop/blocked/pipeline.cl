/* Online back-propagation of a network with one hidden layer by exact blocking, in one work-group
 * per network (pipeline.h). The first layer's weights are in shared memory.
 *
 * A row of weights contains the weights from one input to all hidden units. The inputs are assigned
 * to the matmul warps in sectors of 8, so that each warp has an equal share of any part of a
 * picture. For each block, a warp lists those of its inputs that are nonzero in at least one sample
 * of the block. The list contains the values of these inputs. The warp reads only the rows of the
 * listed inputs. A warp has ROWS groups of LANES work-items, and each work-item of a group has
 * PER_ITEM weights of a row. To change weights, the groups process different rows. To multiply
 * weights, each group processes all rows, for GROUP_SAMPLES samples of the block.
 *
 * Macros that end in _AT are offsets in shared memory, in floats. FLOATS is the number of floats of
 * shared memory. pipeline.h has further macros. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define PER_ITEM 4 /* units of a work-item */
#define LANES 8 /* work-items that share a row of weights, a power of two */
#define CAPACITY 16 /* maximum number of inputs of a matmul warp */
#define AHEAD 2 /* rows of weights that a work-item processes in a step */
#define WEIGHT_AT 1828 /* offset in shared memory, in floats, of the first layer's weights */
#define LIST_AT 3876 /* offset of the lists of the values of nonzero inputs, in floats */
#define ROWS_AT 5284 /* offset of the lists of the rows of these inputs, in floats */
#define PARTIAL_AT 5412 /* offset of partial sums, in floats */
#define DATA_ROW_AT 6692 /* offset of the samples' row numbers in the data, in floats */
#define VOTES_AT 6708 /* offset of the votes for BALLOT, in floats */
#define FLOATS 6724 /* floats of shared memory */
#endif

#include "dialect/common.h"
#include "sequential_core.h"
#include "pipeline.h"

#define IS_MATMUL_WARP (warp != 0)
#define MATMUL_WARP (warp - 1)
#define MATMUL_ITEMS (MATMUL_WARPS * 32)
#define ROWS (32 / LANES)
#define STEP (ROWS * AHEAD) /* rows of weights that a warp processes in a step */
#define GROUP_SAMPLES (BLOCK / ROWS)
#define QUADS CEIL_DIV(CAPACITY, 128) /* number of groups of four inputs per work-item */
#define DATA_ROWS BLOCK

/* The index of the n-th input of a matmul warp. Sectors are assigned to the warps in rounds, and
 * the first sector of round r goes to warp r % MATMUL_WARPS. */
#define INPUT_OF(n)                                                               \
    (((n) / 8 * MATMUL_WARPS                                                      \
      + (matmul_warp + MATMUL_WARPS * CAPACITY - (n) / 8) % MATMUL_WARPS) * 8     \
     + (n) % 8)

/* UNPACK reads PER_ITEM neighbouring floats of shared memory. PACK writes as many. */
#if PER_ITEM == 1
#define UNPACK(to, from) (to)[0] = *(from);
#define PACK(to, from) *(to) = (from)[0];
#elif PER_ITEM == 2
#define UNPACK(to, from) UNPACK2(to, from)
#define PACK(to, from)                                                \
    {                                                                 \
        float2 vector;                                                \
        vector.x = (from)[0], vector.y = (from)[1];                   \
        *(SHARED_POINTER float2 *)(to) = vector;                      \
    }
#else
#define UNPACK(to, from) UNPACK4(to, from)
#define PACK(to, from) SHARED_STORE4(to, MAKE4((from)[0], (from)[1], (from)[2], (from)[3]));
#endif
#if GROUP_SAMPLES == 1
#define UNPACK_SAMPLES(to, from) (to)[0] = *(from);
#elif GROUP_SAMPLES == 2
#define UNPACK_SAMPLES(to, from) UNPACK2(to, from)
#else
#define UNPACK_SAMPLES(to, from)                                      \
    UNROLL for (int k = 0; k < GROUP_SAMPLES; k += 4)                 \
        UNPACK4((to) + k, (from) + k)
#endif

#define VOTES_OF_WARPS ((SHARED_POINTER uint *)(pool + VOTES_AT))

/* The registers of a work-item of a matmul warp.
 *
 * quad: the indices of the work-item's groups of four inputs.
 * valid: for each group, a mask of 32 ones if the network has these inputs, else 0.
 * next_row: a later sample's row number in the data.
 * source: see fetch_records.
 * listed_before, listed: lengths of the warp's lists for the previous and for the current block. */
typedef struct {
    int quad[QUADS], valid[QUADS], next_row, source, listed_before, listed;
} MatmulState;

/* The weights of this work-item's units in a row of weights; `bytes` is the offset of the row. */
#define WEIGHTS(bytes) \
    ((SHARED_POINTER float *)((SHARED_POINTER char *)(pool + WEIGHT_AT + unit) + (bytes)))

INLINE void load_matmul_warp(SHARED_POINTER float *pool, MatmulState *state, const Run *run,
                             int warp, int item)
{
    int matmul_warp = IS_MATMUL_WARP ? MATMUL_WARP : 0;
    UNROLL for (int q = 0; q < QUADS; q++) {
        int n = (q * 32 + item % 32) * 4;
        int exists = IS_MATMUL_WARP && n < CAPACITY && INPUT_OF(n) < INPUTS;
        state->quad[q] = exists ? INPUT_OF(n) / 4 : 0;
        state->valid[q] = exists ? -1 : 0;
    }
    state->next_row = run->order[run->start + CLAMPED(BLOCK + matmul_warp * 32 + item % 32)];
    state->source = run->same[run->start_tile] ? 0 : run->network;
    state->listed_before = 0;
    state->listed = 0;
}

/* During a block, changes the weights by the updates of the previous block, multiplies the changed
 * weights by the samples of the next block, and makes the records of the next block. */
INLINE void work_matmul_warp(SHARED_POINTER float *pool, MatmulState *state, const Run *run,
                             int warp, int item, int block)
{
    int lane = item % 32, lane_group = lane / LANES, unit = lane % LANES * PER_ITEM;
    int matmul_warp = IS_MATMUL_WARP ? MATMUL_WARP : 0, matmul_item = matmul_warp * 32 + lane;
    int now = block & 1, next = (block + 1) * BLOCK, last = (block - 1) * BLOCK;
    SHARED_POINTER float *power = pool + POWER_AT, *partial = pool + PARTIAL_AT;
    SHARED_POINTER float *other_records = pool + RECORD_AT + (1 - now) * BLOCK * RECORD;
    SHARED_POINTER int *data_row = (SHARED_POINTER int *)pool + DATA_ROW_AT;
    int value[QUADS][4][BLOCK];
    Fetched fetched;

    /* inputs, inner products and targets of the next block are fetched early, to hide latency */
    UNROLL for (int s = 0; s < BLOCK; s++)
        UNROLL for (int q = 0; q < QUADS; q++) {
#if INPUTS % 4 == 0
            int4 four =
                ((const GLOBAL int4 *)run->x)[data_row[s] * (INPUTS / 4) + state->quad[q]];
            value[q][0][s] = four.x, value[q][1][s] = four.y;
            value[q][2][s] = four.z, value[q][3][s] = four.w;
#else
            UNROLL for (int e = 0; e < 4; e++) {
                int i = state->quad[q] * 4 + e;
                value[q][e][s] =
                    i < INPUTS ? ((const GLOBAL int *)run->x)[data_row[s] * INPUTS + i] : 0;
            }
#endif
        }
    fetch_records(&fetched, run, data_row, state->source, matmul_item, next);
    state->source = run->same[run->start_tile + CLAMPED(next + BLOCK) / TILE] ? 0 : run->network;

    if (IS_MATMUL_WARP && block > 0)
        write_losses(other_records, run, matmul_item, last);
    if (run->keep != 1.0f && block > 0) {
        float decay_factor = power[LESSER(BLOCK, run->count - last)];
        for (int n = lane_group; IS_MATMUL_WARP && n < CAPACITY; n += ROWS)
            for (int u = 0; INPUT_OF(n) < INPUTS && u < PER_ITEM; u++)
                WEIGHTS(INPUT_OF(n) * STRIDE * 4)[u] *= decay_factor;
        WARP_BARRIER();
    }
    SHARED_POINTER float *list =
        pool + LIST_AT + ((1 - now) * MATMUL_WARPS + matmul_warp) * CAPACITY * BLOCK;
    SHARED_POINTER int *row =
        (SHARED_POINTER int *)pool + ROWS_AT + ((1 - now) * MATMUL_WARPS + matmul_warp) * CAPACITY;
    if (IS_MATMUL_WARP && block > 0) {
        float delta[BLOCK][PER_ITEM];
        /* steps that go past the end of the list change a spare row, which nothing reads */
        SHARED_POINTER float *spare = partial + (matmul_warp * BLOCK + lane_group) * STRIDE + unit;
        UNROLL for (int s = 0; s < BLOCK; s++)
            UNPACK(delta[s], other_records + s * RECORD + RECORD_DELTA + unit)
        for (int n = lane_group; n < state->listed_before; n += STEP) {
            float weight[AHEAD][PER_ITEM];
            SHARED_POINTER float *row_weights[AHEAD];
            UNROLL for (int a = 0; a < AHEAD; a++) {
                row_weights[a] = n + a * ROWS < state->listed_before ? WEIGHTS(row[n + a * ROWS])
                                                        : spare;
                UNPACK(weight[a], row_weights[a])
            }
            UNROLL for (int a = 0; a < AHEAD; a++)
                UNROLL for (int s = 0; s < BLOCK; s += 4) {
                    float four[4];
                    UNPACK4(four, list + (n + a * ROWS) * BLOCK + s)
                    UNROLL for (int u = 0; u < PER_ITEM; u++)
                        UNROLL for (int k = 0; k < 4; k++)
                            weight[a][u] =
                                FMA(delta[s + k][u], four[k], weight[a][u]);
                }
            UNROLL for (int a = 0; a < AHEAD; a++)
                PACK(row_weights[a], weight[a])
        }
    }
    state->listed_before = state->listed;
    state->listed = 0;
    WARP_BARRIER();
    UNROLL for (int q = 0; q < QUADS; q++)
        UNROLL for (int e = 0; e < 4; e++) {
            uint ballot;
            int bits = 0;
            UNROLL for (int s = 0; s < BLOCK; s++)
                bits |= value[q][e][s];
            int active = (bits & state->valid[q]) != 0;
            BALLOT(ballot, VOTES_OF_WARPS, active);
            if (active) {
                int n = state->listed + POPCOUNT(ballot & ((1u << lane) - 1u));
                row[n] = (state->quad[q] * 4 + e) * (STRIDE * 4);
                UNROLL for (int s = 0; s < BLOCK; s += 4) {
                    int4 four;
                    four.x = value[q][e][s], four.y = value[q][e][s + 1];
                    four.z = value[q][e][s + 2], four.w = value[q][e][s + 3];
                    *(SHARED_POINTER int4 *)(list + n * BLOCK + s) = four;
                }
            }
            state->listed += POPCOUNT(ballot);
        }
    /* The list is padded to whole steps. Padding has the value 0 and row INPUTS, a spare row. */
    if (IS_MATMUL_WARP && lane < CEIL_DIV(state->listed, STEP) * STEP - state->listed) {
        row[state->listed + lane] = INPUTS * STRIDE * 4;
        for (int s = 0; s < BLOCK; s++)
            list[(state->listed + lane) * BLOCK + s] = 0.0f;
    }
    WARP_BARRIER();
    if (IS_MATMUL_WARP) {
        float sum[GROUP_SAMPLES][PER_ITEM];
        UNROLL for (int s = 0; s < GROUP_SAMPLES; s++)
            UNROLL for (int u = 0; u < PER_ITEM; u++)
                sum[s][u] = 0.0f;
        for (int n = 0; n < state->listed; n += STEP) {
            float weight[STEP][PER_ITEM], in[STEP][GROUP_SAMPLES];
            UNROLL for (int a = 0; a < STEP; a += 4) {
                int4 four = *(const SHARED_POINTER int4 *)(row + n + a);
                UNPACK(weight[a], WEIGHTS(four.x))
                UNPACK(weight[a + 1], WEIGHTS(four.y))
                UNPACK(weight[a + 2], WEIGHTS(four.z))
                UNPACK(weight[a + 3], WEIGHTS(four.w))
            }
            UNROLL for (int a = 0; a < STEP; a++) {
                UNPACK_SAMPLES(in[a], list + (n + a) * BLOCK + lane_group * GROUP_SAMPLES)
            }
            UNROLL for (int a = 0; a < STEP; a++)
                UNROLL for (int s = 0; s < GROUP_SAMPLES; s++)
                    UNROLL for (int u = 0; u < PER_ITEM; u++)
                        sum[s][u] = FMA(weight[a][u], in[a][s], sum[s][u]);
        }
        UNROLL for (int s = 0; s < GROUP_SAMPLES; s++)
            PACK(partial + (matmul_warp * BLOCK + lane_group * GROUP_SAMPLES + s) * STRIDE + unit,
                sum[s])
    }
    PART_BARRIER(1, MATMUL_ITEMS);
    for (int n = matmul_item; IS_MATMUL_WARP && n < BLOCK * STRIDE; n += MATMUL_ITEMS) {
        int s = n / STRIDE;
        float sum = 0.0f;
        UNROLL for (int p = 0; p < MATMUL_WARPS; p++)
            sum += partial[p * BLOCK * STRIDE + n];
        other_records[s * RECORD + RECORD_BASE + n % STRIDE] =
            power[(block < 0 ? 0 : BLOCK) + s] * sum;
    }
    if (IS_MATMUL_WARP)
        make_records(other_records, power, &fetched, run, matmul_item, next);
    if (IS_MATMUL_WARP && matmul_item < BLOCK) {
        data_row[matmul_item] = state->next_row;
        state->next_row = run->order[run->start + CLAMPED(next + 2 * BLOCK + matmul_item)];
    }
}

KERNEL WORK_GROUP_OF(THREADS) void pipeline(PIPELINE_PARAMETERS)
{
    PIPELINE_START

/* Loops over the first layer's weights. A warp accesses the weights from eight neighbouring inputs
 * to four neighbouring units. These are runs of eight words in global memory, and runs of four
 * words in shared memory. */
#define FOR_EACH_WEIGHT(BODY)                                                        \
    for (int n = item; n < CEIL_DIV(INPUTS, 8) * 8 * STRIDE; n += THREADS) {         \
        int i = n / (8 * STRIDE) * 8 + n % 8, j = n / 8 % STRIDE;                    \
        if (i < INPUTS)                                                              \
            BODY                                                                     \
    }

    FOR_EACH_WEIGHT(pool[WEIGHT_AT + i * STRIDE + j] = j < HIDDEN ? before[j * INPUTS + i] : 0.0f;)
    BARRIER();

#ifdef __OPENCL_C_VERSION__
    SequentialCore core;
    MatmulState state;
    if (FIRST_WARP)
        load_sequential_core(&core, before + HIDDEN * INPUTS, before + WEIGHT_COUNT, item);
    load_matmul_warp(pool, &state, run, warp, item);
    GLOBAL_BARRIER();
    for (int block = -1; block <= blocks; block++) {
        RUN_SEQUENTIAL_CORE(run->keep)
        work_matmul_warp(pool, &state, run, warp, item, block);
        BARRIER();
    }
    if (FIRST_WARP)
        store_sequential_core(&core, after + HIDDEN * INPUTS, after + WEIGHT_COUNT, item);
#else
    if (FIRST_WARP)
        FIRST_WARP_LOOP
    else if (IS_MATMUL_WARP) {
        MatmulState state;
        load_matmul_warp(pool, &state, run, warp, item);
        FOR_EACH_BLOCK(work_matmul_warp(pool, &state, run, warp, item, block);)
    } else {
        FOR_EACH_BLOCK()
    }
    BARRIER();
#endif
    FOR_EACH_WEIGHT(if (j < HIDDEN) after[j * INPUTS + i] = pool[WEIGHT_AT + i * STRIDE + j];)
}
