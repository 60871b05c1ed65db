/* Back-propagation, sample after sample, of a network with one hidden layer, by exact blocking in
 * one work-group a network (pipeline.h), with the first layer's weights in the matmul warps'
 * registers and its work on tensor cores.
 *
 * Inputs are dealt to the matmul warps in groups of 8. A warp holds its groups' weights as sums of
 * the instruction mma.m16n8k8 lie, rows being units and columns inputs, TILES times 16 units: so
 * the changes by the 8 samples of a block (units x samples times samples x inputs) are added where
 * they come out. Read as a left operand (16 units x 8 inputs) the same registers give products,
 * with columns 2 t and 2 t + 1 in the places of t and t + 4. A group whose inputs are 0 in all
 * samples of a block is passed over.
 *
 * TF32 has 11 bits: weights and changes are taken in two parts, of which the second has the bits
 * that the first has not; inputs too, in a block where one of the warp's needs it. What the tensor
 * cores sum they truncate, so that weights are added to outside of them.
 *
 * In shared memory the samples of a warp's groups stand group by group, 8 rows of 8 inputs; row r
 * has sample SAMPLE_OF(r), so that all lanes' reads of x and of changes are in different banks.
 *
 * Warp 4, and with APART warps 8, 12, ... too, make the records: they share the first one's
 * scheduler, and leave it time.
 *
 * APART, GROUPS (of a matmul warp)
 * ..._AT, FLOATS  places in shared memory, and all of it, in floats
 * and those of pipeline.h, BLOCK being 8 */

#if APART
#define IS_MATMUL_WARP (warp % 4 != 0)
#define MATMUL_WARP (warp / 4 * 3 + warp % 4 - 1)
#define RECORDER (warp / 4 - 1)
#else
#define IS_MATMUL_WARP (warp != 4)
#define MATMUL_WARP (warp - 1 - (warp > 4))
#define RECORDER 0
#endif
#define MATMUL_ITEMS (MATMUL_WARPS * 32)
#define TILES CEIL_DIV(HIDDEN, 16)
#define PAIRS CEIL_DIV(GROUPS, 2)
#define PAIRS_AT_ONCE CEIL_DIV(PAIRS, 2)
#define ROWS_FLOATS (PAIRS * 128)
#define SUMS (TILES * 128)
#define DATA_ROWS (2 * BLOCK)
#define SAMPLE_OF(row) ((row) % 4 * 2 + (row) / 4)
#define GROUP_OF(n) ((n) * MATMUL_WARPS + matmul_warp)
#define LINE 32 /* floats of a line of the L2 cache */
#define INEXACT 0x80000000u
#define LOST 0x1fffu
/* Keeps the compiler from knowing a number: what it makes of one once it would keep, in registers,
 * which are for weights; and of places that differ by constants it would compute each. */
#define OPAQUE(number) asm volatile("" : "+r"(number));

INLINE uint bits_of(float value)
{
    union {
        float value;
        uint bits;
    } both = {value};
    return both.bits;
}

/* A number in two that TF32 holds. */
INLINE void split(float value, uint &upper, uint &lower)
{
    upper = bits_of(value) & ~LOST;
    lower = bits_of(value - __int_as_float((int)upper));
}

/* sum: rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next. */
INLINE void multiply(float (&sum)[4], const uint (&left)[4], uint first, uint second)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(first), "r"(second));
}

/* A block's inputs: where in shared memory those of the first warp stand, a bit for each group of
 * this warp's that is not all 0, and INEXACT where TF32 does not hold them. */
struct Inputs {
    int rows;
    uint active;
};
#define ROWS_OF(inputs) ((inputs).rows + matmul_warp * ROWS_FLOATS)

/* What a work-item of a matmul warp has: weights, the inputs of three blocks, and some that are on
 * their way. */
struct MatmulWarp {
    float weight[GROUPS][TILES][4];
    Inputs before, now, next;
    int4 coming[PAIRS_AT_ONCE];
};

