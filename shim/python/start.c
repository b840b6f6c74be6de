/* Where Python runs, decided on a separate thread some time after the first use of an accelerator, so
 * that a short program never pays for an interpreter:
 *
 *   no Python in the process       the interpreter that PASTA is installed in, embedded
 *   PASTA's own environment        that interpreter: this thread joins it
 *   any other Python, several      a collector process, which the launcher starts
 *   or PyPy, sanitizers            likewise: their symbols would interpose those of the embedded Python
 *   valgrind                       likewise: it would emulate and check Python too
 *   a file that is set-user-ID     likewise: as root it has our library, and sudo closes Python's descriptors
 *
 * If anything fails here, a collector consumes: the ring keeps what was published meanwhile.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/cpython.h"
#include "../core/internal.h"
#include "../core/segments.h"

enum { STACK_BYTES = 8 << 20, MAX_JOIN_ATTEMPTS = 20, JOIN_PAUSE_MS = 100, POLL_MS = 20, MAX_CRITICAL_SECONDS = 60 };
enum { FAILED = 2 }; /* answer of statements that raised */

static uint32_t started, done; /* done: the thread will not call Python any more */
static uint32_t joined;        /* the thread runs in the program's interpreter */
static uint32_t leaving;       /* a collector takes over */
static uint32_t thread_number; /* its kernel id */

static const char RESTRICTED[] = "the program restricts its own system calls";

static void want_collector(const char *why) {
    pasta_ring *r = pasta_ring_mine();
    if (!r) return;
    pasta_log("a collector is needed: %s", why);
    r->reason = pasta_intern_z(why);
    __atomic_store_n(&r->consumer, PASTA_CONSUMER_collector, __ATOMIC_RELEASE);
}

/* ---- a Python that is already in the process ---- */

static bool asked; /* the main thread, to import `threading` */

typedef struct {
    const void *host; /* base of the library that has the functions of pasta_cpython_find, or NULL */
    unsigned others;  /* libraries of other Pythons */
    bool pypy, valgrind;
} pasta_libraries;

static int take_library(struct dl_phdr_info *info, size_t size, void *into) {
    pasta_libraries *found = into;
    (void)size;
    const char *name = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (!name) return 0;
    found->pypy = found->pypy || !strncmp(name, "/libpypy", 8);
    found->valgrind = found->valgrind || !strncmp(name, "/vgpreload_core", 15);
    /* libpython3.so is a stub that leads to another one */
    bool python = !strncmp(name, "/libpython", 10) && strncmp(name, "/libpython3.so", 14) != 0;
    found->others += python && (const void *)info->dlpi_addr != found->host;
    return 0;
}

static bool has_one_of(const char *const *symbols) {
    while (*symbols && !dlsym(RTLD_DEFAULT, *symbols)) symbols++;
    return *symbols != NULL;
}

/* Why Python can neither be embedded in this process nor joined; NULL where it can. */
static const char *obstacle(const pasta_cpython *host) {
    static const char *const pypy[] = {"pypy_main_startup", "PyPyGILState_Ensure", "PyPy_IsInitialized", NULL};
    static const char *const sanitizers[] = {"__asan_init", "__tsan_init", "__msan_init", "__hwasan_init",
                                             "__lsan_do_leak_check", NULL};
    Dl_info of_host;
    struct stat file;
    if (stat("/proc/self/exe", &file) == 0 && file.st_mode & (S_ISUID | S_ISGID))
        return "the program's file is set-user-ID or set-group-ID";
    pasta_libraries found = {0};
    if (host && dladdr((const void *)(uintptr_t)host->get_version, &of_host)) found.host = of_host.dli_fbase;
    dl_iterate_phdr(take_library, &found);
    if (found.pypy || has_one_of(pypy)) return "the program runs PyPy";
    if (has_one_of(sanitizers)) return "the program runs under a sanitizer";
    if (found.valgrind) return "the program runs under valgrind";
    if (host && found.others) return "the program has several Pythons";
    return found.others ? "the program has a Python of its own that PASTA cannot see" : NULL;
}

static bool same_version(const pasta_cpython *p) {
    const char *ours = pasta_config("python_version"), *version = p->get_version();
    size_t length = ours ? strlen(ours) : 0; /* "3.11": the ABI of extension modules */
    return length && !strncmp(version, ours, length) && (version[length] == '.' || version[length] == '+');
}

