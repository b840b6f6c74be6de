/* Walks over stacks: one case a process, named by the first argument; the second one is the method. */
#define _GNU_SOURCE
#include "../../shim/core/unwind.c"

#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "check.h"

/* What the files under test need of the others. */
bool pasta_is_sandboxed(void) { return false; }
uint32_t pasta_generation(void) { return 0; }
uint32_t pasta_thread(void) { return (uint32_t)gettid(); }
uint32_t pasta_intern(const char *text, size_t length) { return text ? (uint32_t)length : 0; }
uint64_t pasta_hash(const void *bytes, size_t length) { return bytes ? length : 0; }

enum { DEPTH = 20, BYTES = 1 << 16 };

static pasta_frame frames[PASTA_MAX_FRAMES];
static size_t count;
static bool truncated;
static volatile uint64_t returns[DEPTH + 1]; /* return addresses of `nested`, innermost first */
static volatile int sink;

#define NOINLINE __attribute__((noinline, noclone))

static bool has_frames_of(const volatile uint64_t *expected, size_t length, size_t from) {
    for (size_t i = 0; i < length; i++)
        if (from + i >= count || frames[from + i].address != expected[i] - 1) return false;
    return true;
}

/* Where the return addresses of `nested` are found; count: nowhere. */
static size_t find_nested(size_t length) {
    size_t from = 0;
    while (from < count && !has_frames_of(returns, length, from)) from++;
    return from;
}

static NOINLINE int nested(int depth) {
    volatile char used[48];
    used[depth % 48] = 1;
    returns[depth] = (uint64_t)(uintptr_t)__builtin_return_address(0);
    if (depth) sink += nested(depth - 1);
    else count = pasta_unwind(frames, PASTA_MAX_FRAMES, &truncated);
    return used[depth % 48];
}

static bool by_pointers;

static void check_nested(int depth) {
    CHECK(find_nested((size_t)depth + 1) < count);
    CHECK(by_pointers || !truncated);
}

static void walks(void) {
    nested(DEPTH);
    check_nested(DEPTH);
    nested(3); /* rules are known now */
    check_nested(3);
}

static NOINLINE int recurse(int depth) {
    volatile char used[16];
    used[depth % 16] = 1;
    if (depth) sink += recurse(depth - 1);
    else count = pasta_unwind(frames, PASTA_MAX_FRAMES, &truncated);
    return used[depth % 16];
}

static void deep(void) {
    recurse(10000);
    CHECK(count == PASTA_MAX_FRAMES && truncated);
    CHECK(frames[10].address == frames[100].address);
}

static void *walk_in_thread(void *unused) {
    walks();
    return unused;
}

static void in_thread(size_t bytes, void *(*run)(void *)) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(!pthread_attr_setstacksize(&attributes, bytes));
    CHECK(!pthread_create(&thread, &attributes, run, NULL));
    pthread_join(thread, NULL);
}

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { SMALLEST = 0 }; /* threads do not start with less */
#else
enum { SMALLEST = 16 << 10 };
#endif

static void *walk_nowhere(void *unused) {
    nested(2);
    CHECK(count == 0 && truncated);
    return unused;
}

/* A small stack is walked if enough of it is left. */
static void small_stack(void) {
    if (SMALLEST) in_thread(SMALLEST, walk_nowhere); /* first: libc reuses larger stacks */
    in_thread(BYTES, walk_in_thread);
}

/* ---- other stacks ---- */

static ucontext_t back, inside;

static void in_coroutine(void) { nested(DEPTH); }

static void coroutine(void) {
    char *memory = mmap(NULL, BYTES + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && !mprotect(memory, 4096, PROT_NONE) && !mprotect(memory + 4096 + BYTES, 4096, PROT_NONE));
    getcontext(&inside);
    inside.uc_stack.ss_sp = memory + 4096;
    inside.uc_stack.ss_size = BYTES;
    inside.uc_link = &back;
    makecontext(&inside, in_coroutine, 0);
    swapcontext(&back, &inside);
    CHECK(find_nested(DEPTH) < count && !mine.high);
    walks();
    CHECK(mine.high);
    makecontext(&inside, in_coroutine, 0);
    swapcontext(&back, &inside);
    CHECK(find_nested(DEPTH) < count);
}

static void handler(int number) {
    (void)number;
    nested(2);
}

static NOINLINE void interrupted(void) {
    raise(SIGUSR1);
    sink++;
}

