/* Devices: the GPU agents that the program sees, in its order, and a context for each used one. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "source.h"

typedef struct agent {
    uint64_t id;
    const char *name; /* the SDK's, valid as long as that */
    const char *architecture; /* also; NULL: unknown */
    uint32_t context; /* number + 1; 0: not used yet */
} agent;

static agent gpus[PASTA_AMD_DEVICES]; /* by ordinal */
static int16_t gpu_count;
static uint16_t contexts;
static pthread_mutex_t publishing = PTHREAD_MUTEX_INITIALIZER;

static bool is_name(const char *text) { return text && *text && strcmp(text, "unknown") != 0; }

/* The product ("AMD Instinct MI300X"); of some devices only the architecture is known. */
static const char *name_of(const pasta_amd_agent *a) {
    if (!PASTA_AMD_HAS(a, model)) return NULL;
    if (is_name(a->product)) return a->product;
    return is_name(a->name) ? a->name : is_name(a->model) ? a->model : NULL;
}

static const char *architecture_of(const pasta_amd_agent *a) {
    if (!PASTA_AMD_HAS(a, name) || !is_name(a->name)) return NULL;
    return strncmp(a->name, "gfx", 3) ? NULL : a->name;
}

static int32_t on_agents(uint32_t version, const void **agents, size_t count, void *user) {
    (void)version, (void)user;
    for (size_t i = 0; i < count && gpu_count < PASTA_AMD_DEVICES; i++) {
        const pasta_amd_agent *a = agents[i];
        if (!a || !PASTA_AMD_HAS(a, type) || a->type != PASTA_AMD_AGENT_GPU) continue;
        gpus[gpu_count++] = (agent){.id = a->id, .name = name_of(a), .architecture = architecture_of(a)};
    }
    return 0;
}

/* These variables select and order the runtimes' devices; a list ends at the first entry that is no
 * number of a device.  UUIDs are allowed too, but SDK 0.5 does not report them. */
static void select_by(const char *variable) {
    const char *list = getenv(variable);
    if (!list || !*list) return;
    agent all[PASTA_AMD_DEVICES];
    int16_t count = gpu_count;
    memcpy(all, gpus, sizeof all);
    if (list[strspn(list, "0123456789,- ")]) {
        pasta_log(PASTA_AMD_SOURCE ": %s=%s: devices are numbered as if it were not set", variable, list);
        return;
    }
    gpu_count = 0;
    for (char *end; *list && gpu_count < PASTA_AMD_DEVICES; list = *end == ',' ? end + 1 : end) {
        long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= count) break;
        gpus[gpu_count++] = all[device];
    }
}

int32_t pasta_amd_read_agents(void) {
    gpu_count = 0;
    int32_t status =
        pasta_amd.query_agents(PASTA_AMD_AGENT_VERSION, on_agents, sizeof(pasta_amd_agent), NULL);
    if (status != 0) return status;
    select_by("ROCR_VISIBLE_DEVICES");
    const char *hip = getenv("HIP_VISIBLE_DEVICES");
    select_by(hip && *hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
    return 0;
}

/* The agent's other properties are in bytes that rocprofiler_abi.h does not declare: they stay absent. */
static void publish_device(int16_t device, const agent *gpu) {
    uint32_t name = pasta_intern_z(gpu->name), architecture = pasta_intern_z(gpu->architecture);
    pasta_device *e = PASTA_BEGIN(device, device, PASTA_NO_CONTEXT, PASTA_NO_STREAM);
    if (!e) return;
    e->name = name;
    e->uuid = PASTA_STRING_absent;
    e->architecture = architecture;
    pasta_publish(e);
}

static uint16_t publish(int16_t device) {
    agent *gpu = &gpus[device];
    pthread_mutex_lock(&publishing);
    if (!gpu->context) {
        publish_device(device, gpu);
        uint16_t number = contexts++;
        pasta_context *e = PASTA_BEGIN_AS(context_create, context, device, number, PASTA_NO_STREAM);
        if (e) {
            e->handle = gpu->id;
            e->name = pasta_intern_z(gpu->name);
            pasta_publish(e);
        }
        PASTA_STORE(gpu->context, number + 1u);
    }
    pthread_mutex_unlock(&publishing);
    return (uint16_t)(gpu->context - 1);
}

pasta_amd_place pasta_amd_place_on(int16_t device) {
    if (device < 0 || device >= gpu_count) return (pasta_amd_place){PASTA_NO_DEVICE, PASTA_NO_CONTEXT};
    uint32_t context = PASTA_LOAD(gpus[device].context);
    return (pasta_amd_place){device, PASTA_LIKELY(context) ? (uint16_t)(context - 1) : publish(device)};
}

pasta_amd_place pasta_amd_place_of(uint64_t id) {
    int16_t device = 0;
    while (device < gpu_count && gpus[device].id != id) device++;
    return pasta_amd_place_on(device);
}

bool pasta_amd_gpu(int16_t device, uint64_t *id, const char **name) {
    if (device < 0 || device >= gpu_count) return false;
    *id = gpus[device].id;
    *name = gpus[device].name;
    return true;
}
