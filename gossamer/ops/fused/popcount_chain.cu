/* A chain of products with matrices of signs, as one kernel. Each product reads the signs of the
 * previous product's results.
 *
 * A cluster of CLUSTER work-groups computes one row of every product. Each work-group computes a
 * slice of the columns of each product. The work-group copies the weights of these columns to its
 * shared memory while the previous kernel still runs. A work-item compares the words of the row
 * with the words of a column. If a work-group has fewer columns than work-items, several work-items
 * share a column. A warp packs the signs of 32 results by ballots, and sends the words to all
 * work-groups of the cluster. A barrier of the cluster precedes the next product. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define ITEMS 128 /* work-items of a work-group */
#define CLUSTER 8 /* work-groups of a cluster */
#define SIGNS 0 /* 1: x holds floats, whose signs SIGN_EPILOGUE computes; 0: x is packed words */
#define INPUT uint /* type of x */
#define WORD_BITS 32 /* bits of a word of x */
#define OUTPUT float /* type of y */
#define OUT_WORD_BITS 0 /* bits of a word of y; 0: y holds floats */
#define OUT_PLANES 1 /* bits of a result in y */
#define COUNT 1 /* number of products */
/* Offsets of four arrays in shared memory, in units of 16 bytes. The first three arrays hold the
 * data of product 0, then those of product 1, and so on. */
#define BITS 0 /* weights */
#define CONSTANTS 32 /* constants of the columns */
#define INPUTS 64 /* inputs */
#define PARTIAL 66 /* partial sums of the current product */
#define ALL_COLUMNS 32 /* columns of a work-group, for each product */
#define ALL_QUADS 1 /* quads (four words of 32 bits) of a row of inputs, for each product */
#define EPILOGUES /* parameters of the products' epilogues */
/* the code of the products in order: HIDDEN(number, number of the next product) for each product
 * except the last one, and FINAL(number) for the last one */
#define PRODUCTS FINAL(0)
/* the sizes of product 0; its offsets are in units of 16 bytes */
#define L0_DEPTH 70 /* length of its inner products */
#define L0_WORDS 3 /* words of 32 bits of a row of its inputs */
#define L0_QUADS 1 /* quads (four words) of a row of its inputs */
#define L0_PLANES 1 /* bits per input; the first of two bits is 1 if the input is not 0 */
#define L0_RESULTS 70 /* columns of the product */
#define L0_COLUMNS 32 /* columns of a work-group, a multiple of 32 */
#define L0_INPUT 64 /* offset of its inputs in shared memory */
#define L0_BITS 0 /* offset of its weights in shared memory */
#define L0_CONSTANTS 32 /* offset of the constants of its columns in shared memory */
#define L0_THRESHOLDS 0 /* 1: the constants are thresholds; 0: the epilogue is computed */
#define L0_EPILOGUE(value, channel, index) /* applies the product's epilogue */
#endif

#include "dialect/common.h"
#include "ptx/griddepcontrol.h"
#include "ptx/cp_async.h"
#include "ptx/mbarrier.h"
#include "ptx/cluster.h"
#include "mma/ring.h"
#include "ops/epilogue.h"

#define WARPS (ITEMS / 32)

/* Returns the number of bits in which a quad of inputs differs from the weights of a column. Inputs
 * of 0 are not counted. */
template <int QUADS, int PLANES>
INLINE int differing_in(const uint4 &column, const uint4 *inputs, int quad)
{
    uint4 word = inputs[(PLANES - 1) * QUADS + quad];
    word.x ^= column.x, word.y ^= column.y, word.z ^= column.z, word.w ^= column.w;
    if (PLANES == 2) {
        uint4 counts = inputs[quad];
        word.x &= counts.x, word.y &= counts.y, word.z &= counts.z, word.w &= counts.w;
    }
    return POPCOUNT(word.x) + POPCOUNT(word.y) + POPCOUNT(word.z) + POPCOUNT(word.w);
}

/* Computes the inner product of each of the work-group's columns, and calls use(column, product).
 * The lanes of a warp call `use` for 32 neighbouring columns at the same time, so that `use` may
 * contain ballots. */
