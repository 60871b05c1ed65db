/* Clusters of CLUSTER work-groups (sm_90). The work-groups of a cluster can write to one another's
 * shared memory. If CLUSTER is 1, CLUSTER_BARRIER and CLUSTER_SEND are BARRIER, and the other
 * macros are empty.
 *
 *   CLUSTER_DIMS       precedes LAUNCH_BOUNDS of a kernel.
 *   CLUSTER_ARRIVE()   barrier.cluster.arrive.relaxed: signals that this work-group is running.
 *   CLUSTER_WAIT()     barrier.cluster.wait: waits until all work-groups of the cluster have
 *                      arrived. A kernel calls CLUSTER_ARRIVE and CLUSTER_WAIT once, before its
 *                      first write to another work-group's shared memory.
 *   CLUSTER_BARRIER()  barrier.cluster.arrive.release and .wait.acquire: waits for all work-items
 *                      of the cluster.
 *   CLUSTER_SEND()     BARRIER, then the first half of a CLUSTER_BARRIER. Only the last of the
 *                      THREADS / 32 warps arrives with release semantics. This release makes the
 *                      writes of the whole work-group visible. It is a fence for the whole device:
 *                      the last warp waits until its own copies and stores are complete. The last
 *                      warp should therefore issue few copies and stores. The other warps do not
 *                      wait for theirs.
 *   CLUSTER_RECEIVE()  the second half: waits for CLUSTER_SEND of all work-groups. */

#pragma once

#if !defined CONFIGURED && !defined CLUSTER
#define CLUSTER 2 /* work-groups of a cluster */
#endif

#include "dialect/common.h"

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#define CLUSTER_ARRIVE()                                                  \
    WARP_BARRIER(); /* .aligned: a warp's work-items arrive together */    \
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define CLUSTER_WAIT() asm volatile("barrier.cluster.wait.aligned;" ::: "memory")
#define CLUSTER_BARRIER()                                                                         \
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" \
                 ::: "memory")
#define CLUSTER_SEND()                                                           \
    BARRIER();                                                                   \
    if (LOCAL_ID(0) / 32 == THREADS / 32 - 1)                                    \
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");    \
    else                                                                         \
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory")
#define CLUSTER_RECEIVE() asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory")
#else
#define CLUSTER_DIMS
#define CLUSTER_ARRIVE()
#define CLUSTER_WAIT()
#define CLUSTER_BARRIER() BARRIER()
#define CLUSTER_SEND() BARRIER()
#define CLUSTER_RECEIVE()
#endif

#ifdef __CUDACC__
/* mapa: returns the address of the same element in the shared memory of another work-group of the
 * cluster. */
template <class Element>
INLINE Element *map_cluster(Element *own, int other)
{
#if CLUSTER > 1
    Element *there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(other));
    return there;
#else
    return own;
#endif
}
#endif
