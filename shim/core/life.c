/* Life of the process: load, first use, fork, exit. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static uint32_t generation;
/* A page that the kernel zeroes in the child of any fork, a raw clone included: 1 in the process
 * that wrote it. */
static uint32_t fork_page_fallback = 1;
static uint32_t *fork_page = &fork_page_fallback;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool used, refused, consumer_ran;
enum { SOURCES = 16 };
static uint32_t sources[SOURCES]; /* that were used: ids of their names */

static struct identity {
    uint32_t pid, parent, executable, command, environment; /* the last three: ids of strings */
} identity; /* of this process, once it is known */

uint32_t pasta_generation(void) { return __atomic_load_n(&generation, __ATOMIC_RELAXED); }
bool pasta_same_process(void) { return __atomic_load_n(fork_page, __ATOMIC_ACQUIRE) != 0; }

/* Opened by the program itself (pasta.profile), for what its frameworks tell. */
static bool is_late(void) { return pasta_config_u64("late", 0) != 0; }

static void make_fork_page(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0) page = &fork_page_fallback;
    fork_page = page;
    *fork_page = 1;
}

/* The child of a fork: the ring, its consumer and its interpreter are the parent's. */
void pasta_after_fork(void) {
    pthread_mutex_init(&opening, NULL); /* another thread of the parent may have held it */
    consumer_ran = consumer_ran || used;
    used = refused = false;
    memset(sources, 0, sizeof sources);
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELAXED);
    pasta_ring_forget();
    pasta_consumer_forget();
    pasta_ring_restart_counters();
    pasta_config_forked();
    identity = (struct identity){0};
    if (pasta_wanted()) pasta_register_process(true);
    /* last: whoever sees it finds the parent's ring gone */
    __atomic_store_n(fork_page, 1, __ATOMIC_RELEASE);
}

static void in_child(void) {
    if (fork_page == &fork_page_fallback) *fork_page = 0;
    /* an earlier handler may have used us: then this child may have a ring of its own already */
    if (!pasta_same_process()) pasta_after_fork();
}

static void at_exit(void) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !pasta_same_process() || is_late()) return;
    pasta_process_end *e = PASTA_BEGIN(process_end, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        e->last_launch = r->launches;
        pasta_publish(e);
    }
    __atomic_store_n(&r->state, PASTA_STATE_exiting, __ATOMIC_RELEASE);
    pasta_consumer_finish();
}

static void register_exit(void) {
    static bool registered; /* handlers are inherited by forks */
    if (!registered && !pasta_is_sandboxed()) registered = !atexit(at_exit);
}

/* Start of a file whose items end with NUL; returns its length. */
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

enum { PICKED = 4096, LONGEST = 1 << 18 };

typedef struct pasta_picked {
    const char *list; /* names, separated by commas */
    char text[PICKED];
    size_t used;
} pasta_picked;

/* Takes a variable that is listed, unless one of that name was taken before. */
static void pick(void *into, const char *item) {
    pasta_picked *picked = into;
    const char *equals = strchr(item, '=');
    size_t name = equals ? (size_t)(equals - item) + 1 : 0, bytes = strlen(item);
    if (!equals || picked->used + bytes + 1 >= PICKED || !is_listed(picked->list, item, name - 1)) return;
    for (const char *at = picked->text, *end = at + picked->used; at < end; at++)
        if ((at == picked->text || at[-1] == 0x1f) && (size_t)(end - at) >= name && !memcmp(at, item, name)) return;
    if (picked->used) picked->text[picked->used++] = 0x1f;
    memcpy(picked->text + picked->used, item, bytes);
    picked->used += bytes;
}

/* The variables that name the run directory: as they are now, which is how a forked process is told
 * its rank, else as the program was started with them. */
