/* Back-propagation in one launch, for batches of any size. A group of CLUSTER work-groups trains
 * each network; a group of several work-groups is a cluster.
 *
 * The inputs of a layer are divided among the work-groups of the group. Each work-group keeps the
 * weights of its inputs in shared memory until the last sample. A bias is the weight of an
 * additional input, which is always 1.
 *
 * Forward: each work-group multiplies its inputs by its weights, which gives partial sums of all
 * units of the layer. It then takes the units that are its own inputs of the next layer, and adds
 * up their partial sums from all work-groups. Backward: each work-group gathers the errors of all
 * units of a layer. With these errors, it updates its weights and computes the errors of its
 * inputs.
 *
 * If the sums of all samples of an update do not fit into shared memory, the update is divided into
 * micro-batches. Each micro-batch adds to the gradients, and the last one updates the weights.
 *
 * Layers from SPLIT on are not divided: every work-group has its own copy of their weights. The
 * copies are equal bit by bit. If BY_SAMPLES is 0, every work-group computes these layers for all
 * samples. If it is 1, each work-group computes the errors of the outputs for MINE samples, and all
 * that these need from layers that are not divided. The work-groups then share out the weights of
 * these layers: each adds up the gradients of its weights from all work-groups and updates the
 * weights, and the others copy them.
 *
 * Work-groups read one another's partial sums (P_AT), errors of outputs (O_AT), errors of inputs
 * (E_AT), gradients (G_AT) and weights that were shared out. This memory is written before a
 * barrier of the group, read after the barrier, and overwritten only after a further barrier.
 *
 * In shared memory, each sample has a row of inputs, a row of sums and a row of errors, and each
 * input has a row of weights. Row strides are odd multiples of 4 floats, so that neighbouring rows
 * start in different banks. If the next layer is divided, the partial sums that one work-group adds
 * up form a contiguous slice. Names with the suffix _0 belong to layer 0. The other layers have the
 * same names with their own numbers as suffixes. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define LAYERS 2 /* layers of weights */
#define ALL(DO) DO(0) DO(1) /* DO for each layer */
/* DO(layer, layer before it) for each layer except 0: UPPER goes from the lowest layer to the
 * highest, and LOWER from the highest to the lowest */
#define UPPER(DO) DO(1, 0)
#define LOWER(DO) DO(1, 0)
/* what is computed from the sums of a layer */
#define TAKE_SUMS_0 TAKE_HIDDEN(0, 1)
#define TAKE_SUMS_1 TAKE_OUTPUTS(1)
#define TF32 0 /* 1: products are computed by tensor cores in TF32 */
#define HALVES 0 /* for mma/warp.h: operands are not float16 */
#define SPLIT 0 /* number of layers that are divided among the work-groups */
#define THREADS 128 /* work-items of a work-group */
#define CLUSTER 1 /* work-groups of a group */
#define BATCH 8 /* samples per update, which is one step */
#define MICRO_BATCHES 1 /* micro-batches of a step */
#define MICRO_BATCH 8 /* samples of a micro-batch; the last one of a step may have fewer */
#define ROWS 8 /* MICRO_BATCH, rounded up to full tiles */
#define BY_SAMPLES 0 /* 1: each work-group computes the outputs' errors of MINE samples */
#define MINE 8 /* samples for which a work-group computes the errors of the outputs */
#define OUTPUTS 10 /* units of the last layer */
#define OUTPUT_STRIDE 12 /* row stride of the sums and errors of outputs, in floats */
#define OUTPUT_ROWS 8 /* ROWS_ of the last layer */
#define OUTPUT_ERROR_AT 14624 /* offset in shared memory, in floats, of the outputs' errors */
#define MOMENTS 2 /* running means for each weight: 1 with momentum, 2 with Adam */
#define MOMENTS_SHARED 1 /* 1: running means are in shared memory; 0: in the workspace */
#define GRADIENTS_AT 0 /* offset of the gradients of the micro-batches so far, in floats */
#define GRADIENTS_SHARED 1 /* 1: these gradients are in shared memory; 0: in the workspace */
#define OWN_WORKSPACE 0 /* floats of a work-group's workspace */
#define WEIGHTED 0 /* 1: each sample's loss and errors are multiplied by the sample's weight */
#define COUNT 2410 /* weights and biases of a network */
#define PARAMETERS 7231 /* parameters of a network */
#define BUFFERS 2 /* buffers for the inputs and targets of a micro-batch */
#define WIDE 1 /* 1: inputs of layer 0 are loaded four at a time */
#define PARITIES 1 /* 2: partial sums have two buffers, for even and for odd micro-batches */
/* offsets in shared memory, in floats */
#define X_AT 8640 /* inputs of layer 0 */
#define T_AT 9728 /* targets */
#define V_AT 9888 /* weights of samples */
#define ROW_AT 9888 /* indices of samples in x and targets */
#define Z_AT 9912 /* sums of outputs */
#define STATISTIC_AT 10008 /* results of softmax_of() for each sample */
#define FACTOR_AT 10032 /* factors of Adam's rate for 32 steps */
#define O_AT 10064 /* errors of outputs that other work-groups read */
#define S_AT 10064 /* the parts of sums, if FORWARD_ splits sums over inputs */
#define FLOATS 18080 /* floats of shared memory */
#define STATE 2880 /* floats of a work-group's weights */
#define INPUTS_0 64 /* inputs of the layer */
#define UNITS_0 32 /* units of the layer */
#define SHARE_0 68 /* inputs of a work-group, bias included, rounded up to a multiple of 4 */
#define LENGTH_0 68 /* row stride of inputs, in floats */
#define STRIDE_0 36 /* row stride of weights, sums and errors, in floats */
#define SLICE_0 36 /* row stride of a slice of the sums, in floats */
#define ROWS_0 8 /* samples for which a work-group computes the layer, rounded up to full tiles */
#define SUMS_0 288 /* floats of the sums of these samples */
#define GLOBAL_0 0 /* offset of the layer's weights among the parameters */
#define W_AT_0 0 /* offset of the layer's weights in shared memory, in floats */
#define A_AT_0 8640 /* offset of inputs of the layer in shared memory, in floats */
#define P_AT_0 11792 /* offset of partial sums of units */
#define D_AT_0 11792 /* offset of errors of units */
#define E_AT_0 0 /* offset of errors of inputs, which other work-groups read */
#define G_AT_0 0 /* offset of gradients, which other work-groups read */
#define FORWARD_0 2, 8, 6 /* samples and units of a tile, and parts of each sum over inputs */
#define BACKWARD_0 2, 4 /* samples and inputs of a tile */
/* Inputs and units of a tile, and parts of each sum over samples. If the number of parts is 0, no
 * tiles are used. If it is -1, sums are not split, and each work-item updates the weights of its
 * own tiles. */
