/* Walks over this thread's stack.
 *
 * Words are read between the stack pointer and the stack's end only.  The end of a thread's own stack is found
 * once; any other stack (a coroutine's, a signal's) is read by system calls, which fail where nothing is mapped.
 * Rules of frames (unwind.h) are found once for each address and kept.  Nothing is allocated. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/uio.h>
#include <unistd.h>

#include "unwind.h"

/* ---- the thread's stack ---- */

typedef struct stack {
    uint64_t low, high; /* readable addresses; `low` is the stack pointer */
    bool own;           /* else it is read by system calls */
} stack;

/* Parses "START-END …" of /proc/self/maps from `text`; NULL at its end. */
static const char *parse_hex(const char *text, uint64_t *value) {
    for (*value = 0;; text++) {
        int digit = *text >= '0' && *text <= '9' ? *text - '0' : *text >= 'a' && *text <= 'f' ? *text - 'a' + 10 : -1;
        if (digit < 0) return text;
        *value = *value << 4 | (uint64_t)digit;
    }
}

/* The mapping with an address, by /proc/self/maps. */
static bool mapping_of(uint64_t address, uint64_t *start, uint64_t *end) {
    char text[4096 + 1];
    size_t kept = 0;
    bool found = false;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t got; !found && fd >= 0 && (got = read(fd, text + kept, sizeof text - 1 - kept)) > 0;) {
        char *line = text, *line_end;
        text[kept + (size_t)got] = '\0';
        for (; !found && (line_end = strchr(line, '\n')); line = line_end + 1) {
            const char *at = parse_hex(line, start);
            if (*at != '-') continue;
            at = parse_hex(at + 1, end);
            found = address >= *start && address < *end && at[0] == ' ' && at[1] == 'r';
        }
        kept = strlen(line);
        if (kept >= sizeof text - 1) kept = 0; /* a path of more than 4,000 bytes: its line is not needed */
        memmove(text, line, kept);
    }
    if (fd >= 0) close(fd);
    return found;
}

enum { MAX_OWN = 64 << 20, SEARCHES = 3 };
enum { LEFT = 24 << 10 }; /* of a thread's stack, for walking and libunwind; else it is not walked */

static __thread struct {
    uint64_t low, high; /* of this thread's own stack; 0: not found yet */
    uint32_t searches;
} mine;

/* The stack of a libc thread ends at its control block, the stack of the main thread with its mapping. */
static void find_own(uint64_t sp) {
    uint64_t start, end, control = (uint64_t)pthread_self(), top = getauxval(AT_RANDOM); /* bytes that the kernel put there */
    mine.searches++;
    if (pasta_is_sandboxed() || !mapping_of(sp, &start, &end)) return;
    bool of_thread = control > sp && control <= end, of_main = !of_thread && top > sp && top < end;
    if (!of_thread && !of_main) return; /* a coroutine's or a signal's */
    mine.high = of_thread ? control : end;
    mine.low = of_thread ? start : mine.high > MAX_OWN ? mine.high - MAX_OWN : 0; /* the main thread's grows */
}

static stack stack_at(uint64_t sp) {
    if (PASTA_UNLIKELY(!mine.high) && mine.searches < SEARCHES) find_own(sp);
    if (sp >= mine.low && sp < mine.high) return (stack){.low = sp, .high = mine.high, .own = true};
    return (stack){.low = sp, .high = sp + MAX_OWN, .own = false};
}

/* Reads words of other functions' frames, which the address sanitizer would report. */
__attribute__((no_sanitize("address", "thread"))) static bool load(const void *of, uint64_t address, uint64_t *value) {
    const stack *s = of;
    if (PASTA_UNLIKELY(address < s->low || address > s->high - sizeof *value || address % sizeof *value)) return false;
    if (PASTA_LIKELY(s->own)) {
        *value = *(const volatile uint64_t *)(uintptr_t)address;
        return true;
    }
    if (pasta_is_sandboxed()) return false;
    struct iovec to = {value, sizeof *value}, from = {(void *)(uintptr_t)address, sizeof *value};
    int saved = errno;
    bool read = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)sizeof *value;
    errno = saved;
    return read;
}

/* ---- rules by address ---- */

enum { RULES = 1 << 15, MAX_PROBES = 32 };

/* A rule in a word, with the low bits of the number of loads and unloads that it was found at. */
typedef union packed {
    uint64_t word;
    struct {
        uint64_t kind : 3, saved : 2, stamp : 11, cfa : 20, ra : 14, fp : 14;
    };
} packed;

static struct {
    uint64_t address, rule;
} rules[RULES];
static pasta_unwind_method method;
static bool has_cfi;

static int64_t extended(uint64_t value, unsigned bits) { return (int64_t)(value << (64 - bits)) >> (64 - bits); }

static bool pack(pasta_rule rule, uint32_t stamp, uint64_t *word) {
    packed p = {.kind = rule.kind, .saved = rule.saved, .stamp = stamp, .cfa = (uint32_t)rule.cfa, .ra = (uint16_t)rule.ra, .fp = (uint16_t)rule.fp};
    *word = p.word;
    return extended(p.cfa, 20) == rule.cfa && extended(p.ra, 14) == rule.ra && extended(p.fp, 14) == rule.fp;
}

static pasta_rule unpack(packed p) {
    return (pasta_rule){.kind = p.kind, .saved = p.saved, .cfa = (int32_t)extended(p.cfa, 20), .ra = (int16_t)extended(p.ra, 14),
                        .fp = (int16_t)extended(p.fp, 14)};
}

/* ---- one learning thread at a time ---- */

static uint64_t learner; /* generation << 32 | thread; 0: none */

