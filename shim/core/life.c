/* Life of the process: first use, fork, restriction of system calls, exit. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool used, refused, consumer_ran;
enum { MAX_LIBRARIES = 32 };
static const char *libraries[MAX_LIBRARIES]; /* prefixes of the names of accelerators' and frameworks' libraries */
static const pasta_consumer *consumer;

static struct identity {
    uint32_t pid, parent, executable, command, environment; /* the last three: ids of strings */
} identity; /* of this process; pid 0: not known yet */

bool pasta_is_late(void) { return pasta_config_u64("late", 0) != 0; }

/* The child of a fork: ring, consumer and interpreter are the parent's. */
static void forget_parent(void) {
    pthread_mutex_init(&opening, NULL); /* another thread of the parent may have held it */
    consumer_ran = consumer_ran || used;
    used = refused = false;
    pasta_ring_forget();
    pasta_call_paths_forget();
    consumer->forget();
    pasta_ring_restart_counters();
    pasta_config_forked();
    identity = (struct identity){0};
    if (pasta_wanted()) pasta_register_process(true);
}

static void at_exit(void) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !pasta_same_process() || pasta_is_late()) return;
    pasta_process_end *e = PASTA_BEGIN(process_end, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        e->last_launch = r->launches;
        pasta_publish(e);
    }
    __atomic_store_n(&r->state, PASTA_STATE_exiting, __ATOMIC_RELEASE);
    consumer->finish();
}

static void register_exit(void) {
    static bool registered; /* handlers are inherited by forks */
    if (!registered && !pasta_is_sandboxed()) registered = !atexit(at_exit);
}

/* Reads the start of a file of NUL-terminated items; returns its length. */
static size_t read_items(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    if (fd < 0) return 0;
    for (ssize_t got; length < size - 1 && (got = read(fd, text + length, size - 1 - length)) > 0;)
        length += (size_t)got;
    close(fd);
    text[length] = '\0';
    return length;
}

static uint32_t intern_command(void) {
    char text[4096];
    size_t length = read_items("/proc/self/cmdline", text, sizeof text);
    if (length && !text[length - 1]) length--;
    for (size_t i = 0; i < length; i++)
        if (!text[i]) text[i] = 0x1f;
    return pasta_intern(text, length);
}

static bool is_listed(const char *list, const char *name, size_t length) {
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length])) return true;
    return false;
}

enum { MAX_PICKED = 4096, MAX_ENVIRONMENT = 1 << 18 };

typedef struct pasta_picked {
    const char *list; /* names, separated by commas */
    char text[MAX_PICKED];
    size_t used;
} pasta_picked;

/* Adds a variable that is listed, unless there is one of that name. */
static void pick(void *into, const char *item) {
    pasta_picked *picked = into;
    const char *equals = strchr(item, '=');
    size_t name = equals ? (size_t)(equals - item) + 1 : 0, bytes = strlen(item);
    if (!equals || picked->used + bytes + 1 >= MAX_PICKED || !is_listed(picked->list, item, name - 1)) return;
    for (const char *at = picked->text, *end = at + picked->used; at < end; at++)
        if ((at == picked->text || at[-1] == 0x1f) && (size_t)(end - at) >= name && !memcmp(at, item, name)) return;
    if (picked->used) picked->text[picked->used++] = 0x1f;
    memcpy(picked->text + picked->used, item, bytes);
    picked->used += bytes;
}

/* The variables that name the run directory: their current values, by which a forked process learns its
 * rank, else those that the program was started with. */
static uint32_t intern_environment(void) {
    pasta_picked *picked = calloc(1, sizeof *picked);
    char *text = malloc(MAX_ENVIRONMENT);
    uint32_t id = 0;
    if (picked && text && (picked->list = pasta_config("environment"))) {
        pasta_environment_each(pick, picked);
        size_t length = read_items("/proc/self/environ", text, MAX_ENVIRONMENT);
        for (char *item = text; item < text + length; item += strlen(item) + 1) pick(picked, item);
        id = picked->used ? pasta_intern(picked->text, picked->used) : 0;
    }
    free(text);
    free(picked);
    return id;
}

static uint32_t intern_executable(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    return length > 0 ? pasta_intern(path, (size_t)length) : 0;
}

