/* One convolution by cuDNN, in C: kernels of a closed library, in a program without Python.
 *   cudnn_app [--expect]
 * Input and filter are ones, so an output in the middle is 3 * 3 * CHANNELS.
 */
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, CHANNELS = 32, SIZE = 56, FILTERS = 64, WINDOW = 3 };
enum { INPUT = BATCH * CHANNELS * SIZE * SIZE, WEIGHTS = FILTERS * CHANNELS * WINDOW * WINDOW };
enum { OUTPUT = BATCH * FILTERS * SIZE * SIZE };

static void cuda(cudaError_t status, int line) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "cudnn_app.c:%d: %s\n", line, cudaGetErrorString(status));
    exit(1);
}

static void dnn(cudnnStatus_t status, int line) {
    if (status == CUDNN_STATUS_SUCCESS) return;
    fprintf(stderr, "cudnn_app.c:%d: %s\n", line, cudnnGetErrorString(status));
    exit(1);
}
#define CUDA(call) cuda(call, __LINE__)
#define DNN(call) dnn(call, __LINE__)

static float *ones_on_device(size_t count) {
    float *host = malloc(count * sizeof *host), *device;
    if (!host) exit(1);
    for (size_t i = 0; i < count; i++) host[i] = 1.0f;
    CUDA(cudaMalloc((void **)&device, count * sizeof *host));
    CUDA(cudaMemcpy(device, host, count * sizeof *host, cudaMemcpyHostToDevice));
    free(host);
    return device;
}

int main(int argc, char **argv) {
    const cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    const float one = 1.0f, zero = 0.0f;
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t input, output;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t convolution;
    size_t workspace_bytes;
    void *workspace = NULL;
    DNN(cudnnCreate(&handle));
    DNN(cudnnCreateTensorDescriptor(&input));
    DNN(cudnnCreateTensorDescriptor(&output));
    DNN(cudnnCreateFilterDescriptor(&filter));
    DNN(cudnnCreateConvolutionDescriptor(&convolution));
    DNN(cudnnSetTensor4dDescriptor(input, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, BATCH, CHANNELS, SIZE, SIZE));
    DNN(cudnnSetTensor4dDescriptor(output, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, BATCH, FILTERS, SIZE, SIZE));
    DNN(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, FILTERS, CHANNELS, WINDOW, WINDOW));
    DNN(cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    DNN(cudnnGetConvolutionForwardWorkspaceSize(handle, input, filter, convolution, output, algorithm,
                                                &workspace_bytes));
    float *x = ones_on_device(INPUT), *w = ones_on_device(WEIGHTS), *y = ones_on_device(OUTPUT), middle;
    if (workspace_bytes) CUDA(cudaMalloc(&workspace, workspace_bytes));
    DNN(cudnnConvolutionForward(handle, &one, input, x, filter, w, convolution, algorithm, workspace, workspace_bytes,
                                &zero, output, y));
    CUDA(cudaMemcpy(&middle, y + SIZE * SIZE / 2 + SIZE / 2, sizeof middle, cudaMemcpyDeviceToHost));
    DNN(cudnnDestroy(handle));
    printf("cudnn_app: %g in the middle\n", (double)middle);
    if (argc > 1 && !strcmp(argv[1], "--expect"))
        printf("kernel_launch.at_least=1\nmemory_copy.host_to_device.at_least=3\n");
    return middle != WINDOW * WINDOW * CHANNELS;
}
