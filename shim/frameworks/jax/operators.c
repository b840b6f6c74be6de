/* Operators of JAX: executions of XLA's modules, and the HLO instructions in them.
 *
 * XLA pushes a range of its NVTX domain around each execution of a module, and in it around the launches of each
 * instruction, on the thread that launches; when it records a CUDA graph, around what it adds for each instruction.
 * The names are registered when a module is loaded, with the JAX operation and the source lines of each instruction:
 * nothing of XLA is replaced or called. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../framework.h"
#include "arrays.h"
#include "xla.h"

enum { BACKWARD = 1 }; /* scope of operators that compute gradients */
enum { MAX_FRAMES = 64, MAX_NAME = 4096, MAX_LEVELS = 16 };
enum { PLACES, COMMON_PLACES, HLO }; /* fields of payloads */

/* What a title means, as ids of this process and block. */
typedef struct operator {
    uint64_t epoch;
    uint32_t name, module, stack;
    uint32_t kernel; /* name of the kernel that XLA makes of an instruction; 0 once it is recorded */
    uint8_t scope;
    bool is_module;
    /* of a module: */
    const char *prefix; /* common prefix of the names of its operations */
    const char *label;  /* its name */
    const char *places; /* the frames that the stacks of its instructions begin with */
} operator;

static bool followed;
static uint32_t blocks;
static char version[32];

/* Open ranges of this thread: what each was taken for, or NULL. */
static __thread struct {
    const operator *open[MAX_LEVELS];
    unsigned levels;
    uint16_t depth; /* of operators */
} here;

static uint64_t current_epoch(void) { return (uint64_t)pasta_generation() << 32 | __atomic_load_n(&blocks, __ATOMIC_RELAXED); }

/* ---- parsing of titles ---- */

typedef struct stack {
    pasta_xla_frame frames[MAX_FRAMES]; /* the innermost last */
    unsigned count;
} stack;

/* Adds the first stack of a list: each of its frames is a level deeper than the one before, or all have no level. */
static void add_frames(stack *s, const char *places) {
    pasta_xla_frame frame;
    unsigned level = 0;
    for (const char *at = places; at && (at = pasta_xla_read_frame(at, &frame)); level = frame.level) {
        if (level && frame.level <= level) break;
        if (!frame.file.text) continue;
        if (s->count == MAX_FRAMES) memmove(s->frames, s->frames + 1, --s->count * sizeof *s->frames);
        s->frames[s->count++] = frame;
    }
}

