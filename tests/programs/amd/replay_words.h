/* The part of replay_sdk.c that parses events and agents of a stream. */

/* ---- events from words ---- */

typedef struct {
    uint16_t offset;
    uint8_t type;
    bool null;
    char *text;
    uint64_t values[8];
} fixup; /* a pointer that is set at each delivery */

struct replay_event {
    int which, operation, phase;
    uint64_t internal, external, ancestor, object;
    uint32_t bytes, fixup_count;
    fixup fixups[FIXUPS];
    bool timed_now;
    uint64_t payload[24];
};

static uint64_t started; /* the library's clock when the first event was read */

static char *decoded(const char *word) { /* %20 is a space */
    char *text = strdup(word), *to = text;
    for (const char *from = word; *from; from++) {
        unsigned code;
        if (*from == '%' && sscanf(from + 1, "%2x", &code) == 1) *to++ = (char)code, from += 2;
        else *to++ = *from;
    }
    *to = 0;
    return text;
}

static int numbers_in(const char *word, uint64_t *values, int most) {
    int count = 0;
    for (char *end; count < most; word = end + 1) {
        values[count++] = *word == '-' ? (uint64_t)strtoll(word, &end, 0) : strtoull(word, &end, 0);
        if (end == word || (*end && *end != ',')) fails("not a number: %s", word);
        if (!*end) break;
    }
    return count;
}

static void set_pointer(replay_event *e, const field *f, const char *word) {
    if (e->fixup_count == FIXUPS) fails("too many pointers");
    fixup *x = &e->fixups[e->fixup_count++];
    *x = (fixup){.offset = f->offset, .type = f->type, .null = !strcmp(word, "null")};
    if (x->null) return;
    if (f->type == TYPE_text) x->text = decoded(word);
    else numbers_in(word, x->values, 8);
}

static void set_field(replay_event *e, const field *f, const char *word) {
    if (f->type >= TYPE_out) {
        set_pointer(e, f, word);
        return;
    }
    uint64_t values[4] = {0};
    int count = numbers_in(word, values, 4);
    char *place = (char *)e->payload + f->offset;
    if (f->type == TYPE_dim) {
        dim3 d = {(uint32_t)values[0], count > 1 ? (uint32_t)values[1] : 1, count > 2 ? (uint32_t)values[2] : 1};
        memcpy(place, &d, sizeof d);
    } else {
        memcpy(place, values, f->bytes); /* little-endian */
    }
}

static void set_times(replay_event *e, const char *word) {
    uint64_t times[2] = {0};
    e->timed_now = !strcmp(word, "now");
    if (e->timed_now) return;
    if (numbers_in(word + (*word == '+'), times, 2) != 2) fails("t=%s", word);
    for (int i = 0; i < 2; i++) e->payload[1 + i] = *word == '+' ? started + times[i] : times[i];
}

static const field *find_field(const field *fields, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(fields[i].name, name)) return &fields[i];
    return NULL;
}

static void set_argument(replay_event *e, const kind *k, const operation *o, const char *name, const char *word) {
    size_t offset = 0;
    for (size_t i = 0; i < o->count; i++) {
        field f = o->fields[i];
        offset = place_argument(&f, offset);
        f.offset = (uint16_t)(k->arguments + offset);
        offset += f.bytes;
        if (!strcmp(f.name, name)) {
            set_field(e, &f, word);
            return;
        }
    }
    fails("%s has no %s", o->name, name);
}

static void describe_object_payload(const operation *o, const field **fields, size_t *count, size_t *bytes) {
    if (strstr(o->name, "LOAD")) {
        *fields = object_fields, *count = sizeof object_fields / sizeof(field), *bytes = sizeof(object_data);
    } else if (strstr(o->name, "DEVICE")) {
        *fields = symbol_fields, *count = sizeof symbol_fields / sizeof(field);
        *bytes = is_0_5() ? (size_t)SYMBOL_0_5 : sizeof(symbol_data);
    } else {
        *fields = host_symbol_fields, *count = sizeof host_symbol_fields / sizeof(field);
        *bytes = sizeof(host_symbol_data);
    }
}

/* The address of result variables is known at ENTER too. */
static void add_results(replay_event *e, const kind *k, const operation *o) {
    size_t offset = 0;
    for (size_t i = 0; i < o->count; i++) {
        offset = place_argument(&o->fields[i], offset);
        bool result = o->fields[i].type == TYPE_out || o->fields[i].type == TYPE_outpitched, named = false;
        for (uint32_t j = 0; j < e->fixup_count; j++) named |= e->fixups[j].offset == k->arguments + offset;
        if (result && !named)
            set_pointer(e, &(field){NULL, (uint16_t)(k->arguments + offset), o->fields[i].type, 8}, "0");
        offset += o->fields[i].bytes;
    }
}

