/* A program with patched kernels, a driver and a GPU in one: plays the lines of its standard
 * input.  A kernel updates the memory of its launch as a patch compiled from the tool's probe
 * does.  Numbers are hexadecimal.
 *
 *     alloc ADDRESS BYTES          free ADDRESS
 *     tensor ADDRESS BYTES         PyTorch's allocator hands it out; and takes it back: freed ADDRESS BYTES
 *     launch STREAM ACCESS...      ACCESS: ADDRESS:COUNT:PC, of 4 bytes each
 *     fail STREAM                  a launch that begins and never ends
 *     graph STREAM NODES ACCESS... each node makes the accesses
 *     capture 1                    work is captured, until `capture 0`
 *     mixed STREAM NODES ACCESS... … and nodes are of two functions in turn
 *     make                         the graph is made
 *     sync                         hold STREAM      release STREAM
 *     end STREAM                   the stream is destroyed; so is the context by `destroy`
 *     unload MODULE                load MODULE
 *     kernel MODULE FUNCTION GRID  of later launches; at first the function f0 of module 4000. Its name is
 *                                  played, followed by letters for the last digit of its number
 *     report                       prints how launches ran in each module
 *     used                         prints the bytes of device memory that PASTA allocated
 *     planes STREAM                a launch that prints the addresses of its first two planes
 *     threads COUNT LAUNCHES ADDRESS   each on its own stream, and one shared by all
 *     cost LAUNCHES CHANGES        prints ns in the callbacks of a launch, the median of batches; with
 *                                  CHANGES an object comes and goes before each
 *     pause                        until the thread that reads results has done what it can
 *     cleared SETS                 until it has cleared storage of freed objects in so many sets, and given it back
 *     profile 0|1                  stops or starts profiling
 *     enabled                      prints which callbacks a launch has: of its call, its begin and its return
 *     sleep MS
 *     kill                         by SIGKILL
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../shim/backends/nvidia/sanitizer_abi.h"
#include "lookup.h"
#include "pasta.h"
#include "pasta_probes.h"

enum { CONTEXT = 0xc0, MODULE = 0x4000, FUNCTION = 0xf0, DEVICE = 3, MULTIPROCESSORS = 132 };

static struct {
    uint64_t module, function;
    uint32_t grid;
} chosen = {MODULE, FUNCTION, 1};

static bool (*deliver)(int32_t, uint32_t, const void *);
static bool (*is_enabled)(int32_t, uint32_t);
static uint64_t (*launch_data)(uint64_t, uint64_t, uint64_t, bool);
static void (*make_graph)(void);
static void (*report)(void);
static unsigned (*cleared)(void);
static uint64_t (*device_bytes)(void);
static void (*hold)(uint64_t, bool);
static void (*destroy_stream)(uint64_t);
static void (*submit)(uint64_t, void (*)(void *), void *);
static uint64_t slot_stripe_bytes, slot_stripes, object_words, bin_words, hash_rows, hash_words, hash_stripes,
    pair_rows, pair_words, pair_stripes;
static uint32_t hashes;

static void *required(void *found, const char *what) {
    if (!found) {
        fprintf(stderr, "fake program: %s: %s\n", what, dlerror());
        exit(90);
    }
    return found;
}

static void read_plan(void) {
    char *path = strstr(required(getenv("PASTA_SHIM"), "PASTA_SHIM"), "\x1f" "probes="), line[4096];
    if (path[8] == '\x1f') return; /* no tool with probes */
    path = strndup(path + 8, strcspn(path + 8, "\x1f"));
    FILE *file = required(fopen(path, "r"), "plan");
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "slot_stripe_bytes %lu", &slot_stripe_bytes);
        sscanf(line, "slot_stripes %lu", &slot_stripes);
        sscanf(line, "object_words %lu", &object_words);
        sscanf(line, "bin_words %lu", &bin_words);
        sscanf(line, "pair_rows %lu", &pair_rows);
        sscanf(line, "pair_words %lu", &pair_words);
        sscanf(line, "pair_stripes %lu", &pair_stripes);
        hashes += sscanf(line, "hash %lu %lu %lu", &hash_rows, &hash_words, &hash_stripes) == 3;
    }
    fclose(file);
    free(path);
}

