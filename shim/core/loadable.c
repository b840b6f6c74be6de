/* Whether a program starts with a preloaded library for glibc, 64 bits and this processor: the loader of
 * another libc fails, a 32-bit one complains, and the shared runtimes of sanitizers must be first.
 *
 * Only the file is read.  Called before an exec, possibly in the child of a vfork, or in a signal handler on
 * a stack of 8 KiB: nothing allocates, buffers are small, and errno is preserved. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { HEAD = 256, MAX_HEADERS = 64, MAX_SCRIPTS = 4, MAX_NAME = 64, BATCH = 16, HEADERS = 8 };

#if defined __x86_64__
#define OWN_MACHINE EM_X86_64
#elif defined __aarch64__
#define OWN_MACHINE EM_AARCH64
#elif defined __powerpc64__
#define OWN_MACHINE EM_PPC64
#elif defined __riscv
#define OWN_MACHINE EM_RISCV
#endif

static const char *const foreign_loaders[] = {"ld-musl", "linker", "ld-uClibc", "ld64-uClibc", "libc.so"};
static const char *const first_libraries[] = {"libasan.so",       "libtsan.so",       "libhwasan.so",
                                              "libclang_rt.asan", "libclang_rt.tsan", "libclang_rt.hwasan"};

static bool read_at(int fd, uint64_t offset, void *to, size_t bytes) {
    return pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* A string of the file, truncated to `size`. */
static bool read_text(int fd, uint64_t offset, char *text, size_t size) {
    ssize_t got = pread(fd, text, size - 1, (off_t)offset);
    if (got <= 0) return false;
    text[got] = '\0';
    return true;
}

static bool starts_with_any(const char *name, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strncmp(name, list[i], strlen(list[i]))) return true;
    return false;
}
#define STARTS_WITH_ANY(name, list) starts_with_any(name, list, sizeof(list) / sizeof *(list))

/* Only the end of the path is read: its name counts. */
static bool has_foreign_loader(int fd, const Elf64_Phdr *p) {
    char path[MAX_NAME + 1];
    uint64_t skipped = p->p_filesz > MAX_NAME ? p->p_filesz - MAX_NAME : 0;
    size_t size = (size_t)(p->p_filesz - skipped) + 1;
    if (!read_text(fd, p->p_offset + skipped, path, size)) return false;
    const char *slash = strrchr(path, '/');
    return STARTS_WITH_ANY(slash ? slash + 1 : path, foreign_loaders);
}

typedef struct {
    int fd;
    uint64_t at; /* offset of the program headers in the file */
    size_t count;
} pasta_headers;

/* Calls `take` with the program headers until it returns true. */
static bool find_header(const pasta_headers *h, bool (*take)(int fd, const Elf64_Phdr *p, void *with), void *with) {
    Elf64_Phdr some[HEADERS];
    for (size_t i = 0; i < h->count; i += HEADERS) {
        size_t count = h->count - i < HEADERS ? h->count - i : HEADERS;
        if (!read_at(h->fd, h->at + i * sizeof *some, some, count * sizeof *some)) return false;
        for (size_t j = 0; j < count; j++)
            if (take(h->fd, &some[j], with)) return true;
    }
    return false;
}

typedef struct {
    uint64_t address, offset;
} pasta_place;

static bool holds_address(int fd, const Elf64_Phdr *p, void *with) {
    (void)fd;
    pasta_place *place = with;
    if (p->p_type != PT_LOAD || place->address - p->p_vaddr >= p->p_filesz) return false;
    place->offset = place->address - p->p_vaddr + p->p_offset;
    return true;
}

/* File offset of the memory at `address`; 0: none. */
static uint64_t offset_of(const pasta_headers *h, uint64_t address) {
    pasta_place place = {address, 0};
    return find_header(h, holds_address, &place) ? place.offset : 0;
}

/* Calls `take` with the entries of the dynamic section until it returns true. */
static bool find_entry(int fd, const Elf64_Phdr *p, bool (*take)(const Elf64_Dyn *d, void *with), void *with) {
    Elf64_Dyn some[BATCH];
    for (uint64_t at = 0; at + sizeof *some <= p->p_filesz; at += sizeof some) {
        size_t bytes = p->p_filesz - at < sizeof some ? p->p_filesz - at : sizeof some;
        if (!read_at(fd, p->p_offset + at, some, bytes)) return false;
        for (size_t i = 0; i < bytes / sizeof *some; i++) {
            if (some[i].d_tag == DT_NULL) return false;
            if (take(&some[i], with)) return true;
        }
    }
    return false;
}

