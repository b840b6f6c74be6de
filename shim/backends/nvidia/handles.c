/* Contexts and functions by handle.
 *
 * A slot's key is published last, so a reader that finds its handle finds the rest.  What a slot
 * holds changes only when its context or module is destroyed, while no correct program uses it.
 * No vendor function is called under the lock: the vendor makes callbacks with its own locks held.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "source.h"

enum {
    FUNCTIONS = 1 << 14,
    MAX_PROBES = 32,
};

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

/* ---- contexts ---- */

static struct {
    uint64_t handle;
    uint32_t place; /* number | device << 16 */
} contexts[PASTA_NV_CONTEXTS];
static uint32_t context_slots PASTA_HOT;
static uint16_t next_number;
static uint32_t device_name;

/* The API gives no device name, and callbacks may not call CUDA: the driver's list of devices gives it
 * if all devices of the machine are the same model. */
void pasta_nv_read_device_name(void) {
    static const char root[] = "/proc/driver/nvidia/gpus";
    char model[128] = "", path[sizeof root + 300], line[256];
    DIR *devices = opendir(root);
    if (!devices) return;
    for (struct dirent *entry; (entry = readdir(devices));) {
        snprintf(path, sizeof path, "%s/%s/information", root, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!file) continue;
        char found[sizeof model] = "";
        while (fgets(line, sizeof line, file))
            if (sscanf(line, "Model: %127[^\n]", found) == 1) break;
        fclose(file);
        if (!model[0]) memcpy(model, found, sizeof model);
        if (strcmp(model, found) != 0) {
            model[0] = '\0';
            break;
        }
    }
    closedir(devices);
    if (model[0]) device_name = pasta_intern_z(model);
}

static pasta_nv_place place_in(uint32_t slot) {
    uint32_t place = LOAD(contexts[slot].place);
    return (pasta_nv_place){(uint16_t)place, (int16_t)(place >> 16), (uint16_t)slot};
}

static bool find_context(uint64_t handle, uint32_t *slot) {
    uint32_t slots = LOAD(context_slots);
    for (*slot = 0; *slot < slots; ++*slot)
        if (LOAD(contexts[*slot].handle) == handle) return true;
    return false;
}

static void publish(uint64_t handle, pasta_nv_place place) {
    pasta_context *e = PASTA_BEGIN_AS(context_create, context, place.device, place.context, PASTA_NO_STREAM);
    if (!e) return;
    e->handle = handle;
    e->name = device_name;
    pasta_publish(e);
}

static PASTA_APART pasta_nv_place add_context(uint64_t handle, int16_t device) {
    pasta_nv_place place = {PASTA_NO_CONTEXT, device, 0};
    uint32_t slot;
    pthread_mutex_lock(&changing);
    if (find_context(handle, &slot)) {
        place = place_in(slot);
    } else if (next_number < PASTA_NO_CONTEXT && (find_context(0, &slot) || slot < PASTA_NV_CONTEXTS)) {
        place.context = next_number++;
        place.slot = (uint16_t)slot;
        STORE(contexts[slot].place, place.context | (uint32_t)(uint16_t)device << 16);
        STORE(contexts[slot].handle, handle);
        if (slot == context_slots) STORE(context_slots, slot + 1);
        publish(handle, place);
    }
    pthread_mutex_unlock(&changing);
    if (place.context == PASTA_NO_CONTEXT)
        pasta_say("more than %d CUDA contexts at once: further contexts have no number",
                  PASTA_NV_CONTEXTS);
    return place;
}

pasta_nv_place pasta_nv_place_of(uint64_t handle, int16_t device) {
    uint32_t slot;
    if (!handle) return (pasta_nv_place){PASTA_NO_CONTEXT, device, 0};
    if (PASTA_LIKELY(find_context(handle, &slot))) {
        pasta_nv_place place = place_in(slot);
        if (place.device == PASTA_NO_DEVICE) place.device = device;
        return place;
    }
    return add_context(handle, device);
}

pasta_nv_place pasta_nv_known_place(uint64_t handle) {
    uint32_t slot;
    if (handle && find_context(handle, &slot)) return place_in(slot);
    return (pasta_nv_place){PASTA_NO_CONTEXT, PASTA_NO_DEVICE, 0};
}

static _Thread_local int16_t creating; /* plus one */

void pasta_nv_set_creating(int16_t device) { creating = (int16_t)(device + 1); }
int16_t pasta_nv_creating(void) { return (int16_t)(creating - 1); }
pasta_nv_place pasta_nv_place_here(uint64_t context) { return pasta_nv_place_of(context, pasta_nv_creating()); }

