/* Programmatic dependent launch (PDL): kernels that begin while the one before them in the stream
 * still runs (from sm_90 on), and prepare meanwhile with what no kernel writes. Their sources say
 * `begins_early`.
 *
 *   pdl_trigger()           griddepcontrol.launch_dependents: lets the next kernel begin, once all
 *                           work-groups have come to it.
 *   pdl_wait()              griddepcontrol.wait: waits for the end of the kernel before. No memory
 *                           that kernels write is read or written earlier. All work-items come to it.
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
