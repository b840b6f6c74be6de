/* The environment, for readers on other threads.
 *
 * Python, NumPy and vendors' libraries that PASTA brings into the target read `environ`, and glibc
 * before 2.41 frees and moves the array under readers: a target that calls setenv on another thread
 * would crash.  These functions work on arrays that are never freed and strings that never change, so
 * that a reader always sees a NULL-terminated list of whole entries.  Memory is bounded as in glibc:
 * arrays double, and a string that was set before is reused.  Arrays and strings are blocks of malloc, as in
 * glibc: Perl reallocates what it finds in `environ`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MIN_ROOM = 128, BUCKETS = 1024 };

typedef struct pasta_environment {
    struct pasta_environment *before; /* smaller; kept for its readers */
    size_t room;
    char **entries; /* unused ones are NULL */
} pasta_environment;

typedef struct pasta_text {
    struct pasta_text *next;
    char *entry; /* "NAME=value" */
} pasta_text;

extern char **environ;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pasta_environment *largest; /* the largest array */
static pasta_text *texts[BUCKETS]; /* of setenv.  No tsearch: it tags pointers, and valgrind reports their targets as lost */

static void store(char **place, char *entry) { __atomic_store_n(place, entry, __ATOMIC_RELEASE); }

static bool is_named(const char *entry, const char *name, size_t length) {
    return !strncmp(entry, name, length) && entry[length] == '=';
}

/* Index of a variable in an array, or of the NULL that ends it. */
static size_t find(char *const *array, const char *name, size_t length) {
    size_t at = 0;
    while (array && array[at] && !is_named(array[at], name, length)) at++;
    return at;
}

static bool make(size_t count) {
    size_t room = largest ? 2 * largest->room : MIN_ROOM;
    while (room < 2 * count) room *= 2;
    pasta_environment *larger = calloc(1, sizeof *larger);
    if (!larger || !(larger->entries = calloc(room, sizeof *larger->entries))) {
        free(larger);
        return false;
    }
    larger->room = room;
    larger->before = largest;
    largest = larger;
    return true;
}

/* An array with the `count` entries of `environ` and room for one more; NULL if out of memory. */
static char **with_room(size_t count) {
    char **array = environ;
    bool ours = largest && array == largest->entries;
    /* the program has made it smaller */
    if (ours && malloc_usable_size(array) < largest->room * sizeof *array) largest->room = count + 1;
    bool enough = largest && count + 1 < largest->room;
    if (enough && ours) return array;
    bool inside = largest && array >= largest->entries && array < largest->entries + largest->room;
    if ((!enough || inside) && !make(count + 2)) return NULL;
    for (size_t i = 0; i < largest->room && largest->entries[i]; i++) store(&largest->entries[i], NULL);
    for (size_t i = 0; i < count; i++) store(&largest->entries[i], array[i]);
    return largest->entries;
}

static size_t bucket_of(const char *text) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    while (*text) hash = (hash ^ (unsigned char)*text++) * UINT64_C(0x100000001b3);
    return (size_t)(hash >> 32) % BUCKETS;
}

/* "NAME=value", one string for all equal ones; NULL if out of memory. */
static char *text_of(const char *name, size_t length, const char *value) {
    size_t bytes = strlen(value) + 1;
    /* calloc: MemorySanitizer in the program does not see our stores, and would report the strcmp */
    char *entry = calloc(1, length + 1 + bytes);
    if (!entry) return NULL;
    memcpy(entry, name, length);
    entry[length] = '=';
    memcpy(entry + length + 1, value, bytes);
    pasta_text **bucket = &texts[bucket_of(entry)], *known = *bucket;
    while (known && strcmp(known->entry, entry) != 0) known = known->next;
    pasta_text *made = known ? NULL : calloc(1, sizeof *made);
    if (!made) {
        free(entry);
        return known ? known->entry : NULL;
    }
    *made = (pasta_text){*bucket, entry};
    __atomic_store_n(bucket, made, __ATOMIC_RELEASE); /* consistent at any time: a fork may happen here */
    return entry;
}

/* Sets a variable to `entry`, or to a string made of `value` where that is NULL. */
static int put(const char *name, size_t length, const char *value, char *entry, bool replace) {
    int result = 0;
    pthread_mutex_lock(&lock);
    size_t at = find(environ, name, length);
    bool there = environ && environ[at];
    if (!there || replace) {
        char *text = entry ? entry : text_of(name, length, value);
        char **array = there || !text ? environ : with_room(at);
        if (text && array) {
            store(&array[at], text);
            __atomic_store_n(&environ, array, __ATOMIC_RELEASE);
        } else {
            errno = ENOMEM;
            result = -1;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* `name` may be NULL, though libc declares it nonnull. */
static bool is_name(const char *volatile name) {
    if (name && *name && !strchr(name, '=')) return true;
    errno = EINVAL;
    return false;
}

PASTA_EXPORT int setenv(const char *name, const char *value, int replace) {
    return is_name(name) ? put(name, strlen(name), value, NULL, replace != 0) : -1;
}

PASTA_EXPORT int putenv(char *entry) {
    const char *equals = strchr(entry, '=');
    if (equals) return put(entry, (size_t)(equals - entry), NULL, entry, true);
    unsetenv(entry);
    return 0; /* as glibc, also for an invalid name */
}

PASTA_EXPORT int unsetenv(const char *name) {
    if (!is_name(name)) return -1;
    size_t length = strlen(name);
    pthread_mutex_lock(&lock);
    for (char **at = environ; at && *at;) {
        if (is_named(*at, name, length))
            for (char **next = at; *next; next++) store(next, next[1]);
        else
            at++;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

PASTA_EXPORT int clearenv(void) {
    pthread_mutex_lock(&lock);
    __atomic_store_n(&environ, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* In the child of a fork: a thread of the parent may have held the lock. */
static void in_child(void) {
    if (!pthread_mutex_trylock(&lock)) {
        pthread_mutex_unlock(&lock);
        return;
    }
    pthread_mutex_init(&lock, NULL);
}

static bool in_use; /* the program calls the setenv above */

void pasta_environment_each(void (*take)(void *into, const char *entry), void *into) {
    char *const *array = in_use ? __atomic_load_n(&environ, __ATOMIC_ACQUIRE) : NULL;
    for (const char *entry; array && (entry = __atomic_load_n(array, __ATOMIC_ACQUIRE)); array++) take(into, entry);
}

void pasta_environment_load(void) {
    Dl_info found, own;
    void *global = dlsym(RTLD_DEFAULT, "setenv");
    in_use = global && dladdr(global, &found) && dladdr(&in_use, &own) && found.dli_fbase == own.dli_fbase;
    pthread_atfork(NULL, NULL, in_child);
}
