/* A tool that prints its callbacks, for tests of the replayer and as another vendor's tool. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay_abi.h"

enum { MAX_OPERATIONS = 512 };

static uint32_t version;
static void *library; /* the caller */
static uint64_t context;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) fprintf(stderr, "print_tool: no %s\n", name), exit(97);
    return found;
}

static const char *name_of(int kind, int32_t operation) {
    const char *name = "?";
    int (*query)(int, uint32_t, const char **, uint64_t *);
    *(void **)&query = function("rocprofiler_query_callback_tracing_kind_operation_name");
    query(kind, (uint32_t)operation, &name, NULL);
    return name;
}

static void print(uint64_t thread, uint64_t internal, int kind, int32_t operation, int phase, const uint64_t *payload,
                  uint64_t *user) {
    static const char *const phases[] = {"NONE", "ENTER", "EXIT"};
    if (phase == PHASE_ENTER) *user = internal + 1;
    printf("tool %s %s corr=%lu user=%lu bytes=%lu thread=%d", name_of(kind, operation), phases[phase], internal, *user,
           payload[0], thread != 0);
    for (uint64_t i = 1; i < payload[0] / 8 && i < 4; i++) printf(" %#lx", payload[i]);
    if (!strcmp(name_of(kind, operation), "hipMalloc"))
        printf(" pointer=%#lx", *(uint64_t *)(uintptr_t)payload[1]);
    puts("");
    errno = EIO; /* which a tool must not */
}

static void on_old(record_0_5 r, uint64_t *user, void *argument) {
    if (argument != &context) abort();
    print(r.thread, r.internal, r.kind, r.operation, r.phase, r.payload, user);
}

static void on_new(record_1_0 r, uint64_t *user, void *argument) {
    if (argument != &context) abort();
    print(r.thread, r.internal, r.kind, r.operation, r.phase, r.payload, user);
}

static struct {
    const char *kind;
    const char *operations[8];
} wanted[] = {
    {"HIP_RUNTIME_API", {"hipMalloc", "hipFree", "hipMemset", "hipMemcpyAsync", "hipEventRecord"}},
    {"KERNEL_DISPATCH", {"KERNEL_DISPATCH_ENQUEUE", "KERNEL_DISPATCH_COMPLETE"}},
};
static int32_t found[MAX_OPERATIONS];
static size_t found_count;
static size_t at;

static int take_operation(int kind, uint32_t operation, void *user) {
    (void)user;
    for (const char *const *name = wanted[at].operations; *name; name++)
        if (!strcmp(*name, name_of(kind, (int32_t)operation))) found[found_count++] = (int32_t)operation;
    return 0;
}

static int take_kind(int kind, void *user) {
    (void)user;
    const char *name = "?";
    int (*query)(int, const char **, uint64_t *);
    *(void **)&query = function("rocprofiler_query_callback_tracing_kind_name");
    query(kind, &name, NULL);
    for (at = 0; at < sizeof wanted / sizeof *wanted; at++) {
        if (strcmp(wanted[at].kind, name)) continue;
        int (*iterate)(int, int (*)(int, uint32_t, void *), void *);
        *(void **)&iterate = function("rocprofiler_iterate_callback_tracing_kind_operations");
        found_count = 0;
        iterate(kind, take_operation, NULL);
        int (*subscribe)(uint64_t, int, const int32_t *, size_t, void *, void *);
        *(void **)&subscribe = function("rocprofiler_configure_callback_tracing_service");
        void *callback = version < 10000 ? (void *)(uintptr_t)on_old : (void *)(uintptr_t)on_new;
        printf("tool subscribed %s %zu: %d\n", name, found_count,
               subscribe(context, kind, found, found_count, callback, &context));
    }
    return 0;
}

static int take_agents(int layout, const void **agents, size_t count, void *user) {
    (void)layout, (void)user;
    for (size_t i = 0; i < count; i++) {
        const agent_data *a = agents[i];
        printf("tool agent %lu type %u %s size %lu\n", a->id, a->type, a->name, a->size);
    }
    return 0;
}

static int initialize(void (*finalize)(void), void *user) {
    (void)finalize, (void)user;
    int (*create)(uint64_t *), (*iterate)(int (*)(int, void *), void *), (*start)(uint64_t);
    int (*agents)(int, int (*)(int, const void **, size_t, void *), size_t, void *);
    *(void **)&create = function("rocprofiler_create_context");
    *(void **)&iterate = function("rocprofiler_iterate_callback_tracing_kinds");
    *(void **)&start = function("rocprofiler_start_context");
    *(void **)&agents = function("rocprofiler_query_available_agents");
    printf("tool create %d\n", create(&context));
    agents(1, take_agents, AGENT_0_5, NULL);
    iterate(take_kind, NULL);
    printf("tool start %d\n", start(context));
    return 0;
}

static void finish(void *user) {
    (void)user;
    puts("tool finished");
    fflush(stdout);
}

__attribute__((visibility("default"))) tool_result *rocprofiler_configure(uint32_t given, const char *text,
                                                                         uint32_t priority, void *client) {
    static tool_result result = {sizeof result, initialize, finish, NULL};
    Dl_info caller;
    if (!dladdr(__builtin_return_address(0), &caller)) abort();
    library = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    version = given;
    if (version < 10000) ((client_0_5 *)client)->name = "print_tool";
    else ((client_1_0 *)client)->name = "print_tool";
    printf("tool configure %u %s %u\n", version, text, priority);
    return &result;
}