/* Asks for the inputs that this work-item brings of a block: four of one sample from each pair of
 * groups, PAIRS_AT_ONCE the pairs at a time, from pair `start` on. */
INLINE void fetch_inputs(MatmulWarp &own, const Run *run, const int *data_row, int start, int matmul_warp,
                         int lane)
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
        own.coming[p - start] = four;
    }
}

/* Puts them into the rows, where they are not all 0, and says what they are. */
INLINE void keep_inputs(float *pool, const MatmulWarp &own, Inputs &inputs, int start, int matmul_warp,
                        int lane)
{
    int group = lane / 16, all = 0;
    int place = ROWS_OF(inputs) + group * 64 + lane % 16 * 4;
    uint bits = 0;
    UNROLL for (int p = start; p < start + PAIRS_AT_ONCE && p < PAIRS; p++) {
        const int4 &four = own.coming[p - start];
        int any = four.x | four.y | four.z | four.w;
        all |= any;
        bits |= any ? 1u << 2 * p : 0u;
    }
    bits <<= group;
    bits |= all & LOST ? INEXACT : 0u;
    bits = __reduce_or_sync(0xffffffffu, bits);
    inputs.active |= bits;
    bits >>= group;
    OPAQUE(place)
    UNROLL for (int p = start; p < start + PAIRS_AT_ONCE && p < PAIRS; p++)
        if (bits >> 2 * p & 1)
            *(int4 *)(pool + place + p * 128) = own.coming[p - start];
}

/* The same for all lanes, and known to be. */
INLINE uint of_warp(uint bits, int lane)
{
    uint ballot;
    BALLOT(ballot, , bits >> lane & 1);
    return ballot;
}

/* Changes the weights by a block. */
INLINE void change(const float *pool, MatmulWarp &own, const float *records, int matmul_warp, int lane)
{
    uint upper[TILES][4], lower[TILES][4], active = of_warp(own.before.active, lane);
    int first_delta = lane % 4 * 2 * RECORD + lane / 4;
    int place = ROWS_OF(own.before) + lane % 4 * 8 + lane / 4;
    OPAQUE(first_delta)
    OPAQUE(place)
    const float *delta = records + first_delta + RECORD_DELTA;
    const float *column = pool + place;
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int k = 0; k < 4; k++)
            split(delta[k / 2 * RECORD + tile * 16 + k % 2 * 8], upper[tile][k], lower[tile][k]);
    UNROLL for (int n = 0; n < GROUPS; n++)
        if (active >> n & 1) {
            float first = column[n * 64], second = column[n * 64 + 32];
            float sum[TILES][4] = {};
            UNROLL for (int tile = 0; tile < TILES; tile++)
                multiply(sum[tile], lower[tile], bits_of(first), bits_of(second));
            if (active & INEXACT) {
                uint low[2], high[2];
                split(first, high[0], low[0]);
                split(second, high[1], low[1]);
                UNROLL for (int tile = 0; tile < TILES; tile++)
                    multiply(sum[tile], upper[tile], low[0], low[1]);
            }
            UNROLL for (int tile = 0; tile < TILES; tile++)
                multiply(sum[tile], upper[tile], bits_of(first), bits_of(second));
            UNROLL for (int tile = 0; tile < TILES; tile++)
                UNROLL for (int k = 0; k < 4; k++)
                    own.weight[n][tile][k] += sum[tile][k];
        }
}

