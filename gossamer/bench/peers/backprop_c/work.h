/* The networks' shape and what they are trained on.
 *
 * layers: of weights. sizes: units of each layer, inputs first. listed: whether only the inputs
 * that are not zero are given, and worked on. */
typedef struct {
    int layers, listed;
    const int *sizes;
} Shape;

/* x: rows of sizes[0] floats, padded with zeros to a multiple of 16. Listed: the inputs of sample s
 * are starts[s] to starts[s + 1] of indices and values. targets: rows of as many floats as there
 * are outputs. samples: come one after the other, as they lie. */
typedef struct {
    const float *x;
    const int *starts, *indices;
    const float *values;
    const float *targets;
    int samples;
    float rate;
} Work;

#define MOST_LAYERS 8
#define WIDE(count) (((count) + 15) / 16 * 16)
