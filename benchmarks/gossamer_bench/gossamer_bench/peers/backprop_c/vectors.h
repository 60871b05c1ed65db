/* Products of small vectors and matrices whose rows are padded to a multiple of 16 floats. */

#include <stdint.h>
#include <string.h>

#include "work.h"

typedef float Vector __attribute__((vector_size(64), aligned(4)));

static Vector load(const float *memory)
{
    return *(const Vector *)memory;
}

static void store(float *memory, Vector values)
{
    *(Vector *)memory = values;
}

static float sum(Vector values)
{
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            values[i] += values[i + half];
    return values[0];
}

/* Replaces z by its sigmoid. The exponential is the polynomial of the Cephes library, exact to a
 * unit or two in the last place. */
static void sigmoid(float *z, int count)
{
#pragma omp simd
    for (int i = 0; i < WIDE(count); i++) {
        float x = -z[i];
        x = x < 87.0f ? x : 87.0f;
        x = x > -87.0f ? x : -87.0f;
        float whole = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
        float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * r * r + r + 1.0f;
        int32_t bits = ((int32_t)whole + 127) << 23;
        float power;
        memcpy(&power, &bits, sizeof power);
        z[i] = 1.0f / (1.0f + p * power);
    }
    for (int i = count; i < WIDE(count); i++)
        z[i] = 0.0f;
}

/* values[j] = start[j] + the sum over i of in[i] * weight[i * width + j]. */
static void weighted(float *values, const float *start, const float *weight, int width,
                     const float *in, int inputs)
{
    for (int j = 0; j < width; j += 16) {
        const float *w = weight + j;
        Vector a = start ? load(start + j) : (Vector){0}, b = {0}, c = {0}, d = {0};
        int i = 0;
        for (; i + 4 <= inputs; i += 4) {
            a += in[i] * load(w + (size_t)i * width);
            b += in[i + 1] * load(w + (size_t)(i + 1) * width);
            c += in[i + 2] * load(w + (size_t)(i + 2) * width);
            d += in[i + 3] * load(w + (size_t)(i + 3) * width);
        }
        for (; i < inputs; i++)
            a += in[i] * load(w + (size_t)i * width);
        store(values + j, (a + b) + (c + d));
    }
}

/* weight[i * width + j] += by_row[i] * by_column[j]. */
static void add_product(float *weight, int width, const float *by_row, int rows,
                        const float *by_column)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < width; j += 16)
            store(weight + (size_t)i * width + j,
                  load(weight + (size_t)i * width + j) + by_row[i] * load(by_column + j));
}

/* Computes the values of weighted() from the list of a sample's nonzero inputs: in[i] is the value
 * of input indices[i]. */
static void weighted_listed(float *values, const float *start, const float *weight, int width,
                            const int *indices, const float *in, int inputs)
{
    for (int j = 0; j < width; j += 16) {
        Vector a = load(start + j), b = {0}, c = {0}, d = {0};
        int i = 0;
        for (; i + 4 <= inputs; i += 4) {
            a += in[i] * load(weight + (size_t)indices[i] * width + j);
            b += in[i + 1] * load(weight + (size_t)indices[i + 1] * width + j);
            c += in[i + 2] * load(weight + (size_t)indices[i + 2] * width + j);
            d += in[i + 3] * load(weight + (size_t)indices[i + 3] * width + j);
        }
        for (; i < inputs; i++)
            a += in[i] * load(weight + (size_t)indices[i] * width + j);
        store(values + j, (a + b) + (c + d));
    }
}

/* Adds a product as add_product() does, to the listed rows alone. */
static void add_product_listed(float *weight, int width, const int *indices, const float *by_row,
                               int rows, const float *by_column)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < width; j += 16) {
            float *w = weight + (size_t)indices[i] * width + j;
            store(w, load(w) + by_row[i] * load(by_column + j));
        }
}
