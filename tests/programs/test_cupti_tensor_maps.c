/* Tensor maps among arguments: reads 64-bit words (hexadecimal) of parameters from a file, and prints the maps that are
 * published.  `extra`: as a buffer; `parameters`: of a function with two, the second one with all words; `kernel`: the same,
 * of a handle that only cuKernelGetFunction knows. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/backends/nvidia/cupti_source.h"
#include "check.h"

enum { FUNCTION = 7, KERNEL = 8, FIRST = 4, OFFSET = 64, ORDINAL = 5, WORDS = 4096 };

static uint64_t record[(sizeof(pasta_header) + sizeof(pasta_tensor_map)) / 8], bytes;

uint32_t pasta_thread(void) { return 1; }
void *pasta_begin_result(uint32_t thread, pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context,
                         uint64_t stream) {
    CHECK(thread == 1 && kind == PASTA_EVENT_tensor_map && slots * PASTA_SLOT == sizeof record);
    CHECK(device == 2 && context == 3 && stream == PASTA_NO_STREAM);
    return (char *)record + sizeof(pasta_header);
}

static void print(const pasta_header *unused) {
    const pasta_tensor_map *m = (const void *)((const char *)record + sizeof(pasta_header));
    (void)unused;
    CHECK(m->ordinal == ORDINAL);
    printf("%" PRIu32 " %" PRIx64 " %" PRIu64 " %" PRIu32 "\n", m->offset, m->address, m->bytes, m->box);
}
void (*pasta_tapped)(const pasta_header *record) = print;

static int32_t parameter(uint64_t function, uint64_t index, uint64_t *offset, uint64_t *size) {
    if (function != FUNCTION) return 400;
    *offset = index ? OFFSET : 0;
    *size = index ? bytes : FIRST;
    return index < 2 ? 0 : 1;
}
static int32_t kernel_function(uint64_t *function, uint64_t kernel) {
    if (kernel != KERNEL) return 400;
    *function = FUNCTION;
    return 0;
}
pasta_cupti_driver pasta_cuda = {.parameter = parameter, .kernel_function = kernel_function};

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    uint64_t *memory = malloc(WORDS * 8), used = 0;
    uint32_t first = 0;
    FILE *file = count > 2 ? fopen(words[2], "r") : NULL;
    CHECK(memory && file);
    while (used < WORDS && fscanf(file, "%" SCNx64, &memory[used]) == 1) used++;
    fclose(file);
    bytes = 8 * used;
    memory = realloc(memory, bytes ? bytes : 1); /* so that a sanitizer sees a read behind the end */
    void *extra[] = {(void *)PASTA_CUPTI_EXTRA_BUFFER, memory, (void *)PASTA_CUPTI_EXTRA_BYTES, &bytes, NULL};
    void *parameters[] = {&first, memory};
    pasta_cupti_counted_launch launch = {.ordinal = ORDINAL, .arguments = {.function = FUNCTION}};
    if (!strcmp(how, "extra")) launch.arguments.extra = extra;
    else launch.arguments.parameters = parameters;
    if (!strcmp(how, "kernel")) launch.arguments.function = KERNEL;
    pasta_cupti_publish_tensor_maps((pasta_nv_place){3, 2, 0}, &launch);
    free(memory);
    return 0;
}
