/* Programmatic dependent launch (PDL, sm_90): a kernel begins while the previous kernel in the
 * stream still runs. Before pdl_wait, the kernel may read only data that no kernel writes. Every
 * kernel of a file that includes this header is launched in this way.
 *
 *   pdl_trigger()           griddepcontrol.launch_dependents: lets the next kernel begin once all
 *                           work-groups have called pdl_trigger.
 *   pdl_wait()              griddepcontrol.wait: waits for the end of the previous kernel. A
 *                           work-item must call pdl_wait before it reads or writes memory that any
 *                           kernel writes. At least one work-item of each kernel must call
 *                           pdl_wait.
 *   pdl_trigger_and_wait()  calls both, at the start of a kernel that has no work before pdl_wait.
 *                           In a chain of small kernels, each kernel is then already on the
 *                           multiprocessors, not in the queue, while it waits for the previous one.
 *
 * A pointer to const must not be RESTRICT if any kernel writes the memory: the compiler assumes
 * that memory behind a RESTRICT pointer to const is constant while the kernel runs, and may move
 * loads from this memory before pdl_wait. */

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
