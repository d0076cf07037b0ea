/*
 * device_assignment.h -- which GPU each rank has, and which way collectives go between them.
 */
#ifndef SNUG_EXEC_DEVICE_ASSIGNMENT_H
#define SNUG_EXEC_DEVICE_ASSIGNMENT_H

#include "comm/comm.h"
#include "exec/backend.h"

enum { TRANSPORT_TEXT_MAX = 256 };

struct device_assignment {
    int n_ranks;
    int *gpu;                     /* of each rank, by its number in its machine */
    bool is_direct;               /* without the host */
    char way[TRANSPORT_TEXT_MAX]; /* for the user: "NCCL 2.27.3", or through the host and why */
};

/* All ranks come to both, or a rank that is alone.  The r-th rank of a machine takes its GPU r, and those
 * beyond the last one begin again. */
enum snug_status device_assignment_take(struct comm *comm, const struct device_hooks *hooks,
                                        struct device **device, struct snug_error *err);
/* Which way: directly where every rank has a GPU of its own and the library for it.  SNUG_NCCL: "off",
 * never; "force", or not at all. */
enum snug_status device_assignment_agree(struct comm *comm, const struct device_hooks *hooks,
                                         struct device *device,
                                         struct device_assignment **device_assignment,
                                         struct snug_error *err);
void device_assignment_free(struct device_assignment *device_assignment);

/* How many of the ranks share this one's machine, itself included.  All ranks come to it. */
enum snug_status ranks_on_this_machine(struct comm *comm, int *n_here, struct snug_error *err);

#endif
