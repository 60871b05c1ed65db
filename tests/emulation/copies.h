/* The 32-bit addresses of shared memory, and the copies and products that are under way. This file
 * is a part of runtime.cpp, so sanitizers do not check its accesses. */

#pragma once

#include "rendezvous.h"

#include <stdlib.h>
#include <sys/mman.h>

extern "C" {
extern char __start_shared_memory[], __stop_shared_memory[];
}

namespace emulation {

namespace {

constexpr unsigned DYNAMIC_START = 1 << 24, MOST_ITEMS = 16 * 1024, MOST_WAITING = 1024,
                   MOST_PRODUCTS = 256;

struct Copy {
    void *target;
    Sixteen bytes;
    unsigned width, group;
};

/* The pending copies of a work-item, in order. Their memory comes from mmap, because sanitizers
 * watch allocators. */
struct Copies {
    Copy waiting[MOST_WAITING];
    unsigned first, end, groups; /* groups: number of committed groups */
};

Copies *copies;

/* The products of a work-item that are under way, in order. */
struct Products {
    Product started[MOST_PRODUCTS];
    unsigned first, end, groups; /* groups: number of committed groups */
};

Products products[MOST_WARPS * WARP];

void clear_copies(unsigned items)
{
    if (!copies)
        copies = (Copies *)mmap(nullptr, MOST_ITEMS * sizeof(Copies), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copies == MAP_FAILED || items > MOST_ITEMS)
        fail("no memory for the copies of %u work-items", items);
    for (unsigned n = 0; n < items; n++)
        copies[n].first = copies[n].end = copies[n].groups = 0;
    for (Products &own : products)
        own.first = own.end = own.groups = 0;
}

} // namespace

unsigned shared_address(const void *pointer)
{
    const char *address = (const char *)pointer;
    if (address >= __start_shared_memory && address < __stop_shared_memory)
        return (unsigned)(address - __start_shared_memory);
    return DYNAMIC_START + (unsigned)(address - dynamic_shared());
}

void *shared_pointer(unsigned address)
{
    if (address < (unsigned)(__stop_shared_memory - __start_shared_memory))
        return __start_shared_memory + address;
    return dynamic_shared() + (int)(address - DYNAMIC_START);
}

void keep_copy(void *target, Sixteen bytes, unsigned width)
{
    Copies &own = copies[running->number];
    if (own.end - own.first == MOST_WAITING)
        fail("work-item %d waits for %u copies", running->number, MOST_WAITING);
    own.waiting[own.end++ % MOST_WAITING] = {target, bytes, width, own.groups};
}

void cp_async_commit_group()
{
    copies[running->number].groups++;
}

bool next_copy(unsigned groups_left, void *&target, Sixteen &bytes, unsigned &width)
{
    Copies &own = copies[running->number];
    const Copy &next = own.waiting[own.first % MOST_WAITING];
    if (own.first == own.end || next.group + groups_left >= own.groups)
        return false;
    target = next.target;
    bytes = next.bytes;
    width = next.width;
    own.first++;
    return true;
}

void keep_product(Product product)
{
    Products &own = products[running->number];
    if (own.end - own.first == MOST_PRODUCTS)
        fail("work-item %d waits for %u products", running->number, MOST_PRODUCTS);
    product.group = own.groups;
    own.started[own.end++ % MOST_PRODUCTS] = product;
}

void commit_products()
{
    products[running->number].groups++;
}

bool next_product(unsigned groups_left, Product &product)
{
    Products &own = products[running->number];
    product = own.started[own.first % MOST_PRODUCTS];
    if (own.first == own.end || product.group + groups_left >= own.groups)
        return false;
    own.first++;
    return true;
}

} // namespace emulation
