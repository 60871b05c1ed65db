/* The part of a network that a thread owns, and functions that fill the part and copy it back. */

#include <stdlib.h>
#include <string.h>

#define LINE 128 /* bytes of two cache lines, which processors fetch together */
/* Distance, in floats, from the weights of one unit of the first layer to the weights of the next
 * unit. For a number of inputs such as 1024, the 16 further floats keep the distance from being a
 * multiple of a large power of two, for which loads would wait for stores whose addresses end in
 * the same bits. */
#define ROW(inputs) (WIDE(inputs) + 16)

/* A thread's part of a layer. The thread owns `count` units from number `first` on. The thread also
 * computes the errors of `back_count` units of the layer before, from number `back_first` on.
 * Padding consists of zeros. */
typedef struct {
    int inputs, units, first, count, back_first, back_count;
    int width, back_width; /* the counts, padded */
    float *weight;         /* inputs x width; where stored unit by unit, count x ROW(inputs) */
    float *back;           /* weights from those units to all units: units x back_width */
    float *bias;           /* width */
    float *out, *own_out;  /* outputs of all units, and of owned units; may be one array */
    float *error, *own_error; /* errors times the learning rate, of all and of owned units */
} Layer;

/* thread: number of the thread. turn: number of exchanges so far. */
typedef struct {
    int thread, turn;
    Layer layers[MOST_LAYERS];
} Worker;

/* Returns the number of the first unit that a thread owns. */
static int start_of(int units, int thread, int threads)
{
    return (int)((long)units * thread / threads);
}

/* Allocates an array of zeros. Returns NULL where memory is missing. */
static float *zeros(size_t count)
{
    size_t bytes = (count * sizeof(float) / LINE + 1) * LINE;
    float *memory = aligned_alloc(LINE, bytes);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

/* Allocates a thread's part of a network and copies its parameters there. Returns 0 where memory is
 * missing. */
static int prepare(Worker *worker, const Shape *shape, const float *parameters, int thread,
                   int threads)
{
    int last = shape->layers - 1;
    worker->thread = thread;
    for (int l = 0; l <= last; l++) {
        Layer *layer = &worker->layers[l];
        int inputs = layer->inputs = shape->sizes[l];
        int units = layer->units = shape->sizes[l + 1];
        int by_unit = l == 0 && !shape->listed;
        if (l < last || l == 0) {
            layer->first = start_of(units, thread, threads);
            layer->count = start_of(units, thread + 1, threads) - layer->first;
        } else {
            layer->count = units;
        }
        if (l == last && l > 1) {
            layer->back_count = inputs;
        } else if (l > 0) {
            layer->back_first = start_of(inputs, thread, threads);
            layer->back_count = start_of(inputs, thread + 1, threads) - layer->back_first;
        }
        layer->width = WIDE(layer->count);
        layer->back_width = WIDE(layer->back_count);
        size_t size = by_unit ? (size_t)layer->count * ROW(inputs) : (size_t)inputs * layer->width;
        layer->weight = zeros(size);
        layer->back = zeros((size_t)units * layer->back_width);
        layer->bias = zeros(layer->width);
        layer->out = zeros(WIDE(units));
        layer->error = zeros(WIDE(units));
        layer->own_out = layer->count == units ? layer->out : zeros(layer->width);
        layer->own_error = layer->count == units ? layer->error : zeros(layer->width);
        if (!layer->weight || !layer->back || !layer->bias || !layer->out || !layer->error ||
            !layer->own_out || !layer->own_error)
            return 0;
        for (int j = 0; j < layer->count; j++) {
            const float *row = parameters + (size_t)(layer->first + j) * inputs;
            for (int i = 0; i < inputs; i++)
                layer->weight[by_unit ? (size_t)j * ROW(inputs) + i
                                      : (size_t)i * layer->width + j] = row[i];
            layer->bias[j] = parameters[(size_t)units * inputs + layer->first + j];
        }
        for (int j = 0; j < units; j++)
            for (int i = 0; i < layer->back_count; i++)
                layer->back[(size_t)j * layer->back_width + i] =
                    parameters[(size_t)j * inputs + layer->back_first + i];
        parameters += (size_t)units * (inputs + 1);
    }
    return 1;
}

/* Copies the parameters of the thread's units to `parameters`. */
static void read_part(const Worker *worker, const Shape *shape, float *parameters)
{
    for (int l = 0; l < shape->layers; l++) {
        const Layer *layer = &worker->layers[l];
        int inputs = layer->inputs, by_unit = l == 0 && !shape->listed;
        for (int j = 0; j < layer->count; j++) {
            float *row = parameters + (size_t)(layer->first + j) * inputs;
            for (int i = 0; i < inputs; i++)
                row[i] = layer->weight[by_unit ? (size_t)j * ROW(inputs) + i
                                               : (size_t)i * layer->width + j];
            parameters[(size_t)layer->units * inputs + layer->first + j] = layer->bias[j];
        }
        parameters += (size_t)layer->units * (inputs + 1);
    }
}

static void release(Worker *worker)
{
    for (int l = 0; l < MOST_LAYERS; l++) {
        Layer *layer = &worker->layers[l];
        free(layer->weight);
        free(layer->back);
        free(layer->bias);
        if (layer->own_out != layer->out)
            free(layer->own_out);
        if (layer->own_error != layer->error)
            free(layer->own_error);
        free(layer->out);
        free(layer->error);
    }
}
