/* The part of replay_sdk.c for counters and samples.  A counter's value is 100 times the dispatch's id plus
 * the index of its instance; samples come from the stream:
 *
 *   sample method=1|2 agent=A object=N offset=N dispatch=N count=N issued=0|1 reason=N
 *   flush                                     delivers the buffers' contents
 */

enum { MAX_CONFIGS = 64, MAX_COUNTED = 8, MAX_BUFFERS = 16, MAX_SAMPLES = 4096, COUNTER = 7000 };
enum { CATEGORY_SAMPLES = 2, KIND_TRAP = 2, KIND_TRAP_0_6 = 1, KIND_STOCHASTIC = 3, CONFLICT = 12 };

static const struct {
    const char *name;
    size_t dimensions;
    counter_dimension dimension[2];
} counters[] = {
    {"SQ_WAVES", 2, {{"XCC", 2, 11}, {"SHADER_ENGINE", 2, 12}}},
    {"GRBM_COUNT", 1, {{"XCC", 1, 11}}},
    {"TCC_HIT", 2, {{"XCC", 2, 11}, {"INSTANCE", 3, 13}}},
};
enum { COUNTERS = sizeof counters / sizeof *counters };

static struct {
    uint64_t agent, ids[MAX_COUNTED];
    size_t count;
} configs[MAX_CONFIGS];
static uint64_t config_count;

typedef void dispatch_function(counting_data d, uint64_t *config, uint64_t *user, void *argument);
typedef void counted_function(counting_data d, counter_value *values, size_t count, uint64_t user, void *argument);

static struct {
    dispatch_function *dispatched;
    counted_function *counted;
    void *first, *second;
    bool samples;
} counting[MAX_CONTEXTS];

static bool is_gpu(uint64_t agent) {
    for (size_t i = 0; i < agent_count; i++) {
        const agent_data *a = agents[i];
        if (a->id == agent) return a->type == 2;
    }
    return false;
}

EXPORT int rocprofiler_iterate_agent_supported_counters(uint64_t agent,
                                                        int (*take)(uint64_t, uint64_t *, size_t, void *), void *user) {
    PLANNED("iterate_agent_supported_counters");
    uint64_t ids[COUNTERS];
    if (!is_gpu(agent)) return ERROR;
    for (uint64_t i = 0; i < COUNTERS; i++) ids[i] = COUNTER + i;
    return take(agent, ids, COUNTERS, user);
}

EXPORT int rocprofiler_query_counter_info(uint64_t counter, int layout, void *info) {
    PLANNED("query_counter_info");
    if (counter - COUNTER >= COUNTERS) return 8;
    if (layout != 1) return INCOMPATIBLE;
    counter_info found = {counter, counters[counter - COUNTER].name, "", "", "", 0};
    memcpy(info, &found, sizeof found);
    return SUCCESS;
}

EXPORT int rocprofiler_query_record_counter_id(uint64_t instance, uint64_t *counter) {
    PLANNED("query_record_counter_id");
    *counter = instance >> 32;
    return SUCCESS;
}

EXPORT int rocprofiler_iterate_counter_dimensions(uint64_t counter,
                                                  int (*take)(uint64_t, const counter_dimension *, size_t, void *),
                                                  void *user) {
    PLANNED("iterate_counter_dimensions");
    if (counter - COUNTER >= COUNTERS) return 8;
    return take(counter, counters[counter - COUNTER].dimension, counters[counter - COUNTER].dimensions, user);
}

/* The lower half of an instance is its place, the last dimension the fastest. */
EXPORT int rocprofiler_query_record_dimension_position(uint64_t instance, uint64_t dimension, size_t *position) {
    PLANNED("query_record_dimension_position");
    size_t which = (instance >> 32) - COUNTER, place = (uint32_t)instance;
    *position = 0;
    for (size_t i = counters[which].dimensions; i-- > 0; place /= counters[which].dimension[i].positions)
        if (counters[which].dimension[i].id == dimension) *position = place % counters[which].dimension[i].positions;
    return SUCCESS;
}

