/* CUPTI with a switch: everything that its subscriber enabled is disabled and enabled again inside one process, so that
 * a program is measured with and without a client of CUPTI in turns.
 *
 *     LD_PRELOAD=DIRECTORY/libcupti.so.13 ./program
 *
 * It has the name and all functions of the library CUPTI_REAL, a macro, and jumps to them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "cupti_entries.h" /* CUPTI_ENTRIES(X): X(number, name) of the functions; written by cupti_switch.py */

#ifndef __x86_64__
#error "the jumps are written for x86-64"
#endif

#define ONE(number, name) +1
enum { ENTRIES = 0 CUPTI_ENTRIES(ONE), LISTED = 2048 };

__attribute__((visibility("hidden"))) void *cupti_entries[ENTRIES];

#define JUMP(number, name)                                             \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ":\n" \
            "jmp *cupti_entries+8*" #number "(%rip)\n");
CUPTI_ENTRIES(JUMP)

static int32_t (*real_subscribe)(void **, void *, void *);
static int32_t (*real_enable_callback)(uint32_t, void *, int32_t, uint32_t);
static int32_t (*real_enable)(int32_t), (*real_disable)(int32_t);

static void *subscriber;
static struct {
    int32_t domain;
    uint32_t id;
} callbacks[LISTED];
static int32_t kinds[LISTED];
static int callback_count, kind_count;

__attribute__((constructor)) static void load(void) {
    void *library = dlopen(CUPTI_REAL, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "switch of CUPTI: %s\n", dlerror());
        _exit(3);
    }
#define RESOLVE(number, name) cupti_entries[number] = dlsym(library, #name);
    CUPTI_ENTRIES(RESOLVE)
    *(void **)&real_subscribe = dlsym(library, "cuptiSubscribe");
    *(void **)&real_enable_callback = dlsym(library, "cuptiEnableCallback");
    *(void **)&real_enable = dlsym(library, "cuptiActivityEnable");
    *(void **)&real_disable = dlsym(library, "cuptiActivityDisable");
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int32_t cuptiSubscribe(void **made, void *callback, void *user) {
    int32_t result = real_subscribe(made, callback, user);
    if (result == 0) subscriber = *made;
    return result;
}

EXPORTED int32_t cuptiEnableCallback(uint32_t on, void *of, int32_t domain, uint32_t id) {
    int i = 0;
    while (i < callback_count && (callbacks[i].domain != domain || callbacks[i].id != id)) i++;
    if (on && i == callback_count && callback_count < LISTED) {
        callbacks[callback_count].domain = domain;
        callbacks[callback_count++].id = id;
    }
    return real_enable_callback(on, of, domain, id);
}

EXPORTED int32_t cuptiActivityEnable(int32_t kind) {
    int i = 0;
    while (i < kind_count && kinds[i] != kind) i++;
    if (i == kind_count && kind_count < LISTED) kinds[kind_count++] = kind;
    return real_enable(kind);
}

/* Gives how much it switched; where nothing runs on the device. */
EXPORTED int cupti_switch(int on) {
    for (int i = 0; i < callback_count; i++)
        real_enable_callback((uint32_t)on, subscriber, callbacks[i].domain, callbacks[i].id);
    for (int i = 0; i < kind_count; i++) (on ? real_enable : real_disable)(kinds[i]);
    return callback_count + kind_count;
}
