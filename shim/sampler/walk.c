/* Walks over the copy of a stack that the kernel made, and joins Python's frames to it. */
#include <string.h>

#include "internal.h"

static bool load(const void *of, uint64_t address, uint64_t *value) {
    const pasta_dump *d = of;
    uint64_t at = address - d->registers.sp;
    if (address % sizeof *value || at > d->bytes || d->bytes - at < sizeof *value) return false;
    memcpy(value, d->stack + at, sizeof *value);
    return true;
}

typedef struct walk {
    pasta_host_line lines[PASTA_MAX_FRAMES];
    bool evaluates[PASTA_MAX_FRAMES]; /* a call of the interpreter's loop */
    uint32_t count, evaluations;
    pasta_interpreter interpreter; /* minor 0: none was met */
    bool truncated;
} walk;

/* The file and the address in it of code; NULL for generated code. */
static const pasta_file *place_of(const pasta_walker *w, const pasta_process_state *process, uint64_t address, uint64_t *in_file, int32_t *number) {
    const pasta_mapping *m = pasta_mappings_at(process, address);
    const pasta_file *file = m ? pasta_files_get(w->files, m->file) : NULL;
    *in_file = address;
    *number = file ? m->file : -1;
    if (!file) return NULL;
    uint64_t offset = address - m->start + m->offset;
    if (!file->is_elf || !pasta_file_address(file, offset, in_file)) *in_file = offset;
    return file;
}

static bool is_evaluation(const pasta_file *file, uint64_t address) {
    return file && file->python && address - file->eval_start < file->eval_end - file->eval_start;
}

static void walk_native(const pasta_walker *w, const pasta_process_state *process, const pasta_dump *dump, walk *found) {
    pasta_registers r = dump->registers;
    uint32_t known = 0;
    bool ended = false, left = true;
    while (found->count < PASTA_MAX_FRAMES) {
        uint64_t call = pasta_call_of(&r), address;
        int32_t number;
        const pasta_file *file = place_of(w, process, call, &address, &number);
        found->evaluates[found->count] = is_evaluation(file, address);
        if (found->evaluates[found->count]) {
            uint64_t bias = call - address;
            found->interpreter = (pasta_interpreter){.minor = file->python, .runtime = bias + file->runtime, .code_type = bias + file->code_type};
            found->evaluations++;
        }
        found->lines[found->count++] = (pasta_host_line){.file = file ? file->image : 0, .name = file ? file->build : 0, .address = address};
        if (file) known = found->count;
        left = pasta_step(dump, load, false, pasta_rules_at(w->rules, number, address), &r, &ended);
        if (!left) break;
    }
    found->truncated = left || !ended;
    if (!left) found->count = known; /* words of no stack were taken for the last frames without a file */
}

uint32_t pasta_walk(const pasta_walker *w, const pasta_process_state *process, const pasta_dump *dump, pasta_host_line *lines,
                    bool *truncated) {
    walk found;
    pasta_host_line python[PASTA_MAX_FRAMES];
    uint32_t ends[2 * PASTA_MAX_FRAMES], calls = 0, taken = 0, count = 0, skipped = 0, call = 0;
    found.count = found.evaluations = found.interpreter.minor = 0;
    walk_native(w, process, dump, &found);
    *truncated = found.truncated;
    uint32_t frames = found.evaluations ? pasta_python_lines(w->python, process->pid, dump->thread, &found.interpreter, python, ends, &calls) : 0;
    /* the outermost calls are the same: of the innermost ones some may have begun or ended since the sample */
    if (!found.truncated && calls > found.evaluations) {
        call = calls - found.evaluations;
        taken = ends[call - 1];
    }
    if (!found.truncated && found.evaluations > calls) skipped = found.evaluations - calls;
    for (uint32_t i = 0; i < found.count && count < PASTA_MAX_FRAMES; i++) {
        bool replaced = false;
        if (found.evaluates[i] && skipped) {
            skipped--;
        } else if (found.evaluates[i] && call < calls) {
            for (replaced = taken < ends[call]; taken < ends[call] && count < PASTA_MAX_FRAMES;) lines[count++] = python[taken++];
            call++;
        }
        if (!replaced && count < PASTA_MAX_FRAMES) lines[count++] = found.lines[i];
    }
    /* below a frame that hides its caller there may be more of Python */
    while (found.truncated && taken < frames && count < PASTA_MAX_FRAMES) lines[count++] = python[taken++];
    return count;
}
