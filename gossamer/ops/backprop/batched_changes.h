/* Weight updates of batched.cl. The macros use variables of its kernel: `pool`, `workspace`,
 * `item`, `rank`, `turn`, `decay`, `momentum`, `step_rate` and `share`. The share is 1 / number of
 * samples of the step. */

#pragma once

#if !defined CONFIGURED && !defined MOMENTS
#define MOMENTS 2 /* running means for each weight: 1 with momentum, 2 with Adam */
#define MOMENTS_SHARED 1 /* 1: running means are in shared memory; 0: in the workspace */
#define MICRO_BATCHES 1 /* micro-batches of a step */
#define GRADIENTS_AT 0 /* offset of the gradients of the micro-batches so far, in floats */
#define GRADIENTS_SHARED 1 /* 1: these gradients are in shared memory; 0: in the workspace */
#define STATE 1600 /* floats of a work-group's weights */
#define NEW_1 0.1f /* factor of a new gradient in Adam's mean of gradients */
#define NEW_2 0.001f /* factor of a new square in Adam's mean of squares */
#define EPSILON 1e-8f /* the number that Adam adds to each square root */
#endif

#include "dialect/common.h"
#include "ops/backprop/batched_products.h"

#if MOMENTS_SHARED
#define MOMENT(number, at) pool[((number) + 1) * STATE + (at)]
#define MOMENT4(number, at) SHARED_LOAD4(pool + ((number) + 1) * STATE + (at))
#define STORE_MOMENT4(number, at, value) SHARED_STORE4(pool + ((number) + 1) * STATE + (at), value)
#else
#define MOMENT(number, at) workspace[(number) * STATE + (at)]
#define MOMENT4(number, at) LOAD4(workspace + (number) * STATE + (at))
#define STORE_MOMENT4(number, at, value) STORE4(workspace + (number) * STATE + (at), value)
#endif
#if GRADIENTS_SHARED
#define GRADIENT4(at) SHARED_LOAD4(pool + GRADIENTS_AT + (at))
#define STORE_GRADIENT4(at, value) SHARED_STORE4(pool + GRADIENTS_AT + (at), value)
#else
#define GRADIENT4(at) LOAD4(workspace + GRADIENTS_AT + (at))
#define STORE_GRADIENT4(at, value) STORE4(workspace + GRADIENTS_AT + (at), value)
#endif

/* mean / (sqrt(square) + EPSILON). CUDA uses approximate instructions, a third as many as exact
 * arithmetic needs. Their relative error is a few units in the last place instead of half a unit,
 * and they flush subnormal numbers to 0. */
#ifdef __CUDACC__
#define QUOTIENT_BY_ROOT(mean, square) quotient_by_root(mean, square)
INLINE float quotient_by_root(float mean, float square)
{
    float root, quotient;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(square));
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(quotient) : "f"(mean), "f"(root + EPSILON));
    return quotient;
}
#else
#define QUOTIENT_BY_ROOT(mean, square) ((mean) / (sqrt(square) + EPSILON))
#endif

/* Updates component c of `weight4`, which is one weight. Component c of `gradient` is the sum of
 * this weight's gradients over the samples of the step. */
#define CHANGE(c)                                                                  \
    {                                                                              \
        float change = FMA(decayed, weight4.c, share * gradient.c);                \
        CHANGE_MOMENTS(c)                                                          \
        weight4.c = FMA(-step_rate, change, weight4.c);                            \
    }
#if MOMENTS == 2
#define CHANGE_MOMENTS(c)                                                          \
    mean.c = FMA(NEW_1, change - mean.c, mean.c);                                  \
    square.c = FMA(NEW_2, FMA(change, change, -square.c), square.c);               \
    change = QUOTIENT_BY_ROOT(mean.c, square.c);
#elif MOMENTS == 1
#define CHANGE_MOMENTS(c)                                                          \
    change = FMA(momentum, mean.c, change);                                        \
    mean.c = change;
#else
#define CHANGE_MOMENTS(c)
#endif

/* Loads or stores `mean` and `square` of the four weights at offset `at`. They are needed only in
 * the last micro-batch. */
#if MOMENTS == 2
#define LOAD_MOMENTS(at)                                                           \
    if (IS_LAST(turn))                                                             \
    mean = MOMENT4(0, at), square = MOMENT4(1, at)
#define STORE_MOMENTS(at) STORE_MOMENT4(0, at, mean), STORE_MOMENT4(1, at, square)
#elif MOMENTS == 1
#define LOAD_MOMENTS(at)                                                           \
    if (IS_LAST(turn))                                                             \
    mean = MOMENT4(0, at)
#define STORE_MOMENTS(at) STORE_MOMENT4(0, at, mean)
#else
#define LOAD_MOMENTS(at) (void)(at)
#define STORE_MOMENTS(at)
#endif

