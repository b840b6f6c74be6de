/* Kernels in graphs: all are called with the data that was given last for their graph (580.159: measured). So they get a
 * table of their stream, in which a patch finds the launch of its own grid: the row is the lowest bits of its number.
 * The grids of a graph have consecutive numbers, the same ones when it is launched again; each launch writes the rows of
 * its nodes anew, in the order of the stream.
 */
#include <stdlib.h>

#include "probes.h"

struct pasta_nv_nodes {
    pasta_nv_nodes *next;
    uint64_t stream, address; /* uint64_t[PASTA_PROBE_NODES] on the device: descriptors, 0 if the node is not probed */
    uint64_t launch;          /* of a graph, in progress */
    bool busy, closed;        /* a thread launches a graph; the stream is destroyed */
    struct {
        uint64_t grid, descriptor, launch; /* by which it was written */
    } rows[PASTA_PROBE_NODES];             /* what is there, once the stream gets there */
};

/* All that was launched in the stream of a table has been read. With the lock. */
static bool complete(const pasta_nv_prober *p, const pasta_nv_nodes *n) {
    const pasta_nv_batch *b = p->batches;
    while (b && b->stream != n->stream) b = b->next;
    return !b;
}

/* A table for a graph that this thread launches. Two threads that launch graphs in one stream have one each. */
static pasta_nv_nodes *taken(pasta_nv_prober *p, uint64_t stream) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    pasta_nv_nodes *n = p->nodes;
    while (n && (n->busy || n->closed || n->stream != stream)) n = n->next;
    for (pasta_nv_nodes *other = p->nodes; other && !n; other = other->next)
        if (!other->busy && other->closed && complete(p, other)) n = other;
    if (n) {
        n->busy = true;
        n->closed = false;
        n->stream = stream;
        n->launch++;
    }
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return n;
}

static pasta_nv_nodes *made(pasta_nv_prober *p, uint64_t stream) {
    enum { BYTES = PASTA_PROBE_NODES * sizeof(uint64_t) };
    pasta_nv_nodes *n = calloc(1, sizeof *n);
    uint64_t address = n ? pasta_nv_device_memory(p, BYTES) : 0;
    if (!address || !PROBED(p, set, address, 0, BYTES, stream)) {
        free(n);
        return NULL;
    }
    n->address = address;
    n->stream = stream;
    n->launch = 1;
    n->busy = true;
    pthread_mutex_lock(&pasta_nv_probes_lock);
    n->next = p->nodes;
    p->nodes = n;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
    return n;
}

static bool write_row(pasta_nv_prober *p, pasta_nv_nodes *n, uint64_t grid, uint64_t descriptor) {
    uint64_t at = grid % PASTA_PROBE_NODES;
    if (n->rows[at].launch == n->launch && n->rows[at].grid != grid) { /* two nodes of one graph: neither is counted */
        descriptor = 0;
        if (!__atomic_exchange_n(&p->crowded, true, __ATOMIC_RELAXED))
            pasta_say("probes: a CUDA graph has more than %d kernels: some of them are not probed", PASTA_PROBE_NODES);
    }
    bool same = n->rows[at].descriptor == descriptor;
    n->rows[at].grid = grid;
    n->rows[at].descriptor = descriptor;
    n->rows[at].launch = n->launch;
    return same || PROBED(p, copy_in, n->address + at * sizeof descriptor, &descriptor, sizeof descriptor, n->stream);
}

uint64_t pasta_nv_nodes_data(pasta_nv_prober *p, pasta_nv_nodes **mine, const pasta_nv_launch *l, uint64_t descriptor) {
    if (*mine && (*mine)->stream != l->unique_stream) pasta_nv_nodes_end(mine); /* a launch that failed has no end */
    if (!*mine) *mine = taken(p, l->unique_stream);
    if (!*mine && descriptor) *mine = made(p, l->unique_stream);
    pasta_nv_nodes *n = *mine;
    return n && write_row(p, n, l->grid_id, descriptor) ? n->address + PASTA_PROBE_IS_NODE : 0;
}

void pasta_nv_nodes_end(pasta_nv_nodes **mine) {
    if (*mine) __atomic_store_n(&(*mine)->busy, false, __ATOMIC_RELEASE);
    *mine = NULL;
}

void pasta_nv_nodes_close(pasta_nv_prober *p, uint64_t stream) {
    pthread_mutex_lock(&pasta_nv_probes_lock);
    for (pasta_nv_nodes *n = p->nodes; n; n = n->next) n->closed |= n->stream == stream;
    pthread_mutex_unlock(&pasta_nv_probes_lock);
}