/* False where this thread itself is learning (a signal interrupted it), a thread of a fork's parent was, or another one
 * takes too long. */
static bool begin_learning(void) {
    enum { MAX_TURNS = 1000 };
    uint64_t generation = (uint64_t)pasta_generation() << 32, mine = generation | pasta_thread(), held = 0;
    for (int turn = 0; turn < MAX_TURNS; turn++, held = 0) {
        if (__atomic_compare_exchange_n(&learner, &held, mine, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return true;
        if (held == mine || (held ^ mine) >> 32) return false;
        sched_yield();
    }
    return false;
}

static void end_learning(void) { __atomic_store_n(&learner, 0, __ATOMIC_RELEASE); }

/* `keep`: the answer stays the same while the code is loaded. */
static pasta_rule find_rule(uint64_t address, bool *keep) {
    pasta_object object;
    pasta_rule rule = {.kind = PASTA_RULE_NONE};
    pasta_cfi_answer answer = PASTA_CFI_NONE;
    bool busy = false;
    if (has_cfi && pasta_object_at(address, &object) && object.frame_header) {
        /* libunwind blocks signals while it works: system calls */
        busy = pasta_is_sandboxed() || !begin_learning();
        if (!busy) {
            answer = pasta_cfi_rule(address, &object, &rule);
            end_learning();
        }
    }
    *keep = !busy;
    if (answer == PASTA_CFI_FOUND || method == PASTA_UNWIND_EH_FRAME) return rule;
    /* generated code has no tables, and usually keeps frame pointers */
    return !busy || pasta_is_sandboxed() ? pasta_frame_pointer : rule;
}

static pasta_rule rule_at(uint64_t address, uint32_t stamp) {
    size_t slot = (size_t)((address * UINT64_C(0x9e3779b97f4a7c15)) >> 40) % RULES, place = RULES;
    for (unsigned probe = 0; probe < MAX_PROBES && place == RULES; probe++, slot = (slot + 1) % RULES) {
        uint64_t known = __atomic_load_n(&rules[slot].address, __ATOMIC_ACQUIRE);
        if (known != address && known) continue;
        packed p = {.word = __atomic_load_n(&rules[slot].rule, __ATOMIC_ACQUIRE)};
        if (known && p.word && p.stamp == stamp) return unpack(p);
        place = slot;
    }
    bool keep;
    pasta_rule rule = find_rule(address, &keep);
    uint64_t word, none = 0;
    if (place == RULES || !keep || !pack(rule, stamp, &word)) return rule;
    if (__atomic_compare_exchange_n(&rules[place].address, &none, address, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || none == address)
        __atomic_store_n(&rules[place].rule, word, __ATOMIC_RELEASE);
    return rule;
}

/* ---- the walk ---- */

static __attribute__((always_inline)) inline pasta_registers registers_here(void) {
    pasta_registers r = {.exact = true};
#if defined __x86_64__
    __asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2" : "=r"(r.ip), "=r"(r.sp), "=r"(r.fp));
#elif defined __aarch64__
    __asm__ volatile("adr %0, .\n\tmov %1, sp\n\tmov %2, x29" : "=r"(r.ip), "=r"(r.sp), "=r"(r.fp));
#endif
    return r;
}

static struct {
    uint64_t start, end;
} library; /* this library's code */

bool pasta_unwind_configure(pasta_unwind_method chosen) {
    pasta_object self;
    method = chosen;
    has_cfi = chosen != PASTA_UNWIND_FRAME_POINTERS && pasta_cfi_load();
    if (pasta_object_at((uint64_t)(uintptr_t)pasta_unwind_configure, &self)) {
        library.start = self.start;
        library.end = self.end;
    }
    return has_cfi || chosen == PASTA_UNWIND_FRAME_POINTERS;
}

/* Drops frames without an object behind the last one that has one: words of no stack were taken for them. */
static size_t without_tail(const pasta_frame *frames, size_t count) {
    pasta_object object;
    while (count && !frames[count - 1].code && !pasta_object_at(frames[count - 1].address, &object)) count--;
    return count;
}

/* The frames from these registers on; see pasta_unwind. */
static size_t walk(pasta_registers r, pasta_frame *frames, size_t capacity, bool *truncated) {
    stack s = stack_at(r.sp);
    pasta_loads l = pasta_loads_now();
    uint32_t stamp = (uint32_t)(l.added + l.removed) & 0x7ff;
    pasta_python_walk python = pasta_python_begin();
    size_t count = 0;
    *truncated = true;
    if (s.own && r.sp - mine.low < LEFT) return 0;
    bool ended = false, inside = true, left = true;
    while (count < capacity) {
        uint64_t call = pasta_call_of(&r);
        inside = inside && call - library.start < library.end - library.start;
        if (!inside) {
            size_t taken = python.frame && pasta_python_is_eval(call) ? pasta_python_take(&python, frames + count, capacity - count) : 0;
            if (!taken) frames[count++] = (pasta_frame){.address = call};
            count += taken;
        }
        left = pasta_step(&s, load, !s.own, rule_at(call, stamp), &r, &ended);
        if (!left) break;
        s.low = r.sp;
        if (!s.own) s.high = s.low + MAX_OWN;
    }
    *truncated = left || !ended;
    if (!left) count = without_tail(frames, count);
    /* below a frame that hides its caller there may be more of Python */
    while (*truncated && python.frame && count < capacity) count += pasta_python_take(&python, frames + count, capacity - count);
    return count;
}

__attribute__((noinline)) size_t pasta_unwind(pasta_frame *frames, size_t capacity, bool *truncated) {
    return walk(registers_here(), frames, capacity, truncated);
}
