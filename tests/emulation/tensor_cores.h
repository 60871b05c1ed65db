/* Emulates the instructions for tensor cores: products, loads of matrices and asynchronous
 * copies. The lanes of a warp exchange their operands through memory. The lane and register of
 * each element follow the PTX ISA's description of mma.m16n8k16 and m16n8k8 (.f16), m16n8k8
 * (.tf32), m16n8k256 (.b1), wgmma.m64nNk256 (.b1), ldmatrix and stmatrix; those of the indices of
 * sparse products follow cute's ELayout_64x32 in CUTLASS. */

#pragma once

#include "shim.h"

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* Returns the four of the eight bytes of both words that the selector's digits number. */
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
    unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

#define __reduce_or_sync(mask, bits) emulation::bits_of_warp(bits, __FILE__, __LINE__)

namespace emulation {

struct Registers {
    unsigned a[4], b[2];
};

static float element(unsigned bits, int half, bool halves)
{
    if (halves)
        return half_bits_to_float((unsigned short)(bits >> 16 * half));
    return __int_as_float((int)(bits & ~0x1fffu));
}

/* Computes c += A B, where A has 16 rows and B has 8 columns; the depth is 16 float16 or 8 TF32. */
static void multiply(bool halves, float &c0, float &c1, float &c2, float &c3, unsigned a0,
                     unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                     const char *file, int line)
{
    __shared__ Registers held[MOST_WARPS][32];
    int lane = number() % 32;
    Registers *warp = held[number() / 32];
    warp[lane] = {{a0, a1, a2, a3}, {b0, b1}};
    wait_for_warp(file, line);
    float *sums[4] = {&c0, &c1, &c2, &c3};
    for (int r = 0; r < 4; r++) {
        int row = lane / 4 + 8 * (r / 2), column = lane % 4 * 2 + r % 2;
        for (int k = 0; k < (halves ? 16 : 8); k++) {
            int quarter = halves ? k % 8 / 2 : k % 4, upper = k / (halves ? 8 : 4);
            *sums[r] += element(warp[row % 8 * 4 + quarter].a[row / 8 + 2 * upper], k % 2, halves)
                        * element(warp[column * 4 + quarter].b[upper], k % 2, halves);
        }
    }
    wait_for_warp(file, line);
}

/* Adds to c in how many of 256 positions both a row of A, which has 16, and a column of B, which
 * has 8, have a 1. */
static void multiply_bits(int &c0, int &c1, int &c2, int &c3, unsigned a0, unsigned a1, unsigned a2,
                          unsigned a3, unsigned b0, unsigned b1, const char *file, int line)
{
    __shared__ Registers held[MOST_WARPS][32];
    int lane = number() % 32;
    Registers *warp = held[number() / 32];
    warp[lane] = {{a0, a1, a2, a3}, {b0, b1}};
    wait_for_warp(file, line);
    int *sums[4] = {&c0, &c1, &c2, &c3};
    for (int r = 0; r < 4; r++) {
        int row = lane / 4 + 8 * (r / 2), column = lane % 4 * 2 + r % 2;
        for (int k = 0; k < 8; k++)
            *sums[r] += __builtin_popcount(warp[row % 8 * 4 + k % 4].a[row / 8 + 2 * (k / 4)]
                                           & warp[column * 4 + k % 4].b[k / 4]);
    }
    wait_for_warp(file, line);
}

__shared__ Registers rows_of_groups[MOST_WARPS][32];

/* Columns of a right operand in shared memory without swizzling, 8 of 16 bytes at a time, and the
 * distances, in 16 bytes, to the upper half of the depth and to the next 8 columns. */
struct Columns {
    const char *first;
    unsigned to_upper, to_next;
};

/* Returns the columns of a description, which has the address in units of 16 bytes, and from
 * bits 16 and 32 on the distances. */
static Columns columns_of(unsigned long long described)
{
    /* dynamic memory begins at an address here that may set another bit of the description */
    unsigned start = shared_address(dynamic_shared()), to_upper = described >> 16 & 0x3fff;
    return {(const char *)shared_pointer(start + (described & 0x3fff) * 16),
            to_upper & ~(start >> 20), (unsigned)(described >> 32 & 0x3fff)};
}

/* The same for a warp's 16 rows of a warpgroup's 64 and for as many columns as there are sums for,
 * whose bits are described. */
template <int SUMS>
void multiply_bits_of_group(int (&sums)[SUMS], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                            unsigned long long described, int adds, const char *file, int line)
{
    int lane = number() % 32;
    Registers *warp = rows_of_groups[number() / 32];
    warp[lane] = {{a0, a1, a2, a3}, {}};
    wait_for_warp(file, line);
    Columns columns = columns_of(described);
    for (int n = 0; n < SUMS; n++) {
        int row = lane / 4 + n / 2 % 2 * 8, column = lane % 4 * 2 + n % 2, found = 0;
        for (int k = 0; k < 8; k++)
            found += __builtin_popcount(
                warp[row % 8 * 4 + k % 4].a[row / 8 + 2 * (k / 4)]
                & *(const unsigned *)(columns.first
                                      + (k / 4 * columns.to_upper + n / 4 * columns.to_next
                                         + column) * 16
                                      + k % 4 * 4));
        sums[n] = (adds ? sums[n] : 0) + found;
    }
    wait_for_warp(file, line);
}

/* Returns 16 bytes of a described operand: vector k of a line. Bits 62 and 63 say how
 * lines lie: 0 in eights of vectors, 1 as 128 bytes whose vectors are permuted by bits 7 to 9 of
 * the address. */
static const char *described_vector(unsigned long long described, int line, int k)
{
    unsigned start = shared_address(dynamic_shared()) + (described & 0x3fff) * 16;
    unsigned to_next_piece = (described >> 16 & 0x3fff) * 16;
    unsigned to_next_lines = (described >> 32 & 0x3fff) * 16;
    unsigned address;
    if (described >> 62 == 0) {
        address = start + k * to_next_piece + line / 8 * to_next_lines + line % 8 * 16;
    } else {
        address = start + line / 8 * to_next_lines + line % 8 * 128 + k * 16;
        address ^= address >> 3 & 0x70;
    }
    return (const char *)shared_pointer(address);
}

/* Adds products of a warp's 16 rows of a warpgroup's 64 and of N columns, which are
 * described. sums: for each 8 columns the four that a lane has. */
template <int N>
void multiply_rows_of_group(bool halves, float (*sums)[4], unsigned a0, unsigned a1, unsigned a2,
                            unsigned a3, unsigned long long described, const char *file, int line)
{
    int lane = number() % 32;
    Registers *warp = rows_of_groups[number() / 32];
    warp[lane] = {{a0, a1, a2, a3}, {}};
    wait_for_warp(file, line);
    for (int n = 0; n < N / 2; n++) {
        int row = lane / 4 + n / 2 % 2 * 8, column = lane % 4 * 2 + n % 2;
        for (int k = 0; k < (halves ? 16 : 8); k++) {
            int quarter = halves ? k % 8 / 2 : k % 4, upper = k / (halves ? 8 : 4);
            unsigned bits =
                ((const unsigned *)described_vector(described, n / 4 * 8 + column, upper))[quarter];
            sums[n / 4][n % 4] +=
                element(warp[row % 8 * 4 + quarter].a[row / 8 + 2 * upper], k % 2, halves)
                * element(bits, k % 2, halves);
        }
    }
    wait_for_warp(file, line);
}

template <int N> void compute_product(const Product &product)
{
    const int depth = product.halves ? 16 : 8, of_vector = depth / 2;
    int lane = number() % 32, first_row = number() / 32 % 4 * 16 + lane / 4;
    float rows[2][16];
    auto load = [&](float (&numbers)[16], unsigned long long described, int line) {
        for (int k = 0; k < depth; k++) {
            const char *vector = described_vector(described, line, k / of_vector);
            int word = product.halves ? k % of_vector / 2 : k % of_vector;
            unsigned bits = ((const unsigned *)vector)[word];
            numbers[k] = element(bits, k % 2, product.halves);
        }
    };
    load(rows[0], product.rows, first_row);
    load(rows[1], product.rows, first_row + 8);
    for (int n = 0; n < N / 8; n++)
        for (int side = 0; side < 2; side++) {
            float column[16];
            load(column, product.columns, n * 8 + lane % 4 * 2 + side);
            for (int half = 0; half < 2; half++) {
                float &sum = product.sums[n][half * 2 + side];
                sum = product.adds ? sum : 0.0f;
                for (int k = 0; k < depth; k++)
                    sum += rows[half][k] * column[k];
            }
        }
}

/* Starts a product of 64 rows and N columns, which is computed when it is waited for, as late
 * as the device may. sums: for each 8 columns the four that a lane has; adds: 0 where they
 * begin with it. */
template <int N>
void multiply_later(bool halves, float (*sums)[4], unsigned long long rows,
                    unsigned long long columns, bool adds = true)
{
    keep_product({compute_product<N>, sums, rows, columns, halves, adds, 0, {}});
}

template <int N> void compute_sparse_product(const Product &product)
{
    int lane = number() % 32, first_row = number() / 32 % 4 * 16 + lane / 4;
    for (int n = 0; n < N / 8; n++)
        for (int r = 0; r < 4; r++) {
            int row = first_row + r / 2 * 8, column = n * 8 + lane % 4 * 2 + r % 2;
            for (int stored = 0; stored < 16; stored++) {
                unsigned indices = product.indices[stored / 8] >> 16 * (r / 2) & 0xffff;
                unsigned pair = indices >> stored % 8 / 2 * 4 & 15;
                if ((pair & 3) >= pair >> 2)
                    __builtin_trap();
                int k = stored / 2 * 4 + (int)(stored % 2 ? pair >> 2 : pair & 3);
                const unsigned short *left =
                    (const unsigned short *)described_vector(product.rows, row, stored / 8);
                const unsigned short *right =
                    (const unsigned short *)described_vector(product.columns, column, k / 8);
                product.sums[n][r] +=
                    half_bits_to_float(left[stored % 8]) * half_bits_to_float(right[k % 8]);
            }
        }
}

/* Starts a product of 64 rows and N columns like multiply_later, where of each four neighbours of a
 * row two are stored. The words of indices of lanes 2 selector and 2 selector + 1 of each four lanes
 * are read. */
template <int N>
void multiply_sparse_later(float (*sums)[4], unsigned long long rows, unsigned long long columns,
                           unsigned indices, int selector)
{
    __shared__ unsigned held[MOST_WARPS][32];
    int lane = number() % 32, first = lane / 4 * 4 + 2 * selector;
    unsigned *warp = held[number() / 32];
    warp[lane] = indices;
    wait_for_warp(__FILE__, __LINE__);
    Product product = {compute_sparse_product<N>, sums, rows, columns, true, true, 0,
                       {warp[first], warp[first + 1]}};
    wait_for_warp(__FILE__, __LINE__);
    keep_product(product);
}

/* The same for rows in registers, which are read at once. */
template <int N>
void multiply_later(bool halves, float (*sums)[4], const uint4 &rows, unsigned long long columns)
{
    multiply_rows_of_group<N>(halves, sums, rows.x, rows.y, rows.z, rows.w, columns, __FILE__,
                              __LINE__);
}

/* Computes the products that are not in the last `groups_left` groups. */
static void wait_for_products(unsigned groups_left)
{
    Product product;
    while (next_product(groups_left, product))
        product.compute(product);
}

/* Returns the bits that are set in any lane of the warp. */
static unsigned bits_of_warp(unsigned bits, const char *file, int line)
{
    __shared__ unsigned held[MOST_WARPS][32];
    unsigned *warp = held[number() / 32], result = 0;
    warp[number() % 32] = bits;
    wait_for_warp(file, line);
    for (int lane = 0; lane < 32; lane++)
        result |= warp[lane];
    wait_for_warp(file, line);
    return result;
}

/* Loads four matrices of 8 x 8 16-bit floats. Lane l gives the address of row l % 8 of matrix l /
 * 8, 16 bytes, and receives two neighbours in row l / 4 of each matrix, or in column l / 4 where
 * transposed. matrices: how many of the four are loaded; the addresses of other lanes are not read.
 */
static void ldmatrix_x4(bool transposed, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3,
                          unsigned address, const char *file, int line, int matrices = 4)
{
    __shared__ uint4 held[MOST_WARPS][32];
    int lane = number() % 32;
    uint4 *warp = held[number() / 32];
    if (lane < 8 * matrices)
        warp[lane] = *(const uint4 *)shared_pointer(address);
    wait_for_warp(file, line);
    unsigned *registers[4] = {&d0, &d1, &d2, &d3};
    for (int matrix = 0; matrix < matrices; matrix++) {
        *registers[matrix] = 0;
        for (int side = 0; side < 2; side++) {
            int row = lane / 4, column = lane % 4 * 2 + side;
            if (transposed)
                std::swap(row, column);
            const unsigned short *halves = (const unsigned short *)(warp + matrix * 8 + row);
            *registers[matrix] |= (unsigned)halves[column] << 16 * side;
        }
    }
    wait_for_warp(file, line);
}

/* The same with two matrices, whose rows have the addresses of lanes 0 to 15. */
static void ldmatrix_x2(unsigned &d0, unsigned &d1, unsigned address, const char *file,
                              int line)
{
    unsigned rest[2];
    ldmatrix_x4(false, d0, d1, rest[0], rest[1], address, file, line, 2);
}

/* Transposes and stores four matrices of 8 x 8 16-bit floats. Lane l has two neighbours in row l / 4
 * of each, and gives the address of 16 bytes that receive column l % 8 of matrix l / 8. */
static void stmatrix_x4_trans(unsigned address, unsigned m0, unsigned m1, unsigned m2, unsigned m3,
                              const char *file, int line)
{
    __shared__ unsigned held[MOST_WARPS][32][4];
    int lane = number() % 32;
    auto *warp = held[number() / 32];
    unsigned own[4] = {m0, m1, m2, m3};
    for (int matrix = 0; matrix < 4; matrix++)
        warp[lane][matrix] = own[matrix];
    wait_for_warp(file, line);
    unsigned short *target = (unsigned short *)shared_pointer(address);
    for (int row = 0; row < 8; row++)
        target[row] = (unsigned short)(warp[row * 4 + lane % 8 / 2][lane / 8] >> 16 * (lane % 2));
    wait_for_warp(file, line);
}

/* Returns the larger or the smaller one of two numbers; NaN where one is NaN. */
static float extreme(bool larger, float a, float b)
{
    if (a != a || b != b)
        return a + b;
    return (a > b) == larger ? a : b;
}

/* The same for each of two 16-bit floats. */
static unsigned extreme_halves(bool larger, unsigned a, unsigned b)
{
    unsigned result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        float found = extreme(larger, half_bits_to_float((unsigned short)(a >> shift)),
                              half_bits_to_float((unsigned short)(b >> shift)));
        result |= (unsigned)float_to_half_bits(found) << shift;
    }
    return result;
}

