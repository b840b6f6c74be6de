/* Identity of this process; detects forks, including forks that bypass libc. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "internal.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { PAGE = 4096 };

uint32_t pasta_generation_number PASTA_HOT;
/* A page that the kernel zeroes in the child of any fork, a raw clone included: 1 in the process
 * that wrote it. */
static uint32_t fork_page_fallback = 1;
uint32_t *pasta_fork_page PASTA_HOT = &fork_page_fallback;
static void (*on_fork)(void);

uint32_t pasta_generation(void) { return __atomic_load_n(&pasta_generation_number, __ATOMIC_RELAXED); }

PASTA_APART void pasta_after_fork(void) {
    __atomic_add_fetch(&pasta_generation_number, 1, __ATOMIC_RELAXED);
    if (on_fork) on_fork();
    /* last: whoever sees it finds the parent's ring gone */
    __atomic_store_n(pasta_fork_page, 1, __ATOMIC_RELEASE);
}

static void in_child(void) {
    if (pasta_fork_page == &fork_page_fallback) *pasta_fork_page = 0;
    /* an earlier handler may have used the library: this child may have a ring already */
    if (!pasta_same_process()) pasta_after_fork();
}

void pasta_process_load(void (*forked)(void)) {
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, PAGE, MADV_WIPEONFORK) != 0) page = &fork_page_fallback;
    pasta_fork_page = page;
    *pasta_fork_page = 1;
    on_fork = forked;
    pthread_atfork(NULL, NULL, in_child);
}
