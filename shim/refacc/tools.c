/* The one tools subscriber, its injection and its access hook. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

struct ra_tools_subscriber {
    ra_tools_callback callback;
    void *userdata;
};

_Atomic uint32_t ra_tools_domains;
static struct ra_tools_subscriber subscriber; /* written only while `subscription` is even */
static _Atomic uint64_t subscription;         /* odd: there is a subscriber */
static _Atomic uint32_t inside;               /* callbacks and hooks running */
static _Thread_local uint32_t depth;          /* of them, on this thread */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* subscribing, and the hook */
static ra_access_hook hook;
static void *hook_userdata;

bool ra_tools_enter(uint64_t wanted) {
    atomic_fetch_add(&inside, 1);
    depth++;
    if (atomic_load(&subscription) == wanted && wanted & 1) return true;
    ra_tools_leave();
    return false;
}

void ra_tools_leave(void) {
    depth--;
    atomic_fetch_sub(&inside, 1);
}

void ra_tools_call(ra_domain domain, ra_callback_id id, void *data) {
    if (!ra_tools_enter(atomic_load(&subscription))) return;
    subscriber.callback(subscriber.userdata, domain, id, data);
    ra_tools_leave();
}

uint64_t ra_tools_hook(ra_access_hook *in_force, void **userdata) {
    if (!(atomic_load(&subscription) & 1)) {
        *in_force = NULL;
        *userdata = NULL;
        return 0;
    }
    pthread_mutex_lock(&lock);
    *in_force = hook;
    *userdata = hook_userdata;
    uint64_t now = atomic_load(&subscription);
    pthread_mutex_unlock(&lock);
    return now;
}

static int subscribe(ra_tools_handle *handle, ra_tools_callback callback, void *userdata) {
    RA_REQUIRE(handle && callback, RA_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    /* The last subscriber may still be in a callback, though its unsubscribe has begun. */
    bool busy = atomic_load(&subscription) & 1 || atomic_load(&inside) != depth;
    if (!busy) {
        subscriber = (struct ra_tools_subscriber){callback, userdata};
        atomic_fetch_add(&subscription, 1);
        *handle = &subscriber;
    }
    pthread_mutex_unlock(&lock);
    return busy ? RA_BUSY : RA_OK;
}

static int unsubscribe(ra_tools_handle handle) {
    pthread_mutex_lock(&lock);
    bool known = handle == &subscriber && atomic_load(&subscription) & 1;
    if (known) {
        atomic_store(&ra_tools_domains, 0);
        hook = NULL;
        atomic_fetch_add(&subscription, 1);
    }
    pthread_mutex_unlock(&lock);
    RA_REQUIRE(known, RA_INVALID_HANDLE);
    while (atomic_load(&inside) != depth) sched_yield();
    return RA_OK;
}

static int enable_domain(ra_tools_handle handle, ra_domain domain, int on) {
    RA_REQUIRE(domain >= 0 && domain < RA_DOMAIN_COUNT, RA_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    bool known = handle == &subscriber && atomic_load(&subscription) & 1;
    if (known && on) atomic_fetch_or(&ra_tools_domains, 1u << domain);
    if (known && !on) atomic_fetch_and(&ra_tools_domains, ~(1u << domain));
    pthread_mutex_unlock(&lock);
    return known ? RA_OK : RA_INVALID_HANDLE;
}

static int set_access_hook(ra_tools_handle handle, ra_access_hook wanted, void *userdata) {
    pthread_mutex_lock(&lock);
    bool known = handle == &subscriber && atomic_load(&subscription) & 1;
    if (known) {
        hook = wanted;
        hook_userdata = userdata;
    }
    pthread_mutex_unlock(&lock);
    return known ? RA_OK : RA_INVALID_HANDLE;
}

const ra_tools_api *ra_tools(void) {
    static const ra_tools_api api = {
        .size = sizeof api,
        .version = RA_TOOLS_VERSION,
        .library_version = RA_VERSION_TEXT,
        .error_string = ra_error_string,
        .subscribe = subscribe,
        .unsubscribe = unsubscribe,
        .enable_domain = enable_domain,
        .set_access_hook = set_access_hook,
    };
    return &api;
}

void ra_tools_inject(void) {
    const char *path = getenv("REFACC_INJECTION_PATH");
    if (!path || !*path) return;
    const char *problem = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        problem = dlerror();
    } else {
        ra_tools_initialize_function initialize;
        *(void **)&initialize = dlsym(library, "ra_tools_initialize");
        if (!initialize)
            problem = "it does not export ra_tools_initialize";
        else if (initialize(ra_tools()) != 0)
            problem = "its ra_tools_initialize failed";
    }
    if (problem && getenv("REFACC_VERBOSE")) fprintf(stderr, "refacc: cannot inject %s: %s\n", path, problem);
}

/* No other thread is left (fork) or may be in a call (shutdown). */
void ra_tools_forget(void) {
    pthread_mutex_init(&lock, NULL);
    atomic_store(&ra_tools_domains, 0);
    if (atomic_load(&subscription) & 1) atomic_fetch_add(&subscription, 1);
    atomic_store(&inside, 0);
    depth = 0;
    hook = NULL;
}
