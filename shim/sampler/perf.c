/* perf events of a program on every processor, and the records in their buffers.
 *
 * Each event counts the processor time of the program's threads on one processor, in all processes that it starts
 * (`inherit`, which needs an event for each processor).  When a period of it has passed, the kernel writes the registers
 * and a copy of the stack into the event's buffer.  Mappings, forks and execs are in the buffers too. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "../python/writer.h"
#include "internal.h"

#if defined __x86_64__
enum { FP = 6, SP = 7, IP = 8 }; /* asm/perf_regs.h */
#elif defined __aarch64__
enum { FP = 29, SP = 31, IP = 32 };
#endif

enum { DUMP = 32 << 10, MAX_RECORD = 1 << 16, MAX_PAGES = 128, MIN_PAGES = 32, FEW_PROCESSORS = 32 };
enum { MAX_WAITING = 1 << 18, MAX_PROCESSES = 4096, PROCESS_SLOTS = 256, SAMPLE_SLOTS = PASTA_MAX_FRAMES + 1 };
#define GRACE UINT64_C(5000000000) /* ns */

typedef struct buffer {
    int fd;
    struct perf_event_mmap_page *page;
    const uint8_t *data;
    uint64_t size;
    uint64_t until; /* samples before that are taken in this round */
} buffer;

typedef struct sample {
    pasta_process_state *process;
    uint64_t time;
    uint32_t thread, stack;
    uint16_t in_kernel, truncated;
} sample;

/* A record in a buffer that is not a sample. */
typedef struct record {
    const buffer *buffer;
    uint64_t position, time;
    size_t bytes;
} record;

struct pasta_sampler {
    pthread_mutex_t lock;
    buffer *buffers;
    struct pollfd *polled;
    int count;
    uint32_t period;
    bool sees_kernel;
    pasta_process_state *processes[PROCESS_SLOTS];
    uint32_t process_count;
    sample *waiting; /* for rings of their processes, and samples of this round */
    uint32_t waiting_count;
    record *noted; /* of this round */
    size_t noted_count, noted_room;
    pasta_texts *texts;
    pasta_files *files;
    pasta_rules *rules;
    pasta_stacks *stacks;
    pasta_python *python;
    uint8_t record[MAX_RECORD] __attribute__((aligned(8)));
};

/* ---- processes ---- */

static pasta_process_state *find_process(pasta_sampler *s, uint32_t pid) {
    pasta_process_state *p = s->processes[pid % PROCESS_SLOTS];
    while (p && p->pid != pid) p = p->next;
    return p;
}

static pasta_process_state *process_of(pasta_sampler *s, uint32_t pid) {
    pasta_process_state *p = find_process(s, pid);
    if (p || s->process_count == MAX_PROCESSES || !(p = calloc(1, sizeof *p))) return p;
    p->pid = pid;
    p->next = s->processes[pid % PROCESS_SLOTS];
    s->processes[pid % PROCESS_SLOTS] = p;
    s->process_count++;
    return p;
}

static void drop_waiting(pasta_sampler *s, const pasta_process_state *p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->waiting_count; i++)
        if (s->waiting[i].process != p) s->waiting[kept++] = s->waiting[i];
    s->waiting_count = kept;
}

static void leave_ring(pasta_process_state *p) {
    free(p->published);
    p->published = NULL;
    p->ring = NULL;
}

