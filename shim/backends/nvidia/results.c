/* Results of probes: copied from the device, summed over stripes, and written to PID-SEQUENCE.probes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "probes.h"

enum { STAGING = 8 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static uint64_t file_offset;

/* ---- the file ---- */

typedef struct text {
    char *bytes;
    size_t used, room;
} text;

static void *extend(text *t, size_t bytes) {
    if (t->used + bytes > t->room) {
        size_t wanted = 2 * (t->used + bytes) + 4096;
        char *grown = realloc(t->bytes, wanted);
        if (!grown) return NULL;
        t->bytes = grown;
        t->room = wanted;
    }
    void *place = t->bytes + t->used;
    t->used += bytes;
    return memset(place, 0, bytes);
}

static void publish(text *t, const pasta_nv_prober *p) {
    if (!t->used) return;
    pthread_mutex_lock(&lock);
    if (file < 0) file = pasta_open_beside(".probes");
    uint64_t offset = file_offset;
    bool written = file >= 0 && pasta_write_all(file, t->bytes, t->used);
    if (written) file_offset += t->used;
    pthread_mutex_unlock(&lock);
    if (written) {
        pasta_probe_data *e = PASTA_BEGIN(probe_data, p->at.device, p->at.context, PASTA_NO_STREAM);
        if (e) {
            e->offset = offset;
            e->bytes = t->used;
            e->map = 0;
            pasta_publish(e);
        }
    } else {
        pasta_say("probe results are lost: the session directory is full (%s)", strerror(errno));
    }
    t->used = 0;
}

static pasta_probed *entry(text *t, const pasta_nv_prober *p, uint32_t kind, size_t payload) {
    pasta_probed *e = extend(t, sizeof *e + payload);
    if (!e) return NULL;
    e->kind = kind;
    e->device = p->at.device;
    e->context = p->at.context;
    return e;
}

/* Comes before any counts of them. */
static void publish_pieces(const pasta_nv_prober *p) {
    static pthread_mutex_t publishing = PTHREAD_MUTEX_INITIALIZER;
    pasta_nv_piece *pieces;
    text t = {0};
    pthread_mutex_lock(&publishing);
    size_t count = pasta_nv_new_pieces(&pieces);
    pasta_probed *e = count ? entry(&t, p, PASTA_PROBED_pieces, count * sizeof *pieces) : NULL;
    if (e) {
        e->rows = (uint32_t)count;
        e->words = sizeof *pieces / sizeof(uint64_t);
        memcpy(e + 1, pieces, count * sizeof *pieces);
        publish(&t, p);
    }
    pthread_mutex_unlock(&publishing);
    free(pieces);
    free(t.bytes);
}

/* ---- launches without counts ---- */

void pasta_nv_write_missed(pasta_nv_prober *p, bool now) {
    enum { INTERVAL_NS = 100 * 1000 * 1000 };
    uint64_t time = pasta_now();
    if (!__atomic_load_n(&p->missed_count, __ATOMIC_RELAXED)) return;
    if (!now && time - __atomic_load_n(&p->missed_at, __ATOMIC_RELAXED) < INTERVAL_NS) return;
    text t = {0};
    pasta_probed *e = entry(&t, p, PASTA_PROBED_missed, sizeof p->missed);
    if (!e) return;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    e->rows = p->missed_count;
    memcpy(e + 1, p->missed, e->rows * sizeof *p->missed);
    __atomic_store_n(&p->missed_count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&p->missed_at, time, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    e->words = sizeof *p->missed / sizeof(uint64_t);
    t.used = e->rows ? sizeof *e + e->rows * sizeof *p->missed : 0;
    publish(&t, p);
    free(t.bytes);
}

/* After the launch's event, so that its entry is read after it, too. */
void pasta_nv_missed_launch(pasta_nv_prober *p, pasta_nv_missed launch) {
    bool kept = false;
    for (int tries = 0; !kept && tries < 2; tries++) {
        pthread_mutex_lock(&pasta_nv_probes_lock);
        kept = p->missed_count < PASTA_NV_MISSED;
        if (kept) {
            p->missed[p->missed_count] = launch;
            __atomic_add_fetch(&p->missed_count, 1, __ATOMIC_RELAXED);
        }
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        if (!kept) pasta_nv_write_missed(p, true);
    }
}

/* Takes the launches of a batch whose results were not read; their number. */
static uint32_t take_unread(pasta_nv_prober *p, uint64_t *ordinals) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_batch *b = p->batches;
    while (b && b->done == b->used) b = b->next;
    uint32_t count = b ? b->used - b->done : 0;
    if (b) memcpy(ordinals, b->ordinals + b->done, count * sizeof *ordinals);
    if (b) b->done = b->used;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return count;
}

