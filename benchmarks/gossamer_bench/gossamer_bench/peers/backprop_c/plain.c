/* The training of backprop.c in plain C. Each step is a loop over the weights, and the steps follow
 * one another. Weights are stored input by input, so that the compiler can vectorise over the
 * units. */

#include <math.h>
#include <stdlib.h>

#include "plain.h"

/* Trains on one sample. */
static void step(const Layer *layers, int count, const float *x, const float *target, float rate)
{
    for (int l = 0; l < count; l++) {
        const Layer *layer = &layers[l];
        const float *in = l ? layers[l - 1].out : x;
        for (int j = 0; j < layer->units; j++)
            layer->out[j] = layer->bias[j];
        for (int i = 0; i < layer->inputs; i++)
            for (int j = 0; j < layer->units; j++)
                layer->out[j] += layer->weight[i * layer->units + j] * in[i];
        for (int j = 0; j < layer->units; j++)
            layer->out[j] = 1.0f / (1.0f + expf(-layer->out[j]));
    }
    const Layer *last = &layers[count - 1];
    for (int j = 0; j < last->units; j++)
        last->error[j] = last->out[j] * (1.0f - last->out[j]) * (target[j] - last->out[j]);
    for (int l = count - 1; l > 0; l--) {
        const Layer *layer = &layers[l], *below = &layers[l - 1];
        for (int i = 0; i < layer->inputs; i++) {
            float sum = 0.0f;
            for (int j = 0; j < layer->units; j++)
                sum += layer->error[j] * layer->weight[i * layer->units + j];
            below->error[i] = below->out[i] * (1.0f - below->out[i]) * sum;
        }
    }
    for (int l = 0; l < count; l++) {
        const Layer *layer = &layers[l];
        const float *in = l ? layers[l - 1].out : x;
        for (int i = 0; i < layer->inputs; i++)
            for (int j = 0; j < layer->units; j++)
                layer->weight[i * layer->units + j] += rate * layer->error[j] * in[i];
        for (int j = 0; j < layer->units; j++)
            layer->bias[j] += rate * layer->error[j];
    }
}

/* Trains one network. Returns 0 where memory is missing. parameters: for each layer the weights,
 * input by input, and then the biases. */
static int train_plainly(const Shape *shape, float *parameters, const Work *work)
{
    Layer layers[MOST_LAYERS];
    float *own = lay_out(layers, shape, parameters);
    if (!own)
        return 0;
    for (int s = 0; s < work->samples; s++)
        step(layers, shape->layers, work->x + (size_t)s * WIDE(shape->sizes[0]),
             work->targets + (size_t)s * shape->sizes[shape->layers], work->rate);
    free(own);
    return 1;
}

/* Trains several networks, which are distributed over several threads. Returns 0 where memory is
 * missing. count: number of networks. size: number of parameters of one network. */
int train_apart(const Shape *shape, float *parameters, int count, int size, int threads,
                const Work *work)
{
    int failed = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(| : failed)
    for (int n = 0; n < count; n++)
        failed |= !train_plainly(shape, parameters + (size_t)n * size, work);
    return !failed;
}
