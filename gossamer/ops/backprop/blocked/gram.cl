/* Inner products of each sample's inputs with the inputs of the next REACH samples:
 * gram[network][sample][d] is the product of `sample` and sample + 1 + d. The products do not
 * depend on the weights. A work-group computes the products of TILE samples of one network.
 *
 * If SEGMENT neighbouring inputs are all 0 or 1 in all samples that a tile needs, their inner
 * product for two samples is the number of inputs that are 1 in both. The kernel then counts bits,
 * which takes less time than multiplying. If a tile of a network has the same samples in the same
 * order as the first network's tile, the kernel only sets same[network][tile], and training uses
 * the first network's products. */

#ifndef CONFIGURED /* the values of one config, for tools that open this file alone */
#define THREADS 256 /* work-items of a work-group */
#define TILE 64 /* samples of a work-group, a multiple of 32 */
#define REACH 16 /* number of later samples by which each sample is multiplied */
#endif

#include "dialect/common.h"

#define SEGMENT 1024
/* Number of samples whose inputs a tile needs, rounded up to a multiple of the number of warps. */
#define SEEN (CEIL_DIV(TILE + REACH, THREADS / 32) * (THREADS / 32))
#define PAIRS (TILE * REACH / THREADS) /* inner products that a work-item computes */
/* Words of a sample in shared memory: 32 words of bits or 32 inputs, and 4 words of padding, so
 * that neighbouring samples start in different banks. */
#define ROW 36

KERNEL WORK_GROUP_OF(THREADS) void gram(
    const GLOBAL float *RESTRICT x, const GLOBAL int *RESTRICT order, GLOBAL float *RESTRICT gram_,
    GLOBAL int *RESTRICT same, int inputs, int samples, int first, int count)
{
    SHARED ALIGNED(16) float staged[SEEN * ROW];
    SHARED_POINTER uint *words = (SHARED_POINTER uint *)staged;
    SHARED int rows[SEEN];
    SHARED uint differs, other;
    VOTES(votes, THREADS / 32)
    int item = LOCAL_ID(0), tile = GROUP_ID(0), network = GROUP_ID(1);
    float sum[PAIRS];
    UNROLL for (int k = 0; k < PAIRS; k++)
        sum[k] = 0.0f;
    if (item == 0)
        differs = network == 0;
    BARRIER();
    for (int n = item; n < SEEN; n += THREADS) {
        int sample = tile * TILE + n;
        sample = first + (sample < count ? sample : count - 1);
        rows[n] = order[network * samples + sample];
        if (rows[n] != order[sample])
            ATOMIC_OR(&differs, 1u);
    }
    BARRIER();
    int own = (int)differs;

    for (int begin = 0; begin < (own ? inputs : 0); begin += SEGMENT) {
        int end = begin + SEGMENT < inputs ? begin + SEGMENT : inputs;
        int used = CEIL_DIV(end - begin, 32);
        if (item == 0)
            other = 0;
        BARRIER();
        for (int n = item / 32; n < SEEN; n += THREADS / 32)
            for (int word = 0; word < used; word += 4) {
                float value[4];
                UNROLL for (int k = 0; k < 4; k++) {
                    int i = begin + (word + k) * 32 + item % 32;
                    value[k] = i < end ? x[rows[n] * inputs + i] : 0.0f;
                }
                UNROLL for (int k = 0; k < 4; k++) {
                    uint ballot;
                    BALLOT(ballot, votes, value[k] != 0.0f);
                    if (item % 32 == 0)
                        words[n * ROW + word + k] = ballot;
                    if (value[k] != 0.0f && value[k] != 1.0f)
                        ATOMIC_OR(&other, 1u);
                }
            }
        BARRIER();
        int by_bits = other == 0u;
        if (by_bits)
            UNROLL for (int k = 0; k < PAIRS; k++) {
                int pair = item + k * THREADS, s = pair / REACH, d = pair % REACH;
                int bits = 0;
                for (int word = 0; word < used; word++)
                    bits += (int)POPCOUNT(words[s * ROW + word]
                                          & words[(s + 1 + d) * ROW + word]);
                sum[k] += (float)bits;
            }
        for (int chunk = begin; chunk < (by_bits ? begin : end); chunk += 32) {
            BARRIER();
            for (int n = item / 32; n < SEEN; n += THREADS / 32) {
                int i = chunk + item % 32;
                staged[n * ROW + item % 32] = i < end ? x[rows[n] * inputs + i] : 0.0f;
            }
            BARRIER();
            UNROLL for (int k = 0; k < PAIRS; k++) {
                int pair = item + k * THREADS, s = pair / REACH, d = pair % REACH;
                UNROLL for (int i = 0; i < 32; i += 4) {
                    float4 a = SHARED_LOAD4(staged + s * ROW + i);
                    float4 b = SHARED_LOAD4(staged + (s + 1 + d) * ROW + i);
                    sum[k] = FMA(a.x, b.x, sum[k]);
                    sum[k] = FMA(a.y, b.y, sum[k]);
                    sum[k] = FMA(a.z, b.z, sum[k]);
                    sum[k] = FMA(a.w, b.w, sum[k]);
                }
            }
        }
        BARRIER();
    }

    if (item == 0)
        same[network * GROUP_COUNT(0) + tile] = !own;
    UNROLL for (int k = 0; k < PAIRS; k++) {
        int pair = item + k * THREADS, s = tile * TILE + pair / REACH;
        if (own && s < count)
            gram_[(network * count + s) * REACH + pair % REACH] = sum[k];
    }
}