/* Is the host's environment the one PASTA is installed in?  Finds specs only: nothing is imported,
 * so another package called "pasta" (google-pasta) is never run. */
static const char question[] =
    "def ask(origin):\n"
    "    try:\n"
    "        import sys\n"
    "        from importlib.util import find_spec\n"
    "        if not hasattr(sys.modules.get('__main__'), '__builtins__'):\n"
    "            return 2\n"
    "        if 'threading' not in sys.modules:\n"
    "            return 3\n"
    "        spec = find_spec('pasta')\n"
    "        import os\n"
    "        if spec is None or not spec.origin or not os.path.samefile(spec.origin, origin):\n"
    "            return 0\n"
    "        return int(all(find_spec(m) is not None for m in ('_cffi_backend', 'numpy')))\n"
    "    except Exception:\n"
    "        return 2\n"
    "answer = ask(origin)\n";

/* An import inside of what importlib does with its locks breaks the outer one in many versions
 * (a KeyError, gh-106176 of CPython): it is put off then. */
static const char importing[] =
    "def go():\n"
    "    import sys\n"
    "    frame = sys._getframe()\n"
    "    while frame is not None:\n"
    "        code = frame.f_code\n"
    "        if code.co_filename == '<frozen importlib._bootstrap>' and code.co_name in (\n"
    "            'acquire', 'release', 'has_deadlock', '_has_deadlocked', '_get_module_lock', 'cb',\n"
    "            '_lock_unlock_module', '__enter__', '__exit__', '__init__', 'setdefault',\n"
    "        ):\n"
    "            return 0\n"
    "        frame = frame.f_back\n"
    "    import threading\n"
    "    return 1\n"
    "answer = go()\n";

/* Run by the host's main thread.  Python treats the thread that first imports `threading` as the main
 * thread, and waits for it at finalization: that must never be PASTA's. */
static int import_threading(void *host) {
    long answer = FAILED;
    pasta_cpython_run(host, importing, NULL, 0, &answer);
    if (answer == 0) __atomic_store_n(&asked, false, __ATOMIC_RELEASE); /* once more */
    return 0;
}

static long ask_host(pasta_cpython *p) {
    const pasta_cpython_variable origin = {"origin", pasta_config("origin")};
    long answer = FAILED;
    int state = p->ensure();
    pasta_cpython_run(p, question, &origin, 1, &answer);
    /* with the interpreter lock: without it the interpreter may be gone, which that call reads */
    if (answer == 3 && !__atomic_exchange_n(&asked, true, __ATOMIC_ACQ_REL) && p->add_pending(import_threading, p) != 0)
        __atomic_store_n(&asked, false, __ATOMIC_RELEASE);
    p->release(state);
    return answer;
}

static bool finishing(void) {
    pasta_ring *r = pasta_ring_mine();
    return !r || __atomic_load_n(&r->finish, __ATOMIC_ACQUIRE);
}

/* NULL where the host can be joined, else why not. */
static const char *join_host(pasta_cpython *p) {
    if (!same_version(p)) return "the program runs another version of Python than PASTA";
    for (int i = 0; i < MAX_JOIN_ATTEMPTS && !finishing(); i++) {
        /* Initialised turns true before site has run: ask again until the main module is there. */
        long answer = p->is_initialized() ? ask_host(p) : FAILED;
        if (answer == 1) return NULL;
        if (answer == 0) return "the program's Python environment is not the one PASTA is installed in";
        pasta_futex_wait(&pasta_ring_mine()->finish, 0, (uint64_t)JOIN_PAUSE_MS * 1000000u);
    }
    return "the program's Python did not finish starting";
}

/* ---- the embedding module ---- */

typedef int pasta_embed_initialize_function(const char *, const char *);
typedef int pasta_embed_consume_function(const char *);

static void set_critical(uint32_t value) {
    pasta_ring *r = pasta_ring_mine();
    if (r) __atomic_store_n(&r->critical, value, __ATOMIC_RELEASE);
}

