/* Source of annotations: pasta.h and pasta.annotate (pasta_api_*), and NVTX, whose headers load
 * this library through NVTX_INJECTION64_PATH and ask it for its functions.
 *
 * Annotations alone open a ring but start no consumer: a program that never uses an accelerator
 * leaves no run.  Of NVTX, ranges, marks, domains and registered strings are taken; categories
 * and names of threads and resources have no field in a record and stay no-ops.  Payloads are read in the domain of a
 * framework's runtime only. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../core/internal.h"
#include "nvtx_abi.h"

enum { MAX_STACKS = 64, MAX_TEXT = 4096 };
/* Stacks of pushed ranges of a thread; named domains follow. */
enum { STACK_NVTX = 0, STACK_API = 1, STACK_DOMAINS = 2 };

static __thread int32_t depths[MAX_STACKS];
static uint64_t last_range; /* NVTX and the API share ids, which are unique in the process */

/* Nothing is subscribed: the program calls these functions. */
static void load(void) { pasta_exec_variable("NVTX_INJECTION64_PATH", NULL); }

const pasta_component pasta_annotations = {.name = "annotations", .load = load};

/* ---- records ---- */

static void publish(pasta_event_kind kind, const pasta_range *range) {
    uint64_t stack = PASTA_RANGE_STACK(range->origin, range->domain);
    if (kind == PASTA_EVENT_range_push) pasta_probe_range_push(stack, range->name);
    if (kind == PASTA_EVENT_range_pop) pasta_probe_range_pop(stack);
    if (kind == PASTA_EVENT_range_start) pasta_probe_range_start(range->id, range->name);
    if (kind == PASTA_EVENT_range_end) pasta_probe_range_end(range->id);
    pasta_range *e = pasta_begin(kind, PASTA_SLOTS(pasta_range), PASTA_NO_DEVICE, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    *e = *range;
    pasta_publish(e);
}

/* Level of the range that opens, from 0; NVTX returns it to the program. */
static int pushed(unsigned stack) { return stack < MAX_STACKS ? depths[stack]++ : PASTA_NVTX_NOT_TRACKED; }

/* Level of the range that closes, or -1 where none is open. */
static int popped(unsigned stack) {
    if (stack >= MAX_STACKS) return PASTA_NVTX_NOT_TRACKED;
    return depths[stack] > 0 ? --depths[stack] : -1;
}

static uint64_t next_range(void) { return __atomic_add_fetch(&last_range, 1, __ATOMIC_RELAXED); }

/* ---- pasta.h ---- */

static pasta_range api_range(const char *name) {
    return (pasta_range){.id = PASTA_ABSENT_U64,
                         .name = pasta_intern_z(name),
                         .color = PASTA_ABSENT_U32,
                         .origin = PASTA_ORIGIN_api};
}

PASTA_EXPORT void pasta_api_start(void) { pasta_profiling_set(true, PASTA_ORIGIN_api); }
PASTA_EXPORT void pasta_api_stop(void) { pasta_profiling_set(false, PASTA_ORIGIN_api); }
PASTA_EXPORT int pasta_api_is_active(void) { return pasta_open() && pasta_profiling_is_on(); }

PASTA_EXPORT void pasta_api_range_push(const char *name) {
    pushed(STACK_API);
    if (!pasta_open()) return;
    pasta_range range = api_range(name);
    publish(PASTA_EVENT_range_push, &range);
}

PASTA_EXPORT void pasta_api_range_pop(void) {
    if (popped(STACK_API) < 0 || !pasta_open()) return;
    pasta_range range = api_range(NULL);
    publish(PASTA_EVENT_range_pop, &range);
}

PASTA_EXPORT uint64_t pasta_api_range_start(const char *name) {
    uint64_t id = next_range();
    if (!pasta_open()) return id;
    pasta_range range = api_range(name);
    range.id = id;
    publish(PASTA_EVENT_range_start, &range);
    return id;
}

PASTA_EXPORT void pasta_api_range_end(uint64_t id) {
    if (!id || !pasta_open()) return;
    pasta_range range = api_range(NULL);
    range.id = id;
    publish(PASTA_EVENT_range_end, &range);
}

PASTA_EXPORT void pasta_api_mark(const char *name) {
    if (!pasta_open()) return;
    pasta_range range = api_range(name);
    publish(PASTA_EVENT_mark, &range);
}

PASTA_EXPORT void pasta_api_step(void) {
    if (!pasta_open()) return;
    pasta_range range = api_range("step");
    range.domain = pasta_intern_z("pasta");
    publish(PASTA_EVENT_mark, &range);
    pasta_probe_step();
}

/* ---- NVTX: texts and domains, which outlive a fork while string ids do not ---- */

typedef struct {
    uint64_t id; /* generation << 32 | string id */
    void *kept;  /* by the reader of its domain */
    size_t length;
    char text[];
} pasta_text;

typedef struct pasta_domain {
    struct pasta_domain *next;
    const pasta_range_reader *reader;
    unsigned stack;
    pasta_text *name;
} pasta_domain;

static pasta_domain *domains;

static size_t utf8_from(const wchar_t *from, char *to) {
    size_t length = 0;
    for (; *from && length + 4 <= MAX_TEXT; from++) {
        uint32_t c = (uint32_t)*from;
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
        if (c < 0x80) {
            to[length++] = (char)c;
            continue;
        }
        unsigned more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
        to[length++] = (char)(lead[more] | c >> 6 * more);
        while (more--) to[length++] = (char)(0x80 | (c >> 6 * more & 0x3f));
    }
    return length;
}

static uint32_t intern_wide(const wchar_t *text) {
    char utf8[MAX_TEXT];
    return text ? pasta_intern(utf8, utf8_from(text, utf8)) : 0;
}

static pasta_text *keep_text(const char *text, size_t length) {
    pasta_text *kept = malloc(sizeof *kept + length + 1);
    if (!kept) return NULL;
    kept->id = 0;
    kept->kept = NULL;
    kept->length = length;
    memcpy(kept->text, text, length);
    kept->text[length] = '\0';
    return kept;
}

static uint32_t intern_text(pasta_text *text) {
    if (!text) return 0;
    uint64_t generation = pasta_generation(), known = __atomic_load_n(&text->id, __ATOMIC_RELAXED);
    if (known >> 32 == generation && (uint32_t)known) return (uint32_t)known;
    uint32_t id = pasta_intern(text->text, text->length);
    __atomic_store_n(&text->id, generation << 32 | id, __ATOMIC_RELAXED);
    return id;
}

static pasta_domain *find_domain(const char *name, size_t length) {
    for (pasta_domain *d = __atomic_load_n(&domains, __ATOMIC_ACQUIRE); d; d = d->next)
        if (d->name->length == length && !memcmp(d->name->text, name, length)) return d;
    return NULL;
}

/* Domains of the same name are one: libraries with their own copies of NVTX share it.  They are never
 * freed, as another copy may still hold the handle. */
static void *create_domain(const char *name, size_t length) {
    pasta_domain *fresh = NULL, *known, *first;
    while (!(known = find_domain(name, length))) {
        first = __atomic_load_n(&domains, __ATOMIC_ACQUIRE);
        if (!fresh) {
            fresh = calloc(1, sizeof *fresh);
            if (!fresh || !(fresh->name = keep_text(name, length))) break;
            fresh->reader = pasta_range_reader_of(name, length);
        }
        if (find_domain(name, length)) continue; /* another thread may have added it */
        fresh->next = first;
        fresh->stack = first ? first->stack + 1 : STACK_DOMAINS;
        if (__atomic_compare_exchange_n(&domains, &first, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return fresh;
    }
    if (fresh) free(fresh->name);
    free(fresh);
    return known;
}

static void *on_domain_create(const char *name) { return name ? create_domain(name, strlen(name)) : NULL; }

static void *on_domain_create_wide(const wchar_t *name) {
    char utf8[MAX_TEXT];
    return name ? create_domain(utf8, utf8_from(name, utf8)) : NULL;
}

static const pasta_range_reader *reader_of(const pasta_domain *domain) { return domain ? domain->reader : NULL; }

static void *on_register_string(void *domain, const char *text) {
    static pasta_text not_kept = {.text = ""};
    const pasta_range_reader *reader = reader_of(domain);
    size_t length = text ? strlen(text) : 0;
    if (text && reader && !(text = reader->part(text, &length))) return &not_kept;
    return text ? keep_text(text, length) : NULL;
}

static void *on_register_string_wide(void *domain, const wchar_t *text) {
    char utf8[MAX_TEXT];
    (void)domain;
    return text ? keep_text(utf8, utf8_from(text, utf8)) : NULL;
}

/* ---- NVTX: payloads of a domain that a framework reads ---- */

enum { MAX_SCHEMAS = 32 };

static struct {
    uint64_t id; /* 0: being written */
    uint64_t offsets[PASTA_RANGE_FIELDS]; /* in the payload; absent: all ones */
} schemas[MAX_SCHEMAS];
static unsigned schema_count;

static uint64_t offset_of(const pasta_nvtx_schema *schema, const char *field) {
    for (size_t i = 0; field && i < schema->count; i++) {
        const pasta_nvtx_entry *e = &schema->entries[i];
        if (e->type == PASTA_NVTX_ENTRY_REGISTERED && e->name && !strcmp(e->name, field)) return e->offset;
    }
    return PASTA_ABSENT_U64;
}

static uint64_t on_schema_register(void *domain, const pasta_nvtx_schema *schema) {
    enum { NEEDED = PASTA_NVTX_SCHEMA_HAS_ENTRIES | PASTA_NVTX_SCHEMA_HAS_COUNT };
    const pasta_range_reader *reader = reader_of(domain);
    if (!reader || !schema || (schema->fields & NEEDED) != NEEDED || !schema->entries) return 0;
    unsigned at = __atomic_fetch_add(&schema_count, 1, __ATOMIC_RELAXED);
    uint64_t id = schema->fields & PASTA_NVTX_SCHEMA_HAS_ID ? schema->id : PASTA_NVTX_SCHEMA_DYNAMIC + at;
    if (at >= MAX_SCHEMAS || !id) return 0;
    for (int i = 0; i < PASTA_RANGE_FIELDS; i++) schemas[at].offsets[i] = offset_of(schema, reader->fields[i]);
    __atomic_store_n(&schemas[at].id, id, __ATOMIC_RELEASE);
    return id;
}

/* Writes the texts of the reader's fields, where there are any. */
static void read_payload(const pasta_nvtx_attributes *a, const char **fields) {
    const pasta_nvtx_payload *p = (const pasta_nvtx_payload *)(uintptr_t)a->payload;
    if (a->payload_type != PASTA_NVTX_PAYLOAD_EXTENDED || a->reserved < 1 || !p || !p->schema || !p->data) return;
    int at = 0;
    while (at < MAX_SCHEMAS && __atomic_load_n(&schemas[at].id, __ATOMIC_ACQUIRE) != p->schema) at++;
    for (int i = 0; at < MAX_SCHEMAS && i < PASTA_RANGE_FIELDS; i++) {
        const pasta_text *text;
        if (p->size < sizeof text || schemas[at].offsets[i] > p->size - sizeof text) continue;
        memcpy(&text, (const char *)p->data + schemas[at].offsets[i], sizeof text);
        if (text && text->length) fields[i] = text->text;
    }
}

/* Whether the reader of the range's domain, which counts all ranges, accepts a beginning range. */
static bool read_range(const pasta_domain *domain, const pasta_nvtx_attributes *a) {
    const pasta_range_reader *reader = reader_of(domain);
    const char *fields[PASTA_RANGE_FIELDS] = {NULL};
    if (!reader) return false;
    bool is_known = a && a->size >= sizeof *a;
    if (is_known) read_payload(a, fields);
    if (is_known && a->message_type == PASTA_NVTX_MESSAGE_REGISTERED && a->message.registered) {
        pasta_text *name = (pasta_text *)a->message.registered;
        return reader->push(name->text, fields, &name->kept);
    }
    bool is_text = is_known && a->message_type == PASTA_NVTX_MESSAGE_ASCII;
    return reader->push(is_text ? a->message.ascii : NULL, fields, NULL);
}

/* ---- NVTX: ranges and marks ---- */

static pasta_range nvtx_range(pasta_domain *domain) {
    return (pasta_range){.id = PASTA_ABSENT_U64,
                         .domain = domain ? intern_text(domain->name) : 0,
                         .color = PASTA_ABSENT_U32,
                         .origin = PASTA_ORIGIN_nvtx};
}

static uint32_t message_of(const pasta_nvtx_attributes *a) {
    switch (a->message_type) {
    case PASTA_NVTX_MESSAGE_ASCII: return pasta_intern_z(a->message.ascii);
    case PASTA_NVTX_MESSAGE_UNICODE: return intern_wide(a->message.unicode);
    case PASTA_NVTX_MESSAGE_REGISTERED: return intern_text((pasta_text *)a->message.registered);
    default: return 0;
    }
}

static pasta_range described(pasta_domain *domain, const pasta_nvtx_attributes *a) {
    pasta_range range = nvtx_range(domain);
    if (!a || a->size < sizeof *a) return range; /* an unknown version */
    range.name = message_of(a);
    if (a->color_type == PASTA_NVTX_COLOR_ARGB) range.color = a->color;
    return range;
}

static pasta_range named(const char *name) {
    pasta_range range = nvtx_range(NULL);
    range.name = pasta_intern_z(name);
    return range;
}

static pasta_range named_wide(const wchar_t *name) {
    pasta_range range = nvtx_range(NULL);
    range.name = intern_wide(name);
    return range;
}

static unsigned stack_of(const pasta_domain *domain) { return domain ? domain->stack : STACK_NVTX; }

static void mark(pasta_range range) { publish(PASTA_EVENT_mark, &range); }

static int push(pasta_range range, unsigned stack) {
    publish(PASTA_EVENT_range_push, &range);
    return pushed(stack);
}

static uint64_t start(pasta_range range) {
    range.id = next_range();
    publish(PASTA_EVENT_range_start, &range);
    return range.id;
}

static void on_mark(const char *name) {
    if (pasta_open()) mark(named(name));
}
static void on_mark_wide(const wchar_t *name) {
    if (pasta_open()) mark(named_wide(name));
}
static void on_domain_mark(void *domain, const pasta_nvtx_attributes *a) {
    if (pasta_open()) mark(described(domain, a));
}
static void on_mark_ex(const pasta_nvtx_attributes *a) { on_domain_mark(NULL, a); }

static int on_push(const char *name) { return pasta_open() ? push(named(name), STACK_NVTX) : pushed(STACK_NVTX); }
static int on_push_wide(const wchar_t *name) {
    return pasta_open() ? push(named_wide(name), STACK_NVTX) : pushed(STACK_NVTX);
}
static int on_domain_push(void *domain, const pasta_nvtx_attributes *a) {
    if (read_range(domain, a)) return pushed(stack_of(domain));
    return pasta_open() ? push(described(domain, a), stack_of(domain)) : pushed(stack_of(domain));
}
static int on_push_ex(const pasta_nvtx_attributes *a) { return on_domain_push(NULL, a); }

static int on_domain_pop(void *domain) {
    int level = popped(stack_of(domain));
    const pasta_range_reader *reader = reader_of(domain);
    if (level != -1 && reader && reader->pop()) return level;
    if (level == -1 || !pasta_open()) return level;
    pasta_range range = nvtx_range(domain);
    publish(PASTA_EVENT_range_pop, &range);
    return level;
}
static int on_pop(void) { return on_domain_pop(NULL); }

static uint64_t on_start(const char *name) { return pasta_open() ? start(named(name)) : 0; }
static uint64_t on_start_wide(const wchar_t *name) { return pasta_open() ? start(named_wide(name)) : 0; }
static uint64_t on_domain_start(void *domain, const pasta_nvtx_attributes *a) {
    return pasta_open() ? start(described(domain, a)) : 0;
}
static uint64_t on_start_ex(const pasta_nvtx_attributes *a) { return on_domain_start(NULL, a); }

static void on_domain_end(void *domain, uint64_t id) {
    if (!id || !pasta_open()) return;
    pasta_range range = nvtx_range(domain);
    range.id = id;
    publish(PASTA_EVENT_range_end, &range);
}
static void on_end(uint64_t id) { on_domain_end(NULL, id); }

/* ---- NVTX: attaching ---- */

typedef struct {
    unsigned number;
    pasta_nvtx_function function;
} numbered;

#define ENTRY(number, function) {PASTA_NVTX_##number, (pasta_nvtx_function)(function)}
static const numbered core[] = {
    ENTRY(MARK_EX, on_mark_ex),
    ENTRY(MARK_A, on_mark),
    ENTRY(MARK_W, on_mark_wide),
    ENTRY(RANGE_START_EX, on_start_ex),
    ENTRY(RANGE_START_A, on_start),
    ENTRY(RANGE_START_W, on_start_wide),
    ENTRY(RANGE_END, on_end),
    ENTRY(RANGE_PUSH_EX, on_push_ex),
    ENTRY(RANGE_PUSH_A, on_push),
    ENTRY(RANGE_PUSH_W, on_push_wide),
    ENTRY(RANGE_POP, on_pop),
};
static const numbered core2[] = {
    ENTRY(DOMAIN_MARK_EX, on_domain_mark),
    ENTRY(DOMAIN_RANGE_START_EX, on_domain_start),
    ENTRY(DOMAIN_RANGE_END, on_domain_end),
    ENTRY(DOMAIN_RANGE_PUSH_EX, on_domain_push),
    ENTRY(DOMAIN_RANGE_POP, on_domain_pop),
    ENTRY(DOMAIN_REGISTER_STRING_A, on_register_string),
    ENTRY(DOMAIN_REGISTER_STRING_W, on_register_string_wide),
    ENTRY(DOMAIN_CREATE_A, on_domain_create),
    ENTRY(DOMAIN_CREATE_W, on_domain_create_wide),
};

static bool attach(const pasta_nvtx_callbacks *callbacks, int module, const numbered *entries, size_t count) {
    pasta_nvtx_function **table = NULL;
    unsigned size = 0;
    if (!callbacks->module_table(module, &table, &size) || !table) return false;
    for (size_t i = 0; i < count; i++)
        if (entries[i].number < size && table[entries[i].number]) *table[entries[i].number] = entries[i].function;
    return true;
}

/* Called once by every copy of NVTX in the process, at its first use; 0 leaves that copy a no-op. */
PASTA_EXPORT int InitializeInjectionNvtx2(pasta_nvtx_tables tables) {
    if (!pasta_wanted() || !tables) return 0;
    const pasta_nvtx_callbacks *callbacks = tables(PASTA_NVTX_TABLE_CALLBACKS);
    if (!callbacks || callbacks->bytes < sizeof *callbacks) {
        pasta_log("this program's NVTX offers no callbacks: its ranges are not recorded");
        return 0;
    }
    bool done = attach(callbacks, PASTA_NVTX_CORE, core, sizeof core / sizeof *core);
    done |= attach(callbacks, PASTA_NVTX_CORE2, core2, sizeof core2 / sizeof *core2);
    const pasta_nvtx_version *version = tables(PASTA_NVTX_TABLE_VERSION);
    if (done && version && version->bytes >= sizeof *version) version->set_injection_version(3);
    return done;
}

/* The same for the functions of an extension.  Those that are left unset are no-ops; 0 would have programs take every
 * domain for disabled. */
PASTA_EXPORT int InitializeInjectionNvtxExtension(pasta_nvtx_extension *extension) {
    if (!pasta_wanted() || !extension || extension->id != PASTA_NVTX_EXTENSION_PAYLOAD) return 1;
    if (extension->segment_count && extension->segments[0].count > PASTA_NVTX_PAYLOAD_SCHEMA_REGISTER)
        extension->segments[0].functions[PASTA_NVTX_PAYLOAD_SCHEMA_REGISTER] = (pasta_nvtx_function)on_schema_register;
    return 1;
}
