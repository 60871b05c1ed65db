/* What of CUDA C++ the CUDA branch of dialect.h needs, for g++: stands before it. A work-item is a
 * fiber of one thread (runtime.cpp), so what a group shares is simply static. */

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
/* takes the branch of CUDA C++ */
#define __CUDACC__ 1
/* what g++'s headers and the dialect both have */
#undef INFINITY
#undef NAN
#define ulong dialect_ulong

namespace emulation {

struct Index {
    unsigned x, y, z;
};

constexpr int WARP = 32, MOST_GROUPS = 8, MOST_WARPS = MOST_GROUPS * 1024 / WARP;

/* Of the launch, and of the work-item that runs. */
extern Index groups, group_size;
const Index &item(), &group();

/* The work-item's number among those of a cluster, and its group's. */
int number(), rank();

/* Waits for all work-items of the group (number 0), or for so many of it, or for the cluster's. */
void wait_for_group(const char *file, int line);
void wait_for_part(int number, int count, const char *file, int line);
void wait_for_cluster(const char *file, int line);
/* The same, behind an arrival that orders nothing. */
void meet_cluster(const char *file, int line);
void wait_for_warp(const char *file, int line);
unsigned ballot(unsigned mask, bool predicate, const char *file, int line);

char *dynamic_shared();

/* Where another group of the cluster has what stands here in the own dynamic shared memory. (All
 * groups of a cluster have the same static one: a kernel for clusters does without.) */
const void *of_group(const void *own, int other);

/* A 32-bit address of shared memory, and where that is. */
unsigned shared_address(const void *pointer);
void *shared_pointer(unsigned address);

struct Sixteen {
    unsigned words[4];
};

/* Copies that a work-item asked for and that have not come: one more; those so far are a group;
 * the first of all groups but the last so many, where one is left. */
void keep_copy(void *target, Sixteen bytes);
void commit_copies();
bool next_copy(unsigned groups_left, void *&target, Sixteen &bytes);

/* The argument's bytes, or the pointer that it is. Ends the program unless it has that size. */
const void *argument(int index, size_t size, bool is_pointer);

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

/* A lane's value, bit by bit. Orders nothing, as a ballot. */
inline float shuffle(unsigned mask, float value, int lane, const char *file, int line)
{
    unsigned bits, found = 0;
    memcpy(&bits, &value, sizeof(bits));
    for (int bit = 0; bit < 32; bit++)
        found |= (ballot(mask, bits >> bit & 1, file, line) >> (lane & 31) & 1) << bit;
    memcpy(&value, &found, sizeof(value));
    return value;
}

} // namespace emulation

/* What runtime.cpp calls: the kernel, by a work-item, and how many parameters it has. */
extern "C" void run_kernel();
extern "C" int kernel_parameters();

#define threadIdx emulation::item()
#define blockIdx emulation::group()
#define blockDim emulation::group_size
#define gridDim emulation::groups
#define __cvta_generic_to_shared(pointer) ((size_t)emulation::shared_address(pointer))
#define __syncthreads() emulation::wait_for_group(__FILE__, __LINE__)
#define __syncwarp() emulation::wait_for_warp(__FILE__, __LINE__)
#define __ballot_sync(mask, predicate) \
    emulation::ballot(mask, (predicate) != 0, __FILE__, __LINE__)
#define __shfl_sync(mask, value, lane) emulation::shuffle(mask, value, lane, __FILE__, __LINE__)

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

inline float __int_as_float(int bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Orders nothing, as on the device. */
inline unsigned atomicOr(unsigned *place, unsigned value)
{
    return __atomic_fetch_or(place, value, __ATOMIC_RELAXED);
}

inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
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
