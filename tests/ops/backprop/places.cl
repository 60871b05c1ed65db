/* Writes the place of each work-item of a product of batched.cl. */

#include "dialect/common.h"
#include "ops/backprop/batched_places.h"

KERNEL LAUNCH_BOUNDS(64, 1)
void places(GLOBAL int *out, int along, int across, int parts)
{
    int n = GROUP_ID(0) * LOCAL_SIZE(0) + LOCAL_ID(0);
    if (n < along * across * parts) {
        Place place = place_of(n, along, across, parts);
        out[3 * n] = place.along;
        out[3 * n + 1] = place.across;
        out[3 * n + 2] = place.part;
    }
}
