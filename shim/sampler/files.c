/* Files of mapped code.  They are read by pread only: a file that is truncated meanwhile cannot fault. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { MAX_OPEN = 32, MAX_HEADERS = 128, MAX_NOTES = 4096, SLOTS = 2 * PASTA_MAX_FILES };

struct pasta_files {
    pasta_file files[PASTA_MAX_FILES];
    uint32_t slots[SLOTS]; /* number + 1 by a hash of the file; 0: free */
    int32_t count;
    int64_t uses;
    uint32_t open;
    pasta_texts *texts;
};

pasta_files *pasta_files_create(pasta_texts *texts) {
    pasta_files *f = calloc(1, sizeof *f);
    if (f) f->texts = texts;
    return f;
}

static void close_file(pasta_files *f, pasta_file *file) {
    close(file->object.file);
    file->used = 0;
    f->open--;
}

void pasta_files_free(pasta_files *f) {
    for (int32_t i = 0; f && i < f->count; i++) {
        if (f->files[i].used) close_file(f, &f->files[i]);
        free(f->files[i].path);
        free(f->files[i].headers);
    }
    free(f);
}

/* Overlays of containers map files of another device, whose number of the file may be another one. */
static bool is_same(int fd, const pasta_file *file) {
    struct stat status;
    return !fstat(fd, &status) && S_ISREG(status.st_mode) && (status.st_ino == file->inode || status.st_dev != file->device);
}

/* Opens the file as the launcher sees it, else as the process does: it may have another root directory. */
static int open_path(const pasta_file *file, uint32_t pid) {
    enum { FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };
    char inside[4096 + 64];
    int fd = open(file->path, FLAGS);
    if (fd >= 0 && is_same(fd, file)) return fd;
    if (fd >= 0) close(fd);
    if (!pid || snprintf(inside, sizeof inside, "/proc/%u/root%s", pid, file->path) >= (int)sizeof inside) return -1;
    fd = open(inside, FLAGS);
    if (fd >= 0 && is_same(fd, file)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void keep_open(pasta_files *f, pasta_file *file, int fd) {
    pasta_file *oldest = NULL;
    for (int32_t i = 0; f->open >= MAX_OPEN && i < f->count; i++)
        if (f->files[i].used && (!oldest || f->files[i].used < oldest->used)) oldest = &f->files[i];
    if (oldest) close_file(f, oldest);
    file->object.file = fd;
    file->used = ++f->uses;
    f->open++;
}

bool pasta_files_open(pasta_files *f, pasta_file *file) {
    if (!file->object.in_file) return true;
    if (!file->used) {
        int fd = open_path(file, 0);
        if (fd < 0) return false;
        keep_open(f, file, fd);
    }
    file->used = ++f->uses;
    return true;
}

static bool read_headers(pasta_file *file, int fd) {
    ElfW(Ehdr) head;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || memcmp(head.e_ident, ELFMAG, SELFMAG) ||
        head.e_phentsize != sizeof(ElfW(Phdr)) || head.e_phnum > MAX_HEADERS)
        return false;
    size_t bytes = head.e_phnum * sizeof(ElfW(Phdr));
    file->headers = malloc(bytes + 1);
    if (!file->headers || pread(fd, file->headers, bytes, (off_t)head.e_phoff) != (ssize_t)bytes) return false;
    file->object = (pasta_object){.headers = file->headers, .header_count = head.e_phnum, .path = file->path, .in_file = true, .file = fd};
    return true;
}

static uint32_t build_id(pasta_files *f, const pasta_file *file, int fd) {
    char text[PASTA_MAX_BUILD];
    uint8_t notes[MAX_NOTES];
    size_t length = 0;
    for (uint64_t i = 0; i < file->object.header_count && !length; i++) {
        const ElfW(Phdr) *p = &file->headers[i];
        if (p->p_type != PT_NOTE || p->p_filesz > sizeof notes) continue;
        ssize_t got = pread(fd, notes, p->p_filesz, (off_t)p->p_offset);
        if (got > 0) length = pasta_build_id_of(notes, (uint64_t)got, text);
    }
    return pasta_texts_put(f->texts, text, length);
}

/* The kernel's code, which is the same in every process. */
static void use_own_vdso(pasta_file *file) {
    pasta_object own;
    uint64_t base = getauxval(AT_SYSINFO_EHDR);
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)(uintptr_t)base;
    if (!base) return;
    own = (pasta_object){.headers = (const ElfW(Phdr) *)(uintptr_t)(base + head->e_phoff), .header_count = head->e_phnum, .path = file->path,
                         .bias = base};
    file->object = own;
    file->is_elf = true;
}