static void initialize(void) {
    void *library = required(dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW), "injection");
    int (*entry)(void);
    *(void **)&entry = required(dlsym(library, "InitializeInjection"), "InitializeInjection");
    void *fake = required(dlopen(getenv("PASTA_SANITIZER_LIB"), RTLD_NOW), "fake library");
    *(void **)&deliver = required(dlsym(fake, "fake_deliver"), "fake_deliver");
    *(void **)&is_enabled = required(dlsym(fake, "fake_is_enabled"), "fake_is_enabled");
    *(void **)&launch_data = required(dlsym(fake, "fake_launch_data"), "fake_launch_data");
    *(void **)&make_graph = required(dlsym(fake, "fake_make_graph"), "fake_make_graph");
    *(void **)&cleared = required(dlsym(fake, "fake_cleared"), "fake_cleared");
    *(void **)&device_bytes = required(dlsym(fake, "fake_device_bytes"), "fake_device_bytes");
    *(void **)&report = required(dlsym(fake, "fake_report"), "fake_report");
    *(void **)&hold = required(dlsym(fake, "fake_hold"), "fake_hold");
    *(void **)&destroy_stream = required(dlsym(fake, "fake_destroy_stream"), "fake_destroy_stream");
    *(void **)&submit = required(dlsym(fake, "fake_submit"), "fake_submit");
    read_plan();
    if (entry() != 1) exit(91);
}

/* ---- a patch ---- */

static uint64_t *at(uint64_t address) { return (uint64_t *)(uintptr_t)address; }

static const pasta_object_range *find(const pasta_probe_launch *l, uint64_t address) {
    uint64_t shift = l->shape & 255, bucket = (address - ((uint64_t)l->base << PASTA_PROBE_BASE_SHIFT)) >> shift;
    uint64_t last = l->shape >> 8, buckets = l->ranges;
    const pasta_object_table *table = (const void *)at(l->table);
    for (uint32_t i = 0; bucket > last; i++) {
        if (!table || i == table->clusters) return NULL;
        shift = table->cluster[i].shift;
        bucket = (address - table->cluster[i].base) >> shift;
        last = table->cluster[i].last_bucket;
        buckets = table->cluster[i].buckets;
    }
    return range_in_bucket(table, (const uint32_t *)at(buckets) - bucket - 1, shift, address);
}

/* The words of an object in a launch, as `at_row` of a patch finds them. */
static uint64_t *row_of(const pasta_probe_launch *l, const pasta_object_range *found, uint64_t *rows) {
    uint64_t object = found ? (uint64_t)(found - (const pasta_object_range *)at(l->ranges)) + 1 : 0;
    if (l->stripe_mask & PASTA_PROBE_DIRECT) return rows + object_words * object;
    uint32_t number = found ? found->number : 0, *keys = (uint32_t *)at(l->keys);
    for (uint32_t tries = 0; tries <= l->hash_mask && tries < PASTA_PROBE_TRIES; tries++) {
        uint32_t row = (number + tries) & l->hash_mask;
        if (!keys[row]) keys[row] = number + 1;
        if (keys[row] == number + 1) return rows + object_words * row;
    }
    if (object >= l->spill_rows) return rows + object_words * (l->hash_mask + 1);
    keys[l->hash_mask + 1] = 1;
    return at(l->spill) + object_words * object;
}

/* The words of a launch, as `in_slot` of a patch finds them. */
static uint64_t *slot_of(const pasta_probe_launch *l, uint32_t sm) {
    const pasta_probe_launch *first = (const void *)((uintptr_t)l / (PASTA_PROBE_SLOTS * sizeof *l) * (PASTA_PROBE_SLOTS * sizeof *l));
    return at((uint64_t)(uintptr_t)(first + PASTA_PROBE_SLOTS) + (uint64_t)(l - first) * slot_stripes * slot_stripe_bytes +
              (sm & (slot_stripes - 1)) * slot_stripe_bytes);
}

static void count_pc(uint64_t table, uint64_t pc, uint64_t count, uint32_t sm) {
    uint64_t *keys = at(table), row = pc * 7 & (hash_rows - 1);
    while (keys[row] && keys[row] != pc + 1) row = (row + 1) & (hash_rows - 1);
    keys[row] = pc + 1;
    uint64_t *words = keys + hash_rows + (sm & (hash_stripes - 1)) * (hash_rows + 1) * hash_words;
    words[row * hash_words] += count;
}

