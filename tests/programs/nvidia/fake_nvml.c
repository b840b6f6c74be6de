/* A stand-in for libnvidia-ml.so.1, which the launcher's sampler loads.  Device D at its N-th sample (from 0, counted
 * by nvmlDeviceGetPowerUsage) has
 *
 *     power 100 W * (D + 1) + N W     limit 700 W          clocks 1500 of 1980 MHz, memory 2619 MHz
 *     reasons: software power cap     temperature 40 + D   utilisation 75 %, memory 30 %
 *     memory 10 GiB * (D + 1) of 80 GiB; a process that uses it: see FAKE_NVML_PROCESSES
 *     18 links of NVLink 4, all but the last active; PCIe 5 with 16 lanes
 *
 * Variables:
 *     FAKE_NVML_DEVICES=N             1 by default
 *     FAKE_NVML_UNSUPPORTED=NAME,…    functions without nvmlDeviceGet that are not supported
 *     FAKE_NVML_LOST=D:N              device D is lost at its sample N
 *     FAKE_NVML_FLAKY=NAME            every second call of the function times out
 *     FAKE_NVML_PROCESSES=PID:BYTES,… on every device; BYTES -: not available
 *     FAKE_NVML_MIG=1                 devices are partitioned
 *     FAKE_NVML_UTILIZATION=N         percent, instead of 75
 *     FAKE_NVML_LOG=FILE              a line for each call
 *
 * They are read when the library is initialised, so that its own time is short (bench/telemetry.py).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15 };
enum { DEVICES = 16, CLOCK_SM = 1, POWER_CAP = 4, LINKS = 18, NVLINK_4 = 6 };
#define GIB ((unsigned long long)1 << 30)

typedef struct device {
    unsigned number, samples, is_lost;
} device;

typedef struct {
    unsigned long long total, free, used;
} memory_v1;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process;

static device devices[DEVICES];
static char unsupported[1024];
static const char *flaky, *processes, *log_path;
static unsigned count_of_devices, mig, utilization, lost = UINT32_MAX, lost_at;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static void note(const char *name, int number) {
    FILE *file = log_path ? fopen(log_path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %d\n", name, number);
    fclose(file);
}

static int is_unsupported(const char *name) {
    char entry[128];
    if (!unsupported[2]) return 0; /* ",," */
    snprintf(entry, sizeof entry, ",%s,", name);
    return strstr(unsupported, entry) != NULL;
}

/* The status of a call for a device. */
static int asked(device *d, const char *name) {
    note(name, (int)d->number);
    if (d->is_lost) return LOST;
    if (is_unsupported(name)) return NOT_SUPPORTED;
    return *flaky && d->samples % 2 && !strcmp(flaky, name) ? TIMEOUT : SUCCESS;
}

#define ASK(name)                         \
    int status = asked(handle, name);     \
    if (status != SUCCESS) return status

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    count_of_devices = (unsigned)atoi(setting("FAKE_NVML_DEVICES", "1"));
    snprintf(unsupported, sizeof unsupported, ",%s,", setting("FAKE_NVML_UNSUPPORTED", ""));
    sscanf(setting("FAKE_NVML_LOST", ""), "%u:%u", &lost, &lost_at);
    flaky = setting("FAKE_NVML_FLAKY", "");
    processes = setting("FAKE_NVML_PROCESSES", "");
    mig = (unsigned)atoi(setting("FAKE_NVML_MIG", "0"));
    utilization = (unsigned)atoi(setting("FAKE_NVML_UTILIZATION", "75"));
    log_path = getenv("FAKE_NVML_LOG");
    note("Init", (int)getpid());
    for (unsigned i = 0; i < DEVICES; i++) devices[i] = (device){.number = i};
    return SUCCESS;
}

int nvmlShutdown(void) {
    note("Shutdown", (int)getpid());
    return SUCCESS;
}

const char *nvmlErrorString(int status) {
    return status == LOST ? "GPU is lost" : "an error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = count_of_devices;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, device **handle) {
    *handle = &devices[number];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **handle) {
    *handle = &devices[atoi(uuid + strlen("GPU-"))];
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.1");
    return SUCCESS;
}

int nvmlDeviceGetUUID(device *handle, char *text, unsigned size) {
    snprintf(text, size, "GPU-0000000%u-1111-2222-3333-444444444444", handle->number);
    return SUCCESS;
}

int nvmlDeviceGetName(device *handle, char *text, unsigned size) {
    (void)handle;
    snprintf(text, size, "A GPU");
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device *handle, unsigned *current, unsigned *pending) {
    (void)handle;
    *current = *pending = mig;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device *handle, unsigned *milliwatts) {
    handle->is_lost |= lost == handle->number && handle->samples >= lost_at;
    ASK("PowerUsage");
    *milliwatts = 100000 * (handle->number + 1) + 1000 * handle->samples++;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(device *handle, unsigned *milliwatts) {
    ASK("EnforcedPowerLimit");
    *milliwatts = 700000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(device *handle, int type, unsigned *megahertz) {
    ASK("ClockInfo");
    *megahertz = type == CLOCK_SM ? 1500 : 2619;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(device *handle, int type, unsigned *megahertz) {
    (void)type;
    ASK("MaxClockInfo");
    *megahertz = 1980;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(device *handle, unsigned long long *reasons) {
    ASK("CurrentClocksEventReasons");
    *reasons = POWER_CAP;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *handle, unsigned long long *reasons) {
    ASK("CurrentClocksThrottleReasons");
    *reasons = POWER_CAP;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device *handle, int sensor, unsigned *celsius) {
    (void)sensor;
    ASK("Temperature");
    *celsius = 40 + handle->number;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device *handle, memory_v1 *memory) {
    ASK("MemoryInfo");
    *memory = (memory_v1){.total = 80 * GIB, .used = 10 * GIB * (handle->number + 1) + GIB};
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device *handle, memory_v2 *memory) {
    ASK("MemoryInfo_v2");
    memory->total = 80 * GIB;
    memory->reserved = GIB;
    memory->used = 10 * GIB * (handle->number + 1);
    memory->free = memory->total - memory->used - GIB;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *handle, unsigned percent[2]) {
    ASK("UtilizationRates");
    percent[0] = utilization;
    percent[1] = 30;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *handle, unsigned *count, process *found) {
    unsigned room = *count;
    if (!found) {
        ASK("ComputeRunningProcesses");
    }
    *count = 0;
    for (const char *at = processes; *at; at += strcspn(at, ","), at += *at == ',') {
        unsigned pid = (unsigned)strtoul(at, NULL, 10);
        const char *bytes = strchr(at, ':') + 1;
        unsigned long long size = *bytes == '-' ? UINT64_MAX : strtoull(bytes, NULL, 10);
        if (*count < room) found[*count] = (process){pid, size, UINT32_MAX, UINT32_MAX};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetNvLinkState(device *handle, unsigned link, unsigned *active) {
    ASK("NvLinkState");
    *active = link < LINKS - 1;
    return link < LINKS ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkVersion(device *handle, unsigned link, unsigned *version) {
    ASK("NvLinkVersion");
    *version = NVLINK_4;
    return link < LINKS ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxPcieLinkGeneration(device *handle, unsigned *generation) {
    ASK("MaxPcieLinkGeneration");
    *generation = 5;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(device *handle, unsigned *lanes) {
    ASK("MaxPcieLinkWidth");
    *lanes = 16;
    return SUCCESS;
}
