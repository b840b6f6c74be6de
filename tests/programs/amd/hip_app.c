/* A program and its HIP runtime in one: plays the stream in its argument's file, like the
 * runtimes and the library's own threads.  It links nothing.
 *
 *   # …                                      a comment
 *   agent id=9 type=gpu name=gfx942 product=…  before everything else
 *   KIND:OPERATION PHASE field=value …       an event; @thread=N its thread, @by=N the delivering thread
 *   loop N [STEP]   … end                    N times; correlation and dispatch ids grow by STEP (1)
 *   parallel        … end                    every thread plays its own events at once
 *   fork            … end                    a child plays them and exits
 *   exit            … end                    played after main, like calls of runtimes that are unloaded
 *   ends STATUS                              the program's exit status; default: 7
 *   library 2                                later lines are for the second copy (REPLAY_SECOND, which is
 *                                            of REPLAY_SECOND_VERSION)
 *   configure  finalize  subscriptions       of the library
 *   sample field=value …  flush              samples of program counters (replay_counters.h)
 *   rss  clock NAME                          prints KiB of the process's own memory; or ns of
 *                                            CLOCK_MONOTONIC and the number of events that tools received
 *
 * Outside `parallel`, events are delivered one after the other, on any threads.
 * With HIP_APP_FORK the process forks first, and both play it.
 * ROCPROFILER_REGISTER_LIBRARY names the library, which is loaded if a tool is
 * configured, as by rocprofiler-register.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "replay.h"

enum { THREADS = 32, LIBRARIES = 2 };

typedef struct {
#define MEMBER(type, name, parameters) type(*name) parameters;
    REPLAY_FUNCTIONS(MEMBER)
#undef MEMBER
} library;

static library libraries[LIBRARIES];
static int library_count, exit_status = 7;

typedef struct node {
    struct node *next, *children; /* of a block */
    char what;                    /* event: 'e'; else the first letter of its word */
    int thread, by, library;
    uint64_t count, step;
    replay_event *event;
    char *text;
} node;

static void fails(const char *what, const char *why) {
    fprintf(stderr, "hip_app: %s: %s\n", what, why ? why : "");
    exit(96);
}

/* ---- threads ---- */

typedef struct {
    const node *first;
    int only; /* the thread whose events are played, 0: all */
    uint64_t add;
} job;

static struct {
    pthread_t thread;
    uint64_t id; /* of the operating system */
    job job;
    sem_t start, done;
} workers[THREADS]; /* by number; 1 is the main thread */

static void play(const job *j);
static _Thread_local unsigned long long delivered; /* events delivered to tools */

static void *work(void *number) {
    int i = (int)(uintptr_t)number;
    workers[i].id = (uint64_t)gettid();
    sem_post(&workers[i].done);
    for (;;) {
        while (sem_wait(&workers[i].start)) continue;
        if (!workers[i].job.first) return NULL;
        play(&workers[i].job);
        sem_post(&workers[i].done);
    }
}

static void need_thread(int i) {
    if (i < 1 || i >= THREADS) fails("a thread", "not between 1 and 31");
    if (workers[i].id) return;
    sem_init(&workers[i].start, 0, 0);
    sem_init(&workers[i].done, 0, 0);
    if (pthread_create(&workers[i].thread, NULL, work, (void *)(uintptr_t)i)) fails("a thread", "cannot be made");
    while (sem_wait(&workers[i].done)) continue;
}

static void end_threads(void) {
    for (int i = 2; i < THREADS; i++) {
        if (!workers[i].id) continue;
        workers[i].job.first = NULL;
        sem_post(&workers[i].start);
        pthread_join(workers[i].thread, NULL);
    }
}

/* ---- playing ---- */

static const node *after_main;
static void play_after_main(void) { play(&(job){after_main, 0, 0}); }

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Without shared memory: the ring has its own size. */
static void print_rss(void) {
    char line[128];
    unsigned long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "RssAnon: %lu", &kib) != 1) continue;
    if (!kib) fails("RssAnon", "cannot be read");
    fclose(file);
    printf("rss %lu\n", kib);
}

static void play_parallel(const node *n, uint64_t add) {
    int threads = 0;
    for (int i = 2; i < THREADS; i++) {
        if (!workers[i].id) continue;
        threads |= 1 << i;
        workers[i].job = (job){n->children, i, add};
        sem_post(&workers[i].start);
    }
    play(&(job){n->children, 1, add});
    for (int i = 2; i < THREADS; i++)
        while (threads >> i & 1 && sem_wait(&workers[i].done)) continue;
}

static void play_fork(const node *n, uint64_t add) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        play(&(job){n->children, 1, add}); /* the other threads are the parent's */
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child ended with %d\n", status);
}

static void play_event(const node *n, const job *j) {
    replay_round round = {j->add, workers[n->thread].id};
    if (j->only || n->by == 1) {
        delivered += libraries[n->library].deliver(n->event, &round);
        return;
    }
    node alone = *n;
    alone.next = NULL;
    workers[n->by].job = (job){&alone, n->by, j->add};
    sem_post(&workers[n->by].start);
    while (sem_wait(&workers[n->by].done)) continue;
}

