/* Walks over the copy of a stack that the kernel made. */
#include <string.h>

#include "internal.h"

static bool load(const void *of, uint64_t address, uint64_t *value) {
    const pasta_dump *d = of;
    uint64_t at = address - d->registers.sp;
    if (address % sizeof *value || at > d->bytes || d->bytes - at < sizeof *value) return false;
    memcpy(value, d->stack + at, sizeof *value);
    return true;
}

/* The file and the address in it of code; -1 for generated code. */
static int32_t place_of(const pasta_walker *w, const pasta_process_state *process, uint64_t address, uint64_t *in_file) {
    const pasta_mapping *m = pasta_mappings_at(process, address);
    pasta_file *file = m ? pasta_files_get(w->files, m->file) : NULL;
    *in_file = address;
    if (!file) return -1;
    uint64_t offset = address - m->start + m->offset;
    if (!file->is_elf || !pasta_file_address(file, offset, in_file)) *in_file = offset;
    return m->file;
}

uint32_t pasta_walk(const pasta_walker *w, const pasta_process_state *process, const pasta_dump *dump, pasta_host_line *lines,
                    bool *truncated) {
    pasta_registers r = dump->registers;
    uint32_t count = 0, known = 0;
    bool ended = false, left = true;
    while (count < PASTA_MAX_FRAMES) {
        uint64_t call = pasta_call_of(&r), address;
        int32_t number = place_of(w, process, call, &address);
        const pasta_file *file = pasta_files_get(w->files, number);
        lines[count++] = (pasta_host_line){.file = file ? file->image : 0, .name = file ? file->build : 0, .address = address};
        if (file) known = count;
        left = pasta_step(dump, load, false, pasta_rules_at(w->rules, number, address), &r, &ended);
        if (!left) break;
    }
    *truncated = left || !ended;
    /* words of no stack were taken for the last frames without a file */
    return left ? count : known;
}