typedef struct {
    int fd;
    uint64_t strings; /* offset of the string table in the file; first its address */
} pasta_needed;

static bool is_string_table(const Elf64_Dyn *d, void *with) {
    if (d->d_tag == DT_STRTAB) ((pasta_needed *)with)->strings = d->d_un.d_ptr;
    return d->d_tag == DT_STRTAB;
}

bool pasta_must_come_first(const char *library) { return STARTS_WITH_ANY(library, first_libraries); }

static bool must_come_first(const Elf64_Dyn *d, void *with) {
    const pasta_needed *needed = with;
    char name[MAX_NAME];
    return d->d_tag == DT_NEEDED && read_text(needed->fd, needed->strings + d->d_un.d_val, name, sizeof name) &&
           pasta_must_come_first(name);
}

static bool must_be_alone(const pasta_headers *h, const Elf64_Phdr *dynamic) {
    pasta_needed needed = {.fd = h->fd};
    if (!find_entry(h->fd, dynamic, is_string_table, &needed)) return false;
    needed.strings = offset_of(h, needed.strings);
    return needed.strings && find_entry(h->fd, dynamic, must_come_first, &needed);
}

static bool header_refuses(int fd, const Elf64_Phdr *p, void *headers) {
    return (p->p_type == PT_INTERP && has_foreign_loader(fd, p)) || (p->p_type == PT_DYNAMIC && must_be_alone(headers, p));
}

static bool elf_refuses(int fd, const unsigned char *head) {
    const Elf64_Ehdr *e = (const void *)head;
    if (head[EI_CLASS] != ELFCLASS64) return true;
#ifdef OWN_MACHINE
    if (e->e_machine != OWN_MACHINE) return true;
#endif
    pasta_headers headers = {fd, e->e_phoff, e->e_phnum < MAX_HEADERS ? e->e_phnum : MAX_HEADERS};
    return e->e_phentsize == sizeof(Elf64_Phdr) && find_header(&headers, header_refuses, &headers);
}

/* The interpreter that the first line of a script names, in `path`; false where there is none. */
static bool find_interpreter(const unsigned char *head, char *path) {
    const char *start = (const char *)head + 2;
    start += strspn(start, " \t");
    size_t length = strcspn(start, " \t\n");
    memcpy(path, start, length);
    path[length] = '\0';
    return length > 0;
}

static bool file_refuses(int fd) {
    _Alignas(Elf64_Ehdr) unsigned char head[HEAD + 1];
    char path[HEAD + 1];
    bool refuses = false, own = false;
    for (int depth = 0; fd >= 0 && depth <= MAX_SCRIPTS; depth++) {
        ssize_t got = pread(fd, head, HEAD, 0);
        head[got > 0 ? got : 0] = '\0';
        bool script = got > 2 && head[0] == '#' && head[1] == '!' && find_interpreter(head, path);
        if (got >= (ssize_t)sizeof(Elf64_Ehdr) && !memcmp(head, ELFMAG, SELFMAG)) refuses = elf_refuses(fd, head);
        if (own) close(fd);
        own = script;
        fd = script ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    }
    if (own && fd >= 0) close(fd);
    return refuses;
}

bool pasta_refuses_preload_fd(int fd) {
    int saved = errno;
    bool refuses = file_refuses(fd);
    errno = saved;
    return refuses;
}

bool pasta_refuses_preload(int directory, const char *path) {
    if (!path || pasta_is_sandboxed()) return false;
    int saved = errno, fd = openat(directory, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool refuses = fd >= 0 && file_refuses(fd);
    if (fd >= 0) close(fd);
    errno = saved;
    return refuses;
}

bool pasta_refuses_preload_in_path(const char *file) {
    if (!file || strchr(file, '/')) return pasta_refuses_preload(AT_FDCWD, file);
    if (pasta_is_sandboxed()) return false;
    const char *places = getenv("PATH");
    size_t name = strlen(file);
    int saved = errno;
    bool found = false, refuses = false;
    if (!places) places = "/bin:/usr/bin";
    for (size_t length; !found; places += length + 1) {
        length = strcspn(places, ":");
        if (length + name + 2 <= PATH_MAX) {
            char path[length + name + 2];
            memcpy(path, places, length);
            path[length] = '/'; /* an empty entry is the current directory */
            memcpy(path + length + (length > 0), file, name + 1);
            found = !access(path, X_OK);
            refuses = found && pasta_refuses_preload(AT_FDCWD, path);
        }
        if (!places[length]) break;
    }
    errno = saved;
    return refuses;
}
