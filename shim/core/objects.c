/* The program and its libraries, as they are loaded now. */
#define _GNU_SOURCE
#include "unwind.h"

typedef struct search {
    uint64_t address;
    pasta_object *found;
} search;

static int look_in(struct dl_phdr_info *info, size_t size, void *argument) {
    search *s = argument;
    (void)size;
    pasta_object o = {.bias = info->dlpi_addr, .path = info->dlpi_name ? info->dlpi_name : "", .headers = info->dlpi_phdr,
                      .header_count = info->dlpi_phnum};
    bool holds = false;
    for (uint64_t i = 0; i < o.header_count; i++) {
        const ElfW(Phdr) *p = &o.headers[i];
        uint64_t start = o.bias + p->p_vaddr;
        if (p->p_type == PT_GNU_EH_FRAME) o.frame_header = start;
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || s->address - start >= p->p_memsz) continue;
        o.start = start;
        o.end = start + p->p_memsz;
        holds = true;
    }
    if (holds) *s->found = o;
    return holds;
}

bool pasta_object_at(uint64_t address, pasta_object *object) {
    search s = {.address = address, .found = object};
    return dl_iterate_phdr(look_in, &s) != 0;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *argument) {
    pasta_loads *l = argument;
    (void)size;
    l->added = info->dlpi_adds;
    l->removed = info->dlpi_subs;
    return 1; /* the first object says it of all */
}

pasta_loads pasta_loads_now(void) {
    pasta_loads l = {0};
    dl_iterate_phdr(count_loads, &l);
    return l;
}
