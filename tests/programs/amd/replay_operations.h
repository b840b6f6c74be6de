/* Operations with arguments: OPERATION(name, FIELD(type, name) …), the fields in the order of the
 * function's parameters, so that the C compiler places them as the library's does.
 *
 *   ptr u64 int u32 u16 u8 dim   a value; dim: x,y,z
 *   out                          the address of the program's result variable, which is unset at ENTER
 *   text                         characters, invalid after the callback returns
 *   pitched extent               structs in place; each has several values, pointer,pitch,width,height
 *   box plane                    a pointer to the parameters of a 3D or 2D copy
 *   outpitched                   the address of the program's pitched pointer
 *   format                       a pointer to an array's element format: bits of up to four components, and a kind
 *   plate cube                   a pointer to the description of an array of 2 or 3 dimensions
 *   described                    a pointer to the description of a launch; its stream
 *   devices                      a pointer to launches on two devices; their streams
 */
/* clang-format off */
#define HIP_OPERATIONS(OPERATION, FIELD) \
    OPERATION(hipMalloc, FIELD(out, ptr) FIELD(u64, size)) \
    OPERATION(hipExtMallocWithFlags, FIELD(out, ptr) FIELD(u64, sizeBytes) FIELD(u32, flags)) \
    OPERATION(hipMallocManaged, FIELD(out, dev_ptr) FIELD(u64, size) FIELD(u32, flags)) \
    OPERATION(hipMallocAsync, FIELD(out, dev_ptr) FIELD(u64, size) FIELD(ptr, stream)) \
    OPERATION(hipMallocFromPoolAsync, FIELD(out, dev_ptr) FIELD(u64, size) FIELD(ptr, mem_pool) FIELD(ptr, stream)) \
    OPERATION(hipMallocPitch, FIELD(out, ptr) FIELD(out, pitch) FIELD(u64, width) FIELD(u64, height)) \
    OPERATION(hipMemAllocPitch, FIELD(out, dptr) FIELD(out, pitch) FIELD(u64, widthInBytes) FIELD(u64, height) FIELD(u32, elementSizeBytes)) \
    OPERATION(hipMalloc3D, FIELD(outpitched, pitchedDevPtr) FIELD(extent, extent)) \
    OPERATION(hipHostMalloc, FIELD(out, ptr) FIELD(u64, size) FIELD(u32, flags)) \
    OPERATION(hipHostAlloc, FIELD(out, ptr) FIELD(u64, size) FIELD(u32, flags)) \
    OPERATION(hipMallocHost, FIELD(out, ptr) FIELD(u64, size)) \
    OPERATION(hipMemAllocHost, FIELD(out, ptr) FIELD(u64, size)) \
    OPERATION(hipHostRegister, FIELD(ptr, hostPtr) FIELD(u64, sizeBytes) FIELD(u32, flags)) \
    OPERATION(hipHostUnregister, FIELD(ptr, hostPtr)) \
    OPERATION(hipMallocArray, FIELD(out, array) FIELD(format, desc) FIELD(u64, width) FIELD(u64, height) FIELD(u32, flags)) \
    OPERATION(hipMalloc3DArray, FIELD(out, array) FIELD(format, desc) FIELD(extent, extent) FIELD(u32, flags)) \
    OPERATION(hipArrayCreate, FIELD(out, pHandle) FIELD(plate, pAllocateArray)) \
    OPERATION(hipArray3DCreate, FIELD(out, array) FIELD(cube, pAllocateArray)) \
    OPERATION(hipArrayDestroy, FIELD(ptr, array)) \
    OPERATION(hipFreeArray, FIELD(ptr, array)) \
    OPERATION(hipFree, FIELD(ptr, ptr)) \
    OPERATION(hipFreeAsync, FIELD(ptr, dev_ptr) FIELD(ptr, stream)) \
    OPERATION(hipFreeHost, FIELD(ptr, ptr)) \
    OPERATION(hipHostFree, FIELD(ptr, ptr)) \
    OPERATION(hipMemAddressReserve, FIELD(out, ptr) FIELD(u64, size) FIELD(u64, alignment) FIELD(ptr, addr) FIELD(u64, flags)) \
    OPERATION(hipMemAddressFree, FIELD(ptr, devPtr) FIELD(u64, size)) \
    OPERATION(hipMemMap, FIELD(ptr, ptr) FIELD(u64, size) FIELD(u64, offset) FIELD(ptr, handle) FIELD(u64, flags)) \
    OPERATION(hipMemUnmap, FIELD(ptr, ptr) FIELD(u64, size)) \
    OPERATION(hipIpcCloseMemHandle, FIELD(ptr, devPtr)) \
    OPERATION(hipMemcpy, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(int, kind)) \
    OPERATION(hipMemcpyAsync, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(int, kind) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyWithStream, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(int, kind) FIELD(ptr, stream)) \
    OPERATION(hipMemcpy_spt, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(int, kind)) \
    OPERATION(hipMemcpyAsync_spt, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(int, kind) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyHtoD, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes)) \
    OPERATION(hipMemcpyHtoDAsync, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyDtoH, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes)) \
    OPERATION(hipMemcpyDtoHAsync, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyDtoD, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes)) \
    OPERATION(hipMemcpyDtoDAsync, FIELD(ptr, dst) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyPeer, FIELD(ptr, dst) FIELD(int, dstDeviceId) FIELD(ptr, src) FIELD(int, srcDeviceId) FIELD(u64, sizeBytes)) \
    OPERATION(hipMemcpyPeerAsync, FIELD(ptr, dst) FIELD(int, dstDeviceId) FIELD(ptr, src) FIELD(int, srcDevice) FIELD(u64, sizeBytes) FIELD(ptr, stream)) \
    OPERATION(hipMemcpy2D, FIELD(ptr, dst) FIELD(u64, dpitch) FIELD(ptr, src) FIELD(u64, spitch) FIELD(u64, width) FIELD(u64, height) FIELD(int, kind)) \
    OPERATION(hipMemcpy2DAsync, FIELD(ptr, dst) FIELD(u64, dpitch) FIELD(ptr, src) FIELD(u64, spitch) FIELD(u64, width) FIELD(u64, height) FIELD(int, kind) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyParam2D, FIELD(plane, pCopy)) \
    OPERATION(hipMemcpyParam2DAsync, FIELD(plane, pCopy) FIELD(ptr, stream)) \
    OPERATION(hipMemcpy3D, FIELD(box, p)) \
    OPERATION(hipMemcpy3DAsync, FIELD(box, p) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyToSymbol, FIELD(ptr, symbol) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(u64, offset) FIELD(int, kind)) \
    OPERATION(hipMemcpyToSymbolAsync, FIELD(ptr, symbol) FIELD(ptr, src) FIELD(u64, sizeBytes) FIELD(u64, offset) FIELD(int, kind) FIELD(ptr, stream)) \
    OPERATION(hipMemcpyFromSymbol, FIELD(ptr, dst) FIELD(ptr, symbol) FIELD(u64, sizeBytes) FIELD(u64, offset) FIELD(int, kind)) \
    OPERATION(hipMemcpyFromSymbolAsync, FIELD(ptr, dst) FIELD(ptr, symbol) FIELD(u64, sizeBytes) FIELD(u64, offset) FIELD(int, kind) FIELD(ptr, stream)) \
    OPERATION(hipMemset, FIELD(ptr, dst) FIELD(int, value) FIELD(u64, sizeBytes)) \
    OPERATION(hipMemsetAsync, FIELD(ptr, dst) FIELD(int, value) FIELD(u64, sizeBytes) FIELD(ptr, stream)) \
    OPERATION(hipMemset_spt, FIELD(ptr, dst) FIELD(int, value) FIELD(u64, sizeBytes)) \
    OPERATION(hipMemsetAsync_spt, FIELD(ptr, dst) FIELD(int, value) FIELD(u64, sizeBytes) FIELD(ptr, stream)) \
    OPERATION(hipMemsetD8, FIELD(ptr, dest) FIELD(u8, value) FIELD(u64, count)) \
    OPERATION(hipMemsetD8Async, FIELD(ptr, dest) FIELD(u8, value) FIELD(u64, count) FIELD(ptr, stream)) \
    OPERATION(hipMemsetD16, FIELD(ptr, dest) FIELD(u16, value) FIELD(u64, count)) \
    OPERATION(hipMemsetD16Async, FIELD(ptr, dest) FIELD(u16, value) FIELD(u64, count) FIELD(ptr, stream)) \
    OPERATION(hipMemsetD32, FIELD(ptr, dest) FIELD(int, value) FIELD(u64, count)) \
    OPERATION(hipMemsetD32Async, FIELD(ptr, dst) FIELD(int, value) FIELD(u64, count) FIELD(ptr, stream)) \
    OPERATION(hipMemset2D, FIELD(ptr, dst) FIELD(u64, pitch) FIELD(int, value) FIELD(u64, width) FIELD(u64, height)) \
    OPERATION(hipMemset2DAsync, FIELD(ptr, dst) FIELD(u64, pitch) FIELD(int, value) FIELD(u64, width) FIELD(u64, height) FIELD(ptr, stream)) \
    OPERATION(hipMemset3D, FIELD(pitched, pitchedDevPtr) FIELD(int, value) FIELD(extent, extent)) \
    OPERATION(hipMemset3DAsync, FIELD(pitched, pitchedDevPtr) FIELD(int, value) FIELD(extent, extent) FIELD(ptr, stream)) \
    OPERATION(hipLaunchKernel, FIELD(ptr, function_address) FIELD(dim, numBlocks) FIELD(dim, dimBlocks) FIELD(ptr, args) FIELD(u64, sharedMemBytes) FIELD(ptr, stream)) \
    OPERATION(hipLaunchKernel_spt, FIELD(ptr, function_address) FIELD(dim, numBlocks) FIELD(dim, dimBlocks) FIELD(ptr, args) FIELD(u64, sharedMemBytes) FIELD(ptr, stream)) \
    OPERATION(hipExtLaunchKernel, FIELD(ptr, function_address) FIELD(dim, numBlocks) FIELD(dim, dimBlocks) FIELD(ptr, args) FIELD(u64, sharedMemBytes) FIELD(ptr, stream) FIELD(ptr, startEvent) FIELD(ptr, stopEvent) FIELD(int, flags)) \
    OPERATION(hipLaunchCooperativeKernel, FIELD(ptr, func) FIELD(dim, gridDim) FIELD(dim, blockDimX) FIELD(ptr, kernelParams) FIELD(u32, sharedMemBytes) FIELD(ptr, stream)) \
    OPERATION(hipModuleLaunchKernel, FIELD(ptr, func) FIELD(u32, gridDimX) FIELD(u32, gridDimY) FIELD(u32, gridDimZ) FIELD(u32, blockDimX) FIELD(u32, blockDimY) FIELD(u32, blockDimZ) FIELD(u32, sharedMemBytes) FIELD(ptr, stream) FIELD(ptr, kernelParams) FIELD(ptr, extra)) \
    OPERATION(hipModuleLaunchCooperativeKernel, FIELD(ptr, func) FIELD(u32, gridDimX) FIELD(u32, gridDimY) FIELD(u32, gridDimZ) FIELD(u32, blockDimX) FIELD(u32, blockDimY) FIELD(u32, blockDimZ) FIELD(u32, sharedMemBytes) FIELD(ptr, stream) FIELD(ptr, kernelParams)) \
    OPERATION(hipExtModuleLaunchKernel, FIELD(ptr, func) FIELD(u32, globalWorkSizeX) FIELD(u32, globalWorkSizeY) FIELD(u32, globalWorkSizeZ) FIELD(u32, localWorkSizeX) FIELD(u32, localWorkSizeY) FIELD(u32, localWorkSizeZ) FIELD(u64, sharedMemBytes) FIELD(ptr, stream) FIELD(ptr, kernelParams) FIELD(ptr, extra) FIELD(ptr, startEvent) FIELD(ptr, stopEvent) FIELD(u32, flags)) \
    OPERATION(hipLaunchKernelExC, FIELD(described, config) FIELD(ptr, fPtr) FIELD(ptr, args)) \
    OPERATION(hipDrvLaunchKernelEx, FIELD(described, config) FIELD(ptr, f) FIELD(ptr, kernel) FIELD(ptr, extra)) \
    OPERATION(hipConfigureCall, FIELD(dim, gridDim) FIELD(dim, blockDim) FIELD(u64, sharedMem) FIELD(ptr, stream)) \
    OPERATION(hipLaunchByPtr, FIELD(ptr, func)) \
    OPERATION(hipLaunchCooperativeKernelMultiDevice, FIELD(devices, launchParamsList) FIELD(int, numDevices) FIELD(u32, flags)) \
    OPERATION(hipExtLaunchMultiKernelMultiDevice, FIELD(devices, launchParamsList) FIELD(int, numDevices) FIELD(u32, flags)) \
    OPERATION(hipStreamCreate, FIELD(out, stream)) \
    OPERATION(hipStreamCreateWithFlags, FIELD(out, stream) FIELD(u32, flags)) \
    OPERATION(hipStreamCreateWithPriority, FIELD(out, stream) FIELD(u32, flags) FIELD(int, priority)) \
    OPERATION(hipStreamDestroy, FIELD(ptr, stream)) \
    OPERATION(hipStreamSynchronize, FIELD(ptr, stream)) \
    OPERATION(hipStreamSynchronize_spt, FIELD(ptr, stream)) \
    OPERATION(hipDeviceSynchronize, FIELD(u8, no_args)) \
    OPERATION(hipCtxSynchronize, FIELD(u8, no_args)) \
    OPERATION(hipDeviceReset, FIELD(u8, no_args)) \
    OPERATION(hipSetDevice, FIELD(int, deviceId)) \
    OPERATION(hipStreamWaitEvent, FIELD(ptr, stream) FIELD(ptr, event) FIELD(u32, flags)) \
    OPERATION(hipStreamWaitEvent_spt, FIELD(ptr, stream) FIELD(ptr, event) FIELD(u32, flags)) \
    OPERATION(hipStreamBeginCapture, FIELD(ptr, stream) FIELD(int, mode)) \
    OPERATION(hipStreamEndCapture, FIELD(ptr, stream) FIELD(out, pGraph)) \
    OPERATION(hipStreamAttachMemAsync, FIELD(ptr, stream) FIELD(ptr, dev_ptr) FIELD(u64, length) FIELD(u32, flags)) \
    OPERATION(hipEventCreate, FIELD(out, event)) \
    OPERATION(hipEventCreateWithFlags, FIELD(out, event) FIELD(u32, flags)) \
    OPERATION(hipEventDestroy, FIELD(ptr, event)) \
    OPERATION(hipEventRecord, FIELD(ptr, event) FIELD(ptr, stream)) \
    OPERATION(hipEventRecord_spt, FIELD(ptr, event) FIELD(ptr, stream)) \
    OPERATION(hipEventSynchronize, FIELD(ptr, event)) \
    OPERATION(hipEventQuery, FIELD(ptr, event)) \
    OPERATION(hipGraphInstantiate, FIELD(out, pGraphExec) FIELD(ptr, graph) FIELD(ptr, pErrorNode) FIELD(ptr, pLogBuffer) FIELD(u64, bufferSize)) \
    OPERATION(hipGraphInstantiateWithFlags, FIELD(out, pGraphExec) FIELD(ptr, graph) FIELD(u64, flags)) \
    OPERATION(hipGraphLaunch, FIELD(ptr, graphExec) FIELD(ptr, stream)) \
    OPERATION(hipGraphLaunch_spt, FIELD(ptr, graphExec) FIELD(ptr, stream)) \
    OPERATION(hipGraphUpload, FIELD(ptr, graphExec) FIELD(ptr, stream)) \
    OPERATION(hipGraphDestroy, FIELD(ptr, graph)) \
    OPERATION(hipGraphExecDestroy, FIELD(ptr, graphExec)) \
    OPERATION(hipMemPrefetchAsync, FIELD(ptr, dev_ptr) FIELD(u64, count) FIELD(int, device) FIELD(ptr, stream)) \
    OPERATION(hipMemAdvise, FIELD(ptr, dev_ptr) FIELD(u64, count) FIELD(int, advice) FIELD(int, device)) \
    OPERATION(hipProfilerStart, FIELD(u8, no_args)) \
    OPERATION(hipProfilerStop, FIELD(u8, no_args)) \
    OPERATION(hipModuleLoad, FIELD(out, module) FIELD(text, fname)) \
    OPERATION(hipModuleLoadData, FIELD(out, module) FIELD(ptr, image)) \
    OPERATION(hipModuleUnload, FIELD(ptr, module)) \
    OPERATION(hipGetErrorName, FIELD(int, hip_error)) \
    OPERATION(hipGetLastError, FIELD(u8, no_args))

