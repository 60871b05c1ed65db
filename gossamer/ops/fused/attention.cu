/* Attention on tensor cores (sm_80): softmax(FACTOR * q @ k^T + bias) @ v, for many small matrices
 * q (QUERIES, DIM), k (KEYS, DIM) and v (KEYS, VALUE_DIM) of 16-bit floats. The scores q @ k^T stay
 * in registers.
 *
 * A work-group computes WARPS_M * QUERIES_OF_WARP rows of one result. It loads its rows of q, and
 * then stages of k and v, each with KEYS_OF_WARP keys for each of the WARPS_K warps that share rows.
 * For each row, a warp keeps the maximum of its scores and the sum of their exponentials. If the
 * maximum grows a lot from one stage to the next, it scales its sums down. In the end, the sums of
 * the WARPS_K warps are added.
 *
 * Each matrix is read where it is, with strides: by row, by column, and for each of the dimensions
 * that number the matrices (SIZES). DIVIDES: the greatest power of two, up to 8, by which the
 * matrix's offset, all its strides but one of 1, and the number of elements along that one can be
 * divided. bias has a row of floats for each query, BIAS_ROW floats apart, and an even number of
 * floats in a row. Its values are multiplied by log2(e).
 *
 * Source: T. Dao, D. Fu, S. Ermon, A. Rudra, C. Re, "FlashAttention: fast and memory-efficient exact
 * attention with IO-awareness", 2022; M. Milakov, N. Gimelshein, "Online normalizer calculation for
 * softmax", 2018. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* matrices are 16-bit floats */
#define QUERIES 197
#define KEYS 197
#define DIM 64 /* numbers of a query and of a key */
#define VALUE_DIM 64 /* numbers of a value and of a result */
#define WARPS_M 2 /* warps along the queries */
#define WARPS_K 2 /* warps that share the keys of the same queries */
#define QUERIES_OF_WARP 16 /* 32: a warp reads its keys and values once for two operands of queries */
#define KEYS_OF_WARP 32 /* keys of a stage for each warp; a multiple of 16 */
#define SLOTS 2 /* stages that shared memory holds: 2, or 1 if there is only one stage */
#define FACTOR 0.18f /* the factor of scores, times log2(e) */
#define DIMS 2 /* dimensions that number the matrices */
#define SIZES { 8, 3 } /* their sizes, outermost first */
#define Q_STRIDES { 113472, 64 } /* strides along these dimensions */
#define Q_ROW 576
#define Q_COLUMN 1
#define Q_OFFSET 0
#define Q_DIVIDES 8
#define K_STRIDES { 113472, 64 }
#define K_ROW 576
#define K_COLUMN 1
#define K_OFFSET 192
#define K_DIVIDES 8
#define V_STRIDES { 113472, 64 }
#define V_ROW 576
#define V_COLUMN 1
#define V_OFFSET 384
#define V_DIVIDES 8
#define OUT_STRIDES { 37824, 64 }
#define OUT_ROW 192
#define OUT_COLUMN 1
#define OUT_DIVIDES 8
#define BIASED 1 /* 1: there is a bias; 0: there is none */
#define BIAS_STRIDES { 0, 39006 }
#define BIAS_ROW 198
#endif

#include "dialect/common.h"
#include "mma/neighbours.h"
#include "mma/warp.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "ptx/shfl.h"

#define THREADS (32 * WARPS_M * WARPS_K)
#define TILE (QUERIES_OF_WARP * WARPS_M) /* queries of a work-group */
#define OPERANDS (QUERIES_OF_WARP / 16) /* operands of mma, each with 16 queries, of a warp */
#define ROWS (2 * OPERANDS) /* rows of scores of a lane */
#define STAGE (KEYS_OF_WARP * WARPS_K) /* keys of a stage */
#define STEPS CEIL_DIV(DIM, 16)
#define FRAGMENTS CEIL_DIV(VALUE_DIM, 16)
#define PITCH (16 * STEPS + 8) /* distance between rows in shared memory; the 8 avoid conflicts */
#define VALUE_PITCH (16 * FRAGMENTS + 8)
#define SLOT (STAGE * (PITCH + VALUE_PITCH))
#define SUMS_PITCH (16 * FRAGMENTS + 4)
/* Work-groups of a multiprocessor for which registers are left: small tiles take few registers, so
 * that sixteen warps run at once. */
