/* The plain program on several cores with OpenMP. An epoch is one parallel region, in which the
 * threads divide each loop over a layer's units and wait for each other after the loop. Weights
 * are stored unit by unit, so that different threads write to different cache lines. */

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "plain.h"

/* Trains on one sample; all threads of the parallel region call this function. */
static void step(const Layer *layers, int count, const float *x, const float *target, float rate)
{
    for (int l = 0; l < count; l++) {
        const Layer *layer = &layers[l];
        const float *in = l ? layers[l - 1].out : x;
#pragma omp for schedule(static)
        for (int j = 0; j < layer->units; j++) {
            const float *weight = layer->weight + (size_t)j * layer->inputs;
            float sum = layer->bias[j];
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < layer->inputs; i++)
                sum += weight[i] * in[i];
            float out = 1.0f / (1.0f + expf(-sum));
            layer->out[j] = out;
            if (l == count - 1)
                layer->error[j] = out * (1.0f - out) * (target[j] - out);
        }
    }
    for (int l = count - 1; l > 0; l--) {
        const Layer *layer = &layers[l], *below = &layers[l - 1];
#pragma omp for schedule(static)
        for (int i = 0; i < layer->inputs; i++) {
            float sum = 0.0f;
            for (int j = 0; j < layer->units; j++)
                sum += layer->error[j] * layer->weight[(size_t)j * layer->inputs + i];
            below->error[i] = below->out[i] * (1.0f - below->out[i]) * sum;
        }
    }
    for (int l = 0; l < count; l++) {
        const Layer *layer = &layers[l];
        const float *in = l ? layers[l - 1].out : x;
#pragma omp for schedule(static) nowait
        for (int j = 0; j < layer->units; j++) {
            float *weight = layer->weight + (size_t)j * layer->inputs;
            float change = rate * layer->error[j];
            for (int i = 0; i < layer->inputs; i++)
                weight[i] += change * in[i];
            layer->bias[j] += change;
        }
    }
#pragma omp barrier
}

/* Trains one network on several threads. Returns 0 where memory or threads are missing. parameters:
 * for each layer the weights, unit by unit, and then the biases. */
int train_together(const Shape *shape, float *parameters, int threads, const Work *work)
{
    Layer layers[MOST_LAYERS];
    int failed = 0;
    float *own = lay_out(layers, shape, parameters);
    if (!own)
        return 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    if (omp_get_num_threads() == threads)
        for (int s = 0; s < work->samples; s++)
            step(layers, shape->layers, work->x + (size_t)s * WIDE(shape->sizes[0]),
                 work->targets + (size_t)s * shape->sizes[shape->layers], work->rate);
    else
        failed = 1;
    free(own);
    return !failed;
}
