// A join of two tables by a hash table, batch by batch.
//
//     hash_join [--changed]      changed: the buffers of a batch are allocated once
#include "steps.cuh"

enum { BUILT = 1 << 20, SLOTS = 1 << 22, BATCH = 1 << 20, STEPS = 200 };

__device__ static unsigned slot_of(unsigned key) { return key * 2654435761u >> 10 & (SLOTS - 1); }

__global__ void build(unsigned *keys, unsigned *values) {
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x, key = 3 * row + 1, slot = slot_of(key);
    while (atomicCAS(&keys[slot], 0, key) != 0) slot = (slot + 1) & (SLOTS - 1);
    values[slot] = row;
}
__global__ void probe(const unsigned *keys, const unsigned *values, unsigned first, unsigned *rows, unsigned *matches) {
    unsigned row = blockIdx.x * blockDim.x + threadIdx.x, key = first + row, slot = slot_of(key);
    rows[row] = ~0u;
    for (; keys[slot]; slot = (slot + 1) & (SLOTS - 1))
        if (keys[slot] == key) {
            rows[row] = values[slot];
            atomicAdd(matches, 1);
            return;
        }
}

int main(int count, char **words) {
    unsigned *keys, *values, *rows = nullptr, *matches = nullptr, found = 0, first = 0;
    bool with_change = changed(count, words);
    unsigned long long all = 0;
    CHECK(cudaMalloc(&keys, sizeof *keys * SLOTS));
    CHECK(cudaMalloc(&values, sizeof *values * SLOTS));
    CHECK(cudaMemset(keys, 0, sizeof *keys * SLOTS));
    build<<<BUILT / 256, 256>>>(keys, values);
    measured(STEPS, [&] {
        if (!rows) CHECK(cudaMalloc(&rows, sizeof *rows * BATCH));
        if (!matches) CHECK(cudaMalloc(&matches, sizeof *matches));
        CHECK(cudaMemsetAsync(matches, 0, sizeof *matches));
        probe<<<BATCH / 256, 256>>>(keys, values, first, rows, matches);
        CHECK(cudaMemcpy(&found, matches, sizeof found, cudaMemcpyDeviceToHost));
        all += found;
        first += BATCH / 64;
        if (with_change) return;
        CHECK(cudaFree(rows));
        CHECK(cudaFree(matches));
        rows = matches = nullptr;
    });
    printf("result %llu\n", all);
}