/* The part of the sums of the next block, units x rows, that this warp's inputs make. */
INLINE void multiply_inputs(const float *pool, const MatmulWarp &own, float (&sum)[TILES][4], int matmul_warp,
                            int lane)
{
    uint active = of_warp(own.next.active, lane);
    int place = ROWS_OF(own.next) + lane * 2;
    OPAQUE(place)
    UNROLL for (int n = 0; n < GROUPS; n++)
        if (active >> n & 1) {
            float2 two = *(const float2 *)(pool + place + n * 64);
            UNROLL for (int tile = 0; tile < TILES; tile++) {
                uint upper[4], lower[4];
                UNROLL for (int k = 0; k < 4; k++)
                    split(own.weight[n][tile][k % 2 * 2 + k / 2], upper[k], lower[k]);
                multiply(sum[tile], lower, bits_of(two.x), bits_of(two.y));
                if (active & INEXACT) {
                    uint low[2], high[2];
                    split(two.x, high[0], low[0]);
                    split(two.y, high[1], low[1]);
                    multiply(sum[tile], upper, low[0], low[1]);
                }
                multiply(sum[tile], upper, bits_of(two.x), bits_of(two.y));
            }
        }
}

/* Each weight of this work-item, whether the network has it, and its place behind that of the first
 * input of the warp's first group in the unit's row. */
#define EACH_WEIGHT(BODY)                                                            \
    UNROLL for (int half = 0; half < 2 * TILES; half++) {                            \
        int j = half * 8 + lane / 4;                                                 \
        int first = j * INPUTS + matmul_warp * 8 + lane % 4 * 2;                            \
        UNROLL for (int n = 0; n < GROUPS; n++)                                      \
            UNROLL for (int side = 0; side < 2; side++) {                            \
                float &weight = own.weight[n][half / 2][half % 2 * 2 + side];        \
                int behind = n * MATMUL_WARPS * 8 + side;                                    \
                bool exists = (half * 8 + 8 <= HIDDEN || j < HIDDEN)                 \
                              && ((n + 1) * MATMUL_WARPS * 8 <= INPUTS                       \
                                  || matmul_warp * 8 + lane % 4 * 2 + behind < INPUTS);     \
                BODY                                                                 \
            }                                                                        \
    }

/* Which matmul warp and which of its lanes this is, anew each time. */
#define WHO_I_AM                                              \
    OPAQUE(item)                                              \
    int lane = item & 31, warp = item >> 5, matmul_warp = MATMUL_WARP & 31;

INLINE void load_matmul_warp(float *pool, MatmulWarp &own, const Run *run, const float *before, int item)
{
    WHO_I_AM
    own.next = {ROWS_AT, 0};
    own.now = {ROWS_AT + MATMUL_WARPS * ROWS_FLOATS, 0};
    own.before = {ROWS_AT + 2 * MATMUL_WARPS * ROWS_FLOATS, 0};
    UNROLL for (int start = 0; start < PAIRS; start += PAIRS_AT_ONCE) {
        fetch_inputs(own, run, (const int *)pool + DATA_ROW_AT, start, matmul_warp, lane);
        keep_inputs(pool, own, own.next, start, matmul_warp, lane);
    }
    /* weights come after, so that both need not be in registers on their way; and the records'
     * warps may forget the samples of the first block */
    PART_BARRIER(3, MATMUL_ITEMS + RECORD_ITEMS);
    EACH_WEIGHT(weight = exists ? (before + first)[behind] : 0.0f;)
}

INLINE void store_matmul_warp(MatmulWarp &own, float *after, int item)
{
    WHO_I_AM
    EACH_WEIGHT(if (exists) (after + first)[behind] = weight;)
}

