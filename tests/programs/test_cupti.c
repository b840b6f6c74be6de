/* What is remembered of submitted work, and the buffers of a program's own tool, each against a model. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../shim/backends/nvidia/cupti_source.h"
#include "check.h"

uint64_t pasta_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static unsigned said;

void pasta_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    CHECK(strstr(format, "did not fit into its buffer") && va_arg(arguments, unsigned long long) < 64);
    va_end(arguments);
    said++;
}

static uint64_t state;

static uint64_t below(uint64_t end) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d) % end;
}

/* ---- submitted work: threads write, one reads; what it finds is whole ---- */

enum { WRITERS = 3, CALLS = 40000, ENTRIES = 1 << 16, WAYS = 4 };

static uint32_t next_call;
static bool written;

static pasta_cupti_submitted of(uint32_t call) {
    pasta_cupti_submitted s = {PASTA_CUPTI_A_LAUNCH, {.ordinal = call, .correlation = call + 1, .stream = call + 2,
                                                      .node = call + 3, .time = call + 4, .thread = call}};
    return s;
}

static void *write_calls(void *unused) {
    (void)unused;
    for (int i = 0; i < CALLS; i++) {
        uint32_t call = __atomic_add_fetch(&next_call, 1, __ATOMIC_RELAXED);
        pasta_cupti_submitted s = of(call);
        pasta_cupti_put(call, &s);
        if (i % 7 == 0) pasta_cupti_forget(call);
    }
    return NULL;
}

static void check_found(uint32_t call) {
    pasta_cupti_submitted s, expected = of(call);
    if (!pasta_cupti_get(call, &s)) return;
    CHECK(s.kind == expected.kind);
    CHECK(s.work.ordinal == call && s.work.correlation == call + 1 && s.work.stream == call + 2);
    CHECK(s.work.node == call + 3 && s.work.time == call + 4 && s.work.thread == call);
}

static void *read_calls(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&written, __ATOMIC_ACQUIRE)) {
        uint32_t last = __atomic_load_n(&next_call, __ATOMIC_RELAXED);
        for (uint32_t back = 0; back < 64 && back < last; back++) check_found(last - back);
    }
    return NULL;
}

static void submitted(void) {
    pthread_t writers[WRITERS], reader;
    CHECK(!pthread_create(&reader, NULL, read_calls, NULL));
    for (int i = 0; i < WRITERS; i++) CHECK(!pthread_create(&writers[i], NULL, write_calls, NULL));
    for (int i = 0; i < WRITERS; i++) pthread_join(writers[i], NULL);
    __atomic_store_n(&written, true, __ATOMIC_RELEASE);
    pthread_join(reader, NULL);
    pasta_cupti_submitted found;
    CHECK(!pasta_cupti_get(0, &found));
}

/* Ids with the same places, which increase past the largest number. */
static uint32_t alike(uint32_t number) { return 0xfffe0000 + number * (ENTRIES / WAYS); }

static void put(uint32_t call) {
    pasta_cupti_submitted s = of(call);
    pasta_cupti_put(call, &s);
}

static bool is_known(uint32_t call) {
    pasta_cupti_submitted found;
    bool known = pasta_cupti_get(call, &found);
    CHECK(!known || found.work.ordinal == call);
    return known;
}

static void replaced(void) {
    for (uint32_t i = 0; i < WAYS; i++) put(alike(i));
    for (uint32_t i = 0; i < WAYS; i++) CHECK(is_known(alike(i)) && !pasta_cupti_replaced(alike(i)));
    CHECK(!is_known(alike(WAYS)) && !pasta_cupti_replaced(alike(WAYS)));
    pasta_cupti_forget(alike(WAYS)); /* none */
    put(alike(9));
    CHECK(!is_known(alike(0)) && pasta_cupti_replaced(alike(0)));
    CHECK(is_known(alike(1)) && is_known(alike(9)) && !pasta_cupti_replaced(alike(7)));
    pasta_cupti_forget(alike(1));
    put(alike(2)); /* again, in its own place */
    pasta_cupti_forget(alike(2));
    CHECK(!is_known(alike(2)) && is_known(alike(3)) && is_known(alike(9)));
    put(alike(1));
    put(alike(10)); /* in the free place */
    CHECK(!is_known(alike(2)) && is_known(alike(1)) && is_known(alike(3)) && is_known(alike(10)));
    put(alike(0)); /* by a slow thread: it replaces the oldest, though that is newer */
    CHECK(is_known(alike(0)) && !is_known(alike(1)) && is_known(alike(3)) && is_known(alike(10)));
}

