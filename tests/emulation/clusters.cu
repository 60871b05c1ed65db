/* Each work-group of a cluster sends one word of each work-item to the next work-group. With EARLY
 * it reads the received words before the full cluster has arrived. */

#include "dialect/common.h"

KERNEL __cluster_dims__(CLUSTER, 1, 1) void hand_on(int *RESTRICT y)
{
    DYNAMIC_SHARED(int, words)
    int lane = LOCAL_ID(0), other = (GROUP_ID(0) + 1) % CLUSTER;
    int *next;
    asm("mapa.u64 %0, %1, %2;" : "=l"(next) : "l"(words), "r"(other));
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
                 ::: "memory");
    next[lane] = GROUP_ID(0) * 100 + lane;
#if EARLY
    BARRIER();
#else
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
                 ::: "memory");
#endif
    y[GROUP_ID(0) * LOCAL_SIZE(0) + lane] = words[lane];
}
