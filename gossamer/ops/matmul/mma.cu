/* Batched matrix products, c = a @ b, on tensor cores (sm_80). A work-group computes TILE_M x TILE_N
 * results of one product.
 *
 * K is divided into stages of DEPTH elements. Asynchronous copies fill the SLOTS of shared memory
 * ahead of the multiplications. Each slot holds one stage: the lines of `a`, then the lines of `b`.
 * A line is contiguous in device memory. With BY_K, it is a part of a row of `a` or of a column of
 * `b`, DEPTH elements long. Without BY_K, it is a part of a column of `a` or of a row of `b`, as
 * long as the tile. Elements outside of a matrix are replaced by zeros.
 *
 * The tile is divided among WARPS_M x WARPS_N groups of WARPS_K warps. The warps of a group share
 * the steps of each stage, which helps if the result is small and K is long. All warps write their
 * sums to shared memory. For each result, the sums of the WARPS_K warps are then added up, and
 * neighbouring work-items store neighbouring results. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define HALVES 1 /* 1: operands are 16-bit floats; 0: they are floats, which are read as TF32 */
#define TILE_M 64 /* rows of a tile of results */
#define TILE_N 64 /* columns of a tile of results */
#define WARPS_M 2 /* warps along the rows of a tile */
#define WARPS_N 2 /* warps along the columns of a tile */
#define WARPS_K 1 /* warps that share the steps of a stage */
#define STEPS 4 /* steps of a stage, each of 32 bytes of K */
#define SLOTS 3 /* stages that shared memory holds */
#define BLOCKS_PER_UNIT 4 /* work-groups that must fit on a multiprocessor at once */
#define A_BY_K 1 /* 1: each row of `a` is contiguous in memory; 0: each column is */
#define B_BY_K 0 /* 1: each column of `b` is contiguous in memory; 0: each row is */
/* elements per copy of 4, 8 or 16 bytes. If the number is 1, 16-bit floats are loaded one by one,
 * because lines do not begin at multiples of 4 bytes */
#define A_AT_ONCE 8
#define B_AT_ONCE 8
#define C_AT_ONCE 8 /* neighbouring results that are stored at once */
#define ROUNDS 1 /* 1: results are stored as 16-bit floats; 0: as floats */
#endif

#include "dialect/common.h"
#include "mma/neighbours.h"
#include "mma/precisions.h"
#include "ptx/cp_async.h"
#include "ptx/griddepcontrol.h"
#include "ptx/ldmatrix.h"
#include "batch.h"

#define WORK_GROUP_SIZE (32 * WARPS_M * WARPS_N * WARPS_K)
#define VECTOR (HALVES ? 8 : 4) /* elements in 16 bytes */
#define STEP (2 * VECTOR) /* elements along K that one instruction multiplies */
#define DEPTH (STEPS * STEP)
#define LEAD (SLOTS - 1) /* stages that are copied ahead */
#define FRAGMENTS_M (TILE_M / WARPS_M / 16)
#define FRAGMENTS_N (TILE_N / WARPS_N / 16)
#define SUMS_PITCH (TILE_N + 8) /* stride of rows of sums, in floats; the 8 avoid bank conflicts */

#if ROUNDS
#define RESULT HALF
#else
#define RESULT float
#endif

/* The lines of one operand in a stage: TILE rows of `a` or TILE columns of `b`. To avoid bank
 * conflicts, lines are separated by 16 bytes. They are separated by 32 bytes if a warp reads single
 * floats of four lines. */
template <int TILE, int BY_K> struct Lines {
    static constexpr int COUNT = BY_K ? TILE : DEPTH;
    static constexpr int LENGTH = BY_K ? DEPTH : TILE;
    static constexpr int PITCH = LENGTH + (HALVES || BY_K ? 1 : 2) * VECTOR;
    static constexpr int SIZE = COUNT * PITCH;
};
typedef Lines<TILE_M, A_BY_K> LinesA;
typedef Lines<TILE_N, B_BY_K> LinesB;
#define SLOT (LinesA::SIZE + LinesB::SIZE)

