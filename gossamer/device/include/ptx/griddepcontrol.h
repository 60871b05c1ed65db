/* Programmatic dependent launch (PDL, from sm_90 on): a kernel begins while the kernel before it in
 * the stream still runs, and meanwhile prepares its work from data that no kernel writes. Every
 * kernel of a file that includes this header is launched in this way.
 *
 *   pdl_trigger()           griddepcontrol.launch_dependents: lets the next kernel begin, once all
 *                           work-groups have reached pdl_trigger.
 *   pdl_wait()              griddepcontrol.wait: waits for the end of the previous kernel. A
 *                           work-item calls pdl_wait before it reads or writes memory that any
 *                           kernel writes. At least one work-item of each kernel calls pdl_wait.
 *   pdl_trigger_and_wait()  calls both, at the start of a kernel that prepares nothing. In a chain
 *                           of small kernels, each kernel is then already on the multiprocessors,
 *                           and not in the queue, while it waits for the previous kernel.
 *
 * A pointer to memory that any kernel writes is not RESTRICT where the kernel only reads the memory:
 * the compiler takes memory behind a RESTRICT pointer to const for constant while the kernel runs,
 * and moves loads from there before pdl_wait. */

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