static bool is_in(uint64_t address, void (*function)(void)) {
    return address - (uint64_t)(uintptr_t)function < 256;
}

static void signals(void) {
    static char memory[1 << 17];
    stack_t other = {.ss_sp = memory, .ss_size = sizeof memory};
    struct sigaction action = {.sa_handler = handler};
    for (int alternate = 0; alternate < 2; alternate++) {
        CHECK(!alternate || !sigaltstack(&other, NULL));
        action.sa_flags = alternate ? SA_ONSTACK : 0;
        CHECK(!sigaction(SIGUSR1, &action, NULL));
        interrupted();
        CHECK(find_nested(2) < count);
        size_t at = 0;
        while (at < count && !is_in(frames[at].address, interrupted)) at++;
        CHECK(by_pointers || at < count);
    }
}

/* Code in no object, with a frame pointer, that calls `nested` and returns. */
static void generated(void) {
#ifdef __x86_64__
    /* push %rbp; mov %rsp, %rbp; mov $2, %edi; movabs $nested, %rax; call *%rax; pop %rbp; ret */
    unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xbf, 2, 0, 0, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3};
    int (*function)(int) = nested;
    memcpy(code + 11, &function, sizeof function);
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memcpy(memory, code, sizeof code);
    CHECK(!mprotect(memory, 4096, PROT_READ | PROT_EXEC));
    void (*call)(void);
    *(void **)&call = memory;
    call();
    size_t from = find_nested(3);
    CHECK(from < count);
    CHECK(frames[from + 2].address - (uint64_t)(uintptr_t)memory < sizeof code);
    CHECK(method == PASTA_UNWIND_EH_FRAME ? from + 3 >= count : from + 3 < count);
#endif
}

/* ---- damaged stacks ---- */

static uint64_t seed = 88172645463325252u;

static uint64_t noise(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* A word as a damaged stack may hold it: near the stack, at its ends, unaligned, code, anything. */
static uint64_t any_word(uint64_t sp) {
    switch (noise() % 10) {
    case 0: return 0;
    case 1: return noise();
    case 2: return sp + noise() % 4096;
    case 3: return (sp + noise() % 4096) & ~UINT64_C(7);
    case 4: return mine.high - noise() % 64;
    case 5: return mine.low + noise() % 64;
    case 6: return (uint64_t)(uintptr_t)walks + noise() % 4096;
    case 7: return (uint64_t)(uintptr_t)getpid + noise() % 65536;
    case 8: return UINT64_MAX - noise() % 64;
    default: return sp - noise() % 4096;
    }
}

/* Walks whose registers, and whose stack, are damaged: they end, and read nothing outside of it. */
static void corrupt(void) {
    enum { ROUNDS = 20000, WORDS = 256 };
    volatile uint64_t words[WORDS];
    nested(1);
    for (int i = 0; i < ROUNDS; i++) {
        pasta_registers r = registers_here();
        for (int word = 0; word < WORDS; word++) words[word] = noise() % 3 ? any_word(r.sp) : (uint64_t)(uintptr_t)&words[noise() % WORDS];
        if (noise() % 2) r.fp = (uint64_t)(uintptr_t)&words[noise() % WORDS];
        else r.fp = any_word(r.sp);
        if (noise() % 2) r.sp = (uint64_t)(uintptr_t)&words[noise() % WORDS];
        if (noise() % 2) r.ip = any_word(r.sp);
        r.exact = noise() % 2;
        count = walk(r, frames, PASTA_MAX_FRAMES, &truncated);
        CHECK(count <= PASTA_MAX_FRAMES);
    }
    walks();
}

/* Words of rules come back as they were put in, or are refused. */
static void packs(void) {
    for (int i = 0; i < 100000; i++) {
        pasta_rule rule = {.kind = (uint8_t)(noise() % 7), .saved = (uint8_t)(noise() % 3), .ra = (int16_t)(noise() >> (noise() % 64)), .fp = (int16_t)(noise() >> (noise() % 64)),
                           .cfa = (int32_t)(noise() >> (noise() % 64))};
        uint64_t word;
        if (!pack(rule, 7, &word)) continue;
        pasta_rule same = unpack((packed){.word = word});
        CHECK(same.kind == rule.kind && same.saved == rule.saved && same.ra == rule.ra && same.fp == rule.fp && same.cfa == rule.cfa);
    }
}

/* ---- threads, forks, unloads ---- */

static _Thread_local pasta_frame my_frames[PASTA_MAX_FRAMES];

static NOINLINE int walk_alone(int depth) {
    bool left;
    volatile char used[32];
    used[depth % 32] = 1;
    if (depth) return walk_alone(depth - 1) + used[0];
    size_t found = pasta_unwind(my_frames, PASTA_MAX_FRAMES, &left);
    CHECK(found >= 1 && found < PASTA_MAX_FRAMES);
    return used[depth % 32];
}

static void *walk_often(void *unused) {
    for (int i = 0; i < 300; i++) walk_alone(i % 40);
    return unused;
}

static void threads(void) {
    pthread_t all[4];
    uint64_t before = pasta_loads_now().removed;
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&all[i], NULL, walk_often, NULL));
    for (int i = 0; i < 20; i++) {
        void *library = dlopen("libm.so.6", RTLD_NOW), *other = dlopen("libutil.so.1", RTLD_NOW);
        if (other) dlclose(other);
        if (library) dlclose(library);
    }
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
    CHECK(pasta_loads_now().removed >= before);
}

