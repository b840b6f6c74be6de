// Heat in a plate, by Jacobi's method.
//
//     stencil [--changed]      changed: neighbouring threads have neighbouring columns, not rows
#include <utility>

#include "steps.cuh"

enum { SIDE = 8192, STEPS = 100, TILE = 16 };

template <bool changed> __global__ void relax(const float *from, float *to) {
    int row = blockIdx.y * TILE + (changed ? threadIdx.y : threadIdx.x);
    int column = blockIdx.x * TILE + (changed ? threadIdx.x : threadIdx.y);
    if (row < 1 || column < 1 || row >= SIDE - 1 || column >= SIDE - 1) return;
    const float *at = from + (size_t)row * SIDE + column;
    to[(size_t)row * SIDE + column] = 0.25f * (at[-1] + at[1] + at[-SIDE] + at[SIDE]);
}

int main(int count, char **words) {
    const size_t bytes = sizeof(float) * SIDE * SIDE;
    float *from, *to, result;
    CHECK(cudaMalloc(&from, bytes));
    CHECK(cudaMalloc(&to, bytes));
    CHECK(cudaMemset(from, 0, bytes));
    CHECK(cudaMemset(to, 0, bytes));
    std::vector<float> edge(SIDE, 100);
    CHECK(cudaMemcpy(from, edge.data(), sizeof(float) * SIDE, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(to, edge.data(), sizeof(float) * SIDE, cudaMemcpyHostToDevice));
    dim3 grid(SIDE / TILE, SIDE / TILE), block(TILE, TILE);
    bool with_change = changed(count, words);
    measured(STEPS, [&] {
        if (with_change) relax<true><<<grid, block>>>(from, to);
        else relax<false><<<grid, block>>>(from, to);
        std::swap(from, to);
    });
    CHECK(cudaMemcpy(&result, from + SIDE + SIDE / 2, sizeof result, cudaMemcpyDeviceToHost));
    printf("result %.3e\n", result);
}