/* A program that polls under another client: the ids of pending work increase by arbitrary steps. */
static void polled(void) {
    enum { PENDING = 8000 };
    static uint32_t calls[PENDING];
    uint32_t call = (uint32_t)below(UINT32_MAX), lost = 0;
    for (uint32_t i = 0; i < 50 * PENDING; i++) {
        uint32_t *place = &calls[i % PENDING];
        if (i >= PENDING) lost += !is_known(*place);
        pasta_cupti_forget(*place);
        call += 1 + (uint32_t)below(1000);
        if (!call) call++;
        put(*place = call);
    }
    CHECK(lost < PENDING / 4); /* 1 in 200; it is 1 in 650, and 1 in 9 if each id has only one place */
}

/* ---- buffers: records of 24 to 64 bytes, whose lengths are in them ---- */

enum { LENGTH_AT = 4, START_AT = 16, BYTES = 4096 };

static int32_t next_record(uint8_t *buffer, uint64_t valid, void **record) {
    uint8_t *next = buffer;
    if (*record) {
        uint32_t length;
        memcpy(&length, (uint8_t *)*record + LENGTH_AT, sizeof length);
        next = (uint8_t *)*record + length;
    }
    if (next >= buffer + valid) return PASTA_CUPTI_LAST_RECORD;
    *record = next;
    return 0;
}

pasta_cupti_library pasta_cupti = {.next_record = next_record};

static uint8_t got[2 * BYTES];
static uint64_t got_bytes, their_size, most;
static unsigned handed;

static void request(uint8_t **buffer, uint64_t *bytes, uint64_t *max_records) {
    *bytes = their_size;
    *buffer = their_size ? aligned_alloc(8, their_size) : NULL;
    *max_records = most;
}

static void complete(uint64_t context, uint32_t stream, uint8_t *buffer, uint64_t bytes, uint64_t valid) {
    CHECK(context == 5 && stream == 6 && valid <= bytes);
    CHECK(got_bytes + valid <= sizeof got);
    memcpy(got + got_bytes, buffer, valid);
    got_bytes += valid;
    handed++;
    free(buffer);
}

static void buffers(void) {
    static uint8_t ours[BYTES], expected[BYTES];
    const uint32_t kinds[] = {PASTA_CUPTI_KERNEL, PASTA_CUPTI_COPY, 5, 17, 77};
    uint64_t before = pasta_cupti_clock();
    pasta_cupti_guest_copy(5, 6, ours, 0); /* nobody there */
    pasta_cupti_guest_buffers(request, complete);
    pasta_cupti_guest_records(PASTA_CUPTI_KERNEL, true);
    pasta_cupti_guest_records(5, true);
    uint64_t during = pasta_cupti_clock() + 1000;
    for (int round = 0; round < 300; round++) {
        bool stopped = round >= 150; /* disabled, and not all flushed */
        if (round == 150) {
            struct timespec pause = {0, 2000000};
            nanosleep(&pause, NULL);
            pasta_cupti_guest_records(PASTA_CUPTI_KERNEL, false);
            pasta_cupti_guest_records(5, false);
        }
        uint64_t after = pasta_cupti_clock() + 1000000000, valid = 0, wanted = 0;
        while (valid + 64 <= BYTES && below(40)) {
            uint32_t kind = kinds[below(5)], length = 24 + 8 * (uint32_t)below(6);
            uint64_t start = (uint64_t[]){before - 1, during, after}[below(stopped ? 3 : 2)];
            memset(ours + valid, (int)below(256), length);
            memcpy(ours + valid, &kind, sizeof kind);
            memcpy(ours + valid + LENGTH_AT, &length, sizeof length);
            memcpy(ours + valid + START_AT, &start, sizeof start);
            bool theirs = kind == 5 || (kind == PASTA_CUPTI_KERNEL && start == during);
            if (theirs) memcpy(expected + wanted, ours + valid, length), wanted += length;
            valid += length;
        }
        got_bytes = handed = 0;
        their_size = 64 + 8 * below(200); /* smaller than ours, too */
        most = below(4);
        bool copied = below(2);
        if (copied) {
            pasta_cupti_guest_copy(5, 6, ours, valid);
        } else {
            uint8_t *buffer = malloc(BYTES);
            CHECK(buffer);
            memcpy(buffer, ours, valid);
            pasta_cupti_guest_complete(5, 6, buffer, BYTES, valid);
        }
        CHECK(got_bytes == wanted && !memcmp(got, expected, wanted));
        CHECK(copied ? (handed > 0) == (wanted > 0) : handed == 1);
    }
    CHECK(!said);
    uint8_t *none;
    uint64_t size, records;
    CHECK(!pasta_cupti_guest_request(&none, &size, &records)); /* it has stopped */
}