static uint32_t intern_environment(void) {
    pasta_picked *picked = calloc(1, sizeof *picked);
    char *text = malloc(LONGEST);
    uint32_t id = 0;
    if (picked && text && (picked->list = pasta_config("environment"))) {
        pasta_environment_each(pick, picked);
        size_t length = read_items("/proc/self/environ", text, LONGEST);
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

static void announce(uint32_t source, const char *version) {
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

static bool over; /* run.duration is */

static void *end_profiling(void *unused) {
    (void)unused;
    uint64_t left = pasta_config_u64("duration_ms", 0);
    struct timespec rest = {(time_t)(left / 1000), (long)(left % 1000) * 1000000};
    pthread_setname_np(pthread_self(), "pasta-duration");
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
    __atomic_store_n(&over, true, __ATOMIC_RELEASE);
    pasta_profiling_set(false, PASTA_ORIGIN_limit);
    return NULL;
}

/* From the first use of an accelerator on. */
static void limit_duration(void) {
    if (pasta_config_u64("duration_ms", 0) == 0 || is_late() || pasta_is_sandboxed()) return;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, end_profiling, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_detach(thread);
    else pasta_say("run.duration has no effect: no thread (%s)", strerror(error));
}

/* True the first time that this process is told of a source. */
static bool is_new(uint32_t source) {
    size_t at = 0;
    while (at < SOURCES && sources[at] && sources[at] != source) at++;
    if (at == SOURCES || sources[at] == source) return false;
    sources[at] = source;
    return true;
}

bool pasta_use(const char *source, const char *version) {
    if (!pasta_open()) return false;
    int saved = errno;
    uint32_t name = pasta_intern_z(source);
    pthread_mutex_lock(&opening);
    if (is_new(name)) announce(name, version);
    if (!used) {
        used = true;
        pasta_ring *r = pasta_ring_mine();
        register_exit();
        pasta_consumer_start(consumer_ran);
        limit_duration();
        __atomic_store_n(&r->used, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&opening);
    errno = saved;
    return true;
}

static int is_accelerator(struct dl_phdr_info *info, size_t size, void *unused) {
    static const char *const libraries[] = {"/libcuda.so", "/libamdhip64.so", "/librefacc.so", "/libtorch.so"};
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size, (void)unused;
    for (size_t i = 0; name && i < sizeof libraries / sizeof *libraries; i++)
        if (!strncmp(name, libraries[i], strlen(libraries[i]))) return 1;
    return 0;
}

void pasta_prepare_for_sandbox(void) {
    /* the first use may come later, and nothing can be opened then */
    if (!pasta_ring_mine() && (!dl_iterate_phdr(is_accelerator, NULL) || is_late() || !pasta_open())) return;
    register_exit();
    identify();
}

static void (*profiling_changed)(bool on);

void pasta_on_profiling(void (*changed)(bool on)) { __atomic_store_n(&profiling_changed, changed, __ATOMIC_RELEASE); }

void pasta_profiling_set(bool on, uint32_t origin) {
    if (!pasta_open() || pasta_ring_stopped() == !on) return;
    if (on && __atomic_load_n(&over, __ATOMIC_ACQUIRE)) return;
    pasta_ring_stop(!on);
    pasta_profiling *e = on ? PASTA_BEGIN_AS(profiling_start, profiling, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM)
                            : PASTA_BEGIN_AS(profiling_stop, profiling, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        e->origin = origin;
        pasta_publish(e);
    }
    void (*changed)(bool) = __atomic_load_n(&profiling_changed, __ATOMIC_ACQUIRE);
    if (changed) changed(on);
}

bool pasta_profiling_is_on(void) { return !pasta_ring_stopped(); }

__attribute__((constructor)) static void load(void) {
    int saved = errno;
    pasta_config_load();
    if (pasta_session()) {
        make_fork_page();
        pthread_atfork(NULL, NULL, in_child);
        pasta_register_process(false);
        if (pasta_wanted() && !is_late()) {
            pasta_refacc_source_load();
            pasta_nvidia_source_load();
            pasta_annotate_source_load();
            pasta_framework_source_load();
        }
    }
    errno = saved;
}