/* In the interpreter of `host`, or one that is started where it is NULL. */
static const char *consume(const pasta_cpython *host) {
    const char *path = pasta_config("embed");
    void *module = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!module) return path ? dlerror() : "PASTA was built without its embedding module";
    pasta_embed_initialize_function *initialize = NULL;
    pasta_embed_consume_function *run = NULL;
    *(void **)&initialize = dlsym(module, "pasta_embed_initialize");
    *(void **)&run = dlsym(module, host ? "pasta_embed_join" : "pasta_embed_consume");
    if (!initialize || !run) return "the embedding module has no entry points";
    if (!host && !initialize(pasta_config("python"), pasta_config("python_path")))
        return "the embedded interpreter did not start";
    pasta_ring *r = pasta_ring_mine();
    if (finishing()) return NULL;
    __atomic_store_n(&r->consumer, PASTA_CONSUMER_embedded, __ATOMIC_RELEASE);
    /* A thread that asks for the lock while the interpreter is ending is ended there. */
    if (host && !host->is_initialized()) return NULL;
    int state = host ? host->ensure() : 0;
    int answer = run(pasta_ring_path());
    if (host) host->release(state);
    /* 1: consumed to the end; anything else: off, and the reason is in the log */
    return answer == 1 ? NULL : "the embedded consumer stopped; see log.txt";
}

/* ---- libraries of an embedded Python ---- */

static size_t objects_before; /* how many the process had loaded; those after them may be Python's */

static int count_objects(struct dl_phdr_info *info, size_t size, void *count) {
    (void)info, (void)size;
    ++*(size_t *)count;
    return 0;
}

static bool is_of_python(const char *name) {
    const char *library = pasta_config("libpython"), *paths = pasta_config("python_path");
    if (library && !strcmp(name, library)) return true;
    for (size_t length; paths && *paths; paths += length + (paths[length] == ':')) {
        length = strcspn(paths, ":");
        if (length && !strncmp(name, paths, length) && name[length] == '/') return true;
    }
    return false;
}

/* Has the dynamic linker find no destructors in a library. */
static void drop_destructors(const struct dl_phdr_info *info, const ElfW(Phdr) *dynamic) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (ElfW(Dyn) *d = (ElfW(Dyn) *)(info->dlpi_addr + dynamic->p_vaddr); d->d_tag != DT_NULL; d++) {
        void *start = (void *)((uintptr_t)d & ~(page - 1));
        if (d->d_tag == DT_FINI_ARRAYSZ && !mprotect(start, page, PROT_READ | PROT_WRITE)) d->d_un.d_val = 0;
    }
}

static int drop_python_destructors(struct dl_phdr_info *info, size_t size, void *seen) {
    (void)size;
    if ((*(size_t *)seen)++ < objects_before || !info->dlpi_name || !is_of_python(info->dlpi_name)) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) drop_destructors(info, &info->dlpi_phdr[i]);
    return 0;
}

/* The destructors of what came with our Python (OpenBLAS unmaps memory and joins threads) would make
 * system calls at the end of a process that has none for them. */
static void leave_libraries(void) {
    size_t seen = 0;
    if (objects_before) dl_iterate_phdr(drop_python_destructors, &seen);
}

static const char *start_embedded(void) {
    const char *library = pasta_config("libpython");
    if (!library || !*library) return "the Python that PASTA is installed with has no shared library";
    dl_iterate_phdr(count_objects, &objects_before);
    if (!dlopen(library, RTLD_NOW | RTLD_GLOBAL)) return dlerror();
    return consume(NULL);
}

/* Until the program has run for a while, ends, or publishes so much that the ring would be full
 * before Python is there. */
static void wait_to_start(pasta_ring *r) {
    uint64_t until = pasta_now() + pasta_config_u64("embed_delay_ms", 5000) * 1000000u;
    uint64_t eighth = (uint64_t)r->max_segments * r->segment_slots / 8;
    for (uint64_t now = pasta_now(); now < until && !finishing(); now = pasta_now()) {
        uint64_t left = until - now, poll = POLL_MS * UINT64_C(1000000);
        if (__atomic_load_n(&r->tail, __ATOMIC_RELAXED) > eighth) return;
        pasta_futex_wait(&r->finish, 0, left < poll ? left : poll);
    }
}