/* ---- objects whose headers and tables are wrong ---- */

static size_t build_id_of(uint64_t address, uint64_t bytes, const pasta_object *loaded, char *text) {
    ElfW(Phdr) headers[2] = {loaded->headers[0], {.p_type = PT_NOTE, .p_vaddr = address, .p_memsz = bytes}};
    return pasta_object_build_id(&(pasta_object){.headers = headers, .header_count = 2}, text);
}

static void objects(void) {
    static uint32_t image[32]; /* a note of another kind, then the build id */
    char text[PASTA_MAX_BUILD];
    uint64_t at = (uintptr_t)image;
    memcpy(image, (uint32_t[]){4, 4, 1, 0x554e47, 7, 4, 3, 3, 0x554e47, 0xcdab12}, 40);
    ElfW(Phdr) segment = {.p_type = PT_LOAD, .p_flags = PF_R, .p_vaddr = at, .p_filesz = sizeof image};
    pasta_object o = {.headers = &segment, .header_count = 1};
    CHECK(build_id_of(at, 40, &o, text) == 6 && !memcmp(text, "12abcd", 6));
    CHECK(build_id_of(at, 39, &o, text) == 0); /* its last byte is missing */
    CHECK(build_id_of(16, 40, &o, text) == 0 && build_id_of(at, sizeof image + 8, &o, text) == 0); /* not loaded */
    for (uint32_t size = UINT32_MAX; size > UINT32_MAX - 8; size--)
        for (int field = 0; field < 2; field++) {
            image[field] = size;
            CHECK(build_id_of(at, 40, &o, text) == 0);
            image[field] = 4;
        }
    CHECK(pasta_object_segment(&o, at, sizeof image) && pasta_object_segment(&o, at + sizeof image - 1, 1));
    CHECK(!pasta_object_segment(&o, at + 8, sizeof image) && !pasta_object_segment(&o, at + 8, UINT64_MAX - at));
    CHECK(!pasta_object_segment(&o, at + 8, UINT64_MAX) && !pasta_object_segment(&o, UINT64_MAX - 7, 16 + at));
    segment.p_vaddr = -(uint64_t)sizeof image; /* its end is 2^64 */
    CHECK(!pasta_object_segment(&o, UINT64_MAX - 3, 4 + 8) && !pasta_object_segment(&o, UINT64_MAX, 2));
    segment.p_flags = PF_X;
    segment.p_vaddr = at;
    CHECK(!pasta_object_segment(&o, at, 1));
}

static void forks(void) {
    int status;
    nested(2);
    pid_t child = fork();
    if (!child) {
        walks();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    static const test_case cases[] = {
        {"walks", walks}, {"deep", deep}, {"small_stack", small_stack}, {"coroutine", coroutine}, {"signals", signals},
        {"generated", generated}, {"corrupt", corrupt}, {"packs", packs}, {"objects", objects}, {"threads", threads}, {"forks", forks},
    };
    pasta_unwind_method chosen = argc > 2 ? (pasta_unwind_method)(argv[2][0] - '0') : PASTA_UNWIND_AUTO;
    CHECK(pasta_unwind_configure(chosen));
    library.start = library.end = 0; /* the program is no library of PASTA: all frames are shown */
    by_pointers = chosen == PASTA_UNWIND_FRAME_POINTERS;
    return RUN_CASE(cases, argc > 1 ? argv[1] : NULL);
}