static void count_pair(const pasta_probe_launch *l, uint64_t object, uint64_t pc, uint64_t word, uint64_t count, uint32_t sm) {
    uint64_t key = 1 + (pc >> 4 | object << (PASTA_PROBE_PC_BITS - 4)), *keys = at(l->pairs), row = key * 7 & (pair_rows - 1);
    for (uint32_t tries = 0; keys[row] && keys[row] != key; tries++) {
        row = tries < 64 ? (row + 1) & (pair_rows - 1) : pair_rows;
        if (row == pair_rows) break;
    }
    if (row < pair_rows) keys[row] = key;
    keys[pair_rows + (sm & (pair_stripes - 1)) * (pair_rows + 1) * pair_words + row * pair_words + word] += count;
}

/* Places of the tool's maps: words 0 and 1 of the slot, 2 and 3 for what has no bin, word 0 of an
 * object's row, of a bin, of a program counter's row, and of a pair's; program counters by launch are pairs
 * without an object, with word 1. */
static void access_memory(const pasta_probe_launch *l, uint64_t address, uint64_t count, uint64_t pc) {
    uint32_t sm = (uint32_t)(address * UINT64_C(0x9e3779b97f4a7c15) >> 32) % MULTIPROCESSORS;
    const pasta_object_range *found = find(l, address);
    uint64_t *stripe = slot_of(l, sm), *rows = at(l->rows + (sm & l->stripe_mask) * (uint64_t)l->stripe_bytes);
    stripe[0] += count;
    stripe[1] += 4 * count;
    *row_of(l, found, rows) += count;
    if (found && found->bins != UINT32_MAX)
        at(l->bins + (sm & 15) * l->bin_stripe)[bin_words * (found->bins + ((address - found->start) >> found->bin_shift))] += count;
    else
        stripe[found ? 3 : 2] += count;
    if (hashes) count_pc(l->hash[0], pc, count, sm);
    if (!pair_words) return;
    count_pair(l, found ? (uint64_t)(found - (const pasta_object_range *)at(l->ranges)) + 1 : 0, pc, 0, count, sm);
    if (!hashes) count_pair(l, 0, pc, 1, count, sm);
}

typedef struct kernel {
    uint64_t data, grid;
    char accesses[];
} kernel;

static void run_kernel(void *argument) {
    kernel *k = argument;
    unsigned long address, count, pc;
    int used;
    uint64_t data = k->data;
    if (data & PASTA_PROBE_IS_NODE) data = at(data - PASTA_PROBE_IS_NODE)[k->grid % PASTA_PROBE_NODES];
    for (const char *text = k->accesses; data && sscanf(text, " %lx:%lx:%lx%n", &address, &count, &pc, &used) == 3; text += used)
        access_memory((const pasta_probe_launch *)at(data), address, count, pc);
    free(k);
}

/* ---- a driver ---- */

static uint64_t launches;
static const char *const names[16] = {"_Z6playedv", "_Z7playedav", "_Z7playedbv", "_Z7playedcv"};

static pasta_nv_launch launch_of(uint64_t stream) {
    return (pasta_nv_launch){.context = CONTEXT, .stream = stream, .unique_stream = stream, .module = chosen.module,
                             .function = chosen.function, .name = names[chosen.function % 16],
                             .grid = {chosen.grid, 1, 1}, .block = {32, 1, 1},
                             .launch = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED), .device = DEVICE,
                             .api_context = CONTEXT, .api_stream = stream, .api_unique_stream = stream};
}

static void start_kernel(const pasta_nv_launch *l, const char *accesses, bool node) {
    kernel *k = required(malloc(sizeof *k + strlen(accesses) + 1), "memory");
    strcpy(k->accesses, accesses);
    k->grid = l->grid_id;
    k->data = launch_data(l->launch, l->function, l->module, node);
    submit(l->unique_stream, run_kernel, k);
}

static void call(uint32_t id, const void *arguments, bool ends) {
    pasta_nv_api c = {ends ? PASTA_NV_API_EXIT : 0, "call", arguments, &(int32_t){0}, NULL, CONTEXT};
    deliver(PASTA_NV_DRIVER, id, &c);
}

static pasta_nv_launch_kernel arguments_of(const pasta_nv_launch *l) {
    pasta_nv_launch_kernel a = {.function = l->function};
    memcpy(a.config.grid, l->grid, sizeof a.config.grid);
    memcpy(a.config.block, l->block, sizeof a.config.block);
    return a;
}

