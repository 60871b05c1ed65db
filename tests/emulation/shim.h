/* Definitions for g++ of the parts of CUDA C++ that the CUDA branch of the kernel dialect uses;
 * this file precedes the kernel. A work-item is a fiber of one thread (runtime.cpp), so the shared
 * memory of a work-group is static memory. */

#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("shared_memory")))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, groups)
#define __cluster_dims__(x, y, z)
/* selects the branch of CUDA C++ */
#define __CUDACC__ 1
/* macros that both g++'s headers and the dialect define */
#undef INFINITY
#undef NAN
#define ulong dialect_ulong

namespace emulation {

struct Index {
    unsigned x, y, z;
};

constexpr int WARP = 32, MOST_GROUPS = 16, MOST_WARPS = MOST_GROUPS * 1024 / WARP;

/* Sizes of the launch, and indices of the running work-item. */
extern Index groups, work_group_size;
const Index &item(), &group();

/* The numbers of the running work-item and of its work-group within their cluster. */
int number(), rank();

/* Wait for all work-items of the work-group (barrier 0), for `count` of them, or for all of the
 * cluster. */
void wait_for_group(const char *file, int line);
void wait_for_part(int number, int count, const char *file, int line);
void wait_for_cluster(const char *file, int line);
/* Waits for the cluster after an arrival that does not order memory accesses. */
void meet_cluster(const char *file, int line);
void wait_for_warp(const char *file, int line);

/* Barriers in shared memory, by their addresses. A phase ends when as many have arrived as the
 * barrier was begun with, and when the bytes that were expected have come. mbarrier_wait_parity
 * waits for the end of a phase whose number has this parity. */
void mbarrier_init(unsigned address, int arrivals);
void mbarrier_arrive(unsigned address, int expected_bytes);
void receive(unsigned address, int bytes, int group = rank());
void mbarrier_wait_parity(unsigned address, unsigned parity, const char *file, int line);
unsigned ballot(unsigned mask, bool predicate, const char *file, int line);

char *dynamic_shared();

/* Returns the address in the dynamic shared memory of another work-group that corresponds to an
 * address in that of the running one. (Static shared memory is one for all work-groups of a
 * cluster, so kernels with clusters cannot use it.) */
const void *map_cluster(const void *own, int other);

/* Convert between pointers and 32-bit addresses of shared memory. */
unsigned shared_address(const void *pointer);
void *shared_pointer(unsigned address);

struct Sixteen {
    unsigned words[4];
};

/* Pending copies of the running work-item, of the first `width` bytes of a Sixteen: add one;
 * commit those so far as a group; take the first one that is not in the last `groups_left`
 * groups, if there is any. */
void keep_copy(void *target, Sixteen bytes, unsigned width);
void cp_async_commit_group();
bool next_copy(unsigned groups_left, void *&target, Sixteen &bytes, unsigned &width);

/* Returns the address of an argument's value. Ends the program where its size differs. */
const void *argument(int index, size_t size, bool is_pointer);

/* A product of a warpgroup whose operands both lie in shared memory, where their descriptions say; a
 * lane computes its own sums. group: how many groups were committed before it. indices: where the left
 * operand is 2:4 sparse, the words of indices for the lane's rows, for either half of the depth. */
struct Product {
    void (*compute)(const Product &);
    float (*sums)[4];
    unsigned long long rows, columns;
    bool halves, adds;
    unsigned group;
    unsigned indices[2];
};

/* The products of the running work-item that are under way, as the copies. */
void keep_product(Product product);
void commit_products();
bool next_product(unsigned groups_left, Product &product);

template <class T> T argument_as(int index)
{
    T value;
    memcpy(&value, argument(index, sizeof(T), std::is_pointer<T>::value), sizeof(T));
    return value;
}

template <class... P, size_t... I>
void call(void (*kernel)(P...), std::index_sequence<I...>)
{
    kernel(argument_as<P>(I)...);
}

template <class... P> void call(void (*kernel)(P...))
{
    call(kernel, std::index_sequence_for<P...>());
}

template <class... P> int parameters(void (*)(P...))
{
    return sizeof...(P);
}

/* Returns the value of a lane, read bit by bit. Like a ballot it does not order memory accesses. */
template <class T> T shuffle(unsigned mask, T value, int lane, const char *file, int line)
{
    static_assert(sizeof(T) == 4, "a shuffle of other than 32 bits");
    unsigned bits, found = 0;
    memcpy(&bits, &value, sizeof(bits));
    for (int bit = 0; bit < 32; bit++)
        found |= (ballot(mask, bits >> bit & 1, file, line) >> (lane & 31) & 1) << bit;
    memcpy(&value, &found, sizeof(value));
    return value;
}

} // namespace emulation

/* The functions that runtime.cpp calls: the kernel for one work-item, and its parameter count. */
extern "C" void run_kernel();
extern "C" int kernel_parameters();

#define threadIdx emulation::item()
#define blockIdx emulation::group()
#define blockDim emulation::work_group_size
#define gridDim emulation::groups
#define __cvta_generic_to_shared(pointer) ((size_t)emulation::shared_address(pointer))
#define __syncthreads() emulation::wait_for_group(__FILE__, __LINE__)
#define __syncwarp() emulation::wait_for_warp(__FILE__, __LINE__)
#define __ballot_sync(mask, predicate) \
    emulation::ballot(mask, (predicate) != 0, __FILE__, __LINE__)
#define __shfl_sync(mask, value, lane) emulation::shuffle(mask, value, lane, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
    emulation::shuffle(mask, value, emulation::number() % 32 ^ (bits), __FILE__, __LINE__)

#define VECTORS(name, type)                 \
    struct alignas(2 * sizeof(type)) name##2 { \
        type x, y;                          \
    };                                      \
    struct alignas(4 * sizeof(type)) name##4 { \
        type x, y, z, w;                    \
    };
VECTORS(float, float)
VECTORS(int, int)
VECTORS(uint, unsigned)
VECTORS(uchar, unsigned char)
VECTORS(ushort, unsigned short)

inline float2 make_float2(float x, float y)
{
    return {x, y};
}

inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w)
{
    return {x, y, z, w};
}

inline int __float_as_int(float value)
{
    int bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float __int_as_float(int bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* A ballot does not order memory accesses, as on the device. */
inline unsigned atomicOr(unsigned *target, unsigned value)
{
    return __atomic_fetch_or(target, value, __ATOMIC_RELAXED);
}

inline int atomicAdd(int *target, int value)
{
    return __atomic_fetch_add(target, value, __ATOMIC_RELAXED);
}

inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

inline int __popcll(unsigned long long bits)
{
    return __builtin_popcountll(bits);
}

inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}

inline float half_bits_to_float(unsigned short bits)
{
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
}

inline unsigned short float_to_half_bits(float value)
{
    _Float16 half = (_Float16)value;
    unsigned short bits;
    memcpy(&bits, &half, 2);
    return bits;
}
