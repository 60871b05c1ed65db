/* Barriers of work-items, and the detection of their misuse. This file is a part of runtime.cpp. */

#pragma once

#include "shim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" {
__attribute__((weak)) void *__tsan_get_current_fiber();
__attribute__((weak)) void *__tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void *fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void *fiber, unsigned flags);
__attribute__((weak)) void __tsan_set_fiber_name(void *fiber, const char *name);
__attribute__((weak)) void __tsan_acquire(void *address);
__attribute__((weak)) void __tsan_release(void *address);
}

namespace emulation {

namespace {

constexpr int FAULT = 3, NAMED = 16;
constexpr unsigned NOT_ORDERED = 1;

struct Rendezvous;

enum State { READY, WAITING, RETURNED };

/* Where a fiber, or the scheduler, was left: what __builtin_setjmp stores. */
typedef void *Context[5];

struct Item {
    ucontext_t beginning;
    bool begun;
    Context context;
    void *fiber;
    Index index, group;
    int number;
    State state;
    Rendezvous *at;
    const char *file;
    int line;
    Item *next; /* the next of the work-items that have arrived */
    bool predicate;
    unsigned ballot;
};

/* A barrier that is used again and again. */
struct Rendezvous {
    const char *name;
    int wanted, come;
    Item *first;
    unsigned phase;
    char order[64]; /* each phase has its own address, for ThreadSanitizer */
};

Item *items, *running;
int count, group_items, warps; /* of all work-groups of the running cluster */
int returned; /* how many of these work-items have returned */
Context scheduler;
void *scheduler_fiber;
Rendezvous *named, *warp_barriers, *ballots, cluster_barrier; /* each group has NAMED of them */

[[noreturn]] void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fprintf(stderr, "fault: ");
    vfprintf(stderr, format, values);
    fprintf(stderr, "\n");
    va_end(values);
    fflush(stderr);
    _exit(FAULT);
}

/* GCC's own jumps make no system call, and unlike swapcontext() nobody intercepts them:
 * AddressSanitizer clears its shadow of a whole stack at each swapcontext(). */
__attribute__((noinline)) void switch_to(Item *item)
{
    running = item;
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(item->fiber, NOT_ORDERED);
    if (__builtin_setjmp(scheduler))
        return;
    if (item->begun)
        __builtin_longjmp(item->context, 1);
    item->begun = true;
    setcontext(&item->beginning);
}

__attribute__((noinline)) void switch_back(Item *item)
{
    if (__tsan_switch_to_fiber)
        __tsan_switch_to_fiber(scheduler_fiber, NOT_ORDERED);
    if (!__builtin_setjmp(item->context))
        __builtin_longjmp(scheduler, 1);
}

/* Checks that all work-items of a warp wait at a barrier, in the same line. */
void check_warps(const Rendezvous *point)
{
    Item *of_warp[MOST_WARPS] = {};
    int come[MOST_WARPS] = {};
    for (Item *item = point->first; item; item = item->next) {
        int warp = item->number / WARP;
        if (come[warp]++ && item->line != of_warp[warp]->line)
            fail("%s: work-items %d and %d of one warp wait in line %d and in line %d of %s",
                 point->name, of_warp[warp]->number, item->number, of_warp[warp]->line, item->line,
                 item->file);
        of_warp[warp] = item;
    }
    for (int warp = 0; warp < warps; warp++) {
        int size = warp == warps - 1 ? count - warp * WARP : WARP;
        if (come[warp] && come[warp] != size)
            fail("%s in line %d of %s was passed by %d of the %d work-items of warp %d",
                 point->name, of_warp[warp]->line, of_warp[warp]->file, come[warp], size, warp);
    }
}

/* Checks that a barrier of a full work-group is the same statement for all, as OpenCL requires. */
void check_one_point(const Rendezvous *point)
{
    for (Item *item = point->first; item->next; item = item->next)
        if (item->line != item->next->line)
            fail("%s: work-item %d waits in line %d and work-item %d in line %d of %s",
                 point->name, item->number, item->line, item->next->number, item->next->line,
                 item->file);
}

/* Lets the work-items that wait at a barrier continue. */
void let_continue(Rendezvous *point)
{
    check_warps(point);
    if (point >= named && point < named + NAMED * MOST_GROUPS && (point - named) % NAMED == 0)
        check_one_point(point);
    unsigned ballot = 0;
    for (Item *item = point->first; item; item = item->next)
        ballot |= (unsigned)item->predicate << item->number % WARP;
    for (Item *item = point->first; item; item = item->next) {
        item->ballot = ballot;
        item->state = READY;
    }
    point->first = nullptr;
    point->come = 0;
    point->phase++;
}

void meet(Rendezvous *point, int wanted, bool orders, const char *file, int line)
{
    Item *own = running;
    char *order = &point->order[point->phase % sizeof point->order];
    own->file = file;
    own->line = line;
    if (point->come && wanted != point->wanted)
        fail("%s waits for %d work-items in line %d of %s, for %d elsewhere", point->name, wanted,
             line, file, point->wanted);
    point->wanted = wanted;
    own->next = point->first;
    point->first = own;
    point->come++;
    if (orders && __tsan_release)
        __tsan_release(order);
    if (point->come < wanted) {
        own->state = WAITING;
        own->at = point;
        switch_back(own);
    } else {
        let_continue(point);
    }
    if (orders && __tsan_acquire)
        __tsan_acquire(order);
}

/* The barrier of a cluster waits for no work-item that has returned. */
void note_return(Item *own)
{
    own->state = RETURNED;
    cluster_barrier.wanted = count - ++returned;
    if (cluster_barrier.come && cluster_barrier.come == cluster_barrier.wanted)
        let_continue(&cluster_barrier);
}

int warp_size(const Item *item)
{
    int warp = item->number / WARP;
    return warp == warps - 1 ? count - warp * WARP : WARP;
}

[[noreturn]] void report_deadlock()
{
    fprintf(stderr, "fault: the group waits for ever\n");
    for (int i = 0, same = 1; i < count; i += same) {
        const Item *item = items + i;
        for (same = 1; i + same < count; same++) {
            const Item *other = item + same;
            if (other->state != item->state
                || (item->state == WAITING
                    && (other->line != item->line || other->at != item->at)))
                break;
        }
        fprintf(stderr, "  work-items %d to %d ", i, i + same - 1);
        if (item->state == RETURNED)
            fprintf(stderr, "have returned\n");
        else
            fprintf(stderr, "wait at %s (%d of %d are there), line %d of %s\n", item->at->name,
                    item->at->come, item->at->wanted, item->line, item->file);
    }
    fflush(stderr);
    _exit(FAULT);
}

} // namespace