static void *consumer_thread(void *argument) {
    (void)argument;
    pthread_setname_np(pthread_self(), "pasta");
    __atomic_store_n(&thread_number, (uint32_t)gettid(), __ATOMIC_RELEASE);
    pasta_ring *r = pasta_ring_mine();
    wait_to_start(r);
    if (!finishing()) {
        static pasta_cpython host; /* a pending call may outlive this function */
        bool hosted = pasta_cpython_find(&host);
        const char *why = obstacle(hosted ? &host : NULL);
        if (why) {
            /* a collector */
        } else if (hosted) {
            __atomic_store_n(&joined, 1, __ATOMIC_RELEASE);
            why = join_host(&host);
            set_critical(1); /* until Python reports otherwise */
            if (!why) why = finishing() ? NULL : consume(&host);
        } else {
            set_critical(1);
            why = start_embedded();
        }
        set_critical(0);
        if (why && !finishing()) want_collector(why);
    }
    if (__atomic_load_n(&leaving, __ATOMIC_ACQUIRE)) want_collector(RESTRICTED);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    pasta_futex_wake(&done);
    return NULL;
}

static void start(bool after_fork) {
    if (pasta_is_sandboxed()) {
        want_collector(RESTRICTED);
        return;
    }
    if (pasta_config_u64("collector", 0)) {
        want_collector("requested with --collector");
        return;
    }
    if (after_fork) { /* the parent's interpreter is in this process's memory in an unknown state */
        want_collector("the process was forked from one in which PASTA ran already");
        return;
    }
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the target's signals go to the target's threads */
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int error = pthread_create(&thread, &attributes, consumer_thread, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        want_collector("no thread can be created in the program");
    else
        started = 1;
}

static void forget(void) { started = done = joined = leaving = thread_number = 0; }

/* Waits for the consumer's thread; a sandboxed process may not even wait in the kernel. */
static void wait_for_done(pasta_ring *r) {
    /* A tool that hangs may be left behind; a thread that loads libraries or compiles may not:
     * their destructors run next. */
    uint64_t patience = pasta_config_u64("exit_timeout_ms", 5000) * 1000000u;
    uint64_t begin = pasta_now(), until = begin + patience, last = begin + MAX_CRITICAL_SECONDS * UINT64_C(1000000000);
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        uint64_t now = pasta_now();
        if (__atomic_load_n(&r->critical, __ATOMIC_ACQUIRE) && now < last) until = now + patience;
        if (now >= until) break;
        if (!pasta_is_sandboxed()) pasta_futex_wait(&done, 0, UINT64_C(20000000));
    }
}

static void ask_to_finish(pasta_ring *r) {
    __atomic_store_n(&r->finish, 1, __ATOMIC_RELEASE);
    if (!pasta_is_sandboxed()) pasta_futex_wake(&r->finish);
}

static void finish(void) {
    pasta_ring *r = pasta_ring_mine();
    if (!started || !r || __atomic_load_n(&done, __ATOMIC_ACQUIRE)) return;
    ask_to_finish(r);
    pasta_cpython host;
    /* Ended by exit() from a thread that holds the interpreter lock: the consumer can never get
     * it, so what is in the ring is left to the launcher. */
    bool python = pasta_cpython_find(&host);
    if (python && host.is_initialized() && host.check()) return;
    /* A host's finalized interpreter has ended the thread, or blocks it forever. */
    if (python && !host.is_initialized() && __atomic_load_n(&joined, __ATOMIC_ACQUIRE)) return;
    wait_for_done(r);
    if (!__atomic_load_n(&done, __ATOMIC_ACQUIRE))
        pasta_log("the embedded consumer did not finish in time; the launcher takes over");
}

/* Waits until the thread no longer exists in the kernel: it makes system calls until its end. */
static void wait_for_thread(void) {
    uint32_t id = __atomic_load_n(&thread_number, __ATOMIC_ACQUIRE);
    static const struct timespec shortly = {0, 1000000};
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) && id && !syscall(SYS_tgkill, getpid(), id, 0)) nanosleep(&shortly, NULL);
}

static void leave(bool every_thread) {
    pasta_ring *r = pasta_ring_mine();
    if (!r || !started) return;
    if (!__atomic_exchange_n(&leaving, 1, __ATOMIC_ACQ_REL)) ask_to_finish(r);
    pasta_cpython host;
    bool locked = pasta_cpython_find(&host) && host.is_initialized() && host.check();
    /* The consumer cannot finish before it gets the interpreter's lock; unless it is restricted too, it may do so later. */
    if (locked && !every_thread) return;
    void *state = locked ? host.save_thread() : NULL;
    wait_for_done(r);
    if (every_thread) wait_for_thread();
    leave_libraries();
    if (locked) host.restore_thread(state);
    if (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) pasta_log("the embedded consumer did not hand over in time");
}

const pasta_consumer pasta_python_consumer = {start, forget, finish, leave};