EXPORT int rocprofiler_create_counter_config(uint64_t agent, const uint64_t *ids, size_t count, uint64_t *config) {
    PLANNED("create_config");
    if (!is_gpu(agent) || count > MAX_COUNTED || config_count == MAX_CONFIGS) return INVALID;
    configs[config_count].agent = agent;
    configs[config_count].count = count;
    memcpy(configs[config_count].ids, ids, count * sizeof *ids);
    *config = ++config_count;
    return SUCCESS;
}

EXPORT int rocprofiler_configure_callback_dispatch_counting_service(uint64_t handle, dispatch_function *dispatched,
                                                                    void *first, counted_function *counted,
                                                                    void *second) {
    PLANNED("configure_callback_dispatch_counting_service");
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (!is_context(handle)) return NO_CONTEXT;
    if (counting[handle - CONTEXT].samples) return CONFLICT;
    counting[handle - CONTEXT].dispatched = dispatched;
    counting[handle - CONTEXT].counted = counted;
    counting[handle - CONTEXT].first = first;
    counting[handle - CONTEXT].second = second;
    return SUCCESS;
}

static counting_data counting_of(const replay_event *e, const replay_round *round) {
    const dispatch_data *d = (const dispatch_data *)e->payload;
    counting_data c = {sizeof c, e->internal ? e->internal + round->add : 0, e->external, d->start, d->end, d->info};
    c.info.dispatch += round->add;
    return c;
}

static uint64_t counting_key(const counting_data *c) { return c->info.dispatch | 1ull << 63; }

/* The configuration is requested before the dispatch is enqueued. */
static void ask_counters(const replay_event *e, const replay_round *round) {
    uint64_t asked[MAX_CONTEXTS] = {0}; /* configuration, and the tool's word, of the one context */
    counting_data d = counting_of(e, round);
    for (uint32_t c = 0; c < context_count; c++) {
        if (!contexts[c].started || !counting[c].dispatched) continue;
        counting[c].dispatched(d, &asked[0], &asked[1], counting[c].first);
        if (asked[0]) keep(counting_key(&d), asked);
    }
}

static void give_counters(const replay_event *e, const replay_round *round) {
    uint64_t asked[MAX_CONTEXTS] = {0};
    counting_data d = counting_of(e, round);
    counter_value values[64];
    size_t count = 0;
    take(counting_key(&d), asked, true);
    if (!asked[0] || asked[0] > config_count) return;
    for (size_t i = 0; i < configs[asked[0] - 1].count; i++) {
        uint64_t id = configs[asked[0] - 1].ids[i];
        size_t places = 1;
        for (size_t j = 0; j < counters[id - COUNTER].dimensions; j++)
            places *= counters[id - COUNTER].dimension[j].positions;
        for (uint64_t place = 0; place < places; place++)
            values[count++] = (counter_value){id << 32 | place, 100.0 * (double)d.info.dispatch + (double)place,
                                              d.info.dispatch, asked[1], d.info.agent};
    }
    for (uint32_t c = 0; c < context_count; c++)
        if (counting[c].counted) counting[c].counted(d, values, count, asked[1], counting[c].second);
}

/* ---- samples ---- */

typedef void full_function(uint64_t context, uint64_t buffer, buffered_record **records, size_t count, void *user,
                           uint64_t dropped);

static struct {
    uint64_t context, agent;
    full_function *full;
    void *user;
    size_t watermark, held;
    uint32_t method;
    stochastic_sample samples[MAX_SAMPLES]; /* or the shorter trap_sample */
} buffers[MAX_BUFFERS];
static uint64_t buffer_count;

EXPORT int rocprofiler_create_buffer(uint64_t context, size_t bytes, size_t watermark, int policy, full_function *full,
                                     void *user, uint64_t *buffer) {
    PLANNED("create_buffer");
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (!is_context(context)) return NO_CONTEXT;
    if (watermark > bytes || policy < 1 || policy > 2 || buffer_count == MAX_BUFFERS) return INVALID;
    buffers[buffer_count].context = context;
    buffers[buffer_count].full = full;
    buffers[buffer_count].user = user;
    buffers[buffer_count].watermark = watermark;
    *buffer = ++buffer_count;
    return SUCCESS;
}

