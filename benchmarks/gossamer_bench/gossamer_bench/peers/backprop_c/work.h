/* The shape of a network.
 *
 * layers: number of layers of weights.
 * listed: whether the samples are lists of their nonzero inputs.
 * sizes: units of each layer, inputs first. */
typedef struct {
    int layers, listed;
    const int *sizes;
} Shape;

/* The samples that networks are trained on.
 *
 * x: rows of sizes[0] inputs, padded with zeros to a multiple of 16.
 * starts, indices, values: lists of nonzero inputs. The list of sample s has the elements starts[s]
 * to starts[s + 1] - 1 of `indices` (indices of the inputs) and of `values`.
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