void pasta_nv_missed_results(pasta_nv_prober *p) {
    uint64_t ordinals[PASTA_NV_SLOTS];
    const uint64_t why = p->broken ? PASTA_MISSED_error : PASTA_MISSED_running;
    for (uint32_t count; (count = take_unread(p, ordinals));)
        for (uint32_t i = 0; i < count; i++)
            if (ordinals[i] != PASTA_ABSENT_U64) pasta_nv_missed_launch(p, (pasta_nv_missed){ordinals[i], why});
    pasta_nv_write_missed(p, true);
}

/* ---- launches ---- */

static void add_stripes(uint64_t *sum, const char *first, uint32_t stripes, uint64_t stripe_bytes, uint64_t words) {
    for (uint32_t s = 0; s < stripes; s++) {
        const uint64_t *from = (const void *)(first + s * stripe_bytes);
        for (uint64_t w = 0; w < words; w++) sum[w] += from[w];
    }
}

/* Number of an object by its index, from 1, in a table; 0: unknown. */
static uint64_t number_at(const pasta_nv_version *v, uint32_t index) {
    const pasta_object_table *table = v->image;
    const pasta_object_range *ranges = (const void *)((const char *)v->image + (table->ranges - v->address));
    return index ? ranges[index - 1].number : 0;
}

/* Number of the object in a row, by the launch's table or by the keys; 0: unknown. */
static uint64_t number_of(const pasta_nv_batch *b, uint32_t slot, const uint32_t *keys, uint32_t row) {
    const pasta_nv_version *v = b->versions[slot];
    const pasta_object_table *table = v ? v->image : NULL;
    if (!table || table->count >= b->rows)
        return row == b->rows ? (uint64_t)PASTA_PROBED_OTHER : keys[row] - (uint64_t)1;
    return number_at(v, row);
}

static bool in_use(const pasta_nv_batch *b, uint32_t slot, const uint32_t *keys, uint32_t row) {
    const pasta_nv_version *v = b->versions[slot];
    const pasta_object_table *table = v ? v->image : NULL;
    return table && table->count < b->rows ? row <= table->count : row == b->rows || keys[row] != 0;
}

/* Writes an object's words where something was counted; the number of objects written. */
static uint32_t write_object(text *t, uint64_t number, const uint64_t *words) {
    uint64_t count = pasta_nv_the_plan.object_words;
    bool counted = false;
    for (uint64_t w = 0; w < count; w++) counted |= words[w] != 0;
    uint64_t *more = counted ? extend(t, (1 + count) * sizeof *more) : NULL;
    if (!more) return 0;
    *more = number;
    memcpy(more + 1, words, count * sizeof *words);
    return 1;
}

/* Writes the words of objects without a row; the number of objects written. */
static uint32_t write_spill(text *t, const pasta_nv_batch *b, uint32_t slot, uint64_t stream) {
    const pasta_nv_version *v = b->versions[slot];
    const pasta_object_table *table = v ? v->image : NULL;
    uint64_t bytes = pasta_nv_spill_bytes(b);
    uint64_t *words = malloc(bytes);
    uint32_t found = 0, rows = table && table->count < b->spill_rows ? table->count + 1 : b->spill_rows;
    if (words && pasta_nv_probed(b->owner, pasta_nv.copy_out(words, pasta_nv_spill_of(b, slot), bytes, stream),
                                 "sanitizerMemcpyDeviceToHost"))
        for (uint32_t row = 0; row < rows; row++)
            found += write_object(t, v ? number_at(v, row) : 0, words + row * pasta_nv_the_plan.object_words);
    free(words);
    return found;
}

