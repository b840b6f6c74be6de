/* The public functions of NCCL that fake_nccl.c plays, as nccl.h 2.28 declares them. */
#ifndef PASTA_FAKE_NCCL_H
#define PASTA_FAKE_NCCL_H

#include <stddef.h>

typedef struct fake_communicator *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef int ncclResult_t; /* 0: success, 4: invalid argument, 5: invalid usage */
typedef void *ncclStream;
enum { ncclInt8 = 0, ncclFloat16 = 6, ncclFloat32 = 7, ncclSum = 0 };

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *made, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitAll(ncclComm_t *made, int devices, const int *device);
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *made, void *config);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclCommCount(const ncclComm_t communicator, int *count);
ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int *rank);
ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int *device);
ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction, ncclComm_t communicator,
                           ncclStream stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t communicator, ncclStream stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t communicator,
                           ncclStream stream);
ncclResult_t ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t communicator, ncclStream stream);
ncclResult_t ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t communicator, ncclStream stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#endif