/* Records that fit in no buffer of the tool are lost, those after them are not. */
static void too_small(void) {
    static uint8_t ours[BYTES], expected[BYTES];
    uint64_t valid = 0, wanted = 0;
    pasta_cupti_guest_buffers(request, complete);
    pasta_cupti_guest_records(5, true);
    their_size = 40;
    for (uint32_t i = 0; i < 30; i++) {
        uint32_t length = i % 3 == 1 || i == 29 ? 64 : 24, kind = 5;
        memset(ours + valid, (int)i, length);
        memcpy(ours + valid, &kind, sizeof kind);
        memcpy(ours + valid + LENGTH_AT, &length, sizeof length);
        if (length <= their_size) memcpy(expected + wanted, ours + valid, length), wanted += length;
        valid += length;
    }
    pasta_cupti_guest_copy(5, 6, ours, valid);
    CHECK(got_bytes == wanted && !memcmp(got, expected, wanted) && said == 11 && handed == 20);
    uint8_t *buffer;
    uint64_t size, records;
    their_size = 0; /* it gives none: CUPTI gets one of ours */
    CHECK(!pasta_cupti_guest_request(&buffer, &size, &records));
    pasta_cupti_guest_copy(5, 6, ours, valid);
    CHECK(got_bytes == wanted && said == 12 && handed == 20);
}

/* ---- subscribers: the first stays ---- */

static unsigned called[2];

static void on_call(void *user, int32_t domain, uint32_t id, const void *data) {
    CHECK(domain == PASTA_CUPTI_DRIVER && id == 3 && !data);
    __atomic_fetch_add((unsigned *)user, 1, __ATOMIC_RELAXED);
}

static void not_called(void *user, int32_t domain, uint32_t id, const void *data) {
    CHECK(!user && !domain && !id && !data && false);
}

static void *call_often(void *unused) {
    for (int i = 0; i < CALLS; i++) pasta_cupti_guest_on_callback(PASTA_CUPTI_DRIVER, 3, NULL);
    return unused;
}

static void subscribers(void) {
    pthread_t caller;
    CHECK(pasta_cupti_guest_subscribe(on_call, &called[0]));
    pasta_cupti_guest_enable(PASTA_CUPTI_DRIVER, 3, true);
    CHECK(!pasta_cupti_guest_subscribe(not_called, &called[1]));
    pasta_cupti_guest_on_callback(PASTA_CUPTI_DRIVER, 3, NULL);
    CHECK(called[0] == 1 && called[1] == 0);
    CHECK(!pthread_create(&caller, NULL, call_often, NULL));
    for (int i = 0; i < 1000; i++) { /* while another thread is in its function */
        pasta_cupti_guest_unsubscribe();
        CHECK(pasta_cupti_guest_subscribe(on_call, &called[i % 2]));
        pasta_cupti_guest_enable(PASTA_CUPTI_DRIVER, 3, true);
    }
    pthread_join(caller, NULL);
    pasta_cupti_guest_unsubscribe();
    unsigned before = called[0] + called[1];
    pasta_cupti_guest_on_callback(PASTA_CUPTI_DRIVER, 3, NULL);
    CHECK(called[0] + called[1] == before);
}