/* Sum of all words of a launch, but of objects' numbers. */
static uint64_t amount_of(const pasta_probed *e) {
    const uint64_t *words = (const void *)(e + 1);
    uint64_t amount = 0;
    for (uint32_t w = 0; w < e->words; w++) amount += *words++;
    for (uint32_t row = 0; row < e->rows; row++) {
        words++;
        for (uint32_t w = 0; w < e->row_words; w++) amount += *words++;
    }
    return amount;
}

/* Writes a launch's counts by object and instruction; returns the sum of all amounts. */
static uint64_t write_pairs(text *t, const pasta_nv_batch *b, uint32_t slot, const char *table) {
    const pasta_nv_hash *h = &pasta_nv_the_plan.pairs;
    const uint64_t *keys = (const void *)table;
    const char *words = table + h->rows * sizeof *keys;
    uint64_t row_bytes = h->words * sizeof(uint64_t), amount = 0;
    size_t begin = t->used;
    pasta_probed *e = entry(t, b->owner, PASTA_PROBED_pairs, 0);
    if (!e) return 0;
    e->words = (uint32_t)h->words;
    e->ordinal = b->ordinals[slot];
    uint32_t count = 0;
    for (uint64_t row = 0; row <= h->rows; row++) { /* the last row has all pairs without one */
        if (row < h->rows && !keys[row]) continue;
        uint64_t *to = extend(t, 2 * sizeof *to + row_bytes);
        if (!to) break;
        count++;
        to[0] = PASTA_PROBED_OTHER;
        if (row < h->rows) {
            uint64_t key = keys[row] - 1, index = key >> (PASTA_PROBE_PC_BITS - 4);
            to[0] = b->versions[slot] ? number_at(b->versions[slot], (uint32_t)index) : 0;
            to[1] = (key & ((UINT64_C(1) << (PASTA_PROBE_PC_BITS - 4)) - 1)) << 4;
        }
        add_stripes(to + 2, words + row * row_bytes, (uint32_t)h->stripes, (h->rows + 1) * row_bytes, h->words);
        for (uint64_t w = 0; w < h->words; w++) amount += to[2 + w];
    }
    e = (void *)(t->bytes + begin); /* it may have moved */
    e->rows = count;
    return amount;
}

/* `words` and `slot` point to copies in host memory. */
static void write_launch(text *t, const pasta_nv_batch *b, uint32_t number, const char *words, const char *slot,
                         uint64_t stream) {
    const pasta_nv_plan *plan = &pasta_nv_the_plan;
    const uint32_t *keys = (const void *)slot;
    const char *plain = slot + b->keys_bytes, *pairs = plain + b->plain_bytes, *rows = pairs + b->pairs_bytes;
    uint64_t row_bytes = plan->object_words * sizeof(uint64_t), fixed = plan->plain_words + plan->slot_words;
    uint64_t sums[PASTA_NV_MAX_WORDS];
    size_t begin = t->used;
    if (b->ordinals[number] == PASTA_ABSENT_U64) return;
    pasta_probed *e = entry(t, b->owner, PASTA_PROBED_launch, fixed * sizeof(uint64_t));
    if (!e) return;
    e->words = (uint32_t)fixed;
    e->row_words = (uint32_t)plan->object_words;
    e->ordinal = b->ordinals[number];
    uint64_t *to = (void *)(e + 1);
    memcpy(to, plain, plan->plain_words * sizeof *to);
    add_stripes(to + plan->plain_words, words, (uint32_t)plan->slot_stripes, plan->slot_stripe_bytes, plan->slot_words);
    uint32_t count = 0;
    for (uint32_t row = 0; b->rows && row <= b->rows; row++) {
        if (!in_use(b, number, keys, row)) continue;
        memset(sums, 0, row_bytes);
        add_stripes(sums, rows + row * row_bytes, b->stripes, b->stripe_bytes, plan->object_words);
        count += write_object(t, number_of(b, number, keys, row), sums);
    }
    if (b->spill_rows && keys[b->rows]) count += write_spill(t, b, number, stream);
    e = (void *)(t->bytes + begin); /* it may have moved */
    e->rows = count;
    uint64_t amount = amount_of(e), counted = e->words + e->row_words + plan->pairs.words;
    if (plan->pairs.words) amount += write_pairs(t, b, number, pairs);
    if (b->shapes[number] != PASTA_ABSENT_U32 && counted) pasta_probe_counted(b->shapes[number], amount);
}

