/*
 * nccl.h -- the part of NCCL that snug calls.
 *
 * NCCL is loaded at run time (dlopen), never linked: the plugin loads on machines without it and is
 * built without its header.  So this file declares the functions and constants.  They are the same
 * in every NCCL 2 since 2.10, and tests/cudnn compares them with nccl.h where that is installed.
 */
#ifndef SNUG_CUDA_NCCL_H
#define SNUG_CUDA_NCCL_H

#include "cuda/runtime.h"
#include "exec/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm;

struct nccl_id {
    char bytes[DIRECT_ID_BYTES];
};

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_SUM = 0 };
enum nccl_type { NCCL_INT8 = 0, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };

/* Each is named after its NCCL function.  All but error_text and last_error return NCCL_SUCCESS or
 * an error code. */
struct nccl_calls {
    int (*get_version)(int *version);
    int (*get_id)(struct nccl_id *id);
    int (*init_rank)(struct ncclComm **comm, int n_ranks, struct nccl_id id, int rank);
    int (*destroy)(struct ncclComm *comm);
    int (*abort)(struct ncclComm *comm);
    int (*async_error)(struct ncclComm *comm, int *error);
    const char *(*error_text)(int error);
    const char *(*last_error)(struct ncclComm *comm);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int sum,
                      struct ncclComm *comm, cudaStream_t stream);
    int (*reduce)(const void *from, void *to, size_t n, int type, int sum, int root,
                  struct ncclComm *comm, cudaStream_t stream);
    int (*reduce_scatter)(const void *from, void *to, size_t n, int type, int sum,
                          struct ncclComm *comm, cudaStream_t stream);
    int (*broadcast)(const void *from, void *to, size_t n, int type, int root,
                     struct ncclComm *comm, cudaStream_t stream);
    int (*all_gather)(const void *from, void *to, size_t n, int type, struct ncclComm *comm,
                      cudaStream_t stream);
    int (*send)(const void *from, size_t n, int type, int peer, struct ncclComm *comm,
                cudaStream_t stream);
    int (*recv)(void *to, size_t n, int type, int peer, struct ncclComm *comm, cudaStream_t stream);
};

/* Defined in nccl_load.c, or by the emulation.  Returns NULL and the reason if NCCL is not
 * available. */
const struct nccl_calls *nccl_find(char why[DEVICE_TEXT_MAX]);

/* nccl.c */
extern const struct direct_hooks cuda_direct;

#ifdef __cplusplus
}
#endif

#endif
