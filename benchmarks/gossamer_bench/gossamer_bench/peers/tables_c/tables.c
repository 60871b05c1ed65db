/* Pruned networks on a processor: the nonzero weights of each layer are a table of offsets and
 * weights, and activations lie in planes that are used again. */

#include <math.h>
#include <stdint.h>

#define TILE 64
#define CHANNELS 32
/* Pixels whose sums stay in registers while the weights of an output channel are read, and the
 * output channels of a thread's task. */

typedef float Vector __attribute__((vector_size(64), aligned(4)));

/* Rows of width + 2 * border floats. The border is zero, and 2 * TILE floats follow the last row. */
typedef struct {
    float *data;
    int channels, height, width, border;
} Planes;

typedef struct {
    int offset;
    float weight;
} Entry;

enum { SPLIT, CONVOLUTION, MAXIMUM, MEAN, PRODUCT };

/* A layer, or a part of one.
 *
 * size, stride, pad: of the window.
 * x, y, added: input, output, and what is added to each output, without data where nothing is.
 * starts: where the entries of each output channel begin.
 * entries: the nonzero weights, with the offset of their first input in x. */
typedef struct {
    int kind, size, stride, pad, relu;
    Planes x, y, added;
    const float *bias;
    const int *starts;
    const Entry *entries;
} Step;

static int pitch(const Planes *planes)
{
    return planes->width + 2 * planes->border;
}

static float *row_of(const Planes *planes, int channel, int row)
{
    return planes->data + ((int64_t)channel * (planes->height + 2 * planes->border) + row
                           + planes->border) * pitch(planes) + planes->border;
}

/* Divides a padded input into phases: each has every stride-th row and column. */
static void split(const Step *s)
{
    int phases = s->y.channels / s->x.channels, side = s->size < s->stride ? s->size : s->stride;
#pragma omp parallel for
    for (int channel = 0; channel < s->y.channels; channel++) {
        int phase = channel % phases;
        for (int i = 0; i < s->y.height; i++) {
            float *y = row_of(&s->y, channel, i);
            int row = phase / side + i * s->stride - s->pad;
            int column = phase % side - s->pad;
            const float *x = row_of(&s->x, channel / phases, row) + column;
            for (int j = 0; j < s->y.width; j++, column += s->stride)
                y[j] = row >= 0 && row < s->x.height && column >= 0 && column < s->x.width
                    ? x[j * s->stride] : 0;
        }
    }
}

/* Stores the sums of TILE pixels, counted in rows as long as those of x, from `first` on. */
static void store(const Step *s, int channel, int first, const float *sums)
{
    for (int q = first, end = first + TILE; q < end;) {
        int row = q / pitch(&s->x), column = q % pitch(&s->x);
        if (row >= s->y.height)
            return;
        float *y = row_of(&s->y, channel, row) + column;
        const float *added = s->added.data ? row_of(&s->added, channel, row) + column : 0;
        int count = s->y.width - column < end - q ? s->y.width - column : end - q;
        for (int i = 0; i < count; i++) {
            float value = sums[q - first + i] + (added ? added[i] : 0);
            y[i] = s->relu && value < 0 ? 0 : value;
        }
        q += pitch(&s->x) - column;
    }
}

/* A convolution of stride 1. */
static void convolution(const Step *s)
{
    int pixels = (s->y.height - 1) * pitch(&s->x) + s->y.width;
#pragma omp parallel for collapse(2)
    for (int first = 0; first < pixels; first += TILE)
        for (int block = 0; block < s->y.channels; block += CHANNELS)
            for (int m = block; m < block + CHANNELS && m < s->y.channels; m++) {
                Vector a = (Vector){0} + s->bias[m], b = a, c = a, d = a;
                for (int k = s->starts[m]; k < s->starts[m + 1]; k++) {
                    const Vector *x = (const Vector *)(s->x.data + s->entries[k].offset + first);
                    float weight = s->entries[k].weight;
                    a += weight * x[0];
                    b += weight * x[1];
                    c += weight * x[2];
                    d += weight * x[3];
                }
                Vector sums[] = {a, b, c, d};
                store(s, m, first, (const float *)sums);
            }
}

static void maximum(const Step *s)
{
#pragma omp parallel for
    for (int channel = 0; channel < s->y.channels; channel++)
        for (int i = 0; i < s->y.height; i++)
            for (int j = 0; j < s->y.width; j++) {
                float most = -INFINITY;
                int top = i * s->stride - s->pad, left = j * s->stride - s->pad;
                for (int row = top < 0 ? 0 : top; row < top + s->size && row < s->x.height; row++) {
                    const float *x = row_of(&s->x, channel, row);
                    for (int column = left < 0 ? 0 : left;
                         column < left + s->size && column < s->x.width; column++)
                        most = x[column] > most ? x[column] : most;
                }
                row_of(&s->y, channel, i)[j] = most;
            }
}

static void mean(const Step *s)
{
    for (int channel = 0; channel < s->y.channels; channel++) {
        float sum = 0;
        for (int i = 0; i < s->x.height; i++)
            for (int j = 0; j < s->x.width; j++)
                sum += row_of(&s->x, channel, i)[j];
        s->y.data[channel] = sum / (s->x.height * s->x.width);
    }
}

static void product(const Step *s)
{
#pragma omp parallel for
    for (int m = 0; m < s->y.channels; m++) {
        float sum = s->bias[m];
#pragma omp simd reduction(+ : sum)
        for (int k = s->starts[m]; k < s->starts[m + 1]; k++)
            sum += s->entries[k].weight * s->x.data[s->entries[k].offset];
        s->y.data[m] = s->relu && sum < 0 ? 0 : sum;
    }
}

void run(const Step *steps, int count)
{
    static void (*const kinds[])(const Step *) = {split, convolution, maximum, mean, product};
    for (int i = 0; i < count; i++)
        kinds[steps[i].kind](&steps[i]);
}