template <int QUADS, int COLUMNS, int PLANES, int DEPTH, class Use>
INLINE void multiply(const uint4 *weights, const uint4 *inputs, int *partial, const Use &use)
{
    constexpr int PARTS = COLUMNS < ITEMS ? ITEMS / COLUMNS : 1;
    int item = LOCAL_ID(0), part = PARTS > 1 ? item / COLUMNS : 0;
    int counted = DEPTH;
    if (PLANES == 2) {
        counted = 0;
        UNROLL for (int first = 0; first < QUADS * 4; first += 32)
            if (first + item % 32 < QUADS * 4)
                counted += POPCOUNT(((const uint *)inputs)[first + item % 32]);
        UNROLL for (int distance = 16; distance > 0; distance /= 2)
            counted += __shfl_xor_sync(0xffffffffu, counted, distance);
    }
    for (int column = PARTS > 1 ? item % COLUMNS : item; column < COLUMNS; column += ITEMS) {
        int differing = 0;
        _Pragma("unroll 4") for (int quad = part; quad < QUADS; quad += PARTS)
            differing += differing_in<QUADS, PLANES>(weights[quad * COLUMNS + column], inputs,
                                                     quad);
        if (PARTS > 1)
            partial[item] = differing;
        else
            use(column, counted - 2 * differing);
    }
    if (PARTS > 1) {
        BARRIER();
        if (item < COLUMNS) {
            int differing = 0;
            UNROLL for (int i = 0; i < PARTS; i++)
                differing += partial[i * COLUMNS + item];
            use(item, counted - 2 * differing);
        }
    }
}

/* Sets the padding words in the last quad of each row of inputs to 0. */
template <int QUADS, int WORDS, int PLANES> INLINE void clear_end(uint4 *inputs)
{
    if (LOCAL_ID(0) < PLANES * (QUADS * 4 - WORDS))
        ((uint *)(inputs + LOCAL_ID(0) % PLANES * QUADS))[WORDS + LOCAL_ID(0) / PLANES] = 0;
}

/* Computes the result `value` of a column of product i, and the words `nonzero` and `positive` with
 * the signs of a warp's results. The result of a padding column is 0. */