#ifdef __CUDACC__
#define MAYBE_UNUSED [[maybe_unused]]
#else
#define MAYBE_UNUSED
#endif

/* LOAD_EARLIER loads the gradients of the four weights at offset `at`, summed over the earlier
 * micro-batches of the step. ADD_EARLIER adds them to `gradient`. If further micro-batches follow,
 * it stores the sums, and the statement behind it is skipped. */
#if MICRO_BATCHES > 1
#define LOAD_EARLIER(at)                                                           \
    if (turn % MICRO_BATCHES > 0)                                                  \
    earlier = GRADIENT4(at)
#define ADD_EARLIER(at)                                                            \
    ADD_SCALED4(gradient, 1.0f, earlier);                                          \
    if (!IS_LAST(turn))                                                            \
        STORE_GRADIENT4(at, gradient);                                             \
    else
#else
#define LOAD_EARLIER(at) (void)(at)
#define ADD_EARLIER(at)
#endif

/* Updates the four weights at offset `at`, which belong to input i, from `gradient`, `earlier`,
 * `mean` and `square`. Weight decay does not apply to biases. */
#define CHANGE4(l, i, at)                                                          \
    {                                                                              \
        ADD_EARLIER(at)                                                            \
        {                                                                          \
            float decayed = BASE(l) + (i) < INPUTS_##l ? decay : 0.0f;             \
            float4 weight4 = SHARED_LOAD4(pool + (at));                            \
            CHANGE(x)                                                              \
            CHANGE(y)                                                              \
            CHANGE(z)                                                              \
            CHANGE(w)                                                              \
            SHARED_STORE4(pool + (at), weight4);                                   \
            STORE_MOMENTS(at);                                                     \
        }                                                                          \
    }

/* Updates the weights of a layer. With several owners, only the weights of one owner are updated:
 * they are dealt to the owners in turn, four at a time. If `keep` is 1, the weights stay the same,
 * and their gradients are stored for their owners; see KEEP. SUM_GRADIENT is code that adds to
 * `gradient` the gradients of the four weights from input i to units j, ..., j + 3. A work-item
 * loads the moments and earlier gradients of AHEAD x 4 weights before it updates these weights, so
 * that several loads from the workspace are under way at once. */
