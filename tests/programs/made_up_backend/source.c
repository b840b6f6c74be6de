/* Turns the calls of a made-up accelerator into records. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "pasta_source.h"

#include "vendor.h"

enum { DEVICE = 0, CONTEXT = 1, STREAM = 7 };

static bool use(void) {
    static bool created;
    if (!pasta_use("made_up", "1.0")) return false;
    if (created) return true;
    created = true;
    pasta_context *e = PASTA_BEGIN_AS(context_create, context, DEVICE, CONTEXT, PASTA_NO_STREAM);
    if (e) {
        e->name = pasta_intern_z("Made Up 3000");
        pasta_publish(e);
    }
    return true;
}

/* Whether probes run in a launch: this accelerator has no probes, so their coverage is unknown. */
static bool is_probed(const pasta_kernel_launch *launch, const char *symbol) {
    const char *kinds = pasta_config("probe_kinds");
    return kinds && *kinds && pasta_probe_selects(launch->name, symbol) && pasta_probe_takes(launch).probed;
}

static void on_launch(const char *kernel, unsigned blocks) {
    if (!use()) return;
    const char *prefix = pasta_config("made_up.prefix");
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix ? prefix : "", kernel);
    uint64_t ordinal = pasta_next_launch();
    pasta_kernel_launch *launch = PASTA_BEGIN(kernel_launch, DEVICE, CONTEXT, STREAM);
    if (launch) {
        launch->name = pasta_intern_z(name);
        launch->grid[0] = blocks;
        launch->grid[1] = launch->grid[2] = launch->block[0] = launch->block[1] = launch->block[2] = 1;
        launch->ordinal = ordinal;
        pasta_header_of(launch)->correlation = pasta_next_correlation();
        if (is_probed(launch, name)) pasta_header_of(launch)->flags |= PASTA_FLAG_PROBED;
        pasta_publish(launch);
    }
    pasta_launch_end *end = PASTA_BEGIN_AS(kernel_launch_end, launch_end, DEVICE, CONTEXT, STREAM);
    if (end) {
        end->ordinal = ordinal;
        pasta_publish(end);
    }
}

static void on_copy(unsigned long bytes) {
    if (!use()) return;
    pasta_memory_copy *e = PASTA_BEGIN(memory_copy, DEVICE, CONTEXT, STREAM);
    if (!e) return;
    e->bytes = e->width = bytes;
    e->height = e->depth = 1;
    e->direction = PASTA_COPY_host_to_device;
    pasta_publish(e);
}

PASTA_EXPORT void pasta_backend_load(void) {
    static const made_up_callbacks callbacks = {on_launch, on_copy};
    const made_up_callbacks **place = dlsym(RTLD_DEFAULT, "made_up_subscriber");
    if (place && pasta_listens_to("made_up")) *place = &callbacks;
}