static void launch(uint64_t stream, const char *accesses, bool fails) {
    pasta_nv_launch l = launch_of(stream);
    pasta_nv_launch_kernel a = arguments_of(&l);
    call(PASTA_NV_LAUNCH_KERNEL, &a, false);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &l);
    if (fails) {
        launch_data(l.launch, l.function, l.module, false);
    } else {
        start_kernel(&l, accesses, false);
        deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &l);
    }
    call(PASTA_NV_LAUNCH_KERNEL, &a, true);
}

static void print_planes(uint64_t stream) {
    pasta_nv_launch l = launch_of(stream);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &l);
    const uint64_t *planes = ((const pasta_probe_launch *)at(launch_data(l.launch, l.function, l.module, false)))->planes;
    printf("planes %lx %lx\n", (unsigned long)planes[0], (unsigned long)planes[1]);
    deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &l);
}

/* With `functions` 2, nodes are launches of two functions in turn. */
static void launch_graph(uint64_t stream, unsigned long nodes, unsigned functions, const char *accesses) {
    pasta_nv_graph g = {CONTEXT, stream, stream, 0x99, 0};
    pasta_nv_launch_graph a = {g.graph};
    const char *given = getenv("FAKE_SANITIZER_GRID_STEP");
    uint64_t step = given ? strtoull(given, NULL, 10) : 1;
    call(PASTA_NV_LAUNCH_GRAPH, &a, false);
    deliver(PASTA_NV_GRAPHS, PASTA_NV_GRAPH_BEGIN, &g);
    pasta_nv_launch *made = required(calloc(nodes, sizeof *made), "memory");
    for (unsigned long i = 0; i < nodes; i++) {
        made[i] = launch_of(stream);
        made[i].function += i % functions;
        made[i].name = names[made[i].function % 16];
        made[i].grid_id = 0x500 + i * step; /* as at the last launch of the graph */
        pasta_nv_node n = {.graph = 0x99, .launch_id = 1, .node = 0x1000 + i, .type = PASTA_NV_NODE_KERNEL};
        n.kernel = made[i];
        deliver(PASTA_NV_GRAPHS, PASTA_NV_NODE_BEGIN, &n);
        deliver(PASTA_NV_GRAPHS, PASTA_NV_NODE_END, &n);
    }
    for (unsigned long i = 0; i < nodes; i++) start_kernel(&made[i], accesses, true); /* after all begins */
    free(made);
    deliver(PASTA_NV_GRAPHS, PASTA_NV_GRAPH_END, &g);
    call(PASTA_NV_LAUNCH_GRAPH, &a, true);
}

static void make(void) {
    call(PASTA_NV_GRAPH_INSTANTIATE_WITH_FLAGS, NULL, false);
    make_graph();
    call(PASTA_NV_GRAPH_INSTANTIATE_WITH_FLAGS, NULL, true);
}

static void memory(uint32_t id, uint64_t context, uint64_t address, uint64_t bytes) {
    pasta_nv_memory m = {.address = address, .bytes = bytes, .context = context, .device = DEVICE, .source_device = DEVICE};
    deliver(PASTA_NV_RESOURCE, id, &m);
}

static void context(uint32_t id, uint64_t handle) {
    pasta_nv_context_13_1 c = {handle, 0, DEVICE};
    deliver(PASTA_NV_RESOURCE, id, &c);
}

static void stream(uint32_t id, uint64_t handle) {
    pasta_nv_stream_13_1 s = {CONTEXT, 0, handle, handle};
    deliver(PASTA_NV_RESOURCE, id, &s);
}

static void module(uint32_t id, uint64_t handle) {
    static char cubin[1 << 16] = "\177ELF of a cubin";
    static size_t bytes = 24;
    const char *real = getenv("FAKE_PROGRAM_CUBIN");
    FILE *file = real && bytes == 24 ? required(fopen(real, "rb"), real) : NULL;
    if (file) bytes = fread(cubin, 1, sizeof cubin, file), fclose(file);
    pasta_nv_module m = {CONTEXT, handle, bytes, cubin};
    deliver(PASTA_NV_RESOURCE, id, &m);
}

static void synchronize(void) {
    pasta_nv_sync s = {CONTEXT, 0};
    deliver(PASTA_NV_SYNCHRONIZE, PASTA_NV_CONTEXT_SYNCHRONIZED, &s);
}