/* Adds up what the matmul warps have of the sums that the records start from. */
INLINE void add_sums(float *pool, float *records, int block, int worker)
{
    for (int n = worker; n < SUMS; n += MATMUL_ITEMS) {
        /* as a lane of each matmul warp has them, four in turn */
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

/* Changes the weights by block - 1, multiplies them by block + 1, and fetches the inputs of the one
 * after. */
INLINE void work_matmul_warp(float *pool, MatmulWarp &own, const Run *run, int item, int block)
{
    WHO_I_AM
    const int *data_row = DATA_ROWS_OF(block + 2);

    fetch_inputs(own, run, data_row, 0, matmul_warp, lane);
    if (block > 0) {
        if (run->keep != 1.0f) {
            float kept = pool[POWER_AT + LESSER(BLOCK, run->count - (block - 1) * BLOCK)];
            UNROLL for (int n = 0; n < GROUPS; n++)
                UNROLL for (int tile = 0; tile < TILES; tile++)
                    UNROLL for (int k = 0; k < 4; k++)
                        own.weight[n][tile][k] *= kept;
        }
        change(pool, own, RECORDS_OF(block - 1), matmul_warp, lane);
    }
    WARP_BARRIER();
    Inputs after = {own.before.rows, 0};
    keep_inputs(pool, own, after, 0, matmul_warp, lane);
    fetch_inputs(own, run, data_row, PAIRS_AT_ONCE, matmul_warp, lane);
    float sum[TILES][4] = {};
    multiply_inputs(pool, own, sum, matmul_warp, lane);
    UNROLL for (int tile = 0; tile < TILES; tile++)
        SHARED_STORE4(pool + PARTIAL_AT + matmul_warp * SUMS + tile * 128 + lane * 4,
                     MAKE4(sum[tile][0], sum[tile][1], sum[tile][2], sum[tile][3]));
    PART_BARRIER(1, MATMUL_ITEMS);
    add_sums(pool, RECORDS_OF(block + 1), block, matmul_warp * 32 + lane);
    keep_inputs(pool, own, after, PAIRS_AT_ONCE, matmul_warp, lane);
    own.before = own.now;
    own.now = own.next;
    own.next = after;
}

/* What a work-item that makes records has. */
struct Recorder {
    int next_row, source;
};

/* Writes the losses of block - 1, and makes the records of block + 1, but for the sums. */
INLINE void make_block(float *pool, Recorder &own, const Run *run, int worker, int block)
{
    int next = (block + 1) * BLOCK;
    const float *power = pool + POWER_AT;
    float *records = RECORDS_OF(block + 1);
    int *data_row = DATA_ROWS_OF(block + 1);
    Fetched fetched;

    /* what the matmul warps fetch in the next block comes closer already */
    if (worker < 32)
        UNROLL for (int s = 0; s < BLOCK; s++) {
            int row = __shfl_sync(0xffffffffu, own.next_row, s);
            for (int i = worker * LINE; i < INPUTS; i += 32 * LINE) {
                const float *line = run->x + row * INPUTS + i;
                asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
            }
        }
    fetch_records(&fetched, run, data_row, own.source, worker, next);
    own.source = run->same[run->start_tile + CLAMPED(next + BLOCK) / TILE] ? 0 : run->network;
    if (block > 0)
        write_losses(records, run, worker, next - 2 * BLOCK);
    make_records(records, power, &fetched, run, worker, next);
    /* all have read which samples were next */
    PART_BARRIER(4, RECORD_ITEMS);
    if (worker < BLOCK) {
        data_row[worker] = own.next_row;
        own.next_row = run->order[run->start + CLAMPED(next + 3 * BLOCK + worker)];
    }
}

KERNEL LAUNCH_BOUNDS(THREADS, 1) void pipeline_mma(PIPELINE_PARAMETERS)
{
    PIPELINE_START
    BARRIER();
    if (FIRST_WARP)
        FIRST_WARPS_BLOCKS
    else if (IS_MATMUL_WARP) {
        MatmulWarp own;
        load_matmul_warp(pool, own, run, before, item);
        BLOCKS_OF(work_matmul_warp(pool, own, run, item, block);)
        store_matmul_warp(own, after, item);
    } else {
        int worker = RECORDER * 32 + item % 32;
        Recorder own = {run->order[run->start + CLAMPED(2 * BLOCK + worker)],
                        run->same[run->start_tile] ? 0 : run->network};
        PART_BARRIER(3, MATMUL_ITEMS + RECORD_ITEMS);
        BLOCKS_OF(make_block(pool, own, run, worker, block);)
    }
}
