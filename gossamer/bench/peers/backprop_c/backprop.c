/* Online training of fully connected networks with sigmoid units and squared error, by one core or
 * by several with OpenMP.
 *
 * Several threads share one network unit by unit, for the whole run. Each keeps the weights of its
 * own units, and what it publishes is its units' outputs: of a network with one hidden layer the
 * threads wait for each other once a sample. The last layer, which is small, is every thread's.
 * A weight of an upper layer lies twice, so that both directions go along memory: input by input
 * for the outputs, unit by unit for the errors.
 *
 * Built with -fopenmp; needs GNU C (vectors of 16 floats are lowered to what the processor has). */

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"
#include "workers.h"

/* What threads tell each other: for each of two turns a slot a thread, with a number that says
 * whose turn it holds. */
typedef struct {
    int threads;
    size_t slot; /* floats */
    float *slots;
} Exchange;

/* Gives the others the values of the thread's own units, and gets those of all. */
static void share(const Exchange *exchange, Worker *worker, const float *own, float *all, int units)
{
    int threads = exchange->threads;
    if (threads == 1)
        return;
    /* nobody is two turns ahead: he has waited for all in between */
    float *slots = exchange->slots + (worker->turn++ & 1) * threads * exchange->slot;
    for (int n = 0; n < threads; n++) {
        int of = (worker->thread + n) % threads;
        int first = start_of(units, of, threads);
        size_t bytes = (size_t)(start_of(units, of + 1, threads) - first) * sizeof(float);
        float *slot = slots + of * exchange->slot;
        _Atomic int *turn = (_Atomic int *)slot;
        if (n == 0) {
            memcpy(slot + 1, own, bytes);
            atomic_store_explicit(turn, worker->turn, memory_order_release);
        }
        for (int looks = 1;
             atomic_load_explicit(turn, memory_order_acquire) != worker->turn; looks++)
            if (looks % 4096 == 0)
                sched_yield(); /* another program may have taken the other's core */
        memcpy(all + first, slot + 1, bytes);
    }
}

/* Some units of a first layer by unit: the change that the last sample makes (none where `changed`
 * is NULL), and at once the sums for the next (none where x is NULL). */
static inline __attribute__((always_inline)) void
change_and_weigh(Layer *layer, int first, const int count, const float *restrict changed,
                 const float *restrict x)
{
    int inputs = layer->inputs;
    float *weight = layer->weight + (size_t)first * ROW(inputs);
    float error[4];
    Vector sums[4] = {{0}, {0}, {0}, {0}};
    for (int j = 0; j < count; j++)
        error[j] = layer->own_error[first + j];
    for (int i = 0; i < inputs; i += 16)
        for (int j = 0; j < count; j++) {
            float *w = weight + (size_t)j * ROW(inputs) + i;
            Vector now = load(w);
            if (changed) {
                now += error[j] * load(changed + i);
                store(w, now);
            }
            if (x)
                sums[j] += now * load(x + i);
        }
    for (int j = 0; x && j < count; j++)
        layer->own_out[first + j] = layer->bias[first + j] + sum(sums[j]);
}

static void first_layer(Layer *layer, const float *changed, const float *x)
{
    int j = 0;
    for (; j + 4 <= layer->count; j += 4)
        change_and_weigh(layer, j, 4, changed, x);
    for (; j + 2 <= layer->count; j += 2)
        change_and_weigh(layer, j, 2, changed, x);
    for (; j < layer->count; j++)
        change_and_weigh(layer, j, 1, changed, x);
}

/* The outputs of all layers for sample s. A first layer by unit is changed by sample s - 1 before:
 * its weights are gone over once a sample. */
static void forward(Worker *worker, const Shape *shape, const Work *work, const Exchange *exchange,
                    int s)
{
    for (int l = 0; l < shape->layers; l++) {
        Layer *layer = &worker->layers[l];
        if (l > 0) {
            weighted(layer->own_out, layer->bias, layer->weight, layer->width,
                     worker->layers[l - 1].out, layer->inputs);
        } else if (!shape->listed) {
            const float *x = work->x + (size_t)s * WIDE(layer->inputs);
            first_layer(layer, s ? x - WIDE(layer->inputs) : NULL, x);
        } else {
            int start = work->starts[s];
            weighted_listed(layer->own_out, layer->bias, layer->weight, layer->width,
                            work->indices + start, work->values + start,
                            work->starts[s + 1] - start);
        }
        sigmoid(layer->own_out, layer->count);
        if (l < shape->layers - 1)
            share(exchange, worker, layer->own_out, layer->out, layer->units);
    }
}

