/* The shape of the networks and the samples that they are trained on.
 *
 * layers: number of layers of weights. sizes: units of each layer, inputs first. listed: whether
 * the samples are lists of their nonzero inputs. */
typedef struct {
    int layers, listed;
    const int *sizes;
} Shape;

/* x: rows of sizes[0] inputs, padded with zeros to a multiple of 16. starts, indices, values: where
 * inputs are listed, the numbers and values of sample s's nonzero inputs are elements starts[s] to
 * starts[s + 1] of indices and values. targets: rows of one float for each output. samples: number
 * of samples, which are taken in order. rate: learning rate. */
typedef struct {
    const float *x;
    const int *starts, *indices;
    const float *values;
    const float *targets;
    int samples;
    float rate;
} Work;

#define MOST_LAYERS 8
/* The count padded to whole vectors of 16 floats. */
#define WIDE(count) (((count) + 15) / 16 * 16)