static void free_process(pasta_process_state *p) {
    leave_ring(p);
    free(p->mappings);
    free(p);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Forgets processes that have ended and have no ring, once the launcher had time to find one. */
static void forget_ended(pasta_sampler *s) {
    uint64_t at_most = now() - GRACE;
    for (size_t slot = 0; slot < PROCESS_SLOTS; slot++)
        for (pasta_process_state **at = &s->processes[slot], *p; (p = *at);) {
            if (!p->ended || p->ended > at_most || p->ring) {
                at = &p->next;
                continue;
            }
            drop_waiting(s, p);
            *at = p->next;
            free_process(p);
            s->process_count--;
        }
}

/* ---- samples ---- */

static void publish(pasta_sampler *s, const sample *taken) {
    pasta_process_state *p = taken->process;
    pasta_host_sample e = {.stack = pasta_stacks_publish(s->stacks, taken->stack, p), .period = s->period, .lost = p->lost,
                           .in_kernel = taken->in_kernel, .truncated = taken->truncated};
    if (pasta_append_at(p->ring, PASTA_EVENT_host_sample, -1, taken->time, taken->thread, &e, sizeof e)) p->lost = 0;
}

static bool may_publish(pasta_ring *ring, bool last) { return ring && (last || pasta_has_room(ring, SAMPLE_SLOTS)); }

static int by_time(const void *left, const void *right) {
    const sample *a = left, *b = right;
    return (a->time > b->time) - (a->time < b->time);
}

/* Publishes samples whose processes have rings with room; the others wait, unless it is the `last` time. */
static void publish_all(pasta_sampler *s, bool last) {
    uint32_t kept = 0;
    if (s->waiting_count) qsort(s->waiting, s->waiting_count, sizeof *s->waiting, by_time);
    for (uint32_t i = 0; i < s->waiting_count; i++)
        if (may_publish(s->waiting[i].process->ring, last)) publish(s, &s->waiting[i]);
        else s->waiting[kept++] = s->waiting[i];
    s->waiting_count = kept;
}

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static uint64_t word(reader *r) {
    uint64_t value = 0;
    if (r->end - r->at < (ptrdiff_t)sizeof value) return r->at = r->end, 0;
    memcpy(&value, r->at, sizeof value);
    r->at += sizeof value;
    return value;
}

static void take_sample(pasta_sampler *s, const struct perf_event_header *head, reader r) {
    uint64_t ids = word(&r), time = word(&r), abi = word(&r);
    pasta_dump dump = {.thread = (uint32_t)(ids >> 32), .registers = {.exact = true}};
    pasta_process_state *p = process_of(s, (uint32_t)ids);
    if (!p || time < p->begun) return;
    if (s->waiting_count == MAX_WAITING) {
        p->lost++;
        return;
    }
    if (abi) { /* in the order of their numbers */
        dump.registers.fp = word(&r);
        dump.registers.sp = word(&r);
        dump.registers.ip = word(&r);
    }
    uint64_t size = word(&r);
    if (size && (uint64_t)(r.end - r.at) >= size + sizeof(uint64_t)) {
        dump.stack = r.at;
        r.at += size;
        uint64_t copied = word(&r);
        dump.bytes = copied < size ? copied : size;
    }
    pasta_host_line lines[PASTA_MAX_FRAMES];
    bool truncated = true;
    pasta_walker walker = {.files = s->files, .rules = s->rules, .python = s->python};
    uint32_t count = abi ? pasta_walk(&walker, p, &dump, lines, &truncated) : 0;
    s->waiting[s->waiting_count++] = (sample){.process = p, .time = time, .thread = dump.thread, .stack = pasta_stacks_put(s->stacks, lines, count),
                                              .in_kernel = (head->misc & PERF_RECORD_MISC_CPUMODE_MASK) == PERF_RECORD_MISC_KERNEL,
                                              .truncated = truncated};
}

/* ---- other records ---- */

static void take_mapping(pasta_sampler *s, reader r) {
    uint64_t ids = word(&r), start = word(&r), length = word(&r), offset = word(&r), numbers = word(&r), inode = word(&r);
    word(&r); /* the inode's generation */
    word(&r); /* protection and flags */
    pasta_process_state *p = process_of(s, (uint32_t)ids);
    const char *path = (const char *)r.at;
    if (!p || !memchr(path, '\0', (size_t)(r.end - r.at))) return;
    bool named = (path[0] == '/' && path[1] != '/') || !strcmp(path, "[vdso]");
    dev_t device = makedev((unsigned)numbers, (unsigned)(numbers >> 32));
    int32_t file = named ? pasta_files_find(s->files, path, device, inode, p->pid) : -1;
    pasta_mappings_add(p, (pasta_mapping){.start = start, .end = start + length, .offset = path[0] == '[' ? 0 : offset, .file = file});
}

/* An exec, or a fork that may have the pid of a process that has ended. */
static void begin_program(pasta_sampler *s, pasta_process_state *p, const reader *r) {
    drop_waiting(s, p);
    leave_ring(p);
    p->count = p->lost = 0;
    p->ended = 0;
    memcpy(&p->begun, r->end - sizeof p->begun, sizeof p->begun); /* the time ends each record (sample_id_all) */
}

static void take_fork(pasta_sampler *s, reader r) {
    uint64_t pids = word(&r);
    uint32_t pid = (uint32_t)pids, parent = (uint32_t)(pids >> 32);
    pasta_process_state *of = find_process(s, parent), *p = pid != parent ? process_of(s, pid) : NULL;
    if (!p) return;
    begin_program(s, p, &r);
    if (of) pasta_mappings_copy(p, of);
}

static void take_exec(pasta_sampler *s, reader r) {
    pasta_process_state *p = process_of(s, (uint32_t)word(&r));
    if (p) begin_program(s, p, &r);
}

static void take_exit(pasta_sampler *s, reader r) {
    uint64_t pids = word(&r), threads = word(&r);
    pasta_process_state *p = (uint32_t)pids == (uint32_t)threads ? find_process(s, (uint32_t)pids) : NULL;
    if (p) p->ended = now();
}

/* Of which process is not known: every one has lost them. */
static void take_lost(pasta_sampler *s, reader r) {
    word(&r);
    uint32_t lost = (uint32_t)word(&r);
    for (size_t slot = 0; slot < PROCESS_SLOTS; slot++)
        for (pasta_process_state *p = s->processes[slot]; p; p = p->next) p->lost += p->ended ? 0 : lost;
}

/* ---- buffers ---- */

static void take(pasta_sampler *s, const struct perf_event_header *head) {
    reader r = {.at = (const uint8_t *)(head + 1), .end = (const uint8_t *)head + head->size};
    if (head->type == PERF_RECORD_SAMPLE) take_sample(s, head, r);
    else if (head->type == PERF_RECORD_MMAP2) take_mapping(s, r);
    else if (head->type == PERF_RECORD_FORK) take_fork(s, r);
    else if (head->type == PERF_RECORD_EXIT) take_exit(s, r);
    else if (head->type == PERF_RECORD_LOST) take_lost(s, r);
    else if (head->type == PERF_RECORD_COMM && head->misc & PERF_RECORD_MISC_COMM_EXEC) take_exec(s, r);
}

static void copy_out(const buffer *b, uint64_t position, void *to, size_t bytes) {
    uint64_t at = position % b->size, first = b->size - at < bytes ? b->size - at : bytes;
    memcpy(to, b->data + at, first);
    memcpy((uint8_t *)to + first, b->data, bytes - first);
}

/* Where a record is; false without memory. */
static bool note(pasta_sampler *s, const buffer *b, uint64_t position, size_t bytes) {
    if (s->noted_count == s->noted_room) {
        size_t room = s->noted_room ? 2 * s->noted_room : 256;
        record *larger = realloc(s->noted, room * sizeof *larger);
        if (!larger) return false;
        s->noted = larger;
        s->noted_room = room;
    }
    record *r = &s->noted[s->noted_count++];
    *r = (record){.buffer = b, .position = position, .bytes = bytes};
    copy_out(b, position + bytes - sizeof r->time, &r->time, sizeof r->time);
    return true;
}

static int by_record_time(const void *left, const void *right) {
    const record *a = left, *b = right;
    return (a->time > b->time) - (a->time < b->time);
}

static void take_at(pasta_sampler *s, const buffer *b, uint64_t position, size_t bytes) {
    copy_out(b, position, s->record, bytes);
    take(s, (const struct perf_event_header *)s->record);
}

/* Takes the samples that were not taken yet, or notes where the other records are. */
static void take_records(pasta_sampler *s, const buffer *b, bool samples) {
    uint64_t from = b->page->data_tail;
    for (struct perf_event_header head; b->until - from >= sizeof head; from += head.size) {
        copy_out(b, from, &head, sizeof head);
        if (head.size < sizeof head || head.size > b->until - from) return;
        if (samples != (head.type == PERF_RECORD_SAMPLE)) continue;
        if (samples) take_at(s, b, from, head.size);
        else if (!note(s, b, from, head.size)) take_at(s, b, from, head.size);
    }
}

/* A process may have moved between processors meanwhile: records are taken in the order of their times. */
static void take_others(pasta_sampler *s) {
    s->noted_count = 0;
    for (buffer *b = s->buffers; b < s->buffers + s->count; b++)
        if (b->page->data_tail != b->until) take_records(s, b, false);
    if (s->noted_count) qsort(s->noted, s->noted_count, sizeof *s->noted, by_record_time);
    for (size_t i = 0; i < s->noted_count; i++) take_at(s, s->noted[i].buffer, s->noted[i].position, s->noted[i].bytes);
}

/* Samples are taken after the mappings, forks and execs on all processors that came before them. */
static void drain(pasta_sampler *s, bool last) {
    forget_ended(s);
    for (buffer *b = s->buffers; b < s->buffers + s->count; b++) b->until = __atomic_load_n(&b->page->data_head, __ATOMIC_ACQUIRE);
    take_others(s);
    for (buffer *b = s->buffers; b < s->buffers + s->count; b++)
        if (b->page->data_tail != b->until) take_records(s, b, true);
    for (buffer *b = s->buffers; b < s->buffers + s->count; b++) __atomic_store_n(&b->page->data_tail, b->until, __ATOMIC_RELEASE);
    publish_all(s, last);
}

static struct perf_event_attr attributes(uint32_t period, bool kernel) {
    struct perf_event_attr a;
    memset(&a, 0, sizeof a);
    a.size = sizeof a;
    a.type = PERF_TYPE_SOFTWARE;
    a.config = PERF_COUNT_SW_TASK_CLOCK;
    a.sample_period = period;
    a.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
    a.sample_regs_user = UINT64_C(1) << FP | UINT64_C(1) << SP | UINT64_C(1) << IP;
    a.sample_stack_user = DUMP;
    a.disabled = a.inherit = a.enable_on_exec = a.mmap = a.mmap2 = a.comm = a.comm_exec = a.task = a.sample_id_all = 1;
    a.exclude_kernel = !kernel;
    a.exclude_hv = 1;
    a.use_clockid = 1;
    a.clockid = CLOCK_MONOTONIC;
    a.wakeup_events = 1;
    return a;
}

static int open_event(const struct perf_event_attr *a, int pid, int processor) {
    return (int)syscall(SYS_perf_event_open, a, pid, processor, -1, PERF_FLAG_FD_CLOEXEC);
}

/* Maps the buffer; smaller ones where the user may not lock as much memory. */
static int map_buffer(buffer *b, long processors) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t pages = processors > FEW_PROCESSORS ? MAX_PAGES / 2 : MAX_PAGES; pages >= MIN_PAGES; pages /= 2) {
        void *memory = mmap(NULL, (pages + 1) * page, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
        if (memory == MAP_FAILED) continue;
        b->page = memory;
        b->data = (const uint8_t *)memory + page;
        b->size = pages * page;
        return 0;
    }
    return errno;
}