/* Starts a copy of WIDTH bytes: the first `size` of them from `source`, then zeros. The target is
 * overwritten at once, and receives the copy only when that is waited for. */
template <int WIDTH> void cp_async(unsigned address, const void *source, unsigned size)
{
    struct alignas(WIDTH) Vector {
        unsigned words[WIDTH / 4];
    };
    Vector *target = (Vector *)shared_pointer(address), whole = {}, overwritten;
    if (size == WIDTH)
        whole = *(const Vector *)source;
    else
        for (unsigned i = 0; i < size; i++)
            ((char *)&whole)[i] = ((const char *)source)[i];
    for (unsigned &word : overwritten.words)
        word = ~0u;
    *target = overwritten;
    Sixteen bytes = {};
    for (int i = 0; i < WIDTH / 4; i++)
        bytes.words[i] = whole.words[i];
    keep_copy(target, bytes, WIDTH);
}

static void cp_async_wait_group(unsigned groups_left)
{
    void *target;
    Sixteen bytes;
    unsigned width;
    while (next_copy(groups_left, target, bytes, width))
        if (width == 16)
            *(uint4 *)target = {bytes.words[0], bytes.words[1], bytes.words[2], bytes.words[3]};
        else if (width == 8)
            *(uint2 *)target = {bytes.words[0], bytes.words[1]};
        else
            *(unsigned *)target = bytes.words[0];
}

/* Arrives at a barrier when the running work-item's copies have been made. */
static void cp_async_mbarrier_arrive(unsigned barrier)
{
    cp_async_commit_group();
    cp_async_wait_group(0);
    mbarrier_arrive(barrier, 0);
}

/* Stores four floats in the shared memory of a group of the cluster, where a barrier expects
 * them. */
static void st_async_cluster(unsigned target, unsigned barrier, float first, float second, float third,
                          float fourth, int group)
{
    *(float4 *)map_cluster(shared_pointer(target), group) = {first, second, third, fourth};
    receive(barrier, 16, group);
}

/* Copies bytes to shared memory, where a barrier expects them. */
static void cp_async_bulk(unsigned target, const void *source, int bytes, unsigned barrier)
{
    if (target % 16 || (size_t)source % 16 || bytes % 16)
        __builtin_trap();
    uint4 *vectors = (uint4 *)shared_pointer(target);
    for (int vector = 0; vector < bytes / 16; vector++)
        vectors[vector] = ((const uint4 *)source)[vector];
    receive(barrier, bytes);
}

} // namespace emulation
