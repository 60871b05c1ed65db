/* Runs a job of generated code: run_job JOB RESULT. FUNCTION is the name of its function.
 *
 * The file JOB has 64-bit integers, the number of arguments, of tasks, of bytes of scratch memory, and
 * which argument is the output; and then for each argument the number of its bytes and the bytes, or -1
 * and a number. RESULT gets the bytes of the output. Exits with 2 where bytes around an argument have
 * changed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 0x5a, MARGIN = 128, MOST = 32 };

void FUNCTION(int64_t *arguments, int64_t first, int64_t end, void *scratch);

static int64_t number(FILE *file) {
    int64_t value;
    if (fread(&value, sizeof value, 1, file) != 1) exit(1);
    return value;
}

static unsigned char *guarded(int64_t size) {
    int64_t whole = (size + 3 * MARGIN) / MARGIN * MARGIN;
    unsigned char *memory = aligned_alloc(MARGIN, whole);
    memset(memory, GUARD, whole);
    return memory + MARGIN;
}

static void check(const unsigned char *memory, int64_t size) {
    for (int index = 0; index < MARGIN; index++)
        if (memory[-1 - index] != GUARD || memory[size + index] != GUARD) exit(2);
}

int main(int count, char **paths) {
    if (count != 3) return 1;
    FILE *job = fopen(paths[1], "rb"), *result = fopen(paths[2], "wb");
    int64_t arguments = number(job), tasks = number(job), bytes = number(job), output = number(job);
    int64_t values[MOST], sizes[MOST];
    for (int index = 0; index < arguments; index++) {
        if ((sizes[index] = number(job)) < 0) {
            values[index] = number(job);
            continue;
        }
        unsigned char *memory = guarded(sizes[index]);
        if (fread(memory, 1, sizes[index], job) != (size_t)sizes[index]) return 1;
        values[index] = (int64_t)memory;
    }
    unsigned char *scratch = guarded(bytes);
    FUNCTION(values, 0, tasks, scratch);
    check(scratch, bytes);
    for (int index = 0; index < arguments; index++)
        if (sizes[index] >= 0) check((unsigned char *)values[index], sizes[index]);
    fwrite((void *)values[output], 1, sizes[output], result);
    return fclose(result);
}