#define MARKER_CORE_OPERATIONS(OPERATION, FIELD) \
    OPERATION(roctxMarkA, FIELD(text, message)) \
    OPERATION(roctxRangePushA, FIELD(text, message)) \
    OPERATION(roctxRangePop, FIELD(u8, no_args)) \
    OPERATION(roctxRangeStartA, FIELD(text, message)) \
    OPERATION(roctxRangeStop, FIELD(u64, id)) \
    OPERATION(roctxGetThreadId, FIELD(ptr, tid))

#define MARKER_CONTROL_OPERATIONS(OPERATION, FIELD) \
    OPERATION(roctxProfilerPause, FIELD(u64, tid)) \
    OPERATION(roctxProfilerResume, FIELD(u64, tid))

#define MARKER_NAME_OPERATIONS(OPERATION, FIELD) \
    OPERATION(roctxNameOsThread, FIELD(text, name)) \
    OPERATION(roctxNameHsaAgent, FIELD(text, name) FIELD(ptr, agent)) \
    OPERATION(roctxNameHipDevice, FIELD(text, name) FIELD(int, device_id)) \
    OPERATION(roctxNameHipStream, FIELD(text, name) FIELD(ptr, stream))

#define MARKER_RANGE_OPERATIONS(OPERATION, FIELD) \
    OPERATION(roctxThreadRangeA, FIELD(text, message)) \
    OPERATION(roctxProcessRangeA, FIELD(text, message))
/* clang-format on */