char *pasta_nv_staging(pasta_nv_prober *p, uint64_t bytes, bool *pinned) {
    void *memory = NULL;
    *pinned = bytes <= STAGING;
    if (*pinned && !p->staging && pasta_nv.alloc_host(p->context, &memory, STAGING) == 0) p->staging = memory;
    if (*pinned && p->staging) return p->staging;
    *pinned = false;
    return malloc(bytes);
}

static bool copied(pasta_nv_prober *p, void *to, uint64_t from, uint64_t bytes, uint64_t stream) {
    return !bytes || pasta_nv_probed(p, pasta_nv.copy_out(to, from, bytes, stream), "sanitizerMemcpyDeviceToHost");
}

static void read_slots(text *t, pasta_nv_batch *b, uint32_t from, uint32_t to, uint64_t stream) {
    pasta_nv_prober *p = b->owner;
    uint64_t words_bytes = pasta_nv_words_bytes(), bytes = words_bytes + b->slot_bytes;
    uint32_t at_once = bytes && STAGING / bytes < PASTA_NV_SLOTS ? (uint32_t)(STAGING / bytes) : PASTA_NV_SLOTS;
    if (!at_once) at_once = 1;
    for (uint32_t slot = from; slot < to && !p->broken; slot += at_once) {
        uint32_t count = to - slot < at_once ? to - slot : at_once;
        bool pinned;
        char *staging = pasta_nv_staging(p, bytes ? count * bytes : 1, &pinned), *slots = staging + count * words_bytes;
        if (!staging) return;
        if (copied(p, staging, b->words + slot * words_bytes, count * words_bytes, stream) &&
            copied(p, slots, b->slots + slot * b->slot_bytes, count * b->slot_bytes, stream))
            for (uint32_t i = 0; i < count; i++)
                write_launch(t, b, slot + i, staging + i * words_bytes, slots + i * b->slot_bytes, stream);
        if (!pinned) free(staging);
    }
}

/* Everything is read, and no launch will take a slot. */
static bool is_over(const pasta_nv_batch *b) {
    return b->done == b->used && b->marked == b->used && (b->used == PASTA_NV_SLOTS || b->closed);
}

bool pasta_nv_read_batches(pasta_nv_prober *p, uint64_t own_stream) {
    enum { BATCH = 256 };
    struct {
        pasta_nv_batch *batch;
        uint32_t from, to;
    } ready[BATCH];
    uint32_t count = 0;
    bool waiting = false;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    for (pasta_nv_batch *b = p->batches; b && count < BATCH; b = b->next) {
        uint32_t complete = __atomic_load_n(b->marker, __ATOMIC_ACQUIRE);
        if (complete > b->used) complete = b->used;
        waiting |= b->marked > complete;
        bool over = is_over(b);
        if (complete > b->done || over) {
            ready[count].batch = b;
            ready[count].from = b->done;
            ready[count++].to = complete > b->done ? complete : b->done;
        }
    }
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    waiting |= count == BATCH; /* there may be more */
    if (count) publish_pieces(p);
    text t = {0};
    for (uint32_t i = 0; i < count && !p->broken; i++) {
        pasta_nv_batch *b = ready[i].batch;
        read_slots(&t, b, ready[i].from, ready[i].to, own_stream ? own_stream : b->stream);
        if (p->broken) break;
        pthread_mutex_lock(&pasta_nv_probes_lock);
        for (uint32_t slot = b->done; slot < ready[i].to; slot++) pasta_nv_version_release(b->versions[slot]);
        b->done = ready[i].to;
        bool over = is_over(b);
        pthread_mutex_unlock(&pasta_nv_probes_lock);
        if (over) pasta_nv_batch_recycle(b);
    }
    publish(&t, p);
    free(t.bytes);
    return waiting && !p->broken;
}

