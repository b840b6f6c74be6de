/* Compiled only: what shim/communication/nccl/nccl.c assumes of nccl.h. */
#include <cuda_runtime_api.h>

#include "nccl.h"

#define TAKES(function, ...)                                                                                 \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&function), ncclResult_t (*)(__VA_ARGS__)), #function)

TAKES(ncclAllReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
TAKES(ncclReduceScatter, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
TAKES(ncclReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclBroadcast, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclBcast, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclAllGather, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
#if NCCL_VERSION_CODE >= 22800
TAKES(ncclAlltoAll, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
TAKES(ncclGather, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclScatter, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
#endif
TAKES(ncclSend, const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclRecv, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
TAKES(ncclCommInitRank, ncclComm_t *, int, ncclUniqueId, int);
TAKES(ncclCommInitRankConfig, ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *);
#if NCCL_VERSION_CODE >= 22300
TAKES(ncclCommInitRankScalable, ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);
#endif
TAKES(ncclCommInitAll, ncclComm_t *, int, const int *);
TAKES(ncclCommSplit, ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *);
#if NCCL_VERSION_CODE >= 22700
TAKES(ncclCommShrink, ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);
#endif
TAKES(ncclCommDestroy, ncclComm_t);
TAKES(ncclCommAbort, ncclComm_t);
TAKES(ncclGroupStart, void);
TAKES(ncclGroupEnd, void);
TAKES(ncclCommCount, const ncclComm_t, int *);
TAKES(ncclCommUserRank, const ncclComm_t, int *);
TAKES(ncclCommCuDevice, const ncclComm_t, int *);
TAKES(ncclGetVersion, int *);

_Static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3 && ncclInt64 == 4, "integers");
_Static_assert(ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7 && ncclFloat64 == 8, "numbers");
_Static_assert(ncclBfloat16 == 9, "bfloat16");
_Static_assert(sizeof(ncclUniqueId) == 128 && ncclSuccess == 0 && ncclSystemError == 2 && ncclInProgress == 7, "");