#define RESULT(i)                                                                             \
    int channel = rank * L##i##_COLUMNS + column;                                             \
    int4 constant = ((const int4 *)memory)[L##i##_CONSTANTS + column];                        \
    float value = L##i##_THRESHOLDS                                                           \
                      ? (float)(((sum >= constant.x) + (sum >= constant.y) - 1) * constant.z) \
                      : (float)sum * __int_as_float(constant.w);                              \
    if (!L##i##_THRESHOLDS && channel < L##i##_RESULTS)                                       \
        L##i##_EPILOGUE(value, channel, channel)                                              \
    uint nonzero = __ballot_sync(0xffffffffu, value != 0);                                    \
    uint positive = __ballot_sync(0xffffffffu, value > 0);

/* Waits for the weights of product i, and calls use(column, inner product) for each column of the
 * work-group. */
#define MULTIPLY(i, use)                                                           \
    wait_once(barriers + i);                                                       \
    multiply<L##i##_QUADS, L##i##_COLUMNS, L##i##_PLANES, L##i##_DEPTH>(           \
        memory + L##i##_BITS, memory + L##i##_INPUT, partial, use);

/* Computes product i, and writes the signs of its results to the inputs of product `next`. A lane
 * writes the words of plane lane / CLUSTER to work-group lane % CLUSTER. */
#define HIDDEN(i, next)                                                                         \
    clear_end<L##next##_QUADS, L##next##_WORDS, L##next##_PLANES>(memory + L##next##_INPUT);    \
    MULTIPLY(i, ([&](int column, int sum) {                                                     \
        RESULT(i)                                                                               \
        int plane = lane / CLUSTER;                                                             \
        if (plane < L##next##_PLANES && channel / 32 < L##next##_WORDS) {                       \
            uint *words = (uint *)(memory + L##next##_INPUT + plane * L##next##_QUADS);         \
            map_cluster(words, lane % CLUSTER)[channel / 32] =                                     \
                plane == L##next##_PLANES - 1 ? positive : nonzero;                             \
        }                                                                                       \
    }))                                                                                         \
    CLUSTER_BARRIER();

/* FINAL computes the last product, i, and writes its results to y: their signs if OUT_WORD_BITS is
 * not 0, else the results as floats. */
#if OUT_WORD_BITS
#define OUT_PARTS (OUT_WORD_BITS / 32)
#define FINAL(i)                                                                                \
    MULTIPLY(i, ([&](int column, int sum) {                                                     \
        RESULT(i)                                                                               \
        int words = CEIL_DIV(L##i##_RESULTS, OUT_WORD_BITS), word = channel / OUT_WORD_BITS;    \
        if (lane < OUT_PLANES && word < words)                                                  \
            y[((row * words + word) * OUT_PLANES + lane) * OUT_PARTS + channel / 32 % OUT_PARTS] = \
                lane == OUT_PLANES - 1 ? positive : nonzero;                                    \
    }))
#else
#define FINAL(i)                                                   \
    MULTIPLY(i, ([&](int column, int sum) {                        \
        RESULT(i)                                                  \
        if (channel < L##i##_RESULTS)                              \
            y[row * L##i##_RESULTS + channel] = value;             \
    }))
#endif

KERNEL CLUSTER_DIMS LAUNCH_BOUNDS(ITEMS, 1) void popcount_chain(
    const INPUT *x, const uint4 *RESTRICT weights, const uint4 *RESTRICT constants,
    OUTPUT *RESTRICT y EPILOGUES)
{
    DYNAMIC_SHARED(uint4, memory)
    int *partial = (int *)(memory + PARTIAL);
    ulong *barriers = (ulong *)(partial + ITEMS);
    int rank = GROUP_ID(0) % CLUSTER, row = GROUP_ID(0) / CLUSTER;
    int lane = LOCAL_ID(0) % 32;
    CLUSTER_ARRIVE();
    pdl_trigger();
    if (LOCAL_ID(0) == 0) {
        constexpr int columns[] = {ALL_COLUMNS}, quads[] = {ALL_QUADS};
        UNROLL for (int i = 0; i < COUNT; i++)
            mbarrier_init(barriers + i, 1);
        fence_proxy_async();
        const uint4 *own_weights = weights + rank * (CONSTANTS - BITS);
        const uint4 *own_constants = constants + rank * (INPUTS - CONSTANTS);
        uint bits = shared_address(memory + BITS), others = shared_address(memory + CONSTANTS);
        UNROLL for (int i = 0; i < COUNT; i++) {
            int count = columns[i] * quads[i];
            mbarrier_arrive_expect_tx(barriers + i, (count + columns[i]) * 16);
            cp_async_bulk(bits, own_weights, count * 16, barriers + i);
            cp_async_bulk(others, own_constants, columns[i] * 16, barriers + i);
            bits += count * 16, others += columns[i] * 16;
            own_weights += count, own_constants += columns[i];
        }
    }
    clear_end<L0_QUADS, L0_WORDS, L0_PLANES>(memory + L0_INPUT);
    pdl_wait();
#if SIGNS
    int warp = LOCAL_ID(0) / 32;
    constexpr int WORDS_A_WARP = CEIL_DIV(L0_WORDS, WARPS);
    float numbers[WORDS_A_WARP];
    UNROLL for (int i = 0; i < WORDS_A_WARP; i++) {
        int channel = (i * WARPS + warp) * 32 + lane;
        numbers[i] = channel < L0_DEPTH ? x[row * L0_DEPTH + channel] : 0;
    }
    UNROLL for (int i = 0; i < WORDS_A_WARP; i++) {
        int word = i * WARPS + warp;
        float value = numbers[i];
        SIGN_EPILOGUE(value, 0, 0)
        bool exists = word * 32 + lane < L0_DEPTH;
        uint nonzero = __ballot_sync(0xffffffffu, exists && value != 0);
        uint positive = __ballot_sync(0xffffffffu, exists && value > 0);
        if (lane < L0_PLANES && word < L0_WORDS)
            ((uint *)(memory + L0_INPUT + lane * L0_QUADS))[word] =
                lane == L0_PLANES - 1 ? positive : nonzero;
    }
#else
    constexpr int PARTS = WORD_BITS / 32, ROW = CEIL_DIV(L0_DEPTH, WORD_BITS) * L0_PLANES * PARTS;
    for (int i = LOCAL_ID(0); i < L0_PLANES * L0_WORDS; i += ITEMS) {
        int word = i % L0_WORDS, plane = i / L0_WORDS;
        ((uint *)(memory + L0_INPUT + plane * L0_QUADS))[word] =
            x[row * ROW + (word / PARTS * L0_PLANES + plane) * PARTS + word % PARTS];
    }
#endif
    BARRIER();
    CLUSTER_WAIT();
    PRODUCTS
}