#define GROUPS (OPERANDS == 1 && STEPS + FRAGMENTS <= 8 && THREADS <= 512 ? 512 / THREADS : 1)
/* Sums are scaled down where the exponent of a row's maximum has grown by more than this. Without
 * that, weights are up to 2^8, which 16-bit floats hold as precisely as 1. */
#define MOST_GROWTH 8.0f
/* the largest exponent that is subtracted within one rounding: what it rounds off stays below 1 */
#define MOST_SUBTRACTED 8388608.0f

/* Returns the offset of matrix `number`. */
INLINE size_t place(int number, const int (&strides)[DIMS])
{
    constexpr int sizes[DIMS] = SIZES;
    size_t result = 0;
    UNROLL for (int dim = DIMS - 1; dim >= 0; dim--) {
        result += (size_t)(number % sizes[dim]) * (size_t)strides[dim];
        number /= sizes[dim];
    }
    return result;
}

/* Copies `rows` rows of a matrix to shared memory, of which `left` are inside the matrix. The other
 * rows, and the columns from `columns` up to the next multiple of 16, are set to zero. */
template <int rows, int columns, int row_stride, int column_stride, int divides>
INLINE void copy_rows(HALF *target, const HALF *from, int left)
{
    constexpr int padded = CEIL_DIV(columns, 16) * 16, pitch = padded + 8;
    if constexpr (column_stride == 1 && divides > 1) {
        /* a work-item copies one place of every `step` rows: addresses differ by constants */
        constexpr int units = padded / divides, step = THREADS < units ? 1 : THREADS / units;
        for (int unit = LOCAL_ID(0); unit < step * units; unit += THREADS) {
            int row = unit / units, column = unit % units * divides;
            const HALF *source = from + row * row_stride + column;
            uint to = shared_address(target + row * pitch + column);
            UNROLL for (int at = 0; at < rows; at += step) {
                if (rows % step != 0 && row + at >= rows)
                    break;
                int bytes = row + at < left && column < columns ? 2 * divides : 0;
                if constexpr (divides == 8)
                    cp_async_16(to + at * pitch * 2, source + at * row_stride, bytes);
                else
                    cp_async_ca<2 * divides>(to + at * pitch * 2, source + at * row_stride, bytes);
            }
        }
    } else {
        /* neighbouring work-items read neighbouring elements */
        constexpr bool by_column = column_stride <= row_stride;
        for (int unit = LOCAL_ID(0); unit < rows * padded; unit += THREADS) {
            int row = by_column ? unit / padded : unit % rows;
            int column = by_column ? unit % padded : unit / rows;
            bool inside = row < left && column < columns;
            target[row * pitch + column] =
                inside ? from[row * row_stride + column * column_stride] : (HALF)0;
        }
    }
}

/* Returns the operand of mma at `first`: its first row of 16, and the first of 16 columns. */
INLINE uint4 load_operand(const HALF *first, int pitch, bool by_row)
{
    int lane = LOCAL_ID(0) % 32;
    int row = by_row ? lane % 16 : lane % 8 + lane / 16 * 8;
    int column = by_row ? lane / 16 * 8 : lane / 8 % 2 * 8;
    return ldmatrix_x4(shared_address(first + row * pitch + column));
}

