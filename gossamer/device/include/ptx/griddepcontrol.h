/* Kernels that begin while the one before them in the stream still runs (from sm_90 on), and prepare
 * meanwhile with what no kernel writes.
 *
 *   SUCCESSOR_MAY_BEGIN()  lets the next kernel begin, once all work-groups have come to it.
 *   PREDECESSOR_WAIT()     waits for the end of the kernel before: no memory that kernels write is
 *                          read or written earlier. All work-items come to it.
 *   BEGIN_EARLY()          both, at the start of a kernel that only gains that it waits for the one
 *                          before it on the multiprocessors. */

#pragma once

#if __CUDA_ARCH__ >= 900
#define SUCCESSOR_MAY_BEGIN() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define PREDECESSOR_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define SUCCESSOR_MAY_BEGIN()
#define PREDECESSOR_WAIT()
#endif

#define BEGIN_EARLY()        \
    SUCCESSOR_MAY_BEGIN();   \
    PREDECESSOR_WAIT()