/* An image of this size; the same object always has the same image. */
static uint64_t image_of(uint64_t object, uint64_t bytes) {
    uint8_t *image = malloc(bytes);
    if (!image) fails("no memory");
    for (uint64_t i = 0; i < bytes; i++) image[i] = (uint8_t)(i * 7 + object);
    return (uint64_t)(uintptr_t)image;
}

static void set(replay_event *e, const kind *k, const operation *o, const field *fields, size_t count, char *word) {
    char *value = strchr(word, '=');
    if (!value) fails("no value: %s", word);
    *value++ = 0;
    const field *f = find_field(fields, count, word);
    if (!strcmp(word, "@corr")) e->internal = strtoull(value, NULL, 0);
    else if (!strcmp(word, "@anc")) e->ancestor = strtoull(value, NULL, 0);
    else if (!strcmp(word, "@ext")) e->external = strtoull(value, NULL, 0);
    else if (!strcmp(word, "@size")) e->bytes = (uint32_t)strtoul(value, NULL, 0);
    else if (*word == '@') return; /* the program's */
    else if (!strcmp(word, "t")) set_times(e, value);
    else if (!strcmp(word, "ret") && k->result)
        ((int32_t *)e->payload)[k->result / 4] = (int32_t)strtol(value, NULL, 0);
    else if (f) set_field(e, f, value);
    else set_argument(e, k, o, word, value);
}

EXPORT replay_event *replay_event_of(const char *words) {
    char *copy = strdup(words), *rest = copy, *word = strsep(&rest, " ");
    char *colon = strchr(word, ':'), *phase = strsep(&rest, " ");
    replay_event *e = calloc(1, sizeof *e);
    if (!colon || !phase || !e) fails("%s", words);
    *colon++ = 0;
    if (!started) started = replay_clock();
    int which = 0, i = 0;
    while (which < KINDS && strcmp(kinds[which].name, word)) which++;
    if (which == KINDS) fails("no kind %s", word);
    const kind *k = &kinds[which];
    while (i < (int)k->operation_count && strcmp(k->operations[i].name, colon)) i++;
    if (i == (int)k->operation_count) fails("%s has no %s", word, colon);
    const operation *o = &k->operations[i];
    const field *fields = k->fields;
    size_t count = k->field_count, bytes = payload_bytes(k);
    if (k->what == OBJECT) describe_object_payload(o, &fields, &count, &bytes);
    e->which = which;
    e->operation = i;
    e->phase = !strcmp(phase, "ENTER") ? PHASE_ENTER : !strcmp(phase, "EXIT") ? PHASE_EXIT : PHASE_NONE;
    e->bytes = (uint32_t)bytes;
    while ((word = strsep(&rest, " ")))
        if (*word) set(e, k, o, fields, count, word);
    add_results(e, k, o);
    if (k->what == DISPATCH) ((dispatch_data *)e->payload)->info.size = sizeof(dispatch_info);
    if (k->what == OBJECT) {
        object_data *d = (object_data *)e->payload;
        bool load = strstr(o->name, "LOAD");
        e->object = load ? d->object : ((symbol_data *)e->payload)->object;
        if (load && d->storage == 2 && !d->memory) d->memory = image_of(d->object, d->memory_bytes);
    }
    e->payload[0] = e->bytes;
    free(copy);
    return e;
}

EXPORT void replay_agent(const char *words) {
    char *copy = strdup(words), *rest = copy, *word;
    size_t bytes = agent_bytes();
    agent_data a = {.size = bytes, .name = "cpu", .vendor_name = "AMD", .product_name = "", .model_name = "",
                    .visible = 31, .logical_node = (int32_t)agent_count, .node = (uint32_t)agent_count, .wave_front_size = 64};
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(word, "id")) a.id = strtoull(value, NULL, 0);
        else if (!strcmp(word, "type")) a.type = !strcmp(value, "gpu") ? 2 : 1;
        else if (!strcmp(word, "name")) a.name = decoded(value);
        else if (!strcmp(word, "product")) a.product_name = decoded(value);
        else if (!strcmp(word, "model")) a.model_name = decoded(value);
        else if (!strcmp(word, "visible")) a.visible = (uint32_t)strtoul(value, NULL, 0);
        else if (!strcmp(word, "logical")) a.logical_of_type = (int32_t)strtol(value, NULL, 0);
        else fails("an agent has no %s", word);
    }
    free(copy);
    if (agent_count == MAX_AGENTS) fails("too many agents");
    agents[agent_count++] = memcpy(at_the_end(bytes), &a, bytes);
}