#define CHANGE_ALL(l, keep, owners, owner, SUM_GRADIENT)                           \
    ROLLED for (int begin = FIRST_CHANGE(l); begin * (owners) < SHARE_##l * FOURS(UNITS_##l); \
                begin += AHEAD * THREADS) {                                        \
        float4 means[AHEAD], squares[AHEAD], sums[AHEAD];                          \
        UNROLL for (int ahead = 0; ahead < AHEAD; ahead++) {                       \
            int n = (begin + ahead * THREADS) * (owners) + (owner);                \
            MAYBE_UNUSED int at =                                                  \
                W_AT_##l + n / FOURS(UNITS_##l) * STRIDE_##l + n % FOURS(UNITS_##l) * 4; \
            MAYBE_UNUSED float4 mean = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);              \
            MAYBE_UNUSED float4 square = mean, earlier = mean;                     \
            if (n < SHARE_##l * FOURS(UNITS_##l) && !(keep)) {                     \
                LOAD_MOMENTS(at);                                                  \
                LOAD_EARLIER(at);                                                  \
            }                                                                      \
            means[ahead] = mean;                                                   \
            squares[ahead] = square;                                               \
            sums[ahead] = earlier;                                                 \
        }                                                                          \
        UNROLL for (int ahead = 0; ahead < AHEAD; ahead++) {                       \
            int n = (begin + ahead * THREADS) * (owners) + (owner);                \
            int i = n / FOURS(UNITS_##l), j = n % FOURS(UNITS_##l) * 4;            \
            MAYBE_UNUSED float4 mean = means[ahead], square = squares[ahead];      \
            MAYBE_UNUSED float4 earlier = sums[ahead];                             \
            if (n < SHARE_##l * FOURS(UNITS_##l)) {                                \
                float4 gradient = MAKE4(0.0f, 0.0f, 0.0f, 0.0f);                   \
                SUM_GRADIENT                                                       \
                if (keep)                                                          \
                    KEEP(l, i, j);                                                 \
                else                                                               \
                    CHANGE4(l, i, W_AT_##l + i * STRIDE_##l + j)                   \
            }                                                                      \
        }                                                                          \
    }
/* The index of the first four weights that a work-item updates. In layer 0, the last work-items may
 * update fewer weights than the others. In the other layers, the first work-items do. */
#define FIRST_CHANGE(l) ((l) == 0 ? item : THREADS - 1 - item)
/* KEEP stores `gradient` for the owner of the four weights from input i to units j, ..., j + 3.
 * IS_KEPT is whether the gradients of a layer are kept. */
#define KEEP(l, i, j) SHARED_STORE4(pool + G_AT_##l + (i) * STRIDE_##l + (j), gradient)
#define IS_KEPT(l) (SHARED_OUT && !IS_SPLIT(l))
#if MOMENTS_SHARED && GRADIENTS_SHARED
#define AHEAD 1
#else
#define AHEAD 4
#endif

/* Updates a layer's weights by the errors of the layer's units. The macro does not end with a
 * barrier. AFTER_PRODUCT is code that runs after the inputs have been read for the last time; if it
 * overwrites them, it begins with a barrier. */
#define CHANGE_WEIGHTS(l, in, AFTER_PRODUCT)                                       \
    {                                                                              \
        HIDE(item);                                                                \
        const int tile[] = {GRADIENT_##l};                                         \
        const int tiles_i = CEIL_DIV(SHARE_##l, tile[0] * ALONG) * ALONG;          \
        const int tiles_j = CEIL_DIV(UNITS_##l, tile[1] * ACROSS) * ACROSS;        \
        if (tile[2] > 0) {                                                         \
            float sum[8][8];                                                       \
            clear_tile(sum, tile[0], tile[1]); /* earlier, `sum` would occupy registers longer */ \
            const int tiles = tiles_i * tiles_j * tile[2];                         \
            Place place = GRADIENT_PLACE(LESSER(item, tiles - 1), tiles_i, tiles_j, tile[2]); \
            if (item < tiles)                                                      \
                gradient_tile(ROWS_##l, sum, in, LENGTH_##l, pool + D_AT_##l, STRIDE_##l, \
                              SHARE_##l, UNITS_##l, place, tiles_i, tiles_j, GRADIENT_##l); \
            BARRIER();                                                             \
            if (item < tiles)                                                      \
                store_gradient_tile(sum, pool + D_AT_##l + place.part * SHARE_##l * STRIDE_##l, \
                                    STRIDE_##l, SHARE_##l, UNITS_##l, place, tiles_i, tiles_j, \
                                    tile[0], tile[1]);                             \
            BARRIER();                                                             \
            AFTER_PRODUCT                                                          \
            CHANGE_ALL(l, IS_KEPT(l), 1, 0,                                        \
                       gradient = sum_of_parts(pool + D_AT_##l + i * STRIDE_##l + j, \
                                               SHARE_##l * STRIDE_##l, tile[2]);)  \
        } else if (tile[2] == 0) {                                                 \
            CHANGE_ALL(l, 0, 1, 0, ROLLED for (int b = 0; b < MICRO_BATCH; b++) {           \
                float4 error = SHARED_LOAD4(pool + D_AT_##l + b * STRIDE_##l + j); \
                float value = (in)[b * LENGTH_##l + i];                            \
                ADD_SCALED4(gradient, value, error);                               \
            })                                                                     \
            AFTER_PRODUCT                                                          \
        } else {                                                                   \
            ROLLED for (int t = item; t < tiles_i * tiles_j; t += THREADS) {       \
                float sum[8][8];                                                   \
                Place place = GRADIENT_PLACE(t, tiles_i, tiles_j, 1);              \
                clear_tile(sum, tile[0], tile[1]);                                 \
                gradient_tile(ROWS_##l, sum, in, LENGTH_##l, pool + D_AT_##l, STRIDE_##l, \
                              SHARE_##l, UNITS_##l, place, tiles_i, tiles_j, tile[0], tile[1], 1); \
                UNROLL for (int m = 0; m < tile[0]; m++)                           \
                    UNROLL for (int n = 0; n < tile[1]; n += 4) {                  \
                        int i = COLUMN(place.along, tiles_i, m);                   \
                        int j = COLUMN(place.across, tiles_j, n);                  \
                        int at = W_AT_##l + i * STRIDE_##l + j;                    \
                        float4 gradient = MAKE4(sum[m][n], sum[m][n + 1], sum[m][n + 2], \
                                                sum[m][n + 3]);                    \
                        MAYBE_UNUSED float4 mean = gradient, square = gradient;    \
                        MAYBE_UNUSED float4 earlier = MAKE4(0.0f, 0.0f, 0.0f, 0.0f); \
                        if (i < SHARE_##l && j < UNITS_##l && IS_KEPT(l)) {        \
                            KEEP(l, i, j);                                         \
                        } else if (i < SHARE_##l && j < UNITS_##l) {               \
                            LOAD_MOMENTS(at);                                      \
                            LOAD_EARLIER(at);                                      \
                            CHANGE4(l, i, at)                                      \
                        }                                                          \
                    }                                                              \
            }                                                                      \
            AFTER_PRODUCT                                                          \
        }                                                                          \
    }