/* Minor version in the name of an interpreter's file: python3.12, libpython3.12.so.1.0; 0 for other files. */
static uint32_t python_of(const char *path) {
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    if (!strncmp(name, "lib", 3)) name += 3;
    return strncmp(name, "python3.", 8) ? 0 : (uint32_t)strtoul(name + 8, NULL, 10);
}

static void take_symbol(pasta_file *file, const char *name, const ElfW(Sym) *symbol) {
    if (!strcmp(name, "_PyRuntime")) file->runtime = symbol->st_value;
    if (!strcmp(name, "PyCode_Type")) file->code_type = symbol->st_value;
    if (strcmp(name, "_PyEval_EvalFrameDefault") != 0) return;
    file->eval_start = symbol->st_value;
    file->eval_end = symbol->st_value + symbol->st_size;
}

/* What python.c needs of the dynamic symbols. */
static void find_python(pasta_file *file, int fd) {
    enum { MAX_SECTIONS = 256, MAX_BYTES = 16 << 20 };
    ElfW(Ehdr) head;
    ElfW(Shdr) sections[MAX_SECTIONS];
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || head.e_shnum > MAX_SECTIONS || head.e_shentsize != sizeof *sections ||
        pread(fd, sections, head.e_shnum * sizeof *sections, (off_t)head.e_shoff) != (ssize_t)(head.e_shnum * sizeof *sections))
        return;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        const ElfW(Shdr) *table = &sections[i], *texts = &sections[table->sh_link < head.e_shnum ? table->sh_link : 0];
        if (table->sh_type != SHT_DYNSYM || table->sh_size > MAX_BYTES || texts->sh_size > MAX_BYTES) continue;
        ElfW(Sym) *symbols = malloc(table->sh_size + 1);
        char *names = malloc(texts->sh_size + 1);
        if (symbols && names && pread(fd, symbols, table->sh_size, (off_t)table->sh_offset) == (ssize_t)table->sh_size &&
            pread(fd, names, texts->sh_size, (off_t)texts->sh_offset) == (ssize_t)texts->sh_size) {
            names[texts->sh_size] = '\0';
            for (size_t at = 0; at < table->sh_size / sizeof *symbols; at++)
                if (symbols[at].st_shndx && symbols[at].st_name < texts->sh_size) take_symbol(file, names + symbols[at].st_name, &symbols[at]);
        }
        free(symbols);
        free(names);
    }
    if (file->runtime && file->code_type && file->eval_start) file->python = python_of(file->path);
}

static void describe(pasta_files *f, pasta_file *file, uint32_t pid) {
    int fd = open_path(file, pid);
    if (fd < 0) return;
    file->is_elf = read_headers(file, fd);
    if (file->is_elf) file->build = build_id(f, file, fd);
    if (file->is_elf && python_of(file->path)) find_python(file, fd);
    if (file->is_elf) keep_open(f, file, fd);
    else close(fd);
}

static bool is_vdso(const char *path) { return !strcmp(path, "[vdso]"); }

int32_t pasta_files_find(pasta_files *f, const char *path, dev_t device, ino_t inode, uint32_t pid) {
    uint64_t at = pasta_mix(pasta_mix(device, inode), strlen(path)) % SLOTS;
    for (uint32_t number; (number = f->slots[at]); at = (at + 1) % SLOTS) {
        pasta_file *known = &f->files[number - 1];
        if (known->inode == inode && known->device == device && !strcmp(known->path, path)) return (int32_t)number - 1;
    }
    char *copy = f->count < PASTA_MAX_FILES ? strdup(path) : NULL;
    if (!copy) return -1;
    pasta_file *file = &f->files[f->count];
    *file = (pasta_file){.path = copy, .device = device, .inode = inode};
    if (is_vdso(path)) use_own_vdso(file);
    else describe(f, file, pid);
    const char *image = is_vdso(path) ? "linux-vdso.so.1" : path;
    file->image = pasta_texts_put(f->texts, image, strlen(image));
    for (uint64_t i = 0; i < file->object.header_count; i++)
        if (file->object.headers[i].p_type == PT_GNU_EH_FRAME) file->object.frame_header = file->object.bias + file->object.headers[i].p_vaddr;
    f->slots[at] = (uint32_t)++f->count;
    return f->count - 1;
}

pasta_file *pasta_files_get(pasta_files *f, int32_t number) { return number >= 0 && number < f->count ? &f->files[number] : NULL; }

bool pasta_file_address(const pasta_file *file, uint64_t offset, uint64_t *address) {
    for (uint64_t i = 0; i < file->object.header_count; i++) {
        const ElfW(Phdr) *p = &file->object.headers[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || offset - p->p_offset >= p->p_filesz) continue;
        *address = p->p_vaddr + (offset - p->p_offset);
        return true;
    }
    return false;
}
