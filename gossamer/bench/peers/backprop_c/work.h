/* The shape of the networks and the samples that they are trained on.
 *
 * layers: number of layers of weights.
 * listed: whether the samples are lists of their nonzero inputs.
 * sizes: units of each layer, inputs first. */
typedef struct {
    int layers, listed;
    const int *sizes;
} Shape;

/* x: rows of sizes[0] inputs, padded with zeros to a multiple of 16.
 * starts, indices, values: lists of nonzero inputs. Those of sample s begin at element starts[s] of
 * indices (their numbers) and values, and end before element starts[s + 1].
 * targets: rows of one float for each output.
 * samples: number of samples, which are taken in order.
 * rate: learning rate. */
typedef struct {
    const float *x;
    const int *starts, *indices;
    const float *values;
    const float *targets;
    int samples;
    float rate;
} Work;

#define MOST_LAYERS 8
/* The count rounded up to whole vectors of 16 floats. */
#define WIDE(count) (((count) + 15) / 16 * 16)