/* ex2.approx: returns 2 to the power of x, with 22 correct bits; 0 instead of subnormal numbers. */
INLINE float power_of_two(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

/* Returns the largest of a row's values, which four neighbouring lanes hold. */
INLINE float largest_of_row(float value)
{
    UNROLL for (uint step = 1; step < 4; step *= 2) {
        float other = __shfl_sync(0xffffffffu, value, LOCAL_ID(0) % 32 ^ step);
        value = MAXIMUM(value, other);
    }
    return value;
}

KERNEL LAUNCH_BOUNDS(THREADS, GROUPS) void attention_mma(
    const HALF *q, const HALF *k, const HALF *v, const float *RESTRICT bias, HALF *RESTRICT target)
{
    DYNAMIC_SHARED(uint4, memory)
    pdl_trigger_and_wait();
    constexpr int q_strides[DIMS] = Q_STRIDES, k_strides[DIMS] = K_STRIDES;
    constexpr int v_strides[DIMS] = V_STRIDES, out_strides[DIMS] = OUT_STRIDES;
    HALF *queries = (HALF *)memory, *slots = queries + TILE * PITCH;
    int lane = LOCAL_ID(0) % 32, warp = LOCAL_ID(0) / 32;
    int warp_query = warp % WARPS_M * QUERIES_OF_WARP, warp_k = warp / WARPS_M;
    constexpr int tiles = CEIL_DIV(QUERIES, TILE), stages = CEIL_DIV(KEYS, STAGE);
    constexpr bool whole = KEYS % STAGE == 0; /* whether all keys of the stages exist */
    int number = GROUP_ID(0) / tiles, first = GROUP_ID(0) % tiles * TILE;
    k += place(number, k_strides) + K_OFFSET;
    v += place(number, v_strides) + V_OFFSET;

    auto copy_stage = [&](int stage) {
        if (stage < stages) {
            HALF *keys = slots + stage % SLOTS * SLOT;
            int key = stage * STAGE;
            copy_rows<STAGE, DIM, K_ROW, K_COLUMN, K_DIVIDES>(keys, k + (size_t)key * K_ROW,
                                                              KEYS - key);
            copy_rows<STAGE, VALUE_DIM, V_ROW, V_COLUMN, V_DIVIDES>(
                keys + STAGE * PITCH, v + (size_t)key * V_ROW, KEYS - key);
        }
        cp_async_commit_group();
    };
    copy_rows<TILE, DIM, Q_ROW, Q_COLUMN, Q_DIVIDES>(
        queries, q + place(number, q_strides) + Q_OFFSET + (size_t)first * Q_ROW, QUERIES - first);
    copy_stage(0);

    /* whether scores are multiplied by FACTOR before their maximum is sought, or in the exponents */
    constexpr bool scales_first = BIASED || FACTOR <= 0.0f;
    constexpr float factor = scales_first ? 1.0f : FACTOR;
    float sums[OPERANDS][2 * FRAGMENTS][4] = {};
    /* Of each row of a lane. `largest` is the score whose exponential is 1: the maximum, or up to
     * MOST_GROWTH less. */
    float largest[ROWS], total[ROWS] = {};
    UNROLL for (int row = 0; row < ROWS; row++)
        largest[row] = -INFINITY;
    _Pragma("unroll 1") for (int stage = 0; stage < stages; stage++) {
        cp_async_wait_group<0>();
        BARRIER();
        copy_stage(stage + 1);
        const HALF *keys = slots + stage % SLOTS * SLOT + warp_k * KEYS_OF_WARP * PITCH;
        const HALF *values = slots + stage % SLOTS * SLOT + STAGE * PITCH +
                             warp_k * KEYS_OF_WARP * VALUE_PITCH;
        int key0 = stage * STAGE + warp_k * KEYS_OF_WARP;

        float scores[OPERANDS][KEYS_OF_WARP / 8][4] = {};
        UNROLL for (int step = 0; step < STEPS; step++) {
            uint4 of_queries[OPERANDS];
            UNROLL for (int m = 0; m < OPERANDS; m++)
                of_queries[m] = load_operand(
                    queries + (warp_query + m * 16) * PITCH + step * 16, PITCH, true);
            UNROLL for (int j = 0; j < KEYS_OF_WARP / 16; j++) {
                uint4 of_keys = load_operand(keys + j * 16 * PITCH + step * 16, PITCH, false);
                UNROLL for (int m = 0; m < OPERANDS; m++) {
                    mma_sync(scores[m][2 * j], of_queries[m], of_keys.x, of_keys.y);
                    mma_sync(scores[m][2 * j + 1], of_queries[m], of_keys.z, of_keys.w);
                }
            }
        }

        if constexpr (scales_first)
            UNROLL for (int row = 0; row < ROWS; row++) {
#if BIASED
                constexpr int bias_strides[DIMS] = BIAS_STRIDES;
                int query = MINIMUM(first + warp_query + row * 8 + lane / 4, QUERIES - 1);
                const float *of_query =
                    bias + place(number, bias_strides) + BIAS_ROW * (size_t)query;
#endif
                UNROLL for (int j = 0; j < KEYS_OF_WARP / 8; j++) {
                    float2 added = make_float2(0.0f, 0.0f);
#if BIASED
                    int key = key0 + j * 8 + lane % 4 * 2;
                    if (whole || key < KEYS)
                        added = *(const float2 *)(of_query + key);
#endif
                    float *both = scores[row / 2][j] + 2 * (row % 2);
                    both[0] = FMA(both[0], FACTOR, added.x);
                    both[1] = FMA(both[1], FACTOR, added.y);
                }
            }
        if (!whole && stage == stages - 1)
            UNROLL for (int j = 0; j < KEYS_OF_WARP / 8; j++)
                UNROLL for (int c = 0; c < 2; c++)
                    if (key0 + j * 8 + lane % 4 * 2 + c >= KEYS)
                        UNROLL for (int row = 0; row < ROWS; row++)
                            scores[row / 2][j][2 * (row % 2) + c] = -INFINITY;

        /* All rows take each step together: instructions of one row would wait for each other. */
        float most[ROWS], subtracted[ROWS];
        bool grows = false, is_large = false;
        UNROLL for (int row = 0; row < ROWS; row++)
            most[row] = largest[row];
        UNROLL for (int j = 0; j < KEYS_OF_WARP / 8; j++)
            UNROLL for (int row = 0; row < ROWS; row++) {
                const float *both = scores[row / 2][j] + 2 * (row % 2);
                most[row] = MAXIMUM(most[row], MAXIMUM(both[0], both[1]));
            }
        UNROLL for (int row = 0; row < ROWS; row++) {
            most[row] = largest_of_row(most[row]);
            grows |= (most[row] - largest[row]) * factor > MOST_GROWTH;
        }
        if (__ballot_sync(0xffffffffu, grows))
            UNROLL for (int row = 0; row < ROWS; row++) {
                bool its = (most[row] - largest[row]) * factor > MOST_GROWTH;
                float scale = its ? power_of_two((largest[row] - most[row]) * factor) : 1.0f;
                largest[row] = its ? most[row] : largest[row];
                total[row] *= scale;
                UNROLL for (int j = 0; j < 2 * FRAGMENTS; j++) {
                    sums[row / 2][j][2 * (row % 2)] *= scale;
                    sums[row / 2][j][2 * (row % 2) + 1] *= scale;
                }
            }
        UNROLL for (int row = 0; row < ROWS; row++) {
            /* all scores may be -inf, where differences would be NaN */
            subtracted[row] = largest[row] == -INFINITY ? 0.0f : largest[row];
            is_large |= fabsf(subtracted[row] * factor) > MOST_SUBTRACTED;
        }
        if (__ballot_sync(0xffffffffu, is_large))
            UNROLL for (int row = 0; row < ROWS; row++) {
                UNROLL for (int j = 0; j < KEYS_OF_WARP / 8; j++)
                    UNROLL for (int c = 0; c < 2; c++)
                        scores[row / 2][j][2 * (row % 2) + c] -= subtracted[row];
                subtracted[row] = 0.0f;
            }
        UNROLL for (int j = 0; j < KEYS_OF_WARP / 8; j++)
            UNROLL for (int row = 0; row < ROWS; row++)
                UNROLL for (int c = 0; c < 2; c++) {
                    float &score = scores[row / 2][j][2 * (row % 2) + c];
                    score = power_of_two(FMA(score, factor, -subtracted[row] * factor));
                    total[row] += score;
                }

        UNROLL for (int step = 0; step < KEYS_OF_WARP / 16; step++) {
            uint4 weights[OPERANDS];
            UNROLL for (int m = 0; m < OPERANDS; m++) {
                const float (&left)[4] = scores[m][2 * step], (&right)[4] = scores[m][2 * step + 1];
                weights[m] = make_uint4(
                    two_halves(left[0], left[1]), two_halves(left[2], left[3]),
                    two_halves(right[0], right[1]), two_halves(right[2], right[3]));
            }
            UNROLL for (int j = 0; j < FRAGMENTS; j++) {
                const HALF *from = values + (step * 16 + lane % 16) * VALUE_PITCH + j * 16 +
                                   lane / 16 * 8;
                uint4 of_values = ldmatrix_x4_trans(shared_address(from));
                UNROLL for (int m = 0; m < OPERANDS; m++) {
                    mma_sync(sums[m][2 * j], weights[m], of_values.x, of_values.y);
                    mma_sync(sums[m][2 * j + 1], weights[m], of_values.z, of_values.w);
                }
            }
        }
    }

    BARRIER(); /* the sums overwrite the matrices */
    float *shared_sums = (float *)memory;
    float *maxima = shared_sums + WARPS_K * TILE * SUMS_PITCH, *totals = maxima + WARPS_K * TILE;
    UNROLL for (int row = 0; row < ROWS; row++) {
        const float (&of_operand)[2 * FRAGMENTS][4] = sums[row / 2];
        int target_row = warp_k * TILE + warp_query + row * 8 + lane / 4, half = row % 2;
        UNROLL for (int j = 0; j < 2 * FRAGMENTS; j++)
            *(float2 *)(shared_sums + target_row * SUMS_PITCH + j * 8 + lane % 4 * 2) =
                make_float2(of_operand[j][2 * half], of_operand[j][2 * half + 1]);
        total[row] = warp_sum<4>(total[row], lane);
        if (lane % 4 == 0) {
            maxima[target_row] = largest[row] * factor;
            totals[target_row] = total[row];
        }
    }
    BARRIER();
    target += place(number, out_strides) + (size_t)first * OUT_ROW;
    constexpr int units = VALUE_DIM / OUT_DIVIDES;
    constexpr bool by_column = OUT_COLUMN <= OUT_ROW;
    for (int unit = LOCAL_ID(0); unit < TILE * units; unit += THREADS) {
        int row = by_column ? unit / units : unit % TILE;
        int column = (by_column ? unit % units : unit / TILE) * OUT_DIVIDES;
        if (first + row >= QUERIES)
            continue;
        float most = -INFINITY, all = 0.0f, results[OUT_DIVIDES] = {};
        UNROLL for (int part = 0; part < WARPS_K; part++)
            most = MAXIMUM(most, maxima[part * TILE + row]);
        UNROLL for (int part = 0; part < WARPS_K; part++) {
            float scale = WARPS_K > 1 ? power_of_two(maxima[part * TILE + row] - most) : 1.0f;
            const float *from = shared_sums + (part * TILE + row) * SUMS_PITCH + column;
            all += scale * totals[part * TILE + row];
            UNROLL for (int c = 0; c < OUT_DIVIDES; c++)
                results[c] += scale * from[c];
        }
        float share = 1.0f / all;
        UNROLL for (int c = 0; c < OUT_DIVIDES; c++)
            results[c] *= share;
        store_neighbours(target + row * OUT_ROW + column * OUT_COLUMN, results);
    }
}