static bool open_ring(void) {
    char why[512];
    if (pasta_ring_mine()) return true;
    if (refused) return false;
    pasta_say_keep_stderr();
    pasta_profiling_begin();
    if (pasta_ring_create(why, sizeof why)) return true;
    refused = true;
    pasta_say("%s: this process is not profiled", why);
    return false;
}

bool pasta_open(void) {
    if (!pasta_wanted()) return false;
    if (!pasta_same_process()) pasta_after_fork();
    if (pasta_ring_mine()) return true;
    if (pasta_is_sandboxed()) return false;
    int saved = errno;
    pthread_mutex_lock(&opening);
    bool open = open_ring();
    pthread_mutex_unlock(&opening);
    errno = saved;
    return open;
}

static void identify(void) {
    if (identity.pid || pasta_is_sandboxed()) return;
    identity.pid = (uint32_t)getpid();
    identity.parent = (uint32_t)getppid();
    identity.executable = intern_executable();
    identity.command = intern_command();
    identity.environment = intern_environment();
}

static void publish_start(uint32_t source, const char *version) {
    identify();
    pasta_process *e = PASTA_BEGIN_AS(process_start, process, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->pid = identity.pid;
    e->parent = identity.parent;
    e->executable = identity.executable;
    e->command = identity.command;
    e->source = source;
    e->version = pasta_intern_z(version);
    e->environment = identity.environment;
    pasta_publish(e);
}

/* True on a source's first registration.  The launcher reads which sources there are, and the variables that select
 * devices: a program may have set them since another source was registered. */
static bool register_source(pasta_ring *r, uint32_t source) {
    size_t at = 0;
    while (at < PASTA_SOURCES && r->sources[at] && r->sources[at] != source) at++;
    if (at == PASTA_SOURCES || r->sources[at] == source) return false;
    identify();
    bool first = at == 0 || pasta_is_sandboxed();
    __atomic_store_n(&r->environment, first ? identity.environment : intern_environment(), __ATOMIC_RELAXED);
    __atomic_store_n(&r->sources[at], source, __ATOMIC_RELEASE);
    return true;
}

bool pasta_use(const char *source, const char *version) {
    if (!pasta_open()) return false;
    int saved = errno;
    uint32_t name = pasta_intern_z(source);
    pthread_mutex_lock(&opening);
    pasta_ring *r = pasta_ring_mine();
    if (register_source(r, name)) publish_start(name, version);
    pasta_call_paths_begin(identity.executable);
    if (!used) {
        used = true;
        register_exit();
        consumer->start(consumer_ran);
        if (!pasta_is_late() && !pasta_is_sandboxed()) pasta_profiling_limit();
        __atomic_store_n(&r->used, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
    errno = saved;
    return true;
}

/* ---- restriction of system calls ---- */

void pasta_accelerator_library(const char *prefix) {
    size_t at = 0;
    while (at < MAX_LIBRARIES && libraries[at]) at++;
    if (at < MAX_LIBRARIES) libraries[at] = prefix;
    else pasta_log("too many accelerator libraries, ignored: %s", prefix);
}

static int is_accelerator(struct dl_phdr_info *info, size_t size, void *unused) {
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size, (void)unused;
    for (size_t i = 0; name && i < MAX_LIBRARIES && libraries[i]; i++)
        if (!strncmp(name + 1, libraries[i], strlen(libraries[i]))) return 1;
    return 0;
}

/* The first use may come later, and nothing can be opened then. */
static void prepare_first_use(void) {
    if (!pasta_ring_mine() && (!dl_iterate_phdr(is_accelerator, NULL) || pasta_is_late() || !pasta_open())) return;
    register_exit();
    identify();
}

static void before_restriction(bool every_thread) {
    prepare_first_use();
    consumer->leave(every_thread);
    pasta_ring_back_all();
}

void pasta_profiling_set(bool on, uint32_t origin) {
    if (pasta_open()) pasta_profiling_start(on, origin);
}

void pasta_life_load(const pasta_consumer *reader) {
    consumer = reader;
    pasta_sandbox_load(before_restriction);
    pasta_config_load();
    if (!pasta_session()) return;
    pasta_process_load(forget_parent);
    pasta_register_process(false);
}
