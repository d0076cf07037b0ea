/*
 * device_assignment.h -- which GPU each rank has, and which way exchanges go between them.
 */
#ifndef SNUG_EXEC_DEVICE_ASSIGNMENT_H
#define SNUG_EXEC_DEVICE_ASSIGNMENT_H

#include "comm/comm.h"
#include "exec/backend.h"

enum { SEATS_WAY_MAX = 256 };

struct seats {
    int n_ranks;
    int *gpu;                /* of each rank, by its number in its machine */
    bool is_direct;          /* without the host */
    char way[SEATS_WAY_MAX]; /* for the user: "NCCL 2.27.3", or through the host and why */
};

/* All ranks come to both, or a rank that is alone.  The r-th rank of a machine takes its GPU r, and those
 * beyond the last one begin again. */
enum snug_status seats_take(struct comm *comm, const struct device_hooks *hooks,
                            struct device **device, struct snug_error *err);
/* Which way: directly where every rank has a GPU of its own and the library for it.  SNUG_NCCL: "off",
 * never; "force", or not at all. */
enum snug_status seats_agree(struct comm *comm, const struct device_hooks *hooks,
                             struct device *device, struct seats **seats, struct snug_error *err);
void seats_free(struct seats *seats);

/* Does SNUG_NCCL ask for exchanges even of a rank that is alone? */
bool seats_are_forced(void);

#endif