EXPORT int rocprofiler_flush_buffer(uint64_t buffer) {
    PLANNED("flush_buffer");
    if (buffer - 1 >= buffer_count) return 3;
    size_t count = buffers[buffer - 1].held;
    uint32_t trap = is_0_6() ? KIND_TRAP_0_6 : KIND_TRAP;
    uint32_t kind = buffers[buffer - 1].method == 2 ? trap : KIND_STOCHASTIC;
    buffered_record **records = calloc(count + 1, sizeof *records);
    for (size_t i = 0; i < count; i++) {
        records[i] = malloc(sizeof *records[i]);
        *records[i] = (buffered_record){CATEGORY_SAMPLES, kind, &buffers[buffer - 1].samples[i]};
    }
    if (count)
        buffers[buffer - 1].full(buffers[buffer - 1].context, buffer, records, count, buffers[buffer - 1].user, 0);
    memset(buffers[buffer - 1].samples, 0x5a, sizeof buffers[buffer - 1].samples);
    for (size_t i = 0; i < count; i++) free(records[i]);
    free(records);
    buffers[buffer - 1].held = 0;
    return SUCCESS;
}

EXPORT int rocprofiler_query_pc_sampling_agent_configurations(uint64_t agent,
                                                              int (*take)(const sampling_offer *, size_t, void *),
                                                              void *user) {
    PLANNED("query_pc_sampling_agent_configurations");
    static const sampling_offer offers[] = {{sizeof *offers, 2, 3, 1, 1000000, 0},
                                            {sizeof *offers, 1, 2, 256, 1u << 31, 1}};
    return is_gpu(agent) ? take(offers, 2, user) : ERROR;
}

EXPORT int rocprofiler_configure_pc_sampling_service(uint64_t context, uint64_t agent, uint32_t method, uint32_t unit,
                                                     uint64_t interval, uint64_t buffer, int flags) {
    PLANNED("configure_pc_sampling_service");
    if (configuring == MAX_CLIENTS) return LOCKED;
    if (!is_context(context)) return NO_CONTEXT;
    for (uint32_t c = 0; c < context_count; c++)
        if (counting[c].dispatched) return CONFLICT;
    bool trap = method == 2 && unit == 3 && interval >= 1 && interval <= 1000000;
    bool stochastic = method == 1 && unit == 2 && interval >= 256 && !(interval & (interval - 1));
    if (!is_gpu(agent) || buffer - 1 >= buffer_count || flags || (!trap && !stochastic)) return INVALID;
    counting[context - CONTEXT].samples = true;
    buffers[buffer - 1].agent = agent;
    buffers[buffer - 1].method = method;
    return SUCCESS;
}

static uint64_t after(const char *words, const char *name) {
    const char *found = strstr(words, name);
    return found ? strtoull(found + strlen(name), NULL, 0) : 0;
}

static void put_sample(uint64_t buffer, const char *words) {
    void *place = &buffers[buffer].samples[buffers[buffer].held++];
    uint64_t object = after(words, "object="), offset = after(words, "offset="), dispatch = after(words, "dispatch=");
    trap_sample trap = {.size = sizeof trap, .object = object, .offset = offset, .dispatch = dispatch, .lanes = ~0ull};
    stochastic_sample stochastic = {.size = sizeof stochastic, .object = object, .offset = offset, .dispatch = dispatch,
                                    .issued = (uint8_t)(after(words, "issued=") | 6),
                                    .snapshot = (uint32_t)(after(words, "reason=") | 0xabcd0)};
    if (buffers[buffer].method == 2) memcpy(place, &trap, sizeof trap);
    else memcpy(place, &stochastic, sizeof stochastic);
}

EXPORT void replay_sample(const char *words) {
    for (uint64_t b = 0; b < buffer_count; b++) {
        bool taken = contexts[buffers[b].context - CONTEXT].started && buffers[b].agent == after(words, "agent=") &&
                     buffers[b].method == after(words, "method=");
        for (uint64_t i = 0; taken && i < after(words, "count="); i++) {
            put_sample(b, words);
            if (buffers[b].held == MAX_SAMPLES || buffers[b].held * sizeof(trap_sample) >= buffers[b].watermark)
                rocprofiler_flush_buffer(b + 1);
        }
    }
}

EXPORT void replay_flush(void) {
    for (uint64_t b = 0; b < buffer_count; b++) rocprofiler_flush_buffer(b + 1);
}
