/* The program's own calls of CUPTI, where it links to the library: they take part in our subscription.
 *
 * A program that looks the functions up itself (dlsym) is not seen here: CUPTI then tells it that there is another
 * subscriber.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "cupti_source.h"

typedef void *handle;
typedef int32_t subscribe_function(handle *subscriber, pasta_cupti_callback *callback, void *user);
typedef int32_t unsubscribe_function(handle subscriber);
typedef int32_t enable_callback_function(uint32_t on, handle subscriber, int32_t domain, uint32_t id);
typedef int32_t enable_domain_function(uint32_t on, handle subscriber, int32_t domain);
typedef int32_t enable_all_function(uint32_t on, handle subscriber);
typedef int32_t state_function(uint32_t *on, handle subscriber, int32_t domain, uint32_t id);
typedef int32_t buffers_function(pasta_cupti_request *request, pasta_cupti_complete *complete);
typedef int32_t kind_function(int32_t kind);
typedef int32_t clock_function(uint64_t (*now)(void));
typedef int32_t finalize_function(void);

PASTA_EXPORT subscribe_function pasta_guest_subscribe __asm__("cuptiSubscribe");
PASTA_EXPORT unsubscribe_function pasta_guest_unsubscribe __asm__("cuptiUnsubscribe");
PASTA_EXPORT enable_callback_function pasta_guest_enable_callback __asm__("cuptiEnableCallback");
PASTA_EXPORT enable_domain_function pasta_guest_enable_domain __asm__("cuptiEnableDomain");
PASTA_EXPORT enable_all_function pasta_guest_enable_all __asm__("cuptiEnableAllDomains");
PASTA_EXPORT state_function pasta_guest_state __asm__("cuptiGetCallbackState");
PASTA_EXPORT buffers_function pasta_guest_buffers __asm__("cuptiActivityRegisterCallbacks");
PASTA_EXPORT kind_function pasta_guest_enable __asm__("cuptiActivityEnable");
PASTA_EXPORT kind_function pasta_guest_disable __asm__("cuptiActivityDisable");
PASTA_EXPORT clock_function pasta_guest_clock __asm__("cuptiActivityRegisterTimestampCallback");
PASTA_EXPORT finalize_function pasta_guest_finalize __asm__("cuptiFinalize");

enum { NOT_SUPPORTED = 27, LAST_DOMAIN = 6, LAST_ID = 1023 };

static char guest; /* its address is the program's subscriber */
static bool is_guest(handle subscriber) { return subscriber == (handle)&guest; }

/* Calls the function itself. */
#define PASS(type, name, ...)                           \
    PASTA_NEXT(type, name)                              \
    return call ? call(__VA_ARGS__) : NOT_SUPPORTED;

/* What both need, and nothing else. */
static void restore_callbacks(void) {
    for (int32_t domain = 1; domain <= LAST_DOMAIN; domain++) {
        pasta_cupti.enable_domain(0, pasta_cupti.subscriber, domain);
        for (uint32_t id = 1; id <= LAST_ID; id++)
            if (pasta_cupti_guest_wants(domain, id)) pasta_cupti.enable_callback(1, pasta_cupti.subscriber, domain, id);
    }
    pasta_cupti_enable_callbacks();
}

int32_t pasta_guest_subscribe(handle *subscriber, pasta_cupti_callback *callback, void *user) {
    if (subscriber && callback && pasta_nv_takes_cupti()) pasta_nv_start(); /* before the first call of the driver */
    if (!pasta_cupti_is_on()) {
        PASS(subscribe_function, "cuptiSubscribe", subscriber, callback, user)
    }
    if (!subscriber || !callback) return PASTA_CUPTI_INVALID_PARAMETER;
    if (!pasta_cupti_guest_subscribe(callback, user)) return PASTA_CUPTI_OTHER_SUBSCRIBER;
    *subscriber = &guest;
    return 0;
}

