/* Work that is described in a file (tests/support/amd_work.py), done by the reference accelerator. */
#include <stdbool.h>

#include "pasta.h"
#include "refacc.h"
#include "work.h"

#define RA(call)                                                                    \
    do {                                                                            \
        int error = (call);                                                         \
        if (error) fprintf(stderr, "%s: %s\n", #call, ra_error_string(error)), exit(96); \
    } while (0)

static ra_function fill;

static ra_stream stream_at(const work_step *s, int i) { return (ra_stream)(uintptr_t)work_value(s, i); }
static void *memory_at(const work_step *s, int i) { return (void *)(uintptr_t)work_value(s, i); }
static void name(const char *word, const void *handle) { work_name(word, (uint64_t)(uintptr_t)handle); }

static void make(const work_step *s) {
    void *memory;
    ra_stream stream;
    ra_event event;
    ra_graph_exec exec;
    uint64_t bytes = work_number(s, 3);
    if (WORK_IS("stream")) {
        RA(ra_stream_create(&stream, (int)strtol(s->word[2], NULL, 0)));
        name(s->word[1], stream);
    } else if (WORK_IS("event")) {
        RA(ra_event_create(&event));
        name(s->word[1], event);
    } else if (WORK_IS("instantiate")) {
        RA(ra_graph_instantiate(&exec, (ra_graph)(uintptr_t)work_value(s, 2)));
        name(s->word[1], exec);
    } else {
        if (!strcmp(s->word[2], "device")) RA(ra_alloc(&memory, bytes));
        else if (!strcmp(s->word[2], "managed")) RA(ra_alloc_managed(&memory, bytes));
        else if (!strcmp(s->word[2], "pinned")) RA(ra_alloc_pinned(&memory, bytes));
        else RA(ra_alloc_async(&memory, bytes, stream_at(s, 4)));
        name(s->word[1], memory);
    }
}

static void copy(const work_step *s) {
    void *to = memory_at(s, 1), *from = memory_at(s, 2);
    if (WORK_IS("rows") && s->count > 7)
        RA(ra_memcpy_2d_async(to, work_number(s, 3), from, work_number(s, 4), work_number(s, 5), work_number(s, 6),
                              stream_at(s, 7)));
    else if (WORK_IS("rows"))
        RA(ra_memcpy_2d(to, work_number(s, 3), from, work_number(s, 4), work_number(s, 5), work_number(s, 6)));
    else if (s->count > 4) RA(ra_memcpy_async(to, from, work_number(s, 3), stream_at(s, 4)));
    else RA(ra_memcpy(to, from, work_number(s, 3)));
}

static void set(const work_step *s) {
    void *to = memory_at(s, 1);
    uint32_t value = (uint32_t)work_number(s, WORK_IS("area") ? 3 : 2), element = (uint32_t)work_number(s, 3);
    if (WORK_IS("area") && s->count > 6)
        RA(ra_memset_2d_async(to, work_number(s, 2), value, 1, work_number(s, 4), work_number(s, 5), stream_at(s, 6)));
    else if (WORK_IS("area")) RA(ra_memset_2d(to, work_number(s, 2), value, 1, work_number(s, 4), work_number(s, 5)));
    else if (s->count > 5) RA(ra_memset_async(to, value, element, work_number(s, 4), stream_at(s, 5)));
    else RA(ra_memset(to, value, element, work_number(s, 4)));
}

static void launch(const work_step *s) {
    uint32_t grid[3], block[3];
    void *to = memory_at(s, 8);
    float one = 1;
    int n = 1;
    for (int axis = 0; axis < 3; axis++) {
        grid[axis] = (uint32_t)work_number(s, 1 + axis);
        block[axis] = (uint32_t)work_number(s, 4 + axis);
    }
    RA(ra_launch(fill, grid, block, (uint32_t)work_number(s, 7), stream_at(s, 9), (void *[]){&to, &one, &n}));
}

static void step(const work_step *s) {
    ra_event event = (ra_event)(uintptr_t)work_value(s, 1);
    ra_stream stream = stream_at(s, 1);
    ra_graph graph;
    if (WORK_IS("stream") || WORK_IS("event") || WORK_IS("instantiate") || WORK_IS("alloc")) make(s);
    else if (WORK_IS("copy") || WORK_IS("rows")) copy(s);
    else if (WORK_IS("set") || WORK_IS("area")) set(s);
    else if (WORK_IS("launch")) launch(s);
    else if (WORK_IS("unstream")) RA(ra_stream_destroy(stream));
    else if (WORK_IS("free") && s->count > 2) RA(ra_free_async(memory_at(s, 1), stream_at(s, 2)));
    else if (WORK_IS("free")) RA(ra_free(memory_at(s, 1)));
    else if (WORK_IS("record")) RA(ra_event_record(event, stream_at(s, 2)));
    else if (WORK_IS("wait")) RA(ra_stream_wait_event(stream_at(s, 2), event));
    else if (WORK_IS("await")) RA(ra_event_synchronize(event));
    else if (WORK_IS("unevent")) RA(ra_event_destroy(event));
    else if (WORK_IS("drain") && s->count > 1) RA(ra_stream_synchronize(stream));
    else if (WORK_IS("drain")) RA(ra_context_synchronize());
    else if (WORK_IS("device")) RA(ra_device_synchronize());
    else if (WORK_IS("push")) pasta_range_push(s->word[1]);
    else if (WORK_IS("pop")) pasta_range_pop();
    else if (WORK_IS("mark")) pasta_mark(s->word[1]);
    else if (WORK_IS("prefetch"))
        RA(ra_prefetch(memory_at(s, 1), work_number(s, 2), (int)work_number(s, 3), stream_at(s, 4)));
    else if (WORK_IS("advise"))
        RA(ra_advise(memory_at(s, 1), work_number(s, 2), (ra_advice)work_number(s, 3), (int)work_number(s, 4)));
    else if (WORK_IS("attach"))
        RA(ra_stream_attach(stream_at(s, 3), memory_at(s, 1), work_number(s, 2), (uint32_t)work_number(s, 4)));
    else if (WORK_IS("capture")) RA(ra_stream_begin_capture(stream));
    else if (WORK_IS("captured")) {
        RA(ra_stream_end_capture(stream_at(s, 2), &graph));
        name(s->word[1], graph);
    } else if (WORK_IS("run")) RA(ra_graph_launch((ra_graph_exec)(uintptr_t)work_value(s, 1), stream_at(s, 2)));
    else if (WORK_IS("off")) RA(ra_profiler_stop());
    else if (WORK_IS("on")) RA(ra_profiler_start());
    else exit(95);
}

int main(int count, char **words) {
    ra_module module;
    if (count != 2) return 94;
    RA(ra_module_load_builtin(&module));
    RA(ra_module_function(&fill, module, "_Z4fillIfEvPT_S0_i"));
    work_do(words[1], step);
    puts("done");
    return 7;
}
