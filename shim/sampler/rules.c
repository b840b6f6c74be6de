/* Rules of frames by file and address, shared by all processes. */
#include <stdlib.h>

#include "internal.h"

enum { RULES = 1 << 16, MAX_PROBES = 32 };

struct pasta_rules {
    struct {
        uint64_t key; /* hash of file and address; 0: free */
        pasta_rule rule;
    } rules[RULES];
    pasta_files *files;
    pasta_unwind_method method;
    bool has_cfi;
};

pasta_rules *pasta_rules_create(pasta_files *files, pasta_unwind_method method) {
    pasta_rules *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->files = files;
    r->method = method;
    r->has_cfi = method != PASTA_UNWIND_FRAME_POINTERS && pasta_cfi_load();
    return r;
}

void pasta_rules_free(pasta_rules *r) { free(r); }

bool pasta_rules_have_cfi(const pasta_rules *r) { return r->has_cfi; }

static pasta_rule find_rule(pasta_rules *r, int32_t number, uint64_t address) {
    pasta_rule rule = {.kind = PASTA_RULE_NONE};
    pasta_file *file = pasta_files_get(r->files, number);
    pasta_cfi_answer answer = PASTA_CFI_NONE;
    if (r->has_cfi && file && file->is_elf && pasta_files_open(r->files, file)) {
        pasta_object object = file->object;
        for (uint64_t i = 0; i < object.header_count; i++) {
            const ElfW(Phdr) *p = &object.headers[i];
            if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || address - p->p_vaddr >= p->p_memsz) continue;
            object.start = object.bias + p->p_vaddr;
            object.end = object.start + p->p_memsz;
        }
        answer = pasta_cfi_rule(object.bias + address, &object, &rule);
    }
    if (answer == PASTA_CFI_FOUND || r->method == PASTA_UNWIND_EH_FRAME) return rule;
    return pasta_frame_pointer;
}

pasta_rule pasta_rules_at(pasta_rules *r, int32_t file, uint64_t address) {
    uint64_t key = pasta_mix((uint64_t)(uint32_t)file + 1, address) | 1, slot = key >> 16;
    if (file < 0) return r->method == PASTA_UNWIND_EH_FRAME ? (pasta_rule){.kind = PASTA_RULE_NONE} : pasta_frame_pointer;
    for (unsigned probe = 0; probe < MAX_PROBES; probe++) {
        uint64_t *known = &r->rules[(slot + probe) % RULES].key;
        if (*known == key) return r->rules[(slot + probe) % RULES].rule;
        if (*known && probe < MAX_PROBES - 1) continue;
        *known = key; /* the last one is replaced where all are taken */
        return r->rules[(slot + probe) % RULES].rule = find_rule(r, file, address);
    }
    return pasta_frame_pointer;
}
