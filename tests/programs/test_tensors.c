/* Tensors whose records are put off, against a model: one case a process, named by the first argument. */
#include "../../shim/core/internal.h"

static void *note_begin(pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context, uint64_t stream);
static void note_publish(void *payload);
#define pasta_begin note_begin
#define pasta_publish note_publish
#include "../../shim/core/tensors.c"
#undef pasta_begin
#undef pasta_publish

#include <pthread.h>

#include "check.h"

enum { ADDRESSES = 400, THREADS = 4 };

/* By number of the address. */
static struct {
    uint64_t bytes;    /* of the live tensor; 0: none */
    bool put_off;      /* its record is still to come */
    uint32_t observed; /* times */
} model[THREADS * ADDRESSES];
static _Thread_local pasta_tensor_memory writing;
static _Thread_local int16_t writing_device;

/* Of a segment, where few have the same home, and far apart, where many have. */
static uint64_t address_of(uint32_t n) { return n % 2 ? UINT64_C(0x7f0000000000) + n * 512 : (uint64_t)(n + 1) << 51; }

static uint32_t number_of(uint64_t address) {
    uint64_t near = (address - UINT64_C(0x7f0000000000)) / 512;
    return near < THREADS * ADDRESSES ? (uint32_t)near : (uint32_t)(address >> 51) - 1;
}

static void *note_begin(pasta_event_kind kind, uint8_t slots, int16_t device, uint16_t context, uint64_t stream) {
    (void)slots, (void)context, (void)stream;
    CHECK(kind == PASTA_EVENT_tensor_alloc);
    writing_device = device;
    return &writing;
}

static void note_publish(void *payload) {
    const pasta_tensor_memory *t = payload;
    uint32_t n = number_of(t->address);
    CHECK(address_of(n) == t->address && model[n].put_off && t->bytes == model[n].bytes && t->stack == n && writing_device == 3);
    model[n].put_off = false;
}

static void observe(uint64_t address, uint64_t bytes) {
    uint32_t n = number_of(address);
    CHECK(bytes == model[n].bytes && model[n].put_off);
    model[n].observed++;
}

/* One that lives is freed, another one is allocated. */
static void change(uint32_t n, uint64_t bytes) {
    pasta_tensor_memory t = {.address = address_of(n), .bytes = bytes, .stack = n, .memory = PASTA_MEMORY_device};
    if (model[n].bytes) {
        bool was_put_off = model[n].put_off;
        CHECK(pasta_tensor_forget(t.address) == was_put_off);
        model[n].bytes = 0;
        model[n].put_off = false;
    } else {
        model[n].bytes = bytes;
        model[n].put_off = true;
        bool put_off = pasta_tensor_put_off(3, &t);
        if (!put_off) model[n].put_off = false;
    }
}

static uint32_t waiting(void) {
    uint32_t count = 0;
    for (uint32_t n = 0; n < THREADS * ADDRESSES; n++) count += model[n].put_off;
    return count;
}

static void random_changes(void) {
    uint32_t seed = 1, written = 0;
    pasta_on_tensor(observe);
    for (uint32_t i = 0; i < 200000; i++) {
        seed = seed * 1664525 + 1013904223;
        if (i % 5000 == 0) {
            CHECK(held == waiting());
            written += held;
            pasta_tensors_need();
            CHECK(!held && !waiting() && !puts_off());
        } else if (i % 5000 == 500) {
            pasta_tensors_put_off();
        }
        change((seed >> 12) % ADDRESSES, 1 + (seed >> 8));
    }
    uint32_t observed = 0;
    for (uint32_t n = 0; n < ADDRESSES; n++) observed += model[n].observed;
    CHECK(written > 5000 && observed == written);
}

static void full(void) {
    pasta_tensor_memory t = {.bytes = 1};
    pasta_tensors_put_off();
    for (uint64_t n = 1; n <= MOST + 10; n++) {
        t.address = n << 21;
        CHECK(pasta_tensor_put_off(0, &t) == (n <= MOST));
    }
    CHECK(!pasta_tensor_forget((uint64_t)(MOST + 1) << 21));
    t.address = 5 << 21;
    CHECK(pasta_tensor_put_off(0, &t)); /* in place of one whose end was not reported */
    CHECK(pasta_tensor_forget(t.address) && !pasta_tensor_forget(t.address) && held == MOST - 1);
}

/* Not configured. */
static void off(void) {
    pasta_tensor_memory t = {.address = 512, .bytes = 1};
    pasta_tensors_put_off();
    CHECK(!pasta_tensor_put_off(0, &t) && !pasta_tensor_forget(512) && !held);
}

static void *change_mine(void *argument) {
    uint32_t first = (uint32_t)(uintptr_t)argument * ADDRESSES, seed = first + 1;
    for (uint32_t i = 0; i < 20000; i++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t n = first + (seed >> 12) % ADDRESSES;
        pasta_tensor_memory t = {.address = address_of(n), .bytes = 1 + i, .stack = n};
        if (seed & 1 << 30) (void)pasta_tensor_put_off(3, &t);
        else (void)pasta_tensor_forget(t.address);
        if (i % 1000 == 0) pasta_tensors_put_off();
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&all[i], NULL, change_mine, (void *)i));
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(all[i], NULL));
    uint32_t found = 0;
    for (uint32_t at = 0; at < PLACES; at++) {
        if (!table[at].tensor.address) continue;
        CHECK(place_of(table[at].tensor.address) == at && address_of(table[at].tensor.stack) == table[at].tensor.address);
        found++;
    }
    CHECK(found == held && found > 100);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {{"random", random_changes}, {"full", full}, {"off", off}, {"threads", threads}};
    return RUN_CASE(cases, argc > 1 ? argv[1] : NULL);
}
