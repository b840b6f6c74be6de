/* Hardware counters of the fake library: of each kernel that runs in a range.
 *
 * A chip has CHIP's metrics; `dram__bytes.sum` of a kernel is 1000 for each block, `sm__inst_executed.sum` is 32 for each
 * thread, `lts__t_sector_hit_rate.pct` 12.5, `gpu__missing.sum` not a number.  Two metrics fit a pass.
 *
 * FAKE_CUPTI_FAIL=Profiler...=RESULT, RangeProfiler...=RESULT  as in fake_cupti.c
 * FAKE_CUPTI_COUNTERS=FILE              gets a line for each configuration, start, stop, range and end
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../shim/backends/nvidia/cupti_abi.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID = 1, INVALID_OPERATION = 7, BUSY = 26, UNKNOWN = 999, MAX_METRICS = 16, IN_A_PASS = 2, PROFILERS = 4,
       ADDED = 8 /* instructions of a warp */ };
enum { IMAGE = 96, CONFIG = 64, AVAILABLE = 40 };

int32_t fake_cupti_planned(const char *function);
bool fake_cupti_records(int32_t kind);
void fake_cupti_execute(uint64_t context, uint64_t blocks); /* fake_cupti_instructions.c */
#define PLANNED(function) \
    if (fake_cupti_planned(function)) return fake_cupti_planned(function);

static const char *const metrics[] = {"dram__bytes.sum", "sm__inst_executed.sum", "lts__t_sector_hit_rate.pct", "gpu__missing.sum",
                                      "gpu__time_duration.sum"};
enum { METRICS = sizeof metrics / sizeof *metrics, TIME = METRICS - 1 /* fits into any pass */ };

typedef struct host {
    uint64_t count;
    bool broken; /* it has refused a metric */
} host;

typedef struct image { /* of counter data; as the client allocates it */
    uint64_t ranges;
    double sums[METRICS];
} image;
_Static_assert(sizeof(image) <= IMAGE, "an image has room");

static struct profiler {
    uint64_t context; /* 0: free */
    bool started, pushed, user;
    uint64_t passes, kernels;
    image counted;
    uint8_t *data;
} profilers[PROFILERS];
static bool initialized;