int number()
{
    return running->number;
}

int rank()
{
    return running->number / group_items;
}

const Index &item()
{
    return running->index;
}

const Index &group()
{
    return running->group;
}

void wait_for_group(const char *file, int line)
{
    meet(named + rank() * NAMED, group_items, true, file, line);
}

void wait_for_cluster(const char *file, int line)
{
    meet(&cluster_barrier, count - returned, true, file, line);
}

void meet_cluster(const char *file, int line)
{
    meet(&cluster_barrier, count - returned, false, file, line);
}

void wait_for_part(int number, int wanted, const char *file, int line)
{
    if (number < 1 || number >= NAMED || wanted % WARP || wanted < WARP || wanted > group_items)
        fail("no barrier %d of %d of the group's %d work-items is possible, line %d of %s", number,
             wanted, group_items, line, file);
    meet(named + rank() * NAMED + number, wanted, true, file, line);
}

void wait_for_warp(const char *file, int line)
{
    meet(warp_barriers + running->number / WARP, warp_size(running), true, file, line);
}

namespace {

/* A barrier in the shared memory of a group of the cluster; those that wait for it are the items of
 * `point`. */
struct CopyBarrier {
    Rendezvous point;
    int group;
    unsigned address;
    int left, bytes;
};

constexpr int MOST_COPY_BARRIERS = 1024;
CopyBarrier copy_barriers[MOST_COPY_BARRIERS];
int copy_barrier_count;

/* Returns the number of a group's barrier at an address, or how many there are. */
int copy_barrier_number(unsigned address, int group)
{
    int n = 0;
    while (n < copy_barrier_count
           && (copy_barriers[n].address != address || copy_barriers[n].group != group))
        n++;
    return n;
}

CopyBarrier &copy_barrier(unsigned address, int group = rank())
{
    int n = copy_barrier_number(address, group);
    if (n < copy_barrier_count)
        return copy_barriers[n];
    fail("no barrier was begun at address %u of shared memory", address);
}

void end_phase_if_complete(CopyBarrier &barrier)
{
    Rendezvous &point = barrier.point;
    if (barrier.left || barrier.bytes)
        return;
    for (Item *item = point.first; item; item = item->next)
        item->state = READY;
    point.first = nullptr;
    point.come = 0;
    point.phase++;
    barrier.left = point.wanted;
}

void release(CopyBarrier &barrier)
{
    if (__tsan_release)
        __tsan_release(barrier.point.order);
}

} // namespace

void mbarrier_init(unsigned address, int arrivals)
{
    int n = copy_barrier_number(address, rank());
    if (n == MOST_COPY_BARRIERS)
        fail("more than %d barriers in shared memory", n);
    copy_barrier_count = n == copy_barrier_count ? n + 1 : copy_barrier_count;
    copy_barriers[n] = {{"a barrier of copies", arrivals, 0, nullptr, 0, {}}, rank(), address, arrivals, 0};
}

void mbarrier_arrive(unsigned address, int expected_bytes)
{
    CopyBarrier &barrier = copy_barrier(address);
    release(barrier);
    if (barrier.left == 0)
        fail("more than %d have arrived at a barrier", barrier.point.wanted);
    barrier.bytes += expected_bytes;
    barrier.left--;
    end_phase_if_complete(barrier);
}

void receive(unsigned address, int bytes, int group)
{
    CopyBarrier &barrier = copy_barrier(address, group);
    release(barrier);
    barrier.bytes -= bytes;
    end_phase_if_complete(barrier);
}

void mbarrier_wait_parity(unsigned address, unsigned parity, const char *file, int line)
{
    CopyBarrier &barrier = copy_barrier(address);
    Item *own = running;
    while (barrier.point.phase % 2 == parity % 2) {
        own->file = file;
        own->line = line;
        own->at = &barrier.point;
        own->next = barrier.point.first;
        barrier.point.first = own;
        barrier.point.come++;
        own->state = WAITING;
        switch_back(own);
    }
    if (__tsan_acquire)
        __tsan_acquire(barrier.point.order);
}

unsigned ballot(unsigned mask, bool predicate, const char *file, int line)
{
    if (mask != 0xffffffffu)
        fail("a ballot of part of a warp, line %d of %s", line, file);
    running->predicate = predicate;
    meet(ballots + running->number / WARP, warp_size(running), false, file, line);
    return running->ballot;
}

} // namespace emulation