static struct {
    unsigned long count, launches, address;
} team;

static void *play_thread(void *number) {
    char accesses[64];
    uint64_t own = 0x100 + (uint64_t)(uintptr_t)number;
    for (unsigned long i = 0; i < team.launches; i++) {
        snprintf(accesses, sizeof accesses, "%lx:%lx:10", team.address, i + 1);
        launch(i % 2 ? 0x99 : own, accesses, false);
        if (i % 50 == 49) { /* the table changes under all */
            memory(PASTA_NV_DEVICE_ALLOC, CONTEXT, 0x900000000 + (own << 20), 4096);
            memory(PASTA_NV_DEVICE_FREE, CONTEXT, 0x900000000 + (own << 20), 4096);
        }
    }
    return NULL;
}

static void play_threads(void) {
    pthread_t threads[64];
    for (uintptr_t i = 0; i < team.count; i++)
        if (pthread_create(&threads[i], NULL, play_thread, (void *)i)) exit(92);
    for (unsigned long i = 0; i < team.count; i++) pthread_join(threads[i], NULL);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void measure(unsigned long count, bool changes) {
    enum { BATCH = 100, STREAM = 0x51 };
    uint64_t *batches = required(calloc(count / BATCH, sizeof *batches), "memory");
    for (unsigned long i = 0; i < count; i++) {
        if (i % BATCH == 0) hold(STREAM, true); /* the GPU's work takes no host time */
        if (changes) memory(PASTA_NV_DEVICE_ALLOC, CONTEXT, 0x900000000, 4096);
        pasta_nv_launch l = launch_of(STREAM);
        pasta_nv_launch_kernel a = arguments_of(&l);
        uint64_t begin = now();
        call(PASTA_NV_LAUNCH_KERNEL, &a, false);
        deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN, &l);
        uint64_t middle = now();
        start_kernel(&l, "", false);
        uint64_t after = now();
        deliver(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END, &l);
        call(PASTA_NV_LAUNCH_KERNEL, &a, true);
        batches[i / BATCH] += now() - after + middle - begin;
        if (changes) memory(PASTA_NV_DEVICE_FREE, CONTEXT, 0x900000000, 0);
        if (i % BATCH == BATCH - 1) hold(STREAM, false);
    }
    qsort(batches, count / BATCH, sizeof *batches, by_size);
    printf("cost %lu\n", batches[count / BATCH / 2] / BATCH);
}

/* How often the thread that reads results has waited, by the kernel's count; -1: there is none. */
static long waits_of_reader(void) {
    static char path[64];
    char name[32], line[128];
    long count = -1;
    DIR *threads = *path ? NULL : required(opendir("/proc/self/task"), "threads");
    for (struct dirent *entry; threads && (entry = readdir(threads));) {
        char file[300];
        snprintf(file, sizeof file, "/proc/self/task/%s/comm", entry->d_name);
        FILE *comm = fopen(file, "r");
        if (comm && fgets(name, sizeof name, comm) && !strcmp(name, "pasta-probes\n"))
            snprintf(path, sizeof path, "/proc/self/task/%.20s/status", entry->d_name);
        if (comm) fclose(comm);
    }
    if (threads) closedir(threads);
    FILE *status = *path ? fopen(path, "r") : NULL;
    while (status && fgets(line, sizeof line, status)) sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    if (status) fclose(status);
    return count;
}

/* Until the reader has cleared so much, and then has waited some times: between two waits it does all that it can. */
static void await_reader(unsigned sets) {
    enum { ROUNDS = 3, MAX_TRIES = 60000 };
    long before = -1;
    for (int i = 0; i < MAX_TRIES; i++) {
        long now = cleared() < sets ? -1 : waits_of_reader();
        if (before < 0) before = now;
        if (now >= 0 && now >= before + ROUNDS) return;
        nanosleep(&(struct timespec){0, 1000 * 1000}, NULL);
    }
    fprintf(stderr, "fake program: the thread that reads results does not go on\n");
    exit(94);
}