/* ---- clocks ---- */

static bool near(uint64_t time, uint64_t expected) {
    int64_t apart = (int64_t)(time - expected);
    return apart > -10000000 && apart < 10000000;
}

static uint64_t theirs(uint64_t time) { return time / 3 + (UINT64_C(1) << 62); }
static uint64_t ticks(void) { return theirs(pasta_now()); }

static void clocks(void) {
    pasta_cupti_set_clock();
    uint64_t now = pasta_now(), apart = 0;
    for (int i = 0; i < 20; i++) { /* a thread may be interrupted between two readings */
        uint64_t reading = pasta_cupti_clock() - pasta_now();
        if (reading > apart) apart = reading;
    }
    CHECK(apart > UINT64_C(1) << 58); /* CLOCK_REALTIME, of this century */
    CHECK(near(pasta_cupti_time(now + apart), now));
    CHECK(pasta_cupti_time(0) == 0);
    pasta_cupti_guest_buffers(request, complete);
    pasta_cupti_guest_records(PASTA_CUPTI_KERNEL, true);
    pasta_cupti_guest_records(PASTA_CUPTI_RUNTIME_CALL, true);
    pasta_cupti_guest_clock(ticks);
    struct timespec pause = {0, 20000000};
    now = pasta_now(); /* records of a kind that began before it was enabled are not the tool's */
    nanosleep(&pause, NULL);
    uint64_t later = pasta_now(), kernel[6] = {0}, call[3] = {0}, got_kernel[6], got_call[3];
    memcpy(kernel, (uint32_t[]){PASTA_CUPTI_KERNEL, sizeof kernel}, 8);
    kernel[2] = now + apart + 1000000; /* start; the end is not recorded, and the record ends before it was queued */
    kernel[4] = later + apart;
    kernel[5] = 42;
    memcpy(call, (uint32_t[]){PASTA_CUPTI_RUNTIME_CALL, sizeof call}, 8);
    call[1] = call[2] = later + apart;
    their_size = BYTES;
    got_bytes = 0;
    static uint8_t ours[BYTES];
    memcpy(ours, kernel, sizeof kernel);
    memcpy(ours + sizeof kernel, call, sizeof call);
    pasta_cupti_guest_copy(5, 6, ours, sizeof kernel + sizeof call);
    CHECK(got_bytes == sizeof kernel + sizeof call);
    memcpy(got_kernel, got, sizeof kernel);
    memcpy(got_call, got + sizeof kernel, sizeof call);
    CHECK(near(got_kernel[2], theirs(now + 1000000)) && near(got_kernel[4], theirs(later)));
    CHECK(got_kernel[0] == kernel[0] && got_kernel[3] == 0 && got_kernel[5] == 42);
    CHECK(near(got_call[1], theirs(later)) && got_call[2] == got_call[1]);
    CHECK(near(pasta_cupti_time(later + apart), later)); /* PASTA's own stays as it is */
    pasta_cupti_guest_clock(NULL);
    memcpy(ours, kernel, sizeof kernel);
    got_bytes = 0;
    pasta_cupti_guest_copy(5, 6, ours, sizeof kernel);
    CHECK(!memcmp(got, kernel, sizeof kernel));
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    state = strtoull(arguments[2], NULL, 10) * 0x9e3779b97f4a7c15 + 1;
    if (!strcmp(arguments[1], "submitted")) submitted();
    else if (!strcmp(arguments[1], "replaced")) replaced();
    else if (!strcmp(arguments[1], "polled")) polled();
    else if (!strcmp(arguments[1], "buffers")) buffers();
    else if (!strcmp(arguments[1], "too_small")) too_small();
    else if (!strcmp(arguments[1], "subscribers")) subscribers();
    else if (!strcmp(arguments[1], "clocks")) clocks();
    else return 2;
    return 0;
}