/* Id of a stack whose frames are recorded; 0: no stack. */
static uint32_t record_stack(const char *outer, const char *inner) {
    stack s = {.count = 0};
    add_frames(&s, outer);
    add_frames(&s, inner);
    uint32_t id = s.count ? pasta_jax_new_stack() : 0;
    for (unsigned depth = 0; depth < s.count; depth++) {
        char text[MAX_NAME];
        const pasta_xla_frame *f = &s.frames[s.count - 1 - depth];
        pasta_python_frame *e = PASTA_BEGIN(python_frame, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
        if (!e) continue;
        e->stack = id;
        e->depth = depth;
        e->file = pasta_intern(text, pasta_xla_unescape(f->file, text, sizeof text));
        e->function = f->function.text ? pasta_intern(text, pasta_xla_unescape(f->function, text, sizeof text)) : 0;
        e->line = f->line;
        e->first_line = 0;
        pasta_publish(e);
    }
    return id;
}

static const char *copy(pasta_xla_text text) { return text.text ? strndup(text.text, text.length) : NULL; }

/* Writes the path of an operation in the program, without the jit() around all of it.  `own`: that of the instruction;
 * a title has what it has in common with those fused with it. */
static const char *write_path(const pasta_xla_title *title, pasta_xla_text own, const char *prefix, char *to, size_t size) {
    const char *name = title->name.text ? title->name.text : "";
    int length = (int)title->name.length;
    if (own.text) snprintf(to, size, "%.*s", (int)own.length, own.text);
    else if (!prefix || !strncmp(name, "jit(", 4)) snprintf(to, size, "%.*s", length, name);
    else snprintf(to, size, "%s%s%.*s", prefix, length ? "/" : "", length, name);
    if (strncmp(to, "jit(", 4) != 0) return to;
    const char *slash = strchr(to, '/');
    return slash ? slash + 1 : "";
}

/* The primitive that a path ends with: "dot_general"; or the instruction's kind where it ends with a scope, as that of
 * several fused operations does: "loop_add_fusion" of loop_add_fusion.3. */
static uint32_t name_of(const char *path, pasta_xla_text instruction) {
    const char *last = strrchr(path, '/');
    last = last ? last + 1 : path;
    size_t length = strcspn(last, "["); /* without parameters */
    if (length && !memchr(last, '(', length)) return pasta_intern(last, length);
    length = instruction.length;
    while (length && instruction.text[length - 1] >= '0' && instruction.text[length - 1] <= '9') length--;
    bool numbered = length > 1 && length < instruction.length && instruction.text[length - 1] == '.';
    return pasta_intern(instruction.text, numbered ? length - 1 : instruction.length);
}

/* XLA names a kernel after its instruction, or the first one of those that share it, with _ for what is no letter or
 * digit. */
static uint32_t kernel_of(pasta_xla_text instruction) {
    char text[MAX_NAME];
    size_t length = instruction.length < sizeof text ? instruction.length : sizeof text;
    for (size_t i = 0; i < length; i++) text[i] = isalnum((unsigned char)instruction.text[i]) ? instruction.text[i] : '_';
    return pasta_intern(text, length);
}

/* `origin`: metadata of its HLO, or "". */
static void describe_instruction(operator *o, const pasta_xla_title *title, const char *origin, const operator *module) {
    char path[MAX_NAME], text[2 * MAX_NAME];
    const pasta_xla_text in = title->instruction, shared = pasta_xla_read_value(origin, "deduplicated_name");
    const char *inner = write_path(title, pasta_xla_read_value(origin, "op_name"), module ? module->prefix : NULL, path, sizeof path);
    const char *place = *inner ? inner : module && module->label ? module->label : "";
    int length = snprintf(text, sizeof text, "%s%s(%.*s)", place, *place ? " " : "", (int)in.length, in.text);
    o->name = name_of(inner, in);
    o->module = pasta_intern(text, length > 0 && (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    o->scope = strstr(inner, "transpose(") ? BACKWARD : 0;
    o->kernel = kernel_of(shared.text ? shared : in);
}

static operator *describe(const pasta_xla_title *title, const char *const *fields, const operator *module) {
    operator *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->epoch = current_epoch();
    o->is_module = title->is_module;
    if (title->is_module) {
        o->name = pasta_intern(title->module.text, title->module.length);
        o->label = copy(title->module);
        o->prefix = copy(title->prefix);
        o->places = fields[COMMON_PLACES];
        o->stack = record_stack(NULL, o->places);
    } else {
        describe_instruction(o, title, fields[HLO] ? fields[HLO] : "", module);
        o->stack = fields[PLACES] ? record_stack(module ? module->places : NULL, fields[PLACES]) : 0;
    }
    return o;
}

static const operator *innermost_module(void) {
    for (unsigned i = here.levels < MAX_LEVELS ? here.levels : MAX_LEVELS; i-- > 0;)
        if (here.open[i] && here.open[i]->is_module) return here.open[i];
    return NULL;
}

/* What was described for an earlier epoch is not freed: another thread may read it. */
static operator *find(const char *name, const char *const *fields, void **kept) {
    operator *known = __atomic_load_n((operator **)kept, __ATOMIC_ACQUIRE);
    pasta_xla_title title;
    if (PASTA_LIKELY(known && known->epoch == current_epoch())) return known;
    if (!pasta_xla_read_title(name, &title)) return NULL;
    operator *made = describe(&title, fields, innermost_module());
    if (made) __atomic_store_n((operator **)kept, made, __ATOMIC_RELEASE);
    return made;
}

/* ---- records ---- */

static void publish_range(pasta_event_kind kind, uint32_t name) {
    pasta_range *e = pasta_begin(kind, PASTA_SLOTS(pasta_range), PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = (pasta_range){.id = PASTA_ABSENT_U64, .name = name, .domain = pasta_intern_z("jax"), .color = PASTA_ABSENT_U32,
                       .origin = PASTA_ORIGIN_framework};
    pasta_publish(e);
}

/* In a CUDA graph the instruction's kernel runs when no range of it is open. */
static void publish_kernel(operator *o) {
    uint32_t name = __atomic_exchange_n(&o->kernel, 0, __ATOMIC_RELAXED);
    pasta_graph_node *e = name ? PASTA_BEGIN(graph_node, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM) : NULL;
    if (!e) return;
    e->name = name;
    pasta_publish(e);
}

static void begin(operator *o) {
    pasta_operator_begin begin = {.name = o->name, .module = o->module, .stack = o->stack, .sequence = PASTA_ABSENT_U32,
                                  .forward_thread = PASTA_ABSENT_U16, .depth = ++here.depth, .scope = o->scope};
    if (o->is_module) {
        pasta_probe_range_push(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, 0), o->name);
        publish_range(PASTA_EVENT_range_push, o->name);
    }
    if (pasta_scope_follows_operators) pasta_scope_operator_begins(&begin);
    pasta_operator_begin *e = PASTA_BEGIN(operator_begin, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = begin;
    pasta_publish(e);
    if (PASTA_UNLIKELY(o->kernel)) publish_kernel(o);
}

static void end(const operator *o) {
    if (pasta_scope_follows_operators) pasta_scope_operator_ends();
    pasta_operator_end *e = PASTA_BEGIN(operator_end, PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (e) {
        *e = (pasta_operator_end){.depth = here.depth};
        pasta_publish(e);
    }
    here.depth--;
    if (!o->is_module) return;
    pasta_probe_range_pop(PASTA_RANGE_STACK(PASTA_ORIGIN_framework, 0));
    publish_range(PASTA_EVENT_range_pop, 0);
    pasta_jax_executed();
}

/* ---- ranges of XLA ---- */

/* Names, lists of source locations, and of an instruction's HLO its origin; not the rest, nor what it calls, which can
 * have many pages. */
static const char *part(const char *text, size_t *length) {
    pasta_xla_title title;
    pasta_xla_frame frame;
    if (pasta_xla_read_title(text, &title)) return text;
    if (*text == '\n') return pasta_xla_read_frame(text, &frame) && frame.file.text ? text : NULL;
    pasta_xla_text metadata = pasta_xla_read_metadata(text);
    if (!metadata.text) return strstr(text, " = ") ? NULL : text;
    *length = metadata.length;
    return metadata.text;
}

/* Only registered names are read: others would be at each push. */
static bool push(const char *name, const char *const *fields, void **kept) {
    bool is_read = followed && kept && here.levels < MAX_LEVELS && pasta_use("jax", version);
    operator *found = is_read ? find(name, fields, kept) : NULL;
    if (found) begin(found);
    if (here.levels < MAX_LEVELS) here.open[here.levels] = found;
    here.levels++;
    return found != NULL;
}

static bool pop(void) {
    if (!here.levels || --here.levels >= MAX_LEVELS) return false;
    const operator *found = here.open[here.levels];
    if (found) end(found);
    return found != NULL;
}

/* ---- called by the hooks ---- */

/* Follows operators or not, and describes them again; the earlier state.  `of`: version of JAX. */
PASTA_EXPORT int pasta_jax_follow(int follow, const char *of) {
    snprintf(version, sizeof version, "%s", of);
    __atomic_add_fetch(&blocks, 1, __ATOMIC_RELAXED);
    return __atomic_exchange_n(&followed, follow != 0, __ATOMIC_RELEASE);
}

static void load(void) {
    static const pasta_range_reader reader = {
        .domain = "TSL",
        .fields = {[PLACES] = "Source locations", [COMMON_PLACES] = "Common source locations", [HLO] = "HLO"},
        .part = part, .push = push, .pop = pop};
    pasta_read_ranges(&reader);
}

const pasta_component pasta_jax_framework = {.name = "jax", .load = load};