static void play_one(const node *n, const job *j) {
    switch (n->what) {
    case 'e':
        if (!j->only || j->only == n->by) play_event(n, j);
        return;
    case 'l':
        for (uint64_t i = 0; i < n->count; i++) play(&(job){n->children, j->only, j->add + i * n->step});
        return;
    case 'p': play_parallel(n, j->add); return;
    case 'f': play_fork(n, j->add); return;
    default: break;
    }
    if (j->only > 1) return;
    switch (n->what) {
    case 'c': libraries[n->library].configure(); return;
    case 'F': libraries[n->library].finalize(); return;
    case 's': libraries[n->library].subscriptions(); return;
    case 'S': libraries[n->library].sample(n->text); return;
    case 'X': libraries[n->library].flush(); return;
    case 'r': print_rss(); return;
    case 't': printf("%s %llu %llu\n", n->text, (unsigned long long)now(), delivered); return;
    case 'x': after_main = n->children; return;
    default: return;
    }
}

static void play(const job *j) {
    for (const node *n = j->first; n; n = n->next) play_one(n, j);
}

/* ---- reading ---- */

static int number_after(const char *line, const char *key, int otherwise) {
    const char *found = strstr(line, key);
    return found ? atoi(found + strlen(key)) : otherwise;
}

static node *read_line(char *line, int which) {
    node *n = calloc(1, sizeof *n);
    char word[32] = "", name[64] = "";
    n->library = which;
    n->step = 1;
    sscanf(line, "%31s %63s", word, name);
    if (strchr(word, ':')) {
        n->what = 'e';
        n->thread = number_after(line, "@thread=", 1);
        n->by = number_after(line, "@by=", n->thread);
        need_thread(n->thread);
        need_thread(n->by);
        n->event = libraries[which].event_of(line);
    } else if (!strcmp(word, "loop")) {
        n->what = 'l';
        n->count = strtoull(name, NULL, 0);
        sscanf(line, "%*s %*s %llu", (unsigned long long *)&n->step);
    } else if (!strcmp(word, "exit")) {
        n->what = 'x';
    } else if (!strcmp(word, "clock")) {
        n->what = 't';
        n->text = strdup(name);
    } else if (!strcmp(word, "finalize")) {
        n->what = 'F';
    } else if (!strcmp(word, "flush")) {
        n->what = 'X';
    } else if (!strcmp(word, "sample")) {
        n->what = 'S';
        n->text = strdup(line);
    } else if (!strcmp(word, "parallel") || !strcmp(word, "fork") || !strcmp(word, "configure") ||
               !strcmp(word, "subscriptions") || !strcmp(word, "rss")) {
        n->what = *word;
    } else {
        fails(line, "not understood");
    }
    return n;
}

static node *read_block(FILE *file, int *which, bool inner) {
    node *first = NULL, **last = &first;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *begin = line + strspn(line, " ");
        if (!*begin || *begin == '#' || !strncmp(begin, "agent", 5)) continue;
        if (sscanf(begin, "ends %d", &exit_status) == 1) continue;
        if (!strncmp(begin, "library ", 8)) {
            *which = atoi(begin + 8) - 1;
            if (*which < 0 || *which >= library_count) fails(begin, "there is none");
            continue;
        }
        if (!strcmp(begin, "end")) {
            if (!inner) fails("end", "of nothing");
            free(line);
            return first;
        }
        *last = read_line(begin, *which);
        if (strchr("lpfx", (*last)->what)) (*last)->children = read_block(file, which, true);
        last = &(*last)->next;
    }
    if (inner) fails("a block", "has no end");
    free(line);
    return first;
}

/* ---- as rocprofiler-register ---- */

static void load(const char *path, const char *stream) {
    void *handle = dlopen(path, RTLD_GLOBAL | RTLD_LAZY);
    if (!handle) {
        fprintf(stderr, "rocprofiler-register: %s\n", dlerror());
        abort(); /* as it does */
    }
    library *l = &libraries[library_count++];
#define RESOLVE(type, name, parameters) \
    if (!(*(void **)&l->name = dlsym(handle, "replay_" #name))) fails("replay_" #name, dlerror());
    REPLAY_FUNCTIONS(RESOLVE)
#undef RESOLVE
    FILE *file = fopen(stream, "r");
    char *line = NULL;
    size_t room = 0;
    if (!file) fails(stream, "cannot be opened");
    while (getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "agent ", 6)) l->agent(line + 6);
    }
    fclose(file);
    free(line);
    int (*set_api_table)(const char *, uint64_t, uint64_t, void **, uint64_t);
    *(void **)&set_api_table = dlsym(handle, "rocprofiler_set_api_table");
    if (!set_api_table) fails("rocprofiler_set_api_table", dlerror());
    void *tables[1] = {NULL};
    int status = set_api_table("hip", 60300, 0, tables, 1);
    if (status) printf("registering failed with %d\n", status);
}

static bool is_wanted(void) {
    const char *tools = getenv("ROCP_TOOL_LIBRARIES");
    return dlsym(RTLD_DEFAULT, "rocprofiler_configure") || (tools && *tools);
}

int main(int count, char **words) {
    const char *path = getenv("ROCPROFILER_REGISTER_LIBRARY"), *second = getenv("REPLAY_SECOND");
    const char *other = getenv("REPLAY_SECOND_VERSION");
    if (count != 2) fails("usage", "hip_app STREAM");
    pid_t child = getenv("HIP_APP_FORK") ? fork() : -1;
    workers[1].id = (uint64_t)gettid();
    if (path && is_wanted()) {
        load(path, words[1]);
        if (other) setenv("REPLAY_VERSION", other, 1);
        if (second) load(second, words[1]);
        FILE *file = fopen(words[1], "r");
        int which = 0;
        const node *stream = read_block(file, &which, false);
        fclose(file);
        atexit(play_after_main); /* after PASTA's handler, before the library's */
        printf("start %llu\n", (unsigned long long)now());
        play(&(job){stream, 0, 0});
        end_threads();
    }
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != exit_status))
        fails("the child", "did not end as its parent");
    puts("done");
    return exit_status;
}
