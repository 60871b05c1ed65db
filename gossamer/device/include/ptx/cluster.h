/* Clusters of CLUSTER work-groups (sm_90), which can write to one another's shared memory; without
 * them, where CLUSTER is 1, these macros cost nothing.
 *
 *   IN_CLUSTERS        goes before LAUNCH_BOUNDS of a kernel.
 *   CLUSTER_ARRIVE()   says that this work-group runs, and CLUSTER_WAIT() waits for that of all:
 *                      each once, before the first write to another work-group.
 *   CLUSTER_BARRIER()  waits for all work-items of the cluster. */

#pragma once

#include "dialect/common.h"

#if CLUSTER > 1
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#define CLUSTER_ARRIVE() asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define CLUSTER_WAIT() asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
#define CLUSTER_BARRIER()                                                                         \
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" \
                 ::: "memory")
#else
#define IN_CLUSTERS
#define CLUSTER_ARRIVE()
#define CLUSTER_WAIT()
#define CLUSTER_BARRIER() BARRIER()
#endif

/* Returns the address of the same element in the shared memory of another work-group of the
 * cluster. */
template <class Element>
INLINE Element *of_group(Element *own, int other)
{
#if CLUSTER > 1
    Element *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(other));
    return there;
#else
    return own;
#endif
}
