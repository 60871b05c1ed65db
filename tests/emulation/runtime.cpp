/* Runs the work-groups of a kernel, or clusters of them, one after another, with a fiber for each
 * work-item. A fiber runs until it waits or returns; `schedule` selects the next one. Where all
 * fibers of a work-group wait, the lines in which they do are reported as a fault.
 *
 * ThreadSanitizer sees fibers as threads, which only barriers order: it finds accesses that could
 * race on a device, whatever the schedule. This file is compiled without it, so that it does not
 * check the runtime itself; the runtime reports to it the order that barriers create.
 *
 * Standard input contains Launch, the sizes of the blocks, the arguments, and the blocks. Standard
 * output receives the blocks. Where the kernel is at fault, the exit status is FAULT and standard
 * error says why. */

#include "copies.h"
#include "rendezvous.h"

#include <stdint.h>
#include <sys/mman.h>

extern "C" {
__attribute__((weak)) void __asan_init();
}

namespace emulation {

Index groups, work_group_size;

namespace {

constexpr int POISON = 0xff;
constexpr size_t STACK = 256 << 10, GUARD = 256, PAGE = 4096;

/* The last page of the section with the kernel's shared memory, which marks its end. */
__attribute__((section("shared_memory"), aligned(PAGE))) char shared_end[PAGE];

struct Launch {
    int groups[3], work_group_size[3], shared_bytes, schedule, cluster, blocks, arguments;
};

struct Argument {
    int size, block; /* block: -1 where `value` is the argument itself */
    int64_t value;   /* or the offset in the block to which it points */
};

Launch launch;
Argument *arguments;
char **blocks;
char *dynamic[MOST_GROUPS], done;
uint64_t random_state;

void start()
{
    Item *own = running;
    run_kernel();
    note_return(own);
    if (__tsan_release)
        __tsan_release(&done);
    switch_back(own);
}

unsigned random_below(unsigned end)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % end;
}

/* Returns a work-item that can continue: the first, the last, or with schedules from 2 on any. */
Item *next_ready()
{
    int start = launch.schedule < 2 ? 0 : random_below(count);
    for (int i = 0; i < count; i++) {
        Item *item = items + (launch.schedule == 1 ? count - 1 - i : (start + i) % count);
        if (item->state == READY)
            return item;
    }
    return nullptr;
}

/* Fills shared memory with NaN, and makes ThreadSanitizer forget earlier accesses to it. */
void clear_shared_memory()
{
    size_t size = shared_end - __start_shared_memory;
    if (__tsan_create_fiber && size)
        mmap(__start_shared_memory, size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (volatile char *byte = __start_shared_memory; byte < shared_end; byte++)
        *byte = (char)POISON;
}

/* Returns memory with guards before and after it, which AddressSanitizer makes unnecessary. */
char *guarded(size_t size, int fill)
{
    size_t guard = __asan_init ? 0 : GUARD;
    char *memory = nullptr;
    if (posix_memalign((void **)&memory, 256, size + 2 * guard))
        fail("no memory for %zu bytes", size);
    memset(memory, 0xa5, size + 2 * guard);
    memset(memory + guard, fill, size);
    return memory + guard;
}

void check_guards(const char *memory, size_t size, const char *what)
{
    for (size_t i = 0; !__asan_init && i < GUARD; i++)
        if ((unsigned char)memory[size + i] != 0xa5 || (unsigned char)memory[i - GUARD] != 0xa5)
            fail("a work-item wrote out of %s", what);
}

void run_cluster(Index first)
{
    clear_shared_memory();
    for (int rank = 0; rank < launch.cluster; rank++)
        dynamic[rank] = guarded(launch.shared_bytes, POISON);
    clear_copies(count);
    char *stacks = (char *)mmap(nullptr, count * STACK, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        fail("no memory for %d stacks", count);
    returned = 0;
    for (int n = 0; n < count; n++) {
        Item *item = items + n;
        unsigned own = n % group_items;
        unsigned x = own % work_group_size.x, y = own / work_group_size.x % work_group_size.y;
        item->index = {x, y, own / (work_group_size.x * work_group_size.y)};
        item->group = {first.x + n / group_items, first.y, first.z};
        item->number = n;
        item->state = READY;
        item->predicate = false;
        item->begun = false;
        getcontext(&item->beginning);
        item->beginning.uc_stack.ss_sp = stacks + n * STACK;
        item->beginning.uc_stack.ss_size = STACK;
        item->beginning.uc_link = nullptr;
        makecontext(&item->beginning, start, 0);
        if (__tsan_create_fiber) {
            char name[80];
            snprintf(name, sizeof name, "work-item %d of group (%u, %u, %u)", own, item->group.x,
                     first.y, first.z);
            item->fiber = __tsan_create_fiber(0);
            __tsan_set_fiber_name(item->fiber, name);
        }
    }
    while (Item *item = next_ready())
        switch_to(item);
    for (int n = 0; n < count; n++)
        if (items[n].state != RETURNED)
            report_deadlock();
    for (int n = 0; n < count && __tsan_destroy_fiber; n++)
        __tsan_destroy_fiber(items[n].fiber);
    munmap(stacks, count * STACK);
    for (int rank = 0; rank < launch.cluster; rank++) {
        check_guards(dynamic[rank], launch.shared_bytes, "the dynamic shared memory");
        if (!__tsan_create_fiber)
            free(dynamic[rank] - (__asan_init ? 0 : GUARD));
    }
}

template <class T> T *read_array(size_t size)
{
    T *values = (T *)calloc(size + 1, sizeof(T));
    if (fread(values, sizeof(T), size, stdin) != size)
        fail("the launch ended early");
    return values;
}

void name(Rendezvous *point, const char *format, int number)
{
    char *text = (char *)malloc(40);
    snprintf(text, 40, format, number);
    *point = Rendezvous{text, 0, 0, nullptr, 0, {}};
}

void prepare()
{
    group_items = work_group_size.x * work_group_size.y * work_group_size.z;
    count = group_items * launch.cluster;
    if (launch.cluster > MOST_GROUPS || groups.x % launch.cluster
        || (launch.cluster > 1 && group_items % WARP))
        fail("no clusters of %d groups of %d work-items", launch.cluster, group_items);
    warps = (count + WARP - 1) / WARP;
    items = (Item *)calloc(count, sizeof(Item));
    warp_barriers = (Rendezvous *)calloc(warps, sizeof(Rendezvous));
    ballots = (Rendezvous *)calloc(warps, sizeof(Rendezvous));
    named = (Rendezvous *)calloc(NAMED * MOST_GROUPS, sizeof(Rendezvous));
    for (int n = 0; n < NAMED * MOST_GROUPS; n++)
        name(named + n, n % NAMED ? "the barrier %d of a part" : "the barrier of the group",
             n % NAMED);
    name(&cluster_barrier, "the barrier of the cluster of %d", launch.cluster);
    for (int n = 0; n < warps; n++) {
        name(warp_barriers + n, "the barrier of warp %d", n);
        name(ballots + n, "the ballot of warp %d", n);
    }
    random_state = launch.schedule;
    if (__tsan_get_current_fiber)
        scheduler_fiber = __tsan_get_current_fiber();
}

} // namespace

char *dynamic_shared()
{
    return dynamic[rank()];
}

const void *map_cluster(const void *own, int other)
{
    size_t offset = (const char *)own - dynamic_shared();
    if (other < 0 || other >= launch.cluster || offset > (size_t)launch.shared_bytes)
        fail("no address %zu of the dynamic shared memory of group %d of a cluster", offset, other);
    return dynamic[other] + offset;
}

const void *argument(int index, size_t size, bool is_pointer)
{
    const Argument &given = arguments[index];
    if ((size_t)given.size != size || is_pointer != (given.block != -1))
        fail("parameter %d takes %s of %zu bytes, got one of %d", index,
             is_pointer ? "a pointer" : "a number", size, given.size);
    return &given.value;
}

} // namespace emulation

int main()
{
    using namespace emulation;
    launch = *read_array<Launch>(1);
    int64_t *sizes = read_array<int64_t>(launch.blocks);
    arguments = read_array<Argument>(launch.arguments);
    blocks = (char **)calloc(launch.blocks + 1, sizeof(char *));
    for (int n = 0; n < launch.blocks; n++) {
        blocks[n] = guarded(sizes[n], 0);
        if (fread(blocks[n], 1, sizes[n], stdin) != (size_t)sizes[n])
            fail("the launch ended early");
    }
    if (kernel_parameters() != launch.arguments)
        fail("it takes %d arguments, got %d", kernel_parameters(), launch.arguments);
    for (int n = 0; n < launch.arguments; n++)
        if (arguments[n].block >= 0)
            arguments[n].value += (int64_t)blocks[arguments[n].block];
    groups = {(unsigned)launch.groups[0], (unsigned)launch.groups[1], (unsigned)launch.groups[2]};
    work_group_size = {(unsigned)launch.work_group_size[0], (unsigned)launch.work_group_size[1],
                  (unsigned)launch.work_group_size[2]};
    prepare();
    Index group;
    for (group.z = 0; group.z < groups.z; group.z++)
        for (group.y = 0; group.y < groups.y; group.y++)
            for (group.x = 0; group.x < groups.x; group.x += launch.cluster)
                run_cluster(group);
    if (__tsan_acquire)
        __tsan_acquire(&done);
    for (int n = 0; n < launch.blocks; n++) {
        check_guards(blocks[n], sizes[n], "a buffer");
        fwrite(blocks[n], 1, sizes[n], stdout);
    }
    fflush(stdout);
}