/* As libc10 reports it to a profiler, which libpasta stands in for. */
static void tensor(unsigned long address, long bytes) {
    static long allocated;
    struct { int8_t type, index; } device = {1, DEVICE};
    void (*reported)(void *, int64_t, size_t, size_t, __typeof__(device));
    *(void **)&reported = required(dlsym(RTLD_DEFAULT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"), "report");
    allocated += bytes;
    reported((void *)address, bytes, (size_t)allocated, 1 << 20, device);
}

static void play(char *line) {
    char word[16] = "";
    unsigned long a = 0, b = 0;
    int rest = 0, more = 0;
    if (sscanf(line, "%15s %lx%n", word, &a, &rest) < 2) sscanf(line, "%15s", word);
    if (!strcmp(word, "alloc") && sscanf(line + rest, "%lx", &b)) memory(PASTA_NV_DEVICE_ALLOC, CONTEXT, a, b);
    else if (!strcmp(word, "nobody") && sscanf(line + rest, "%lx", &b)) memory(PASTA_NV_ASYNC_ALLOC, 0, a, b);
    else if (!strcmp(word, "free")) memory(PASTA_NV_DEVICE_FREE, CONTEXT, a, 0);
    else if (!strcmp(word, "tensor") && sscanf(line + rest, "%lx", &b)) tensor(a, (long)b);
    else if (!strcmp(word, "freed") && sscanf(line + rest, "%lx", &b)) tensor(a, -(long)b);
    else if (!strcmp(word, "launch")) launch(a, line + rest, false);
    else if (!strcmp(word, "fail")) launch(a, "", true);
    else if (!strcmp(word, "graph") && sscanf(line + rest, "%lx%n", &b, &more)) launch_graph(a, b, 1, line + rest + more);
    else if (!strcmp(word, "mixed") && sscanf(line + rest, "%lx%n", &b, &more)) launch_graph(a, b, 2, line + rest + more);
    else if (!strcmp(word, "capture")) {
        call(a ? PASTA_NV_BEGIN_CAPTURE_V2 : PASTA_NV_END_CAPTURE, NULL, !a);
    } else if (!strcmp(word, "make")) make();
    else if (!strcmp(word, "sync")) synchronize();
    else if (!strcmp(word, "hold")) hold(a, true);
    else if (!strcmp(word, "release")) hold(a, false);
    else if (!strcmp(word, "end")) stream(PASTA_NV_STREAM_DESTROYING, a), destroy_stream(a);
    else if (!strcmp(word, "destroy")) context(PASTA_NV_CONTEXT_DESTROYING, CONTEXT), context(PASTA_NV_CONTEXT_DESTROYED, CONTEXT);
    else if (!strcmp(word, "kernel") && sscanf(line + rest, "%lx %x", &b, &chosen.grid) == 2) chosen.module = a, chosen.function = b;
    else if (!strcmp(word, "report")) report();
    else if (!strcmp(word, "planes")) print_planes(a);
    else if (!strcmp(word, "used")) printf("used %lu\n", (unsigned long)device_bytes());
    else if (!strcmp(word, "unload")) module(PASTA_NV_MODULE_UNLOADING, a);
    else if (!strcmp(word, "load")) module(PASTA_NV_MODULE_LOADED, a);
    else if (!strcmp(word, "threads") && sscanf(line + rest, "%lx %lx", &team.launches, &team.address) == 2) team.count = a, play_threads();
    else if (!strcmp(word, "cost") && sscanf(line + rest, "%lx", &b) == 1) measure(a, b);
    else if (!strcmp(word, "pause")) await_reader(0);
    else if (!strcmp(word, "profile")) a ? pasta_start() : pasta_stop();
    else if (!strcmp(word, "enabled"))
        printf("enabled %d %d %d\n", is_enabled(PASTA_NV_DRIVER, PASTA_NV_LAUNCH_KERNEL), is_enabled(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_BEGIN),
               is_enabled(PASTA_NV_LAUNCH, PASTA_NV_LAUNCH_END));
    else if (!strcmp(word, "sleep")) nanosleep(&(struct timespec){0, (long)a * 1000 * 1000}, NULL);
    else if (!strcmp(word, "cleared")) await_reader((unsigned)a);
    else if (!strcmp(word, "kill")) kill(getpid(), SIGKILL);
    else exit(93);
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    initialize();
    context(PASTA_NV_CONTEXT_STARTING, 0);
    context(PASTA_NV_CONTEXT_CREATED, CONTEXT);
    module(PASTA_NV_MODULE_LOADED, MODULE);
    while (getline(&line, &room, stdin) > 0) play(line);
    free(line);
    puts("done");
    return 7;
}