#define GRADIENT_0 4, 8, 1
#define INPUTS_1 32
#define UNITS_1 10
#define SHARE_1 36
#define LENGTH_1 36
#define STRIDE_1 12
#define SLICE_1 12
#define ROWS_1 8
#define SUMS_1 96
#define GLOBAL_1 2080
#define W_AT_1 2448
#define A_AT_1 14240
#define P_AT_1 14528
#define D_AT_1 14624
#define E_AT_1 0
#define G_AT_1 0
#define FORWARD_1 2, 4, 9
#define BACKWARD_1 2, 2
#define GRADIENT_1 8, 4, 8
#define NEW_1 0.09999999999999998f /* factor of a new gradient in Adam's mean of gradients */
#define NEW_2 0.0010000000000000009f /* factor of a new square in Adam's mean of squares */
#define LOG_BETA_1 -0.10536051565782628f /* logarithm of 1 - NEW_1 */
#define LOG_BETA_2 -0.0010005003335835344f /* logarithm of 1 - NEW_2 */
#define EPSILON 1e-08f /* the number that Adam adds to each square root */
#define ACTIVATE(z) SIGMOID(z) /* activation of hidden units */
#define SLOPE(a) ((a) * (1.0f - (a))) /* derivative of ACTIVATE at z, where a = ACTIVATE(z) */
#define ACTIVATE_OUTPUT(z) SIGMOID(z) /* activation of outputs */
#define OUTPUT_SLOPE(a) ((a) * (1.0f - (a))) /* derivative, where a = ACTIVATE_OUTPUT(z) */
#define SOFTMAX 0 /* 1: the outputs are the softmax of their sums */
#endif

#include "dialect/common.h"
#include "ptx/cluster.h"
#include "ptx/cp_async.h"
#include "ops/backprop/batched_changes.h"
#include "ops/backprop/batched_products.h"
#include "ops/backprop/batched_tensor_cores.h"