/* One event and buffer for each processor; an errno value. */
static int open_all(pasta_sampler *s, int pid, bool kernel) {
    long processors = sysconf(_SC_NPROCESSORS_CONF);
    struct perf_event_attr a = attributes(s->period, kernel);
    s->buffers = calloc((size_t)processors, sizeof *s->buffers);
    s->polled = calloc((size_t)processors + 1, sizeof *s->polled);
    if (!s->buffers || !s->polled) return ENOMEM;
    for (int processor = 0; processor < processors; processor++) {
        buffer *b = &s->buffers[s->count];
        b->fd = open_event(&a, pid, processor);
        if (b->fd < 0 && errno == ENODEV) continue; /* it is offline */
        if (b->fd < 0) return errno;
        s->polled[s->count++] = (struct pollfd){.fd = b->fd, .events = POLLIN};
        int error = map_buffer(b, processors);
        if (error) return error;
    }
    return s->count ? 0 : ENODEV;
}

static void close_buffers(pasta_sampler *s) {
    for (buffer *b = s->buffers; b && b < s->buffers + s->count; b++) {
        if (b->page) munmap(b->page, b->size + (size_t)sysconf(_SC_PAGESIZE));
        close(b->fd);
    }
    free(s->buffers);
    free(s->polled);
    s->buffers = NULL;
    s->polled = NULL;
    s->count = 0;
}

