/* The program and its libraries, as they are loaded now. */
#define _GNU_SOURCE
#include <string.h>

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

const ElfW(Phdr) *pasta_object_segment(const pasta_object *o, uint64_t address, uint64_t bytes) {
    for (uint64_t i = 0; i < o->header_count; i++) {
        const ElfW(Phdr) *p = &o->headers[i];
        /* whole pages are mapped: words at the end are read with their neighbours */
        uint64_t start = (o->bias + p->p_vaddr) & ~UINT64_C(7), end = (o->bias + p->p_vaddr + p->p_filesz + 7) & ~UINT64_C(7);
        /* subtracted, as the sum of a damaged table's address and `bytes` may wrap around */
        if (p->p_type == PT_LOAD && (p->p_flags & PF_R) && address >= start && address < end && bytes <= end - address) return p;
    }
    return NULL;
}

size_t pasta_build_id_of(const uint8_t *at, uint64_t left, char text[PASTA_MAX_BUILD]) {
    enum { NAME = 4, BUILD_ID = 3 };
    ElfW(Nhdr) note;
    while (left >= sizeof note) {
        memcpy(&note, at, sizeof note);
        const uint8_t *name = at + sizeof note;
        uint64_t name_size = ((uint64_t)note.n_namesz + 3) / 4 * 4, data_size = ((uint64_t)note.n_descsz + 3) / 4 * 4;
        uint64_t size = sizeof note + name_size + data_size;
        if (size > left) return 0;
        if (note.n_type == BUILD_ID && note.n_namesz == NAME && !memcmp(name, "GNU", NAME) && note.n_descsz <= PASTA_MAX_BUILD / 2) {
            for (uint32_t byte = 0; byte < note.n_descsz; byte++) {
                text[2 * byte] = "0123456789abcdef"[name[name_size + byte] >> 4];
                text[2 * byte + 1] = "0123456789abcdef"[name[name_size + byte] & 15];
            }
            return 2 * note.n_descsz;
        }
        at += size;
        left -= size;
    }
    return 0;
}

size_t pasta_object_build_id(const pasta_object *o, char text[PASTA_MAX_BUILD]) {
    size_t length = 0;
    for (uint64_t i = 0; i < o->header_count && !length; i++) {
        const ElfW(Phdr) *p = &o->headers[i];
        uint64_t at = o->bias + p->p_vaddr;
        /* notes may be in a part of the file that is not loaded */
        if (p->p_type == PT_NOTE && pasta_object_segment(o, at, p->p_memsz))
            length = pasta_build_id_of((const uint8_t *)(uintptr_t)at, p->p_memsz, text);
    }
    return length;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *argument) {
    pasta_loads *l = argument;
    (void)size;
    l->added = info->dlpi_adds;
    l->removed = info->dlpi_subs;
    return 1; /* the first object stands for all */
}

pasta_loads pasta_loads_now(void) {
    pasta_loads l = {0};
    dl_iterate_phdr(count_loads, &l);
    return l;
}
