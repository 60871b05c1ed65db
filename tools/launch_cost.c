/* What a C program pays for queueing 54 kernels, each with a kernel object of its own whose arguments
 * are set once: microseconds a kernel until all are queued, and until all have run. The argument is a
 * part of an OpenCL platform's name. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* declared here, since OpenCL's headers are rarely installed */
typedef void *object;
extern int clGetPlatformIDs(unsigned, object *, unsigned *);
extern int clGetPlatformInfo(object, unsigned, size_t, void *, size_t *);
extern int clGetDeviceIDs(object, unsigned long, unsigned, object *, unsigned *);
extern object clCreateContext(void *, unsigned, object *, void *, void *, int *);
extern object clCreateCommandQueue(object, object, unsigned long, int *);
extern object clCreateProgramWithSource(object, unsigned, const char **, size_t *, int *);
extern int clBuildProgram(object, unsigned, object *, const char *, void *, void *);
extern object clCreateKernel(object, const char *, int *);
extern object clCreateBuffer(object, unsigned long, size_t, void *, int *);
extern int clSetKernelArg(object, unsigned, size_t, const void *);
extern int clEnqueueNDRangeKernel(object, object, unsigned, const size_t *, const size_t *,
                                  const size_t *, unsigned, object *, object *);
extern int clFinish(object);

#define PLATFORM_NAME 0x0902
#define ALL_DEVICES 0xffffffff
#define READ_WRITE 1
#define KERNELS 54
#define ROUNDS 2000

static double microseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e6 + now.tv_nsec * 1e-3;
}

int main(int count, char **arguments)
{
    object platforms[16], device = NULL;
    unsigned found = 0;
    int status;
    clGetPlatformIDs(16, platforms, &found);
    for (unsigned i = 0; i < found && !device; i++) {
        char name[256] = "";
        clGetPlatformInfo(platforms[i], PLATFORM_NAME, sizeof name, name, NULL);
        if (count > 1 && strstr(name, arguments[1]))
            clGetDeviceIDs(platforms[i], ALL_DEVICES, 1, &device, NULL);
    }
    if (!device) {
        fprintf(stderr, "no OpenCL platform has this in its name\n");
        return 1;
    }
    const char *text = "__kernel void add(__global float *x, int n)"
                       "{ int i = get_global_id(0); if (i < n) x[i] += 1.0f; }";
    object context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    object queue = clCreateCommandQueue(context, device, 0, &status);
    object program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
    clBuildProgram(program, 1, &device, "", NULL, NULL);
    object buffer = clCreateBuffer(context, READ_WRITE, 4096, NULL, &status);
    object kernels[KERNELS];
    int elements = 64;
    for (int i = 0; i < KERNELS; i++) {
        kernels[i] = clCreateKernel(program, "add", &status);
        clSetKernelArg(kernels[i], 0, sizeof buffer, &buffer);
        clSetKernelArg(kernels[i], 1, sizeof elements, &elements);
    }
    size_t size = 64;
    double queued = 1e9, run = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = microseconds();
        for (int i = 0; i < KERNELS; i++)
            clEnqueueNDRangeKernel(queue, kernels[i], 1, NULL, &size, &size, 0, NULL, NULL);
        double middle = microseconds();
        clFinish(queue);
        double end = microseconds();
        queued = middle - start < queued ? middle - start : queued;
        run = end - start < run ? end - start : run;
    }
    printf("%.2f %.2f\n", queued / KERNELS, run / KERNELS);
    return 0;
}