pasta_sampler *pasta_sampler_open(int pid, uint32_t rate, int unwind, int *error) {
    pasta_sampler *s = calloc(1, sizeof *s);
    *error = ENOMEM;
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->period = UINT32_C(1000000000) / rate;
    s->texts = pasta_texts_create();
    s->files = pasta_files_create(s->texts);
    s->rules = pasta_rules_create(s->files, (pasta_unwind_method)unwind);
    s->stacks = pasta_stacks_create(s->texts);
    s->python = pasta_python_create(s->texts);
    s->waiting = calloc(MAX_WAITING, sizeof *s->waiting);
    if (s->texts && s->files && s->rules && s->stacks && s->python && s->waiting) {
        s->sees_kernel = true;
        *error = open_all(s, pid, true);
        if (*error == EACCES || *error == EPERM) { /* perf_event_paranoid may allow this much */
            close_buffers(s);
            s->sees_kernel = false;
            *error = open_all(s, pid, false);
        }
    }
    if (!*error) return s;
    pasta_sampler_close(s);
    return NULL;
}

int pasta_sampler_sees_kernel(const pasta_sampler *s) { return s->sees_kernel; }

int pasta_sampler_has_cfi(const pasta_sampler *s) { return pasta_rules_have_cfi(s->rules); }

