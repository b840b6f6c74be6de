/* Tables of objects on the device: one for each state of the allocations that launches use. */
#include <stdlib.h>

#include "probes.h"

static void copied_in(pasta_nv_version *v, uint64_t stream) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    if (v->stream_count < PASTA_NV_COPIED) v->streams[v->stream_count++] = stream;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

static bool is_copied_in(const pasta_nv_version *v, uint64_t stream) {
    uint32_t count = __atomic_load_n(&v->stream_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count; i++)
        if (v->streams[i] == stream) return true;
    return false;
}

void pasta_nv_version_release(pasta_nv_version *v) {
    if (v) v->users--;
}

/* Tables that are being built: their number, and the oldest state of allocations in them. */
static struct {
    uint32_t count;
    uint64_t since;
} building = {0, PASTA_ABSENT_U64};

static void begin_building(void) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    uint64_t now = pasta_nv_objects_version();
    if (!building.count++ || now < building.since) building.since = now;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

static void end_building(void) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    if (!--building.count) building.since = PASTA_ABSENT_U64;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}

uint64_t pasta_nv_oldest_version(void) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    uint64_t oldest = building.since;
    for (const pasta_nv_prober *p = pasta_nv_probers(); p; p = p->next)
        for (const pasta_nv_version *v = p->ended ? NULL : p->versions; v; v = v->next)
            if (v->users && v->as_of < oldest) oldest = v->as_of;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return oldest;
}

static pasta_nv_version *spare_version(pasta_nv_prober *p, size_t bytes) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_version **link = &p->versions;
    while (*link && (!(*link)->retired || (*link)->users || (*link)->room < bytes)) link = &(*link)->next;
    pasta_nv_version *found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return found;
}

/* A patch uses bins only if the object's range has some. */
static void have_no_bins(void *image) {
    const pasta_object_table *table = image;
    pasta_object_range *ranges = (void *)((char *)image + table->ranges);
    for (uint32_t i = 0; i < table->count; i++) ranges[i].bins = PASTA_ABSENT_U32;
}

static pasta_nv_version *build_version(pasta_nv_prober *p) {
    pasta_nv_allocation *objects;
    size_t count, bytes;
    uint64_t as_of;
    if (!pasta_nv_objects(&objects, &count, &as_of)) return NULL;
    void *image = pasta_nv_table_image(objects, count, &bytes);
    free(objects);
    if (!image) return NULL;
    if (!p->bins) have_no_bins(image);
    pasta_nv_version *v = spare_version(p, bytes);
    if (!v && (v = calloc(1, sizeof *v))) {
        v->room = bytes + bytes / 2 + 4096;
        v->address = pasta_nv_device_memory(p, v->room);
    }
    if (!v || !v->address) {
        free(v);
        free(image);
        return NULL;
    }
    pasta_nv_table_place(image, v->address);
    free(v->image);
    v->image = image;
    v->bytes = bytes;
    v->as_of = as_of;
    v->plane_words = (uint32_t)pasta_nv_table_planes_used();
    v->users = 1;
    v->stream_count = 0;
    v->retired = false;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    if (p->version) p->version->retired = true;
    v->next = p->versions;
    p->versions = v;
    p->version = v;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return v;
}

pasta_nv_version *pasta_nv_version_use(pasta_nv_prober *p) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_version *v = p->version;
    if (v && v->as_of == pasta_nv_objects_version()) v->users++;
    else v = NULL;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    if (v) return v;
    begin_building();
    v = build_version(p);
    end_building();
    if (!v && !__atomic_exchange_n(&p->short_of_memory, true, __ATOMIC_RELAXED))
        pasta_say("probes: not enough memory on device %d for the table of objects: raise probes.memory", p->at.device);
    return v;
}

bool pasta_nv_version_copy(pasta_nv_prober *p, pasta_nv_version *v, uint64_t stream) {
    if (is_copied_in(v, stream)) return true;
    if (!PROBED(p, copy_in, v->address, v->image, v->bytes, stream)) return false;
    copied_in(v, stream);
    return true;
}
