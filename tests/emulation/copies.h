/* Local memory as instructions address it, and asynchronous copies into it. A part of runtime.cpp:
 * no tool sees what is kept here. */

#pragma once

#include "rendezvous.h"

#include <deque>
#include <vector>

extern "C" {
extern char __start_shared_memory[], __stop_shared_memory[];
}

namespace emulation {

namespace {

constexpr unsigned DYNAMIC_START = 1 << 24;

struct Copy {
    void *target;
    Sixteen bytes;
    unsigned group;
};

struct Copies {
    std::deque<Copy> waiting;
    unsigned groups; /* that were committed */
};

std::vector<Copies> copies;

} // namespace

unsigned shared_address(const void *pointer)
{
    const char *place = (const char *)pointer;
    if (place >= __start_shared_memory && place < __stop_shared_memory)
        return (unsigned)(place - __start_shared_memory);
    return DYNAMIC_START + (unsigned)(place - dynamic_local());
}

void *shared_pointer(unsigned address)
{
    if (address < (unsigned)(__stop_shared_memory - __start_shared_memory))
        return __start_shared_memory + address;
    return dynamic_local() + (int)(address - DYNAMIC_START);
}

void keep_copy(void *target, Sixteen bytes)
{
    Copies &own = copies[running->number];
    own.waiting.push_back({target, bytes, own.groups});
}

void commit_copies()
{
    copies[running->number].groups++;
}

bool next_copy(unsigned groups_left, void *&target, Sixteen &bytes)
{
    Copies &own = copies[running->number];
    if (own.waiting.empty() || own.waiting.front().group + groups_left >= own.groups)
        return false;
    target = own.waiting.front().target;
    bytes = own.waiting.front().bytes;
    own.waiting.pop_front();
    return true;
}

} // namespace emulation