static void note(const char *format, unsigned long long value) {
    const char *path = getenv("FAKE_CUPTI_COUNTERS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, format, value);
    fclose(file);
}

static int metric(const char *name) {
    for (int i = 0; i < METRICS; i++)
        if (!strcmp(metrics[i], name)) return i;
    return -1;
}

static pthread_mutex_t *hold(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    return &lock;
}
static void release(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }
#define LOCKED __attribute__((cleanup(release), unused)) pthread_mutex_t *held = hold();

/* As the vendor's: of the fields that 12.6 has, not more. */
#define EXACTLY(type, last) \
    LOCKED \
    if (p->size != PASTA_CUPTI_SIZE(type, last) || p->unused) return INVALID;

EXPORT int32_t cuptiProfilerInitialize(pasta_cupti_profiler_initialize *p) {
    PLANNED("ProfilerInitialize")
    EXACTLY(pasta_cupti_profiler_initialize, unused)
    initialized = true;
    return 0;
}

EXPORT int32_t cuptiDeviceGetChipName(pasta_cupti_chip *p) {
    PLANNED("DeviceGetChipName")
    EXACTLY(pasta_cupti_chip, name)
    p->name = "CHIP";
    return 0;
}

/* A device has one profiler at a time. */
static bool is_of_device(const struct profiler *p, uint64_t context) {
    return p->context && (p->context & 0xf00) == (context & 0xf00);
}

EXPORT int32_t cuptiProfilerGetCounterAvailability(pasta_cupti_availability *p) {
    PLANNED("ProfilerGetCounterAvailability")
    EXACTLY(pasta_cupti_availability, image)
    if (!initialized || !p->context) return INVALID;
    for (int i = 0; i < PROFILERS; i++) {
        if (profilers[i].context == p->context) return INVALID_OPERATION; /* a session is active */
        if (is_of_device(&profilers[i], p->context)) return BUSY;
    }
    if (p->image && p->bytes != AVAILABLE) return INVALID;
    if (p->image) memset(p->image, 0xa5, AVAILABLE);
    p->bytes = AVAILABLE;
    return 0;
}

EXPORT int32_t cuptiProfilerHostInitialize(pasta_cupti_host *p) {
    PLANNED("ProfilerHostInitialize")
    EXACTLY(pasta_cupti_host, object)
    if (p->type != PASTA_CUPTI_RANGE_PROFILER || strcmp(p->chip, "CHIP")) return INVALID;
    if (p->availability && p->availability[AVAILABLE - 1] != 0xa5) return INVALID;
    p->object = calloc(1, sizeof(host));
    return 0;
}

EXPORT int32_t cuptiProfilerHostDeinitialize(pasta_cupti_profiler *p) {
    PLANNED("ProfilerHostDeinitialize")
    EXACTLY(pasta_cupti_profiler, object)
    free(p->object);
    return 0;
}

EXPORT int32_t cuptiProfilerHostConfigAddMetrics(pasta_cupti_metrics *p) {
    PLANNED("ProfilerHostConfigAddMetrics")
    EXACTLY(pasta_cupti_metrics, count)
    host *h = p->object;
    if (h->broken) return UNKNOWN;
    for (uint64_t i = 0; i < p->count; i++) {
        h->broken |= metric(p->names[i]) < 0;
        h->count += metric(p->names[i]) != TIME;
    }
    return h->broken ? INVALID : 0;
}

EXPORT int32_t cuptiProfilerHostGetConfigImageSize(pasta_cupti_image_size *p) {
    PLANNED("ProfilerHostGetConfigImageSize")
    EXACTLY(pasta_cupti_image_size, bytes)
    p->bytes = CONFIG;
    return 0;
}

EXPORT int32_t cuptiProfilerHostGetConfigImage(pasta_cupti_image *p) {
    PLANNED("ProfilerHostGetConfigImage")
    EXACTLY(pasta_cupti_image, image)
    const host *h = p->object;
    if (p->bytes != CONFIG || h->broken) return INVALID;
    memset(p->image, (int)h->count, CONFIG);
    return 0;
}

static uint64_t passes_of(const uint8_t *config) { return (config[0] + IN_A_PASS - 1) / IN_A_PASS; }

EXPORT int32_t cuptiProfilerHostGetNumOfPasses(pasta_cupti_passes *p) {
    PLANNED("ProfilerHostGetNumOfPasses")
    EXACTLY(pasta_cupti_passes, passes)
    p->passes = passes_of(p->image);
    return 0;
}

/* ---- ranges ---- */

EXPORT int32_t cuptiRangeProfilerEnable(pasta_cupti_enable_ranges *p) {
    PLANNED("RangeProfilerEnable")
    EXACTLY(pasta_cupti_enable_ranges, object)
    int free = -1;
    for (int i = 0; i < PROFILERS; i++) {
        if (is_of_device(&profilers[i], p->context)) return BUSY;
        if (!profilers[i].context) free = i;
    }
    if (free < 0 || !initialized) return INVALID;
    profilers[free] = (struct profiler){.context = p->context};
    p->object = &profilers[free];
    note("enable %llx\n", p->context);
    return 0;
}

EXPORT int32_t cuptiRangeProfilerDisable(pasta_cupti_profiler *p) {
    PLANNED("RangeProfilerDisable")
    EXACTLY(pasta_cupti_profiler, object)
    struct profiler *r = p->object;
    if (r->started) return INVALID_OPERATION;
    note("disable %llx\n", r->context);
    r->context = 0;
    return 0;
}

EXPORT int32_t cuptiRangeProfilerGetCounterDataSize(pasta_cupti_data_size *p) {
    PLANNED("RangeProfilerGetCounterDataSize")
    EXACTLY(pasta_cupti_data_size, bytes)
    if (p->nodes < p->ranges || !p->ranges || !p->count) return INVALID;
    p->bytes = IMAGE;
    return 0;
}

EXPORT int32_t cuptiRangeProfilerCounterDataImageInitialize(pasta_cupti_image *p) {
    PLANNED("RangeProfilerCounterDataImageInitialize")
    EXACTLY(pasta_cupti_image, image)
    if (p->bytes != IMAGE) return INVALID;
    memset(p->image, 0, IMAGE);
    return 0;
}

EXPORT int32_t cuptiRangeProfilerSetConfig(pasta_cupti_range_config *p) {
    PLANNED("RangeProfilerSetConfig")
    EXACTLY(pasta_cupti_range_config, level)
    bool user = p->range == PASTA_CUPTI_USER_RANGE;
    if (user != (p->replay == PASTA_CUPTI_USER_REPLAY) || p->config_bytes != CONFIG || p->data_bytes != IMAGE) return INVALID;
    struct profiler *r = p->object;
    r->user = user;
    r->passes = passes_of(p->config);
    r->data = p->data;
    note(user ? "ranges, %llu passes\n" : "kernels, %llu passes\n", r->passes);
    return 0;
}

EXPORT int32_t cuptiRangeProfilerStart(pasta_cupti_profiler *p) {
    PLANNED("RangeProfilerStart")
    EXACTLY(pasta_cupti_profiler, object)
    struct profiler *r = p->object;
    if (r->started) return INVALID_OPERATION;
    r->started = true;
    r->kernels = 0;
    r->counted = (image){0};
    note("start\n", 0);
    return 0;
}

EXPORT int32_t cuptiRangeProfilerPushRange(pasta_cupti_push_range *p) {
    PLANNED("RangeProfilerPushRange")
    EXACTLY(pasta_cupti_push_range, name)
    struct profiler *r = p->object;
    if (!r->user || !r->started || r->pushed || !p->name) return INVALID_OPERATION;
    r->pushed = true;
    r->counted.ranges++;
    return 0;
}

EXPORT int32_t cuptiRangeProfilerPopRange(pasta_cupti_profiler *p) {
    PLANNED("RangeProfilerPopRange")
    EXACTLY(pasta_cupti_profiler, object)
    struct profiler *r = p->object;
    if (!r->pushed) return INVALID_OPERATION;
    r->pushed = false;
    return 0;
}

EXPORT int32_t cuptiRangeProfilerStop(pasta_cupti_stop_ranges *p) {
    PLANNED("RangeProfilerStop")
    EXACTLY(pasta_cupti_stop_ranges, complete)
    struct profiler *r = p->object;
    if (!r->started) return INVALID_OPERATION;
    r->started = false;
    p->complete = 1;
    note("stop %llu\n", r->kernels);
    return 0;
}

EXPORT int32_t cuptiRangeProfilerDecodeData(pasta_cupti_decode *p) {
    PLANNED("RangeProfilerDecodeData")
    EXACTLY(pasta_cupti_decode, dropped)
    struct profiler *r = p->object;
    const image *data = (const image *)r->data;
    if (r->started || r->pushed || data->ranges) return INVALID_OPERATION; /* the client reset its data */
    p->dropped = r->counted.ranges > 1 ? r->counted.ranges - 1 : 0;
    memcpy(r->data, &r->counted, sizeof r->counted);
    return 0;
}

EXPORT int32_t cuptiRangeProfilerGetCounterDataInfo(pasta_cupti_range_count *p) {
    PLANNED("RangeProfilerGetCounterDataInfo")
    EXACTLY(pasta_cupti_range_count, ranges)
    p->ranges = ((const image *)p->image)->ranges;
    return 0;
}

EXPORT int32_t cuptiProfilerHostEvaluateToGpuValues(pasta_cupti_values *p) {
    PLANNED("ProfilerHostEvaluateToGpuValues")
    EXACTLY(pasta_cupti_values, values)
    const image *data = (const image *)p->image;
    if (p->bytes != IMAGE || p->range >= data->ranges) return INVALID;
    for (uint64_t i = 0; i < p->count; i++) {
        int number = metric(p->names[i]);
        if (number < 0) return INVALID;
        p->values[i] = data->sums[number];
    }
    return 0;
}

/* A kernel runs: how often, as passes need. */
EXPORT uint64_t fake_cupti_count(uint64_t context, const uint32_t *grid, const uint32_t *block) {
    usleep(20); /* others may launch meanwhile */
    LOCKED
    double blocks = (double)grid[0] * grid[1] * grid[2], threads = blocks * block[0] * block[1] * block[2];
    fake_cupti_execute(context, (uint64_t)blocks);
    for (int i = 0; i < PROFILERS; i++) {
        struct profiler *r = &profilers[i];
        if (r->context != context || !r->started || (r->user && !r->pushed)) continue;
        if (!r->user) r->counted.ranges++;
        r->kernels++;
        r->counted.sums[0] += 1000 * blocks;
        r->counted.sums[1] += 32 * threads + (fake_cupti_records(PASTA_CUPTI_KERNEL) ? ADDED * threads / 32 : 0);
        r->counted.sums[2] = 12.5;
        r->counted.sums[3] = NAN;
        r->counted.sums[TIME] = 700;
        return r->user ? 1 : r->passes;
    }
    return 1;
}

/* ---- what a chip has, for lists ---- */

typedef struct list {
    uint64_t size;
    void *unused, *object;
    int32_t type;
    const char *const *names;
    uint64_t count;
} list;

EXPORT int32_t cuptiProfilerHostGetBaseMetrics(list *p) {
    static const char *const counters[] = {"dram__bytes", "sm__inst_executed"}, *const ratios[] = {"lts__t_sector_hit_rate"};
    PLANNED("ProfilerHostGetBaseMetrics")
    p->names = p->type == 0 ? counters : ratios;
    p->count = p->type == 0 ? 2 : p->type == 1 ? 1 : 0;
    return 0;
}

typedef struct properties {
    uint64_t size;
    void *unused, *object;
    const char *name, *description, *unit, *dimension;
    int32_t type;
} properties;

EXPORT int32_t cuptiProfilerHostGetMetricProperties(properties *p) {
    p->description = strstr(p->name, "dram") ? "# of bytes accessed in DRAM" : "";
    return 0;
}

typedef struct chips {
    uint64_t size;
    void *unused;
    uint64_t count;
    const char *const *names;
} chips;

EXPORT int32_t cuptiProfilerHostGetSupportedChips(chips *p) {
    static const char *const names[] = {"CHIP"};
    PLANNED("ProfilerHostGetSupportedChips")
    p->count = 1;
    p->names = names;
    return 0;
}