int32_t pasta_guest_unsubscribe(handle subscriber) {
    if (!is_guest(subscriber)) {
        PASS(unsubscribe_function, "cuptiUnsubscribe", subscriber)
    }
    pasta_cupti_guest_unsubscribe();
    restore_callbacks();
    return 0;
}

int32_t pasta_guest_enable_callback(uint32_t on, handle subscriber, int32_t domain, uint32_t id) {
    if (!is_guest(subscriber)) {
        PASS(enable_callback_function, "cuptiEnableCallback", on, subscriber, domain, id)
    }
    bool keep = !on && pasta_cupti_wants(domain, id);
    int32_t result = keep ? 0 : pasta_cupti.enable_callback(on, pasta_cupti.subscriber, domain, id);
    if (result == 0) pasta_cupti_guest_enable(domain, id, on != 0);
    return result;
}

int32_t pasta_guest_enable_domain(uint32_t on, handle subscriber, int32_t domain) {
    if (!is_guest(subscriber)) {
        PASS(enable_domain_function, "cuptiEnableDomain", on, subscriber, domain)
    }
    int32_t result = pasta_cupti.enable_domain(on, pasta_cupti.subscriber, domain);
    for (uint32_t id = 1; result == 0 && id <= LAST_ID; id++) pasta_cupti_guest_enable(domain, id, on != 0);
    if (!on) pasta_cupti_enable_callbacks();
    return result;
}

int32_t pasta_guest_enable_all(uint32_t on, handle subscriber) {
    if (!is_guest(subscriber)) {
        PASS(enable_all_function, "cuptiEnableAllDomains", on, subscriber)
    }
    for (int32_t domain = 1; domain <= LAST_DOMAIN; domain++) pasta_guest_enable_domain(on, subscriber, domain);
    return 0;
}

int32_t pasta_guest_state(uint32_t *on, handle subscriber, int32_t domain, uint32_t id) {
    if (!is_guest(subscriber)) {
        PASS(state_function, "cuptiGetCallbackState", on, subscriber, domain, id)
    }
    if (!on) return PASTA_CUPTI_INVALID_PARAMETER;
    *on = pasta_cupti_guest_wants(domain, id);
    return 0;
}

int32_t pasta_guest_buffers(pasta_cupti_request *request, pasta_cupti_complete *complete) {
    if (!pasta_cupti_is_on()) {
        PASS(buffers_function, "cuptiActivityRegisterCallbacks", request, complete)
    }
    if (!request || !complete) return PASTA_CUPTI_INVALID_PARAMETER;
    pasta_cupti_guest_buffers(request, complete);
    return 0;
}

int32_t pasta_guest_enable(int32_t kind) {
    if (!pasta_cupti_is_on()) {
        PASS(kind_function, "cuptiActivityEnable", kind)
    }
    int32_t result = pasta_cupti.enable(kind);
    if (result == 0) pasta_cupti_guest_records(kind, true);
    return result;
}

int32_t pasta_guest_disable(int32_t kind) {
    if (!pasta_cupti_is_on()) {
        PASS(kind_function, "cuptiActivityDisable", kind)
    }
    int32_t result = pasta_cupti_wants_records(kind) ? 0 : pasta_cupti.disable(kind);
    if (result == 0) pasta_cupti_guest_records(kind, false);
    return result;
}

int32_t pasta_guest_clock(uint64_t (*now)(void)) {
    if (!pasta_cupti_is_on()) {
        PASS(clock_function, "cuptiActivityRegisterTimestampCallback", now)
    }
    pasta_cupti_guest_clock(now);
    return 0;
}

/* The program ends its use of CUPTI; we go on. */
int32_t pasta_guest_finalize(void) {
    if (!pasta_cupti_is_on()) {
        PASS(finalize_function, "cuptiFinalize")
    }
    for (int32_t kind = 0; kind < LAST_ID; kind++)
        if (pasta_cupti_guest_wants_records(kind)) pasta_guest_disable(kind);
    pasta_cupti_guest_unsubscribe();
    restore_callbacks();
    return 0;
}