/* Copies one operand's lines of a stage. from: the stage's first element. stride: distance between
 * lines, in elements. across: number of rows of `a` or columns of `b` from `from` to the end of the
 * matrix. deep: number of elements from `from` to the end of K. Steps beyond the end of K are not
 * multiplied, so they are not copied. */
template <int TILE, int BY_K, int AT_ONCE>
INLINE void copy_lines(REAL *target, const REAL *from, int stride, int across, int deep)
{
    typedef Lines<TILE, BY_K> Its;
    constexpr int copied = AT_ONCE * sizeof(REAL) < 4 ? 2 : AT_ONCE;
    constexpr int parts = Its::LENGTH / copied;
    int lines = BY_K ? across : deep, length = BY_K ? deep : across;
    int multiplied = CEIL_DIV(deep, STEP) * STEP;
    UNROLL for (int unit = LOCAL_ID(0); unit < Its::COUNT * parts; unit += WORK_GROUP_SIZE) {
        int line = unit / parts, place = unit % parts * copied;
        if ((BY_K ? place : line) < multiplied) {
            REAL *to = target + line * Its::PITCH + place;
            bool inside = line < lines && place < length;
            const REAL *source = from + (inside ? line * stride + place : 0);
#if HALVES
            if constexpr (AT_ONCE == 1) {
                /* the lines do not begin at multiples of 4 bytes, which asynchronous copies need */
                uint lower = inside ? source[0] : 0u;
                uint upper = inside && place + 1 < length ? source[1] : 0u;
                *(uint *)to = lower | upper << 16;
                continue;
            }
#endif
            constexpr int bytes = copied * (int)sizeof(REAL);
            if constexpr (bytes == 16)
                cp_async_16(shared_address(to), source, inside ? 16 : 0);
            else
                cp_async_ca<bytes>(shared_address(to), source, inside ? bytes : 0);
        }
    }
}

/* Loads an operand of mma: one step of 16 rows of `a` (if LEFT is 1) or of 16 columns of `b`. The
 * first of these rows or columns has the index `first`. */
template <int LEFT, int TILE, int BY_K>
INLINE uint4 load_fragment(const REAL *lines, int first, int step)
{
    constexpr int pitch = Lines<TILE, BY_K>::PITCH;
    int lane = LOCAL_ID(0) % 32;
    if constexpr (HALVES || BY_K) {
        int line = LEFT == BY_K ? lane % 16 : lane % 8 + lane / 16 * 8;
        int place = (LEFT == BY_K ? lane / 16 : lane / 8 % 2) * VECTOR;
        if constexpr (BY_K)
            return ldmatrix_x4(shared_address(lines + (first + line) * pitch + step * STEP + place));
        else
            return ldmatrix_x4_trans(
                shared_address(lines + (step * STEP + line) * pitch + first + place));
    } else {
        /* ldmatrix transposes numbers of 16 bits only, so floats are loaded one by one */
        const REAL *from = lines + (step * STEP + lane % 4) * pitch + first + lane / 4;
        auto bits = [&](int k, int across) {
            return (uint)__float_as_int(from[k * pitch + across]);
        };
        uint next_k = bits(4, 0), next_across = bits(0, 8);
        return make_uint4(bits(0, 0), LEFT ? next_across : next_k, LEFT ? next_k : next_across,
                          bits(4, 8));
    }
}