int pasta_sampler_python_error(const pasta_sampler *s) { return pasta_python_error(s->python); }

void pasta_sampler_work(pasta_sampler *s, int wake, int timeout_ms) {
    s->polled[s->count] = (struct pollfd){.fd = wake, .events = POLLIN};
    poll(s->polled, (nfds_t)s->count + 1, timeout_ms);
    /* an event whose threads have all ended is always ready */
    for (int i = 0; i < s->count; i++)
        if (s->polled[i].revents & (POLLHUP | POLLERR)) s->polled[i].fd = -1;
    pthread_mutex_lock(&s->lock);
    drain(s, false);
    pthread_mutex_unlock(&s->lock);
}

void pasta_sampler_follow(pasta_sampler *s, uint32_t pid, void *ring) {
    pthread_mutex_lock(&s->lock);
    drain(s, false); /* an exec before the ring */
    pasta_process_state *p = process_of(s, pid);
    if (p) {
        leave_ring(p);
        p->published = calloc(PASTA_MAX_STACKS / 8, 1);
        if (p->published) p->ring = ring;
        publish_all(s, false);
    }
    pthread_mutex_unlock(&s->lock);
}

void pasta_sampler_leave(pasta_sampler *s, void *ring) {
    pthread_mutex_lock(&s->lock);
    drain(s, true);
    for (size_t slot = 0; slot < PROCESS_SLOTS; slot++)
        for (pasta_process_state *p = s->processes[slot]; p; p = p->next)
            if (p->ring == ring) leave_ring(p);
    pthread_mutex_unlock(&s->lock);
}

void pasta_sampler_close(pasta_sampler *s) {
    close_buffers(s);
    for (size_t slot = 0; slot < PROCESS_SLOTS; slot++)
        for (pasta_process_state *p = s->processes[slot], *next; p; p = next) {
            next = p->next;
            free_process(p);
        }
    pasta_python_free(s->python);
    pasta_stacks_free(s->stacks);
    pasta_rules_free(s->rules);
    pasta_files_free(s->files);
    pasta_texts_free(s->texts);
    free(s->waiting);
    free(s->noted);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