/* ---- totals ---- */

static void read_hash(text *t, pasta_nv_prober *p, uint32_t index, uint64_t stream) {
    const pasta_nv_hash *h = &pasta_nv_the_plan.hashes[index];
    uint64_t bytes = pasta_nv_hash_bytes(h), row_bytes = h->words * sizeof(uint64_t);
    char *all = malloc(bytes);
    if (!all) return;
    if (pasta_nv_probed(p, pasta_nv.copy_out(all, p->hashes[index], bytes, stream), "sanitizerMemcpyDeviceToHost")) {
        const uint64_t *keys = (const void *)all;
        const char *rows = all + h->rows * sizeof(uint64_t);
        uint64_t count = 1; /* the last row has all other keys */
        for (uint64_t row = 0; row < h->rows; row++) count += keys[row] != 0;
        pasta_probed *e = entry(t, p, PASTA_PROBED_hash, count * (1 + h->words) * sizeof(uint64_t));
        if (e) {
            e->words = (uint32_t)h->words;
            e->rows = (uint32_t)count;
            e->index = index;
            uint64_t *to = (void *)(e + 1);
            for (uint64_t row = 0; row <= h->rows; row++) {
                if (row < h->rows && !keys[row]) continue;
                *to = row < h->rows ? keys[row] : UINT64_MAX;
                add_stripes(to + 1, rows + row * row_bytes, (uint32_t)h->stripes, (h->rows + 1) * row_bytes, h->words);
                to += 1 + h->words;
            }
        }
    }
    free(all);
}

/* Adds up the stripes of all bins in use. */
static uint64_t *copy_bins(pasta_nv_prober *p, uint64_t count, uint64_t stream) {
    const pasta_nv_plan *plan = &pasta_nv_the_plan;
    uint64_t stripe = pasta_nv_table_bins_room() * plan->bin_words * sizeof(uint64_t);
    uint64_t *sum = calloc(count, sizeof *sum), *one = malloc(count * sizeof *one);
    bool good = sum && one;
    for (uint64_t s = 0; s < plan->bin_stripes && good; s++) {
        good = pasta_nv_probed(p, pasta_nv.copy_out(one, p->bins + s * stripe, count * sizeof *one, stream),
                               "sanitizerMemcpyDeviceToHost");
        for (uint64_t i = 0; good && i < count; i++) sum[i] += one[i];
    }
    free(one);
    if (good) return sum;
    free(sum);
    return NULL;
}

static void read_bins(text *t, pasta_nv_prober *p, uint64_t stream) {
    uint64_t words = pasta_nv_the_plan.bin_words, used = pasta_nv_table_bins_used();
    uint64_t *all = used ? copy_bins(p, used * words, stream) : NULL;
    if (!all) return;
    pasta_nv_binned object = {0};
    while (pasta_nv_table_next_binned(&object)) {
        if (object.first + (uint64_t)object.count > used) continue; /* newer than the copy */
        const uint64_t *values = all + object.first * words;
        bool touched = false;
        for (uint64_t i = 0; i < object.count * words && !touched; i++) touched = values[i] != 0;
        if (!touched) continue;
        pasta_probed *e = entry(t, p, PASTA_PROBED_bins, object.count * words * sizeof(uint64_t));
        if (!e) break;
        e->words = (uint32_t)words;
        e->rows = object.count;
        e->row_words = object.shift;
        e->ordinal = object.number;
        memcpy(e + 1, values, object.count * words * sizeof(uint64_t));
    }
    free(all);
}

/* Totals only grow: a copy made while kernels run is a lower bound, and the last one is exact. */
void pasta_nv_read_totals(pasta_nv_prober *p, uint64_t stream) {
    publish_pieces(p);
    text t = {0};
    for (uint32_t i = 0; i < pasta_nv_the_plan.hash_count && !p->broken; i++)
        if (p->hashes[i] && pasta_nv_the_plan.hashes[i].stripes) read_hash(&t, p, i, stream);
    if (p->bins && !p->broken) read_bins(&t, p, stream);
    publish(&t, p);
    free(t.bytes);
}
