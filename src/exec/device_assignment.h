/*
 * device_assignment.h -- which rank drives which GPU, and the transport between them.
 */
#ifndef SNUG_EXEC_DEVICE_ASSIGNMENT_H
#define SNUG_EXEC_DEVICE_ASSIGNMENT_H

#include "comm/comm.h"
#include "exec/backend.h"

enum { TRANSPORT_TEXT_MAX = 256 };

struct device_assignment {
    int n_ranks;
    int *gpu;       /* of each rank, by its number in its machine */
    bool is_direct; /* NCCL, not through the host */
    /* For the user: "NCCL 2.27.3", or through the host and why. */
    char transport[TRANSPORT_TEXT_MAX];
};

/* Opens this rank's GPU.  Rank r of a machine takes GPU r modulo the number of GPUs.  Collective;
 * comm is NULL for a single rank. */
enum snug_status device_assignment_take(struct comm *comm, const struct device_hooks *hooks,
                                        struct device **device, struct snug_error *err);
/* Chooses the transport: NCCL if every rank has a GPU of its own and the library, else through the
 * host.  SNUG_NCCL=off never uses NCCL, SNUG_NCCL=force fails without it.  Collective. */
enum snug_status device_assignment_agree(struct comm *comm, const struct device_hooks *hooks,
                                         struct device *device,
                                         struct device_assignment **device_assignment,
                                         struct snug_error *err);
void device_assignment_free(struct device_assignment *device_assignment);

/* How many ranks run on this machine, this one included.  Collective. */
enum snug_status device_assignment_ranks_here(struct comm *comm, int *n_here,
                                              struct snug_error *err);

#endif