/* The errors of all layers, times the rate: what biases change by. */
static void backward(Worker *worker, const Shape *shape, const Work *work, const Exchange *exchange,
                     int s)
{
    int last = shape->layers - 1;
    Layer *layer = &worker->layers[last];
    const float *target = work->targets + (size_t)s * layer->units + layer->first;
    for (int j = 0; j < layer->count; j++) {
        float o = layer->own_out[j];
        layer->own_error[j] = work->rate * o * (1.0f - o) * (target[j] - o);
    }
    for (int l = last; l > 0; l--) {
        Layer *below = &worker->layers[l - 1];
        layer = &worker->layers[l];
        int all = layer->back_count == below->units;
        float *error = all ? below->error : below->own_error;
        const float *out = all ? below->out : below->own_out;
        weighted(error, NULL, layer->back, layer->back_width, layer->error, layer->units);
        for (int i = 0; i < layer->back_width; i++)
            error[i] *= out[i] * (1.0f - out[i]);
        if (all && below->own_error != error)
            memcpy(below->own_error, error + below->first, below->count * sizeof(float));
        else if (!all && l > 1)
            share(exchange, worker, error, below->error, below->units);
    }
}

/* Changes all biases and weights, but for those of a first layer by unit, which forward() does. */
static void update(Worker *worker, const Shape *shape, const Work *work, int s)
{
    for (int l = 0; l < shape->layers; l++) {
        Layer *layer = &worker->layers[l];
        for (int j = 0; j < layer->width; j++)
            layer->bias[j] += layer->own_error[j];
        if (l > 0) {
            Layer *below = &worker->layers[l - 1];
            add_product(layer->weight, layer->width, below->out, layer->inputs, layer->own_error);
            add_product(layer->back, layer->back_width, layer->error, layer->units,
                        layer->back_count == below->units ? below->out : below->own_out);
        } else if (shape->listed) {
            int start = work->starts[s];
            add_product_listed(layer->weight, layer->width, work->indices + start,
                               work->values + start, work->starts[s + 1] - start,
                               layer->own_error);
        }
    }
}

static void train(Worker *worker, const Shape *shape, const Work *work, const Exchange *exchange)
{
    Layer *first = &worker->layers[0];
    for (int s = 0; s < work->samples; s++) {
        forward(worker, shape, work, exchange, s);
        backward(worker, shape, work, exchange, s);
        update(worker, shape, work, s);
    }
    if (!shape->listed && work->samples)
        first_layer(first, work->x + (size_t)(work->samples - 1) * WIDE(first->inputs), NULL);
}

/* size: parameters of one. workers: a network's one after the other. */
typedef struct {
    Shape shape;
    int count, threads;
    size_t size;
    Exchange exchange;
    Worker *workers;
} Networks;

void end_networks(Networks *networks)
{
    int workers = networks->workers ? networks->count * networks->exchange.threads : 0;
    for (int n = 0; n < workers; n++)
        release(&networks->workers[n]);
    free(networks->workers);
    free(networks->exchange.slots);
    free(networks);
}

/* The networks in place, on so many threads: all of which share one network, or each of which takes
 * one of several after the other. NULL where memory is missing. parameters: of each network, for
 * each layer its weights, unit by unit, and then its biases. sizes of the shape are not copied. */
Networks *begin_networks(const Shape *shape, const float *parameters, int count, int threads)
{
    Networks *networks = calloc(1, sizeof *networks);
    int sharing = count == 1 ? threads : 1, failed = 0, widest = 0;
    size_t size = 0;
    if (!networks)
        return NULL;
    for (int l = 0; l < shape->layers; l++) {
        int units = shape->sizes[l + 1];
        widest = units > widest ? units : widest;
        size += (size_t)units * (shape->sizes[l] + 1);
    }
    size_t slot = ((widest / sharing + 2) * sizeof(float) / LINE + 1) * LINE / sizeof(float);
    *networks = (Networks){*shape, count, threads, size, {sharing, slot, zeros(2 * sharing * slot)},
                           calloc((size_t)count * sharing, sizeof(Worker))};
    if (networks->workers && networks->exchange.slots) {
        /* by the threads that are going to use it, so that it is near them */
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(| : failed)
        for (int n = 0; n < count * sharing; n++)
            failed |= !prepare(&networks->workers[n], shape, parameters + n / sharing * size,
                               n % sharing, sharing);
        if (!failed)
            return networks;
    }
    end_networks(networks);
    return NULL;
}

/* Trains all networks on the samples, from where they stand; 0 where threads are missing. */
int train_networks(Networks *networks, const Work *work)
{
    const Shape *shape = &networks->shape;
    Worker *workers = networks->workers;
    int failed = 0;
    if (networks->exchange.threads > 1) {
#pragma omp parallel num_threads(networks->threads) reduction(| : failed)
        if (omp_get_num_threads() == networks->threads)
            train(&workers[omp_get_thread_num()], shape, work, &networks->exchange);
        else
            failed = 1;
    } else {
#pragma omp parallel for num_threads(networks->threads) schedule(dynamic, 1)
        for (int n = 0; n < networks->count; n++)
            train(&workers[n], shape, work, &networks->exchange);
    }
    return !failed;
}

/* Writes back what was trained. */
void read_networks(const Networks *networks, float *parameters)
{
    int sharing = networks->exchange.threads;
    for (int n = 0; n < networks->count * sharing; n++)
        read_part(&networks->workers[n], &networks->shape,
                  parameters + n / sharing * networks->size);
}