KERNEL LAUNCH_BOUNDS(WORK_GROUP_SIZE, BLOCKS_PER_UNIT) void matmul_mma(
    const REAL *a, const REAL *b, RESULT *RESTRICT c, int rows, int columns,
    int inner, int a_stride, int b_stride, BATCH_PARAMETERS)
{
    DYNAMIC_SHARED(uint4, memory)
    pdl_trigger_and_wait();
    REAL *slots = (REAL *)memory;
    int item = LOCAL_ID(0), lane = item % 32, warp = item / 32;
    int warp_n = warp % WARPS_N, warp_m = warp / WARPS_N % WARPS_M;
    int warp_k = warp / (WARPS_N * WARPS_M);
    uint number = (uint)GROUP_ID(0);
    uint across = (uint)CEIL_DIV(columns, TILE_N), down = (uint)CEIL_DIV(rows, TILE_M);
    int column0 = (int)(number % across) * TILE_N;
    number /= across;
    int row0 = (int)(number % down) * TILE_M;
    BATCH(number / down)
    a += A_BY_K ? (size_t)row0 * a_stride : (size_t)row0;
    b += B_BY_K ? (size_t)column0 * b_stride : (size_t)column0;

    int stages = CEIL_DIV(inner, DEPTH);
    auto copy_stage = [&](int stage) {
        if (stage < stages) {
            REAL *lines = slots + stage % SLOTS * SLOT;
            int k = stage * DEPTH;
            copy_lines<TILE_M, A_BY_K, A_AT_ONCE>(
                lines, a + (A_BY_K ? (size_t)k : (size_t)k * a_stride), a_stride, rows - row0,
                inner - k);
            copy_lines<TILE_N, B_BY_K, B_AT_ONCE>(
                lines + LinesA::SIZE, b + (B_BY_K ? (size_t)k : (size_t)k * b_stride), b_stride,
                columns - column0, inner - k);
        }
        cp_async_commit_group();
    };

    float sums[FRAGMENTS_M][2 * FRAGMENTS_N][4] = {};
    _Pragma("unroll 1") for (int stage = 0; stage < LEAD; stage++)
        copy_stage(stage);
    _Pragma("unroll 1") for (int stage = 0; stage < stages; stage++) {
        cp_async_wait_group<LEAD - 1>();
        BARRIER();
        copy_stage(stage + LEAD);
        const REAL *lines = slots + stage % SLOTS * SLOT;
        int left = CEIL_DIV(inner - stage * DEPTH, STEP);
        share_steps<STEPS, WARPS_K>(left, warp_k, [&](int step) {
            multiply_fragments<FRAGMENTS_M, FRAGMENTS_N>(
                sums, [&](int i) {
                    return as_operands(load_fragment<1, TILE_M, A_BY_K>(
                        lines, warp_m * (TILE_M / WARPS_M) + i * 16, step));
                },
                [&](int j) {
                    return as_operands(load_fragment<0, TILE_N, B_BY_K>(
                        lines + LinesA::SIZE, warp_n * (TILE_N / WARPS_N) + j * 16, step));
                });
        });
    }

    BARRIER(); /* the sums overwrite the slots */
    float *shared_sums = (float *)memory;
    UNROLL for (int i = 0; i < FRAGMENTS_M; i++)
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int j = 0; j < 2 * FRAGMENTS_N; j++) {
                int row = warp_m * (TILE_M / WARPS_M) + i * 16 + half * 8 + lane / 4;
                int column = warp_n * (TILE_N / WARPS_N) + j * 8 + lane % 4 * 2;
                *(float2 *)(shared_sums + (warp_k * TILE_M + row) * SUMS_PITCH + column) =
                    make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
            }
    BARRIER();
    for (int unit = item; unit < TILE_M * TILE_N / C_AT_ONCE; unit += WORK_GROUP_SIZE) {
        int row = unit / (TILE_N / C_AT_ONCE), column = unit % (TILE_N / C_AT_ONCE) * C_AT_ONCE;
        if (row0 + row < rows && column0 + column < columns) {
            float values[C_AT_ONCE] = {};
            UNROLL for (int warps = 0; warps < WARPS_K; warps++) {
                const float *from = shared_sums + (warps * TILE_M + row) * SUMS_PITCH + column;
                UNROLL for (int v = 0; v < C_AT_ONCE; v += C_AT_ONCE % 4 == 0 ? 4 : 1) {
#if C_AT_ONCE % 4 == 0
                    float4 four = SHARED_LOAD4(from + v);
                    values[v] += four.x;
                    values[v + 1] += four.y;
                    values[v + 2] += four.z;
                    values[v + 3] += four.w;
#else
                    values[v] += from[v];
#endif
                }
            }
            store_neighbours(c + (size_t)(row0 + row) * columns + column0 + column, values);
        }
    }
}