uint16_t pasta_nv_only_context_of(int16_t device) {
    uint16_t only = PASTA_NO_CONTEXT;
    uint32_t slots = LOAD(context_slots);
    for (uint32_t slot = 0; slot < slots; slot++) {
        pasta_nv_place place = place_in(slot);
        if (!LOAD(contexts[slot].handle) || place.device != device) continue;
        if (only != PASTA_NO_CONTEXT) return PASTA_NO_CONTEXT;
        only = place.context;
    }
    return only;
}

bool pasta_nv_several_devices(void) {
    int16_t first = PASTA_NO_DEVICE;
    uint32_t slots = LOAD(context_slots);
    for (uint32_t slot = 0; slot < slots; slot++) {
        int16_t device = place_in(slot).device;
        if (!LOAD(contexts[slot].handle) || device == PASTA_NO_DEVICE) continue;
        if (first != PASTA_NO_DEVICE && first != device) return true;
        first = device;
    }
    return false;
}

void pasta_nv_context_destroyed(uint64_t handle) {
    uint32_t slot;
    if (!handle || !find_context(handle, &slot)) return;
    pasta_nv_free_all_of(place_in(slot)); /* before another context may take the slot */
    pthread_mutex_lock(&changing);
    if (find_context(handle, &slot)) {
        pasta_nv_place place = place_in(slot);
        pasta_context *e = PASTA_BEGIN_AS(context_destroy, context, place.device, place.context, PASTA_NO_STREAM);
        if (e) {
            e->handle = handle;
            e->name = device_name;
            pasta_publish(e);
        }
        STORE(contexts[slot].handle, 0);
    }
    pthread_mutex_unlock(&changing);
}

/* ---- functions: a name is hashed once per function, not once per launch ---- */

static struct {
    uint64_t handle; /* never removed: a function loaded at the same address gets the same slot */
    uint64_t module;
    pasta_nv_function found;
    uint32_t known; /* `found` is valid */
} functions[FUNCTIONS];

static uint32_t hash_handle(uint64_t handle) {
    return (uint32_t)(handle * UINT64_C(0x9e3779b97f4a7c15) >> 50) & (FUNCTIONS - 1);
}

static pasta_nv_function copy_of(const pasta_nv_function *f) {
    return (pasta_nv_function){LOAD(f->name), LOAD(f->registers), LOAD(f->shared_static), LOAD(f->local),
                               LOAD(f->entry_pc)};
}

/* FUNCTIONS: it has none, or with `create`, the table is full. */
static uint32_t slot_of(uint64_t handle, bool create) {
    uint32_t slot = hash_handle(handle);
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++, slot = (slot + 1) & (FUNCTIONS - 1)) {
        uint64_t held = LOAD(functions[slot].handle);
        if (PASTA_LIKELY(held == handle)) return slot;
        if (held) continue;
        if (!create) break;
        if (__atomic_compare_exchange_n(&functions[slot].handle, &held, handle, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            held == handle)
            return slot;
    }
    return FUNCTIONS;
}

bool pasta_nv_known_function(uint64_t handle, pasta_nv_function *found) {
    uint32_t slot = slot_of(handle, false);
    bool known = slot != FUNCTIONS && LOAD(functions[slot].known);
    if (PASTA_LIKELY(known)) *found = copy_of(&functions[slot].found);
    return known;
}

pasta_nv_function pasta_nv_function_of(const pasta_nv_launch *launch, pasta_nv_look_up *look_up) {
    pasta_nv_function f;
    if (PASTA_LIKELY(pasta_nv_known_function(launch->function, &f))) return f;
    f = look_up(launch);
    uint32_t slot = launch->function && f.name ? slot_of(launch->function, true) : FUNCTIONS;
    if (slot == FUNCTIONS) return f; /* looked up at each launch */
    pthread_mutex_lock(&changing);
    STORE(functions[slot].module, launch->module);
    STORE(functions[slot].found.name, f.name);
    STORE(functions[slot].found.registers, f.registers);
    STORE(functions[slot].found.shared_static, f.shared_static);
    STORE(functions[slot].found.local, f.local);
    STORE(functions[slot].found.entry_pc, f.entry_pc);
    STORE(functions[slot].known, 1);
    pthread_mutex_unlock(&changing);
    return f;
}

void pasta_nv_module_unloaded(uint64_t module) {
    pthread_mutex_lock(&changing);
    for (uint32_t slot = 0; slot < FUNCTIONS; slot++)
        if (functions[slot].module == module) STORE(functions[slot].known, 0);
    pthread_mutex_unlock(&changing);
}