#define IS_SPLIT(l) ((l) < SPLIT)
#define BASE(l) (IS_SPLIT(l) ? rank * SHARE_##l : 0)
#define FOURS(count) CEIL_DIV(count, 4)
/* whether weights of layers that are not divided are shared out among work-groups */
#define SHARED_OUT (BY_SAMPLES && SPLIT < LAYERS)
/* whether this work-group updates weight j of input i of a layer */
#define IS_OWNER(l, i, j)                                                          \
    (IS_SPLIT(l) || (SHARED_OUT ? ((i) * FOURS(UNITS_##l) + (j) / 4) % CLUSTER == rank : rank == 0))
/* PEER: address of offset `at` in the memory of work-group `other`, or in this work-group's memory
 * if the layer is not divided */
#if CLUSTER > 1
#define PEER(l, at, other) (IS_SPLIT(l) ? map_cluster(pool, other) + (at) : pool + (at))
/* The two halves of a barrier of the group: data is written before GROUP_SEND, and other
 * work-groups read it after GROUP_RECEIVE. */
#define GROUP_SEND(l)                                                              \
    if (IS_SPLIT(l)) {                                                             \
        CLUSTER_SEND();                                                            \
    } else {                                                                       \
        BARRIER();                                                                 \
    }
#define GROUP_RECEIVE(l)                                                           \
    if (IS_SPLIT(l)) {                                                             \
        CLUSTER_RECEIVE();                                                         \
    }
#else
#define PEER(l, at, other) (pool + (at))
#define GROUP_SEND(l) BARRIER();
#define GROUP_RECEIVE(l)
#endif
/* rows of outputs' errors; those beyond MINE samples are 0 */
#define ERROR_ROWS (SHARED_OUT ? OUTPUT_ROWS : MINE)
#define PARITY(l) (IS_SPLIT(l) && PARITIES > 1 ? turn % 2 * SUMS_##l : 0)

/* COPY copies one float, and COPY4 four floats, from global to shared memory. The copies are
 * complete after COPIED. */
#if defined __CUDACC__ && (!defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 800)
#define COPY(to, from) cp_async_ca<4>(shared_address(to), from, 4)
#define COPY4(to, from) cp_async_16(shared_address(to), from, 16)
#define COPIED() cp_async_wait_all()
#else
#define COPY(to, from) *(to) = *(from)
#define COPY4(to, from) SHARED_STORE4(to, LOAD4(from))
#define COPIED()
#endif

/* The micro-batches of all steps are numbered from 0. FIRST_SAMPLE is the index of the first sample
 * of micro-batch `number` among all samples. END is the end of its samples: at most the end of its
 * step, and at most `samples`. IS_LAST is whether it is the last micro-batch of its step. */
#define FIRST_SAMPLE(number)                                                       \
    ((number) / MICRO_BATCHES * BATCH + (number) % MICRO_BATCHES * MICRO_BATCH)
#define END(number)                                                                \
    (MICRO_BATCHES > 1 ? LESSER(((number) / MICRO_BATCHES + 1) * BATCH, samples) : samples)
#define IS_LAST(number) ((number) % MICRO_BATCHES == MICRO_BATCHES - 1)

/* Copies the indices of the samples of micro-batch `number`. */
#define FETCH_ROWS(number)                                                         \
    ROLLED for (int b = item; b < MICRO_BATCH && FIRST_SAMPLE(number) + b < END(number); \
                b += THREADS)                                                      \
        COPY(rows + (number) % 3 * MICRO_BATCH + b, order + FIRST_SAMPLE(number) + b);

/* Copies the inputs of layer 0 for micro-batch `number`. The bias's input is set to 1. */
#define FETCH(number, buffer)                                                      \
    {                                                                              \
        int begin = BASE(0), count_ = END(number) - FIRST_SAMPLE(number);          \
        ROLLED for (int n = item; n < MICRO_BATCH * (SHARE_0 / IN_STEP); n += THREADS) { \
            int b = n / (SHARE_0 / IN_STEP), i = n % (SHARE_0 / IN_STEP) * IN_STEP; \
            SHARED_POINTER float *to = pool + X_AT + (buffer) * (ROWS * LENGTH_0)  \
                                       + b * LENGTH_0 + i;                         \
            if (b < count_ && begin + i < INPUTS_0)                                \
                IN_COPY(to, x + (INT64)rows[(number) % 3 * MICRO_BATCH + b] * INPUTS_0 + begin \
                            + i);                                                  \
            else if (begin + i >= INPUTS_0)                                        \
                for (int c = 0; c < IN_STEP; c++)                                  \
                    to[c] = begin + i + c == INPUTS_0 ? 1.0f : 0.0f;               \
        }                                                                          \
    }
#if WIDE
#define IN_STEP 4
#define IN_COPY COPY4
#else
#define IN_STEP 1
#define IN_COPY COPY
#endif

/* Copies the targets and the weights of the samples of micro-batch `number`. */
#if WEIGHTED
#define FETCH_WEIGHT(m, row, buffer) \
    COPY(pool + V_AT + (buffer) * MINE + (m), sample_weights + (row));
#else
#define FETCH_WEIGHT(m, row, buffer)
#endif
#define FETCH_TARGETS(number, buffer)                                              \
    ROLLED for (int n = item; n < MINE * OUTPUTS; n += THREADS) {                  \
        int m = n / OUTPUTS, k = n % OUTPUTS, b = first_mine + m;                  \
        if (b < MICRO_BATCH && FIRST_SAMPLE(number) + b < END(number)) {           \
            int row = rows[(number) % 3 * MICRO_BATCH + b];                        \
            COPY(pool + T_AT + (buffer) * (MINE * OUTPUTS) + n,                    \
                 targets + (INT64)row * OUTPUTS + k);                              \
            if (k == 0) {                                                          \
                FETCH_WEIGHT(m, row, buffer)                                       \
            }                                                                      \
        }                                                                          \
    }

/* Copies the data of the next micro-batches for which there are buffers. The copies are started
 * between the two halves of a barrier of the group. */
#if BUFFERS == 2
#define FETCH_NEXT(turn)                                                           \
    FETCH_ROWS((turn) + 2)                                                         \
    FETCH((turn) + 1, ((turn) + 1) % 2)                                            \
    FETCH_TARGETS((turn) + 1, ((turn) + 1) % 2)
#else
#define FETCH_NEXT(turn) FETCH_ROWS((turn) + 2)
#endif

/* Computes this work-group's partial sums of a layer at P_AT. If the tiles split each sum over
 * inputs, the parts are stored at S_AT. They are added up here only if other work-groups read the
 * sums. */
#define FORWARD_PRODUCT(l, in)                                                     \
    {                                                                              \
        const int tile[] = {FORWARD_##l};                                          \
        forward_product(ROWS_##l, in, LENGTH_##l, pool + W_AT_##l, STRIDE_##l,     \
                        pool + (tile[2] > 1 ? S_AT : P_AT_##l + PARITY(l)), SLICE_##l, \
                        SUMS_##l, FOURS(SHARE_##l), UNITS_##l, FORWARD_##l, item); \
        if (tile[2] > 1 && IS_SPLIT(l)) {                                          \
            BARRIER();                                                             \
            add_parts(pool + S_AT, pool + P_AT_##l + PARITY(l), SUMS_##l, tile[2], item); \
        }                                                                          \
    }
#define FORWARD(l, before)                                                         \
    HIDE(item);                                                                    \
    FORWARD_PRODUCT(l, pool + A_AT_##l)                                            \
    GROUP_SEND(l)                                                                  \
    GROUP_RECEIVE(l)                                                               \
    TAKE_SUMS_##l
#define FORWARD_FIRST                                                              \
    FORWARD_PRODUCT(0, pool + X_AT + turn % BUFFERS * (ROWS * LENGTH_0))           \
    GROUP_SEND(0)                                                                  \
    FETCH_NEXT(turn)                                                               \
    GROUP_RECEIVE(0)                                                               \
    COPY_SHARED_OUT                                                                \
    TAKE_SUMS_0
/* Copies the weights that other work-groups have updated. The last work-items, which may add up
 * fewer sums, begin. */
#if SHARED_OUT
#define COPY_SHARED_OUT UPPER(COPY_LAYER)
#else
#define COPY_SHARED_OUT
#endif
#define COPY_LAYER(l, before)                                                      \
    ROLLED for (int n = THREADS - 1 - item; n < SHARE_##l * FOURS(UNITS_##l); n += THREADS) { \
        int at = W_AT_##l + n / FOURS(UNITS_##l) * STRIDE_##l + n % FOURS(UNITS_##l) * 4; \
        if (n % CLUSTER != rank)                                                   \
            SHARED_STORE4(pool + at, SHARED_LOAD4(map_cluster(pool, n % CLUSTER) + at)); \
    }

/* Declares `total`, the sums of units j to j + 3 for sample b. The partial sums of all work-groups
 * are added up, beginning with work-group `first`. Work-groups that add up different units pass
 * their own rank as `first`, so that not all read from the same work-group at once. Work-groups
 * that add up the same units pass 0, so that their results are equal bit by bit. */
#define ADD_PARTS4(total, l, b, j, first)                                          \
    float4 total = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                                  \
    int place = SUM_PLACE(b, j, STRIDE_##l, SLICE_##l, ROWS_##l);                  \
    if (IS_SPLIT(l)) {                                                             \
        int first_part = first;                                                    \
        HIDE(first_part); /* else registers would hold the addresses of all parts */ \
        UNROLL for (int part = 0; part < CLUSTER; part++) {                        \
            float4 more = SHARED_LOAD4(place + PEER(l, P_AT_##l + PARITY(l),       \
                                        (int)((uint)(first_part + part) % CLUSTER))); \
            total.x += more.x;                                                     \
            total.y += more.y;                                                     \
            total.z += more.z;                                                     \
            total.w += more.w;                                                     \
        }                                                                          \
    } else {                                                                       \
        const int tile[] = {FORWARD_##l};                                          \
        total = sum_of_parts(pool + (tile[2] > 1 ? S_AT : P_AT_##l) + place, SUMS_##l, tile[2]); \
    }

/* TAKE_HIDDEN computes the inputs of the next layer from the sums of layer l. TAKE_OUTPUTS stores
 * the sums of the last layer. */
#define TAKE_HIDDEN(l, next)                                                       \
    ROLLED for (int n = item; n < ROWS_##next * FOURS(SHARE_##next); n += THREADS) { \
        int b = n / FOURS(SHARE_##next), i = n % FOURS(SHARE_##next) * 4;          \
        int j = BASE(next) + i;                                                    \
        int sample = !IS_SPLIT(l) || !SHARED_OUT ? b : b < MINE ? first_mine + b : ROWS; \
        SHARED_POINTER float *in = pool + A_AT_##next + b * LENGTH_##next + i;     \
        float4 out = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                                \
        if (j < UNITS_##l && sample < ROWS_##l) {                                  \
            ADD_PARTS4(sum, l, sample, j, IS_SPLIT(next) || SHARED_OUT ? rank : 0) \
            out = MAKE4(ACTIVATE(sum.x), ACTIVATE(sum.y), ACTIVATE(sum.z), ACTIVATE(sum.w)); \
        }                                                                          \
        in[0] = INPUT_VALUE(j, UNITS_##l, out.x);                                  \
        in[1] = INPUT_VALUE(j + 1, UNITS_##l, out.y);                              \
        in[2] = INPUT_VALUE(j + 2, UNITS_##l, out.z);                              \
        in[3] = INPUT_VALUE(j + 3, UNITS_##l, out.w);                              \
    }                                                                              \
    BARRIER();
#define INPUT_VALUE(j, units, value) ((j) < (units) ? (value) : (j) == (units) ? 1.0f : 0.0f)
#define TAKE_OUTPUTS(l)                                                            \
    ROLLED for (int n = item; n < MINE * FOURS(OUTPUTS); n += THREADS) {           \
        int m = n / FOURS(OUTPUTS), j = n % FOURS(OUTPUTS) * 4;                    \
        int row = IS_SPLIT(l) ? first_mine + m : m;                                \
        if (row < ROWS_##l) {                                                      \
            ADD_PARTS4(sum, l, row, j, BY_SAMPLES ? rank : 0)                      \
            SHARED_STORE4(pool + Z_AT + m * STRIDE_##l + j, sum);                  \
        }                                                                          \
    }                                                                              \
    BARRIER();

/* Computes three numbers from a sample's sums of outputs, z. `largest` is the largest z[k]. `sum`
 * is the sum of exp(z[k] - largest). `factor` is the sum of the targets, divided by `sum`. The
 * error of output k is exp(z[k] - largest) * factor - target[k]. */
#if SOFTMAX
INLINE void softmax_of(SHARED_POINTER const float *z, SHARED_POINTER const float *target,
                       float *largest, float *factor, float *sum)
{
    float wanted = 0.0f;
    *largest = -INFINITY;
    *sum = 0.0f;
    for (int k = 0; k < OUTPUTS; k++)
        *largest = MAXIMUM(z[k], *largest);
    for (int k = 0; k < OUTPUTS; k++) {
        *sum += exp(z[k] - *largest);
        wanted += target[k];
    }
    *factor = wanted / *sum;
}
/* With few outputs, each work-item that computes an error calls softmax_of() itself, instead of
 * waiting for the results of another work-item. */
#define FEW_OUTPUTS (OUTPUTS <= 32)
#endif

/* Gathers the errors of a layer's units. The units are the inputs of the next layer, and each
 * work-group that owns some of these inputs has their errors. Each work-group begins to read at a
 * different owner, so that not all read from the same owner at once. */
#define GATHER(l, next)                                                            \
    {                                                                              \
        const int owners = CEIL_DIV(UNITS_##l, SHARE_##next);                      \
        const int of_owner = ROWS * (SHARE_##next / 4);                            \
        ROLLED for (int begin = item; begin < owners * of_owner; begin += 4 * THREADS) { \
            float4 errors[4];                                                      \
            UNROLL for (int ahead = 0; ahead < 4; ahead++) {                       \
                int n = begin + ahead * THREADS, at = n % of_owner * 4;            \
                errors[ahead] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                     \
                if (n < owners * of_owner)                                         \
                    errors[ahead] = SHARED_LOAD4(                                  \
                        PEER(next, E_AT_##next, (n / of_owner + rank) % owners) + at); \
            }                                                                      \
            UNROLL for (int ahead = 0; ahead < 4; ahead++) {                       \
                int n = begin + ahead * THREADS, at = n % of_owner * 4;            \
                int owner = (n / of_owner + rank) % owners;                        \
                int j = owner * SHARE_##next + at % SHARE_##next;                  \
                if (n < owners * of_owner && j < UNITS_##l)                        \
                    SHARED_STORE4(pool + D_AT_##l + at / SHARE_##next * STRIDE_##l + j, \
                                  errors[ahead]);                                  \
            }                                                                      \
        }                                                                          \
    }                                                                              \
    BARRIER();

/* Backward pass of a layer other than 0: computes the errors of the layer's inputs, updates the
 * layer's weights, and gathers the errors of the units of layer `before`. If SHARED_OUT is 1, it
 * computes gradients of this work-group's samples, and END_OF_BACKWARD does the rest. */
#define BACKWARD(l, before)                                                        \
    HIDE(item);                                                                    \
    if (IS_SPLIT(l))                                                               \
        backward_product(ROWS_##l, pool + D_AT_##l, pool + W_AT_##l, STRIDE_##l,   \
                         pool + A_AT_##l, LENGTH_##l, pool + E_AT_##l, SHARE_##l,  \
                         FOURS(UNITS_##l), SHARE_##l, INPUTS_##l - BASE(l), BACKWARD_##l, item); \
    else                                                                           \
        backward_product(ROWS_##l, pool + D_AT_##l, pool + W_AT_##l, STRIDE_##l,   \
                         pool + A_AT_##l, LENGTH_##l,                              \
                         pool + (SHARED_OUT && IS_SPLIT(before) ? E_AT_##l : D_AT_##before), \
                         STRIDE_##before, FOURS(UNITS_##l), 4 * FOURS(INPUTS_##l), INPUTS_##l, \
                         BACKWARD_##l, item);                                      \
    GROUP_SEND(l)                                                                  \
    CHANGE_WEIGHTS(l, pool + A_AT_##l, )                                           \
    if (CLUSTER > 1 && IS_SPLIT(l)) {                                              \
        GROUP_RECEIVE(l)                                                           \
        GATHER(before, l)                                                          \
    }
#if SHARED_OUT
#define END_OF_BACKWARD                                                            \
    CLUSTER_SEND();                                                                \
    CLUSTER_RECEIVE();                                                             \
    UPPER(CHANGE_OWN)                                                              \
    GATHER_SAMPLES
#else
#define END_OF_BACKWARD
#endif
/* Updates the weights of a layer that this work-group owns. */
#define CHANGE_OWN(l, before)                                                      \
    CHANGE_ALL(l, 0, CLUSTER, rank, BY_FOUR for (int part = 0; part < CLUSTER; part++) { \
        SHARED_POINTER const float *from = map_cluster(pool, part) + G_AT_##l;     \
        ADD_SCALED4(gradient, 1.0f, SHARED_LOAD4(from + i * STRIDE_##l + j));      \
    })
/* Gathers the errors of the units of layer 0. Each work-group has those of its samples, and begins
 * to read at a different work-group. */
#define GATHER_SAMPLES                                                             \
    {                                                                              \
        const int owners = CEIL_DIV(ROWS, MINE), of_owner = MINE * FOURS(UNITS_0); \
        ROLLED for (int begin = item; begin < owners * of_owner; begin += 4 * THREADS) { \
            float4 errors[4];                                                      \
            UNROLL for (int ahead = 0; ahead < 4; ahead++) {                       \
                int n = begin + ahead * THREADS, owner = (n / of_owner + rank) % owners; \
                int m = n % of_owner / FOURS(UNITS_0), j = n % of_owner % FOURS(UNITS_0) * 4; \
                errors[ahead] = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                     \
                if (n < owners * of_owner)                                         \
                    errors[ahead] = SHARED_LOAD4(map_cluster(pool, owner) + E_AT_1 \
                                                 + m * STRIDE_0 + j);              \
            }                                                                      \
            UNROLL for (int ahead = 0; ahead < 4; ahead++) {                       \
                int n = begin + ahead * THREADS, owner = (n / of_owner + rank) % owners; \
                int b = owner * MINE + n % of_owner / FOURS(UNITS_0);              \
                if (n < owners * of_owner && b < ROWS)                             \
                    SHARED_STORE4(pool + D_AT_0 + b * STRIDE_0                     \
                                  + n % of_owner % FOURS(UNITS_0) * 4, errors[ahead]); \
            }                                                                      \
        }                                                                          \
    }                                                                              \
    BARRIER();

/* Copies a layer's weights and moments between global memory and this work-group. */
#define MOVE(l, MOVE_ONE)                                                          \
    ROLLED for (int n = item; n < SHARE_##l * UNITS_##l; n += THREADS) {           \
        int i = n % SHARE_##l, j = n / SHARE_##l, input = BASE(l) + i;             \
        int there = GLOBAL_##l + (input < INPUTS_##l ? j * INPUTS_##l + input      \
                                                     : INPUTS_##l * UNITS_##l + j); \
        int at = W_AT_##l + i * STRIDE_##l + j;                                    \
        if (input <= INPUTS_##l)                                                   \
            MOVE_ONE(l)                                                            \
    }
#define LOAD_ONE(l)                                                                \
    {                                                                              \
        pool[at] = before[there];                                                  \
        UNROLL for (int number = 0; number < MOMENTS; number++)                    \
            MOMENT(number, at) = before[(number + 1) * COUNT + there];             \
    }
#define STORE_ONE(l)                                                               \
    if (IS_OWNER(l, i, j)) {                                                       \
        after[there] = pool[at];                                                   \
        UNROLL for (int number = 0; number < MOMENTS; number++)                    \
            after[(number + 1) * COUNT + there] = MOMENT(number, at);              \
    }
#define LOAD(l) MOVE(l, LOAD_ONE)
#define STORE(l) MOVE(l, STORE_ONE)

KERNEL CLUSTER_DIMS WORK_GROUP_OF(THREADS) void batched(
    const GLOBAL float *RESTRICT x, const GLOBAL float *RESTRICT targets,
    const GLOBAL int *RESTRICT order, const GLOBAL float *RESTRICT settings,
    const GLOBAL float *before,
#if WEIGHTED
    const GLOBAL float *RESTRICT sample_weights,
#endif
    GLOBAL float *after, GLOBAL float *RESTRICT losses, GLOBAL float *RESTRICT workspace,
    int samples DYNAMIC_SHARED_PARAMETER(float4, pool4))
{
    DYNAMIC_SHARED(float4, pool4)
    SHARED_POINTER float *pool = (SHARED_POINTER float *)pool4;
    SHARED_POINTER int *rows = (SHARED_POINTER int *)pool4 + ROW_AT;
    int item = LOCAL_ID(0), rank = GROUP_ID(0) % CLUSTER, network = GROUP_ID(0) / CLUSTER;
    int first_mine = BY_SAMPLES ? rank * MINE : 0;
    int steps = CEIL_DIV(samples, BATCH);
    float rate = settings[network * 3], decay = settings[network * 3 + 2];
#if MOMENTS == 1
    float momentum = settings[network * 3 + 1];
#endif
    before += (INT64)network * PARAMETERS;
    after += (INT64)network * PARAMETERS;
    order += (INT64)network * samples;
    losses += (INT64)network * samples;
    workspace += (INT64)GROUP_ID(0) * OWN_WORKSPACE;
    ROLLED for (int n = item; n < OWN_WORKSPACE; n += THREADS)
        workspace[n] = 0.0f;
    ROLLED for (int n = item; n < FLOATS; n += THREADS)
        pool[n] = 0.0f;
    GLOBAL_BARRIER();
    ALL(LOAD)
#if MOMENTS == 2
    float made = before[PARAMETERS - 1];
#endif
    FETCH_ROWS(0)
    FETCH_ROWS(1)
    COPIED();
    GLOBAL_BARRIER();
    FETCH(0, 0)
    FETCH_TARGETS(0, 0)

    for (int turn = 0; turn < steps * MICRO_BATCHES; turn++) {
        int step = turn / MICRO_BATCHES;
        int count = LESSER(MICRO_BATCH, END(turn) - FIRST_SAMPLE(turn));
        float share = 1.0f / (float)LESSER(BATCH, samples - step * BATCH), step_rate = rate;
        HIDE(item);
        COPIED();
        BARRIER();
#if MOMENTS == 2
        /* 1 - beta^n is -expm1(n * log(beta)), which has no cancellation */
        if (step % 32 == 0 && item < 32) {
            float updates = made + (float)(step + item + 1);
            pool[FACTOR_AT + item] = sqrt(-expm1(updates * LOG_BETA_2))
                                     / -expm1(updates * LOG_BETA_1);
        }
#endif
        FORWARD_FIRST
        UPPER(FORWARD)

        SHARED_POINTER const float *target = pool + T_AT + turn % BUFFERS * (MINE * OUTPUTS);
#if WEIGHTED
        SHARED_POINTER const float *weight = pool + V_AT + turn % BUFFERS * MINE;
#endif
#if SOFTMAX && !FEW_OUTPUTS
        ROLLED for (int m = item; m < MINE && first_mine + m < count; m += THREADS) {
            float largest, factor, sum;
            softmax_of(pool + Z_AT + m * OUTPUT_STRIDE, target + m * OUTPUTS, &largest, &factor,
                       &sum);
            pool[STATISTIC_AT + 3 * m] = largest;
            pool[STATISTIC_AT + 3 * m + 1] = factor;
            pool[STATISTIC_AT + 3 * m + 2] = sum;
        }
        BARRIER();
#endif
        ROLLED for (int n = item; n < ERROR_ROWS * 4 * FOURS(OUTPUTS); n += THREADS) {
            int m = n / (4 * FOURS(OUTPUTS)), k = n % (4 * FOURS(OUTPUTS));
            float error = 0.0f;
            if (k < OUTPUTS && m < MINE && first_mine + m < count) {
                float z = pool[Z_AT + m * OUTPUT_STRIDE + k], t = target[m * OUTPUTS + k];
#if SOFTMAX
#if FEW_OUTPUTS
                float largest, factor, sum;
                softmax_of(pool + Z_AT + m * OUTPUT_STRIDE, target + m * OUTPUTS, &largest,
                           &factor, &sum);
                if (k == 0) { /* for the loss */
                    pool[STATISTIC_AT + 3 * m] = largest;
                    pool[STATISTIC_AT + 3 * m + 2] = sum;
                }
#else
                float largest = pool[STATISTIC_AT + 3 * m];
                float factor = pool[STATISTIC_AT + 3 * m + 1];
#endif
                error = FMA(exp(z - largest), factor, -t);
#else
                float y = ACTIVATE_OUTPUT(z);
                error = (y - t) * OUTPUT_SLOPE(y);
#if WEIGHTED
                error *= weight[m];
#endif
#endif
            }
            pool[(SPLIT == LAYERS && BY_SAMPLES ? O_AT : OUTPUT_ERROR_AT) + m * OUTPUT_STRIDE + k] =
                error;
        }
#if BY_SAMPLES && SPLIT == LAYERS
        CLUSTER_SEND();
        CLUSTER_RECEIVE();
        ROLLED for (int n = item; n < ROWS * FOURS(OUTPUTS); n += THREADS) {
            int b = (n / FOURS(OUTPUTS) + first_mine) % ROWS;
            int at = b % MINE * OUTPUT_STRIDE + n % FOURS(OUTPUTS) * 4;
            SHARED_STORE4(pool + OUTPUT_ERROR_AT + b * OUTPUT_STRIDE + n % FOURS(OUTPUTS) * 4,
                          SHARED_LOAD4(map_cluster(pool, b / MINE) + O_AT + at));
        }
#endif
        BARRIER();

#if MOMENTS == 2
        step_rate = rate * pool[FACTOR_AT + step % 32];
#endif
        LOWER(BACKWARD)
        END_OF_BACKWARD

        /* Work-items that update few weights compute the losses, so that other work-groups do
         * not wait longer for this one. */
        ROLLED for (int m = (item + THREADS / 2 - 32) % THREADS; m < MINE && first_mine + m < count;
                    m += THREADS) {
            SHARED_POINTER const float *z = pool + Z_AT + m * OUTPUT_STRIDE;
            SHARED_POINTER const float *t = target + m * OUTPUTS;
            float loss = 0.0f;
#if SOFTMAX
            float most = log(pool[STATISTIC_AT + 3 * m + 2]) + pool[STATISTIC_AT + 3 * m];
            for (int k = 0; k < OUTPUTS; k++)
                loss += t[k] * (most - z[k]);
#else
            for (int k = 0; k < OUTPUTS; k++) {
                float off = t[k] - ACTIVATE_OUTPUT(z[k]);
                loss = FMA(0.5f * off, off, loss);
            }
#if WEIGHTED
            loss *= weight[m];
#endif
#endif
            if (BY_SAMPLES || rank == 0)
                losses[FIRST_SAMPLE(turn) + first_mine + m] = loss;
        }
#if BUFFERS == 2
        CHANGE_WEIGHTS(0, pool + X_AT + turn % 2 * (ROWS * LENGTH_0), )
#else
        CHANGE_WEIGHTS(0, pool + X_AT, BARRIER(); FETCH(turn + 1, 0) FETCH_TARGETS(turn + 1, 0))
#endif
    }

    COPIED();
    GROUP_SEND(0)
    GROUP_RECEIVE(0)
    GLOBAL_BARRIER();
    ALL(STORE)
#if MOMENTS == 2
    if (rank == 0 && item == 0)
        after[PARAMETERS - 1] = made + (float)steps;
#endif
}
