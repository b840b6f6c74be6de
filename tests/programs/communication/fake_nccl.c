/* A library with NCCL's functions that moves nothing: each call, and each group on a communicator, launches one
 * kernel on the reference accelerator, with the name that NCCL's would have.  An all-reduce of a communicator of
 * ncclCommInitRank ends when all ranks have come, which must be forks of the process that made the id. */
#include "fake_nccl.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "refacc_kernel.h"

enum { INVALID_ARGUMENT = 4, MAX_GROUP = 64, MAX_CREATED = 8, MAX_CALLS = 4096 };

struct fake_communicator {
    int rank, size;
    uint32_t *come; /* ranks, by number of the all-reduce; NULL: none waits */
    int calls;
};

static bool nothing(ra_warp *w) {
    (void)w;
    return false;
}

/* At most 10 s. */
static bool wait_for_all(ra_warp *w) {
    uint32_t *come = (uint32_t *)w->parameters[0];
    if (come) __atomic_add_fetch(come, 1, __ATOMIC_ACQ_REL);
    for (int i = 0; come && i < 100000 && __atomic_load_n(come, __ATOMIC_ACQUIRE) < w->parameters[1]; i++) usleep(100);
    return false;
}

static const char *const symbols[] = {"ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_RING_LL",
                                      "ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_SendRecv"};
enum { ALL_REDUCE, ALL_GATHER, BROADCAST, SEND_RECV, SYMBOLS };

static ra_function find(int symbol) {
    static ra_function found[SYMBOLS];
    if (!found[0]) {
        static ra_kernel kernels[SYMBOLS]; /* refacc keeps their addresses */
        char image[512] = "refacc-module 1\n";
        ra_module module;
        for (int i = 0; i < SYMBOLS; i++) {
            kernels[i].symbol = symbols[i];
            kernels[i].run = i == ALL_REDUCE ? wait_for_all : nothing;
            kernels[i].parameters = 2;
            kernels[i].parameter_bytes[0] = kernels[i].parameter_bytes[1] = 8;
            strcat(strcat(image, symbols[i]), "\n");
        }
        if (ra_kernel_register(kernels, SYMBOLS) || ra_module_load(&module, image, strlen(image))) _exit(98);
        for (int i = 0; i < SYMBOLS; i++)
            if (ra_module_function(&found[i], module, symbols[i])) _exit(97);
    }
    return found[symbol];
}

static void launch_one(int symbol, ncclComm_t communicator, ncclStream stream) {
    bool waits = symbol == ALL_REDUCE && communicator->come && communicator->calls < MAX_CALLS;
    uint32_t *come = waits ? &communicator->come[communicator->calls++] : NULL;
    uint64_t size = (uint64_t)communicator->size;
    uint32_t grid[] = {1, 1, 1}, block[] = {32, 1, 1};
    if (ra_launch(find(symbol), grid, block, 0, stream, (void *[]){&come, &size})) _exit(96);
}

/* ---- groups: work and communicators appear when the outermost one ends ---- */

static __thread struct {
    int depth, works, creations;
    struct {
        int symbol;
        ncclComm_t communicator;
        ncclStream stream;
    } work[MAX_GROUP];
    struct {
        ncclComm_t *made, value;
    } created[MAX_CREATED];
} group;

static ncclResult_t submit(int symbol, ncclComm_t communicator, ncclStream stream) {
    if (!communicator) return INVALID_ARGUMENT;
    if (!group.depth) {
        launch_one(symbol, communicator, stream);
        return 0;
    }
    group.work[group.works].symbol = symbol;
    group.work[group.works].communicator = communicator;
    group.work[group.works++].stream = stream;
    return 0;
}

static ncclResult_t create(ncclComm_t *made, int size, int rank, uint32_t *come) {
    ncclComm_t value = malloc(sizeof *value);
    *value = (struct fake_communicator){.rank = rank, .size = size, .come = come};
    if (group.depth) {
        group.created[group.creations].made = made;
        group.created[group.creations++].value = value;
    } else
        *made = value;
    return 0;
}

ncclResult_t ncclGroupStart(void) {
    group.depth++;
    return 0;
}

ncclResult_t ncclGroupEnd(void) {
    if (--group.depth) return 0;
    for (int i = 0; i < group.creations; i++) *group.created[i].made = group.created[i].value;
    for (int i = 0; i < group.works; i++) {
        int before = 0;
        while (before < i && group.work[before].communicator != group.work[i].communicator) before++;
        if (before == i) launch_one(group.work[i].symbol, group.work[i].communicator, group.work[i].stream);
    }
    group.works = group.creations = 0;
    return 0;
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version) {
    *version = 22803;
    return 0;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    void *come = mmap(NULL, MAX_CALLS * sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (come == MAP_FAILED) _exit(93);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &come, sizeof come);
    return 0;
}

ncclResult_t ncclCommInitRank(ncclComm_t *made, int size, ncclUniqueId id, int rank) {
    uint32_t *come;
    memcpy(&come, id.internal, sizeof come);
    return create(made, size, rank, come);
}

ncclResult_t ncclCommInitAll(ncclComm_t *made, int devices, const int *device) {
    (void)device;
    for (int i = 0; i < devices; i++) create(&made[i], devices, i, NULL);
    return 0;
}

/* Colors are those of rank % 2 here. */
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *made, void *config) {
    (void)key, (void)config;
    if (color != parent->rank % 2) return INVALID_ARGUMENT;
    return create(made, (parent->size + 1 - color) / 2, parent->rank / 2, NULL);
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    free(communicator);
    return 0;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int *count) {
    *count = communicator->size;
    return 0;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank) {
    *rank = communicator->rank;
    return 0;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int *device) {
    (void)communicator;
    *device = 0;
    return 0;
}

/* ---- calls ---- */

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction, ncclComm_t communicator,
                           ncclStream stream) {
    (void)from, (void)to, (void)count, (void)type, (void)reduction;
    return submit(ALL_REDUCE, communicator, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t communicator, ncclStream stream) {
    (void)from, (void)to, (void)count, (void)type;
    return submit(ALL_GATHER, communicator, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t communicator,
                           ncclStream stream) {
    (void)from, (void)to, (void)count, (void)type;
    return root < communicator->size ? submit(BROADCAST, communicator, stream) : INVALID_ARGUMENT;
}

ncclResult_t ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t communicator, ncclStream stream) {
    (void)from, (void)count, (void)type, (void)peer;
    return submit(SEND_RECV, communicator, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t communicator, ncclStream stream) {
    (void)to, (void)count, (void)type, (void)peer;
    return submit(SEND_RECV, communicator, stream);
}
