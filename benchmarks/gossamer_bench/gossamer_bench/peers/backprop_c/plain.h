/* The layers of a network, as both plain programs use them. */

#include <stdlib.h>

#include "work.h"

typedef struct {
    int inputs, units;
    float *weight, *bias, *out, *error;
} Layer;

/* Points the layers at their parameters: for each layer the weights and then the biases. Returns
 * the memory of the layers' outputs and errors, which the caller frees; NULL where memory is
 * missing. */
static float *lay_out(Layer *layers, const Shape *shape, float *parameters)
{
    int units = 0;
    for (int l = 0; l < shape->layers; l++)
        units += shape->sizes[l + 1];
    float *own = malloc(2 * units * sizeof(float));
    if (!own)
        return NULL;
    float *out = own;
    for (int l = 0; l < shape->layers; l++) {
        int before = shape->sizes[l], here = shape->sizes[l + 1];
        layers[l] = (Layer){before, here, parameters, parameters + before * here, out, out + here};
        parameters += (before + 1) * here;
        out += 2 * here;
    }
    return own;
}
