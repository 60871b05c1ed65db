/* Online training of fully connected networks with sigmoid units and squared error, on one core or
 * on several with OpenMP.
 *
 * Several threads divide the units of one network for the whole run. Each thread keeps the weights
 * of its own units and publishes only the outputs of these units, so that with one hidden layer the
 * threads wait for each other once per sample. Every thread computes the whole last layer, which is
 * small. Weights of the layers behind the first are stored twice, so that the forward and the
 * backward pass read contiguous memory: input by input for the outputs, and unit by unit for the
 * errors.
 *
 * The code is built with -fopenmp and needs GNU C: the compiler splits vectors of 16 floats into
 * vectors that the processor has. */

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"
#include "workers.h"

/* Memory through which threads exchange values. Each thread has two slots, which it uses in turn. A
 * slot begins with the number of the exchange whose values it holds. */
typedef struct {
    int threads;
    size_t slot; /* floats of a slot */
    float *slots;
} Exchange;

/* Publishes the values of the thread's own units (`own`), and collects the values of all units
 * (`all`). */
static void share(const Exchange *exchange, Worker *worker, const float *own, float *all, int units)
{
    int threads = exchange->threads;
    if (threads == 1)
        return;
    /* Two slots suffice. A thread overwrites its slot of exchange k only in exchange k + 2. In
     * exchange k + 1 it has waited for all other threads, and these had finished exchange k. */
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
                sched_yield(); /* another program may occupy the core of the awaited thread */
        memcpy(all + first, slot + 1, bytes);
    }
}

/* Works on `count` units of a first layer whose weights are stored unit by unit. One sweep over the
 * weights applies the weight update of the previous sample and computes the weighted sums of the
 * present sample.
 *
 * changed: inputs of the previous sample; NULL to apply no update.
 * x: inputs of the present sample; NULL to compute no sums. */
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

/* Computes the outputs of all layers for sample s. In a first layer whose weights are stored unit
 * by unit, also applies the update of sample s - 1, so that these weights are read once per
 * sample. */
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

/* Computes the errors times the learning rate for all layers. These products are the changes of the
 * biases. */
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

/* Updates all biases and weights, except the weights of a first layer that are stored unit by unit:
 * forward() updates these. */
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

/* Trains on all samples as one of the network's threads. */
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

/* Networks with the same shape.
 *
 * count: number of networks.
 * threads: number of threads.
 * size: number of parameters of one network.
 * workers: workers of the first network, then workers of the second network, and so on. */
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

/* Allocates networks and copies their parameters. Where there is a single network, all threads
 * train it together; several networks are distributed over the threads. Returns NULL where memory
 * is missing.
 *
 * shape: shape of each network; its sizes are not copied and must outlive the networks.
 * parameters: for each network and each of its layers the weights, unit by unit, and then the
 * biases. */
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
        /* the threads that will use the memory allocate it, so that it is near them (NUMA) */
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

/* Trains all networks on the samples, from their present parameters. Returns 0 where OpenMP gives
 * fewer threads than were asked for. */
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

/* Copies the present parameters to `parameters`, in the order of begin_networks(). */
void read_networks(const Networks *networks, float *parameters)
{
    int sharing = networks->exchange.threads;
    for (int n = 0; n < networks->count * sharing; n++)
        read_part(&networks->workers[n], &networks->shape,
                  parameters + n / sharing * networks->size);
}
