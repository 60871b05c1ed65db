/* Programmatic dependent launch (PDL): kernels that begin while the one before them in the stream
 * still runs (from sm_90 on), and prepare meanwhile with what no kernel writes. Every kernel of a
 * file that includes this header is launched so.
 *
 *   pdl_trigger()           griddepcontrol.launch_dependents: lets the next kernel begin, once all
 *                           work-groups have come to it.
 *   pdl_wait()              griddepcontrol.wait: waits for the end of the kernel before. No work-item
 *                           reads or writes memory that kernels write before it has come to this,
 *                           and some work-item of each kernel comes to it.
 *   pdl_trigger_and_wait()  both, at the start of a kernel that prepares nothing: of a chain of small
 *                           kernels each then waits on the multiprocessors, not in the queue, for the
 *                           one before it. */

#pragma once

#if __CUDA_ARCH__ >= 900
#define pdl_trigger() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define pdl_wait() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define pdl_trigger()
#define pdl_wait()
#endif

#define pdl_trigger_and_wait() \
    pdl_trigger();             \
    pdl_wait()
